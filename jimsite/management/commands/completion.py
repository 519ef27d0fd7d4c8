from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.completion import SHELLS, script
from jimsite.terminal import JimCommand


class Command(JimCommand):
    help = (
        "Print what a shell needs to complete JIM's commands, their options and the names of schedules. For "
        "bash: source <(manage.py completion bash). For zsh: source <(manage.py completion zsh)."
    )
    has_json = False
    requires_system_checks = []
    needs_database = False

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("shell", choices=SHELLS)
        parser.add_argument(
            "--program", default="jim", metavar="NAME", help="an alias that is completed as well (jim)"
        )

    def run(self, options: dict[str, Any]) -> None:
        self.stdout.write(script(options["shell"], program=options["program"]))
