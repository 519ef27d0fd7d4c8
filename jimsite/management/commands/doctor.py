from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.text import Text

from jimsite.doctor import SEVERITIES, Finding, examine
from jimsite.terminal import JimCommand, state
from schedules.spec.wording import counted

TONES = {"ok": "ok", "note": "pending", "warning": "warning", "error": "failed"}
CODES = {"warning": 1, "error": 2}


class Command(JimCommand):
    help = (
        "Check this installation: database, clocks, migrations, scheduler, workers, stuck work, workflows, "
        "webhooks, configuration. Each problem is shown with a remedy. The command changes nothing."
    )
    exit_codes = {0: "no problems", 1: "warnings", 2: "errors"}
    requires_system_checks = []
    needs_database = False

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("--all", action="store_true", help="also show checks without problems")

    def run(self, options: dict[str, Any]) -> None:
        findings = examine()
        worst = max((SEVERITIES.index(each.severity) for each in findings), default=0)
        verdict = SEVERITIES[worst]
        facts = {"verdict": verdict, "findings": [each.as_json() for each in findings]}
        self.tell(facts, lambda: self._show(findings, everything=options["all"]))
        if verdict in CODES:
            bad = [each for each in findings if each.severity in CODES]
            raise CommandError(f"{counted(len(bad), 'problem')} found.", returncode=CODES[verdict])

    def _show(self, findings: Sequence[Finding], *, everything: bool) -> None:
        for finding in findings:
            if finding.severity == "ok" and not everything:
                continue
            line = state(finding.severity, of=TONES[finding.severity]).append(f"  {finding.subject}: ")
            line.append(Text(finding.text, style="default"))
            self.console.print(line, soft_wrap=True)
            if finding.remedy:
                self.say(f"    → {finding.remedy}", style="bright_black")
        fine = sum(each.severity == "ok" for each in findings)
        if not everything and fine:
            self.say(f"✓ {counted(fine, 'check')} without problems (--all shows them).", "green")
