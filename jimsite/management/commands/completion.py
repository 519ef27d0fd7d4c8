from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.completion import SHELLS, script
from jimsite.terminal import JimCommand


class Command(JimCommand):
    help = (
        "Print a shell script for tab completion of JIM's commands, options and schedule names. "
        "Load it with: source <(manage.py completion bash), or source <(manage.py completion zsh)."
    )
    has_json = False
    requires_system_checks = []
    needs_database = False

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("shell", choices=SHELLS)
        parser.add_argument(
            "--program",
            default="jim",
            metavar="NAME",
            help="an alias of manage.py to complete as well (default: jim)",
        )

    def run(self, options: dict[str, Any]) -> None:
        self.stdout.write(script(options["shell"], program=options["program"]))
