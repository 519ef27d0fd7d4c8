#!/bin/sh
# Prints how full each disk is, in percent. With a limit as argument, exits with code 1 if a disk is fuller.
set -eu
limit=${1:-100}
echo "Disk usage for ${JIM_STEP:-a manual run}, attempt ${JIM_ATTEMPT:-1}:"
df -Pk | awk -v limit="$limit" '
    NR > 1 && $2 > 0 {
        used = $5; sub(/%/, "", used)
        printf "%4s%%  %s\n", used, $6
        if (used + 0 > limit + 0) { full = 1; print $6 " is fuller than " limit "%" > "/dev/stderr" }
    }
    END { exit full }'
