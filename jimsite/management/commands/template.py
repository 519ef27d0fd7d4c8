from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jimsite.arguments import called
from jimsite.terminal import state
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import TaskTemplate

NONE_YET = "“importschedules” creates them from a file"


def template_called(text: str) -> TaskTemplate:
    """Find the active template with this name or, if there is none, the newest archived one."""
    rows = TaskTemplate.objects.order_by("status", "-pk")
    found: TaskTemplate = called(rows, text, by="name", kind="template", none_yet=NONE_YET)
    return found


class Command(VerbsCommand):
    help = (
        "List, archive and restore step templates. To create or change templates, use “importschedules”; "
        "to queue a job from a template, use “job run --template”."
    )

    def verbs(self) -> Iterator[Verb]:
        yield Verb("list", "List all templates, active ones first.", self.list_all)
        target = Target("TEMPLATE", "name of the template", template_called)
        yield from self.operations_of(TaskTemplate, target, but=["run"])

    def list_all(self, options: dict[str, Any]) -> None:
        rows = list(TaskTemplate.objects.order_by("status", "name", "pk"))
        facts = [
            {
                "name": row.name,
                "status": row.status,
                "step_type": row.step_type,
                "description": row.description,
            }
            for row in rows
        ]
        self.tell({"templates": facts}, lambda: self._show(rows))

    def _show(self, rows: Sequence[TaskTemplate]) -> None:
        if not rows:
            self.say(f"No templates yet: {NONE_YET}.")
            return
        self.columns(
            {
                "State": [
                    state(row.status, of="cancelled" if row.is_archived else "complete") for row in rows
                ],
                "Template": [row.name for row in rows],
                "Type": [row.step_type for row in rows],
                "Description": [row.description for row in rows],
            }
        )
