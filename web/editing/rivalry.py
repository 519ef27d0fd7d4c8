"""Two people edit one schedule: who did what meanwhile, and what saving on top of it would change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activities.models import Activity
from schedules.models import Schedule
from schedules.models.template import same_json
from schedules.revisions import Change, Revision, compare, records_of

from .draft import Draft
from .reading import Reading
from .saving import as_written, number_of, typed
from .stored import newest_record, with_theirs

MOST_RECORDS = 20
PARTS = {"spec": "times", "steps": "steps"}
SAID = {"pause": "paused it", "resume": "resumed it", "skip": "left out a run", "unskip": "took a skip back"}


@dataclass(frozen=True)
class Rivalry:
    """What others did while somebody was typing, and what saving would change of that."""

    revisions: list[Revision]
    others: list[tuple[Activity, str]]
    taken: list[str]
    changes: list[tuple[str, str, list[Change]]]


def reconciled(reading: Reading, *, token: int) -> Draft:
    """The draft on top of what others have saved: theirs wherever nobody has typed anything else."""
    schedule = reading.schedule
    assert schedule is not None
    taken = untouched(reading)
    draft = reading.draft
    for part in taken:
        draft = with_theirs(draft, part, schedule)
    known = reading.draft.own.get("taken", "").split()
    return draft.with_own(
        token=str(token),
        conflict="yes",
        base=str(newest_record(schedule)),
        taken=" ".join(dict.fromkeys([*known, *taken])),
    )


def untouched(reading: Reading) -> list[str]:
    """The parts that only others have changed."""
    schedule, own = reading.schedule, reading.draft.own
    assert schedule is not None
    base = _definition_at(schedule, number_of(own.get("base") or own.get("seen", "")))
    if base is None:
        return []
    theirs = schedule.definition()
    mine = typed(reading) | {"steps": as_written(reading)}
    return [
        name
        for name, value in theirs.items()
        if name in mine and same_json(mine[name], base.get(name)) and not same_json(value, base.get(name))
    ]


def _definition_at(schedule: Schedule, record: int) -> dict[str, Any] | None:
    """As it was when this was its newest record; None if nobody has edited it since, or too often."""
    revisions = schedule.revisions()
    since = len(revisions.since(record, most=MOST_RECORDS))
    return revisions[since].definition if 0 < since < min(len(revisions), MOST_RECORDS) else None


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
        [_named(part) for part in own.get("taken", "").split()],
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
    return [(name, _named(name), changes) for name, changes in parts.items()]


def _named(part: str) -> str:
    return PARTS.get(part, part.replace("_", " "))
