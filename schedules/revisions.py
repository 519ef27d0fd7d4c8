"""The versions of a schedule's definition, from its activities: who changed what and when."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, NamedTuple, overload

from django.db.models import Model, Q

from activities.models import Activity, ActivityQuerySet
from operations.initiator import Initiator

from .models import Schedule, SharedCalendar, Step

PAGE = 100
LONGEST_SHOWN = 200
LONGEST_COMPARED = 1_000
# Calendars and templates are recorded only when they change.
SHARED = ("calendars", "templates")
# The fields that may differ between two steps that otherwise count as the same step.
PLACE = ("name", "index")


class Change(NamedTuple):
    """A difference between two definitions; None stands for a missing value."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} → {_shown(self.after)}"


@dataclass(frozen=True)
class Revision:
    """A version of the definition, in force from `at` on; numbers start at 1."""

    number: int
    at: datetime
    by: Initiator
    operation: str
    message: str
    definition: dict[str, Any]
    changes: list[Change]
    activity_id: int


class Revisions(Sequence[Revision]):
    """The revisions of a schedule, newest first. Read them in pages, with slices or a paginator."""

    def __init__(self, schedule: Schedule) -> None:
        self._rows = _changes_of(schedule)

    def in_force(self, at: datetime) -> dict[str, Any] | None:
        """Return the definition that was in force at a time, or None if none is recorded.

        A change that was made at this very time does not apply yet.
        """
        whole = self._rows.filter(WHOLE)
        before = whole.filter(created_at__lt=at).order_by("-pk").first()
        if before is not None:
            return _completed(_after(before))
        since = whole.order_by("pk").first()
        return None if since is None or since.operation == "create" else _completed(_before(since))

    def since(self, activity_id: int, *, most: int) -> list[Revision]:
        """Return those of the newest `most` revisions that are newer than an activity, newest first."""
        return [revision for revision in self[:most] if revision.activity_id > activity_id]

    def creation(self) -> Activity | None:
        return self._rows.filter(operation="create").order_by("pk").first()

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        return self._rows.count()

    def __iter__(self) -> Iterator[Revision]:
        for start in range(0, len(self), PAGE):
            yield from self[start : start + PAGE]

    @overload
    def __getitem__(self, wanted: int) -> Revision: ...

    @overload
    def __getitem__(self, wanted: slice) -> list[Revision]: ...

    def __getitem__(self, wanted: int | slice) -> Revision | list[Revision]:
        places = range(len(self))[wanted]
        if isinstance(places, int):
            return self._page(places, places + 1)[0]
        if places.step != 1:
            raise ValueError("a slice of revisions cannot have a step other than 1")
        return self._page(places.start, places.stop) if places else []

    def _page(self, start: int, stop: int) -> list[Revision]:
        rows = list(self._rows.order_by("-pk")[start:stop])
        definition: dict[str, Any] = {}
        if rows and not _is_whole(rows[-1]):
            earlier = self._rows.filter(WHOLE, pk__lt=rows[-1].pk).order_by("-pk").first()
            definition = _completed(_after(earlier)) if earlier else {}
        revisions = []
        for back, row in enumerate(reversed(rows), 1):
            definition = _completed(_after(row)) if _is_whole(row) else definition | _after(row)
            revisions.append(_revision(row, len(self) - start - len(rows) + back, definition))
        return revisions[::-1]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the changes between two definitions, with steps matched by name.

    A step that was only moved does not count as edited.
    """
    changes = _compared("", *_fields(before, after))
    return [*changes, *_compared_steps(_steps(before), _steps(after))]


def records_of(target: Model) -> ActivityQuerySet:
    """Return the activities that record the changes of an object."""
    rows = Activity.objects.administrative().filter(task_key=None)
    return rows.filter(target_type=target._meta.model_name, target_id=str(target.pk)[:64])


def calendars_at(schedule: Schedule, spec: object, at: datetime) -> dict[str, Any]:
    """Return a dict from the name of each calendar of a spec to the exclusions it had at a time.

    For a calendar without a record of that time, the current exclusions are returned.
    """
    excluded: dict[str, Any] = schedule.calendars | SharedCalendar.objects.named_in(spec)
    for calendar in SharedCalendar.objects.filter(name__in=excluded):
        rows = _changes_of(calendar)
        before = rows.filter(created_at__lt=at).order_by("-pk").first()
        since = None if before else rows.order_by("pk").first()
        known = _after(before) if before else _before(since) if since else {}
        excluded[calendar.name] = known.get("excluded", excluded[calendar.name])
    return excluded


WHOLE = Q(details__has_key="steps") | Q(details__after__has_key="steps")


def _changes_of(target: Model) -> ActivityQuerySet:
    return records_of(target).filter(operation__in=("create", "edit"))


def _revision(row: Activity, number: int, definition: dict[str, Any]) -> Revision:
    by = Initiator(row.initiator_type, row.initiator_id, row.initiator_name)
    changes = compare(_completed(_before(row)), _completed(_after(row))) if row.operation == "edit" else []
    return Revision(number, row.created_at, by, row.operation, row.message, definition, changes, row.pk)


def _before(row: Activity) -> dict[str, Any]:
    details = row.details if isinstance(row.details, dict) else {}
    return dict(details.get("before") or {})


def _after(row: Activity) -> dict[str, Any]:
    details = row.details if isinstance(row.details, dict) else {}
    return dict((details if row.operation == "create" else details.get("after")) or {})


def _is_whole(row: Activity) -> bool:
    return "steps" in _after(row)


def _completed(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition with the defaults of fields that did not exist when it was recorded."""
    if "steps" not in definition:
        return definition
    steps = [
        step if step.get("template") else _defaults(Step, Step.FIELDS) | step for step in definition["steps"]
    ]
    return _defaults(Schedule, Schedule.EDITABLE) | definition | {"steps": steps}


def _defaults(model: type[Model], names: Sequence[str]) -> dict[str, Any]:
    unsaved = model()
    return {name: getattr(unsaved, name) for name in names}


def _fields(*definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the definitions without their steps.

    Keep only the calendars and templates that all the definitions have.
    """
    fields = [_without(definition, ("steps", *SHARED)) for definition in definitions]
    for kind in SHARED:
        parts = [definition.get(kind, {}) for definition in definitions]
        both = sorted(set.intersection(*(set(part) for part in parts)))
        for own, part in zip(fields, parts, strict=True):
            own[kind] = {name: part[name] for name in both}
    return fields


def _steps(definition: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(step.get("name", "")): step for step in definition.get("steps", [])}


def _compared_steps(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[Change]:
    renamed = _renamed(before, after)
    before = {renamed.get(name, name): step for name, step in before.items()}
    both = [name for name in before if name in after]
    order = Change("steps, in order", _order(before, both), _order(after, [n for n in after if n in before]))
    is_moved = order.before != order.after
    changes = [order] if is_moved else []
    for name in both:
        place = {"index": after[name].get("index")} if is_moved else {}
        changes += _compared(f"steps.“{name}”", before[name] | place, after[name])
    changes += [Change(f"steps.“{name}”", step, None) for name, step in before.items() if name not in after]
    changes += [Change(f"steps.“{name}”", None, step) for name, step in after.items() if name not in before]
    return changes


def _renamed(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Map the old names to the new names of steps that are otherwise equal."""
    new = {_content(step): name for name, step in after.items() if name not in before}
    return {
        name: new.pop(_content(step))
        for name, step in before.items()
        if name not in after and _content(step) in new
    }


def _content(step: Mapping[str, Any]) -> str:
    return _canonical(_without(step, PLACE))


def _order(steps: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return the names of the steps as text, group by group."""
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(steps[name].get("index", 0), []).append(f"“{name}”")
    return ", then ".join(" beside ".join(groups[index]) for index in sorted(groups))


def _compared(path: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in (*before, *(name for name in after if name not in before)):
            yield from _compared(_named(path, name), before.get(name), after.get(name))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _compared_lists(path, before, after)
    elif _canonical(before) != _canonical(after):
        yield Change(path, before, after)


def _compared_lists(path: str, before: list[Any], after: list[Any]) -> Iterator[Change]:
    """Yield the changes between two lists; inserting or removing an entry does not change those after it."""
    if len(before) + len(after) > LONGEST_COMPARED:
        yield from [Change(path, before, after)] if before != after else []
        return
    old, new = [_canonical(item) for item in before], [_canonical(item) for item in after]
    for kind, low, high, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        pairs = min(high - low, stop - start)
        for place in range(pairs):
            yield from _compared(f"{path}[{start + place}]", before[low + place], after[start + place])
        yield from (Change(f"{path}[{place}]", before[place], None) for place in range(low + pairs, high))
        yield from (Change(f"{path}[{place}]", None, after[place]) for place in range(start + pairs, stop))


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _named(path: str, name: str) -> str:
    word = name if re.fullmatch(r"\w+", name) else f"“{name}”"
    return f"{path}.{word}" if path else word


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
