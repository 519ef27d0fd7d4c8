"""Stands in for PowerShell where there is none: a real program with its options, streams and exit codes.

Of the language it knows only the statements, one per line, that the scripts of the tests are made of.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TextIO

NOT_FOUND = 64  # as the real one
RED, PLAIN = "\x1b[31;1m", "\x1b[0m"


def main(options: list[str]) -> int:
    if options == ["-Version"]:
        say("PowerShell 0.0 (a stand-in)")
        return 0
    *flags, script = options[: options.index("-File") + 2]
    assert flags == ["-NoLogo", "-NoProfile", "-NonInteractive", "-File"], flags
    if not Path(script).exists():
        complain(f"The argument '{script}' is not recognized as the name of a script file.")
        return NOT_FOUND
    return Script(options[len(flags) + 1 :]).run(Path(script).read_text().splitlines())


class Script:
    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.last_exit_code = 0

    def run(self, lines: list[str]) -> int:
        for line in filter(None, map(str.strip, lines)):
            verb, _, rest = line.partition(" ")
            text = self.expand(rest.strip("\"'"))
            match verb:
                case "Write-Output":
                    say(text)
                case "throw":
                    complain(f"Exception: {text}")
                    return 1
                case "exit":
                    return int(text)
                case "&":
                    self.last_exit_code = subprocess.run(shlex.split(rest)).returncode
                case _:
                    complain(f"{verb}: The term '{verb}' is not recognized as a name of a cmdlet.")
        return 0

    def expand(self, text: str) -> str:
        text = re.sub(r"\$\(\$args\[(\d+)\]\)", lambda found: self.arguments[int(found[1])], text)
        text = re.sub(r"\$env:(\w+)", lambda found: os.environ.get(found[1], ""), text)
        known = {"$PWD": Path.cwd(), "$LASTEXITCODE": self.last_exit_code}
        known |= {"$($args.Count)": len(self.arguments)}
        for name, value in known.items():
            text = text.replace(name, str(value))
        return text


def complain(text: str) -> None:
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    say(text if is_plain else f"{RED}{text}{PLAIN}", sys.stderr)


def say(text: str, stream: TextIO = sys.stdout) -> None:
    stream.write(f"{text}\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
