from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jimsite.terminal import WRONG, JimCommand, printable
from schedules.spec.wording import counted
from workflows import deployment, discovery
from workflows.deployment import Change


class Command(JimCommand):
    help = (
        "Deploy the workflows in the code, and show what changed. Schedulers do this when they start. "
        "Workflows that are no longer in the code are stopped, but never deleted."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="show what would change without changing it"
        )

    def run(self, options: dict[str, Any]) -> None:
        is_dry, problems = options["dry_run"], discovery.problems()
        deploy = deployment.rehearse if is_dry else deployment.deploy
        changes = deploy(discovery.definitions(), initiator=self.by, now=self.now)
        facts = {
            "dry_run": is_dry,
            "changes": [{"how": each.how, "what": each.what, "details": each.details} for each in changes],
            "problems": problems,
        }
        self.tell(facts, lambda: self._show(changes, is_dry=is_dry))
        if problems:
            listed = printable("; ".join(problems))
            raise CommandError(
                f"Left out {counted(len(problems), 'module')} with errors: {listed}", returncode=WRONG
            )

    def _show(self, changes: Sequence[Change], *, is_dry: bool) -> None:
        if not changes:
            self.say("No changes: the database matches the code.")
            return
        self.columns(
            {
                "Change": [each.how for each in changes],
                "What": [each.what for each in changes],
                "Details": ["; ".join(each.details) for each in changes],
            }
        )
        if is_dry:
            self.say("Dry run: nothing was changed.")
