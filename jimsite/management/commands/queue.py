from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Case, Count, IntegerField, Value, When
from rich.text import Text

from execution.models import WorkerTask
from execution.models.task_queryset import WorkerTaskQuerySet
from execution.queue.order import FIELDS
from execution.queue.waits import reasons
from jimsite.arguments import at_most, tasks
from jimsite.terminal import JimCommand, state

STATUSES = WorkerTask.Status.values
IN_TURN = {"processing": 0, "queued": 1, "waiting": 2}


class Command(JimCommand):
    help = "List running and waiting tasks in the order of the queue, with the reason why each one waits."

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("--pool", default="", help="only tasks of this pool")
        parser.add_argument("--status", choices=STATUSES, help="only tasks in this state")
        at_most(parser, 50)

    def run(self, options: dict[str, Any]) -> None:
        now, rows = self.now, chosen(options)
        found = list(in_turn(rows)[: options["limit"]])
        counts: list[Any] = list(
            rows.order_by("pool", "status").values("pool", "status").annotate(tasks=Count("pk"))
        )
        why = reasons(found, now=now)
        facts = {"pools": counts, "tasks": [facts_of(task, why[task.pk]) for task in found]}
        self.tell(
            facts,
            lambda: self._show(found, why, counts, is_narrowed=bool(options["pool"] or options["status"])),
        )

    def _show(
        self, found: Sequence[WorkerTask], why: Mapping[int, str], counts: Sequence[Any], *, is_narrowed: bool
    ) -> None:
        if not found:
            self.say("No tasks match these filters." if is_narrowed else "The queue is empty.")
            return
        self.say(", ".join(f"{each['pool']}: {each['tasks']:,} {each['status']}" for each in counts))
        self.console.print()
        columns: dict[str, list[str | Text]] = {
            "State": [state(task.state) for task in found],
            "Task": [Text(task.name, style="bold") for task in found],
            "Of": [str(task.execution or task.key) for task in found],
            "Pool": [task.pool for task in found],
            "Priority": [str(task.priority) if task.priority else "" for task in found],
            "Attempt": [str(task.attempt) if task.attempt > 1 else "" for task in found],
            "Activity": [str(task.activity_id) for task in found],
            "Why": [why[task.pk] for task in found],
        }
        total = sum(each["tasks"] for each in counts)
        more = (
            f"Showing {len(found):,} of {tasks(total)}; use --limit to see more."
            if total > len(found)
            else ""
        )
        self.columns(columns, spare=("Pool", "Of"), rest=more)


def chosen(options: dict[str, Any]) -> WorkerTaskQuerySet:
    rows: WorkerTaskQuerySet = WorkerTask.objects.all()
    rows = rows.filter(pool=options["pool"]) if options["pool"] else rows
    return rows.filter(status=options["status"]) if options["status"] else rows


def in_turn(rows: WorkerTaskQuerySet) -> WorkerTaskQuerySet:
    places = [When(status=status, then=Value(place)) for status, place in IN_TURN.items()]
    ordered = rows.alias(place=Case(*places, output_field=IntegerField())).order_by(
        "place", "is_delayed", *FIELDS
    )
    return ordered.select_related("execution", "worker").defer("execution__plan", "execution__last_result")


def facts_of(task: WorkerTask, why: str) -> dict[str, Any]:
    return {
        "key": task.key,
        "name": task.name,
        "state": task.state,
        "why": why,
        "execution": task.execution_id,
        "activity": task.activity_id,
        "pool": task.pool,
        "priority": task.priority,
        "position": task.position,
        "attempt": task.attempt,
        "available_at": task.available_at,
        "claimed_at": task.claimed_at,
        "worker": str(task.worker) if task.worker else None,
    }
