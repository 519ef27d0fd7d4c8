from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from rich.text import Text

from jimsite.arguments import schedule_name
from jimsite.terminal import JimCommand, on_clock, state, when
from schedules.description import Description
from schedules.models import Schedule
from text.words import span


class Command(JimCommand):
    help = "Show a schedule: its state, last executions, next runs and counters."

    def ask(self, parser: CommandParser) -> None:
        schedule_name(parser)

    def run(self, options: dict[str, Any]) -> None:
        schedule = Schedule.objects.called(options["schedule"])
        described = schedule.describe(now=self.now)
        self.tell({"id": schedule.pk} | described.as_json(), lambda: self._show(schedule, described))

    def _show(self, schedule: Schedule, told: Description) -> None:
        shown = state("overdue" if told.is_overdue else told.state)
        title = Text(f"{told.name}  ", style="bold") + shown
        self.console.print(title, soft_wrap=True)
        self.facts(_facts(schedule, told))
        if told.running or told.results:
            self.console.print()
            self._show_runs(schedule, told)
        if told.upcoming:
            self.console.print()
            self.columns(
                {
                    f"Next runs ({told.time_zone})": [
                        on_clock(row.at, schedule.zone) for row in told.upcoming
                    ],
                    "From now": [when(row.at, now=self.now) for row in told.upcoming],
                    "Note": [row.note for row in told.upcoming],
                }
            )

    def _show_runs(self, schedule: Schedule, told: Description) -> None:
        now = self.now
        running = [
            (
                each.id,
                "cancelling" if each.is_cancelling else "in_progress",
                each.source,
                each.since,
                None,
                "",
            )
            for each in told.running
        ]
        ended = [
            (each.execution_id, each.outcome, each.source, each.started_at, each.duration, each.error)
            for each in told.results
        ]
        rows = [*running, *ended]
        columns: dict[str, list[str | Text]] = {
            "Execution": [str(pk) for pk, *_ in rows],
            "State": [state(outcome) for _, outcome, *_ in rows],
            "Source": [source for _, _, source, *_ in rows],
            "Started": [when(since, now=now) for _, _, _, since, *_ in rows],
            "Took": [span(took) if took is not None else "" for *_, took, _ in rows],
            "Error": [error.partition("\n")[0] for *_, error in rows],
        }
        self.columns(columns, spare=("Source",))


def _facts(schedule: Schedule, told: Description) -> list[tuple[str, str | Text]]:
    count = told.counters
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in count.skipped_by_reason.items())
    pause, zone = told.pause, schedule.zone
    until = f" until {on_clock(pause.until, zone)} {zone.key}" if pause and pause.until else ""
    rows: list[tuple[str, str | Text]] = [
        ("When", told.sentence),
        ("Broken", told.spec_error),
        ("Paused", f"by {pause.by}{until}" + (f": {pause.note}" if pause.note else "") if pause else ""),
        ("Tags", ", ".join(told.tags)),
        ("Memo", ", ".join(f"{name}: {text}" for name, text in told.memo.items())),
        ("Started", f"{count.started:,}, of which {count.failed:,} failed" if count.started else "never"),
        ("Skipped", f"{count.skipped:,} ({reasons})" if count.skipped else ""),
        ("Missed", f"{count.missed:,}" if count.missed else ""),
        ("Dropped", f"{count.dropped:,}" if count.dropped else ""),
        ("Waiting", f"{count.buffered:,}" if count.buffered else ""),
        ("Runs left", f"{count.remaining:,}" if count.remaining is not None else ""),
        ("Last failure", told.last_failure),
        *(
            (f"Backfill {each.id}", f"{each.passed - each.waiting:,} of {each.total:,}")
            for each in told.backfills
        ),
    ]
    return [(name, text) for name, text in rows if text]
