#!/bin/sh
# How full the disks are, in percent; with a limit as argument, exit code 1 if one is fuller than that.
set -eu
limit=${1:-100}
echo "Disks for ${JIM_STEP:-nobody in particular}, attempt ${JIM_ATTEMPT:-1}:"
df -Pk | awk -v limit="$limit" '
    NR > 1 && $2 > 0 {
        used = $5; sub(/%/, "", used)
        printf "%4s%%  %s\n", used, $6
        if (used + 0 > limit + 0) { full = 1; print $6 " is fuller than " limit "%" > "/dev/stderr" }
    }
    END { exit full }'
