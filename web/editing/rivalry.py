"""Two people edit one schedule: who did what meanwhile, and what saving on top of it would change."""

from __future__ import annotations

from dataclasses import dataclass

from activities.models import Activity
from schedules.models import Schedule
from schedules.revisions import Change, Revision, compare, records_of

from .reading import Reading
from .saving import as_written, number_of, typed

MOST_RECORDS = 20
PARTS = {"spec": "times", "steps": "steps"}
SAID = {"pause": "paused it", "resume": "resumed it", "skip": "left out a run", "unskip": "took a skip back"}


@dataclass(frozen=True)
class Rivalry:
    """What others did while somebody was typing, and what saving would change of that."""

    revisions: list[Revision]
    others: list[tuple[Activity, str]]
    changes: list[tuple[str, str, list[Change]]]


def rivalry(reading: Reading) -> Rivalry | None:
    """None while nobody else has changed it."""
    schedule, own = reading.schedule, reading.draft.own
    if schedule is None or (own.get("token") == str(schedule.token) and not own.get("conflict")):
        return None
    seen = number_of(own.get("seen", ""))
    records = records_of(schedule).filter(pk__gt=seen).exclude(operation="edit").order_by("-pk")
    return Rivalry(
        schedule.revisions().since(seen, most=MOST_RECORDS),
        [(record, SAID.get(record.operation, record.operation)) for record in records[:MOST_RECORDS]],
        _undone(schedule, reading),
    )


def _undone(schedule: Schedule, reading: Reading) -> list[tuple[str, str, list[Change]]]:
    """By part of the form: its field, its name, and what would change."""
    if not reading.is_right:
        return []
    now = schedule.definition() | {"remaining": schedule.remaining}
    mine = {**now, **typed(reading), "steps": as_written(reading)}
    parts: dict[str, list[Change]] = {}
    for change in compare(now, mine):
        name = change.path.split(".")[0].split(",")[0].split("[")[0]
        parts.setdefault(name, []).append(change)
    return [(name, PARTS.get(name, name.replace("_", " ")), changes) for name, changes in parts.items()]
