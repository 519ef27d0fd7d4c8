"""The YAML files with schedules, calendars and task templates, and the functions that write them.

The files contain definitions only: no counters, past times or pauses.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from django.db import models

from files.yaml_lines import write

from .models import Refused, Schedule, ScheduleQuerySet, SharedCalendar, Step, TaskTemplate
from .models.definition import in_words
from .models.refusals import unknown_schedule
from .models.shared_calendar import names_in
from .registry import ConfigError, StepKind, step_types
from .revisions import compare
from .spec import Spec, SpecError
from .spec.exclusions import calendar_items
from .spec.wording import listed

VERSION = 1
# The permissions that reading calendars and templates requires, by section of the file.
TO_READ = {"calendars": "schedules.view_sharedcalendar", "templates": "schedules.view_tasktemplate"}
CHUNK = 500
FROM_THE_START = re.compile(r"@@ -[01]\b")

Shape = Mapping[str, "models.Field[Any, Any]"]


def shape_of(model: type[models.Model], names: Iterable[str]) -> Shape:
    fields = {field.name: field for field in model._meta.concrete_fields}
    return {name: fields[name] for name in names}


SCHEDULE = shape_of(Schedule, Schedule.DEFINITION)
CALENDAR = shape_of(SharedCalendar, ("name", "description", "excluded"))
STEP = shape_of(Step, Step.FIELDS)
TEMPLATE = shape_of(TaskTemplate, ("name", *TaskTemplate.EDITABLE))


@dataclass(frozen=True)
class Selection:
    """The schedules, calendars and templates that go into a file."""

    schedules: Sequence[Schedule]
    calendars: Iterable[SharedCalendar] = ()
    templates: Iterable[TaskTemplate] = ()


def selected(names: Sequence[str], *, tags: Sequence[str]) -> Selection:
    """Return the open schedules with these names and tags, and the calendars and templates that they use.

    A schedule must have one of the names, if there are any, and all of the tags. Without names and tags,
    return all open schedules, all calendars, and all templates that are active or in use. Raise Refused if no
    open schedule has all of the tags, or if a name is not the name of such a schedule.
    """
    schedules = Schedule.objects.open().tagged(*tags)
    label = "tag" if len(tags) == 1 else "tags"
    within = f" with the {label} {listed([f'“{tag}”' for tag in tags])}" if tags else ""
    known = {name.lower(): (pk, name) for pk, name in schedules.values_list("pk", "name")}
    if tags and not known:
        raise Refused(f"No schedule{within} was found.")
    keys = [unicodedata.normalize("NFC", name.strip()).lower() for name in names]
    for name, key in zip(names, keys, strict=True):
        if key not in known:
            raise unknown_schedule(name, [stored for _, stored in known.values()], within=within)
    found = _at_rest(schedules.filter(pk__in=[known[key][0] for key in keys]) if names else schedules)
    calendars, templates = SharedCalendar.objects.all(), TaskTemplate.objects.known()
    if not names and not tags:
        return Selection(found, calendars, templates)
    used = {name for schedule in found for name in names_in(schedule.spec)}
    referred = {step.template_id for schedule in found for step in schedule.steps.all() if step.template_id}
    return Selection(found, calendars.filter(name__in=used), templates.filter(pk__in=referred))


def _at_rest(schedules: ScheduleQuerySet) -> list[Schedule]:
    """Return the schedules with their steps. Read a schedule again if it was edited during the reading."""
    found: dict[int, Schedule] = {}
    moved = schedules
    while rows := {row.pk: row for row in moved.prefetch_related("steps").iterator(chunk_size=CHUNK)}:
        tokens = dict(moved.values_list("pk", "token"))
        found |= {pk: row for pk, row in rows.items() if tokens.get(pk) == row.token}
        moved = schedules.filter(pk__in=rows.keys() - found.keys())
    return list(found.values())


def needed_to_read(content: Mapping[str, Any]) -> list[str]:
    """Return the permissions for reading this content, in addition to the permission to view schedules."""
    return [permission for title, permission in TO_READ.items() if title in content]


def written(chosen: Selection) -> str:
    """Return the selection as the text of a file; equal definitions give equal text on every database."""
    return as_yaml(document(chosen))


def document(chosen: Selection) -> dict[str, Any]:
    """Return the selection as the content of a file, before it is converted to YAML."""
    calendars = [calendar_entry(each.name, each.definition()) for each in _by_name(chosen.calendars)]
    templates = [template_entry(each.name, each.definition()) for each in _by_name(chosen.templates)]
    shared = {"calendars": calendars, "templates": templates}
    return {
        "version": VERSION,
        **{title: entries for title, entries in shared.items() if entries},
        "schedules": [schedule_entry(each.definition()) for each in _by_name(chosen.schedules)],
    }


def as_yaml(document: Mapping[str, Any]) -> str:
    """Return the document as YAML, with an empty line before each section and between entries."""
    parts = [f"version: {document['version']}\n"]
    for title, entries in document.items():
        if title != "version":
            items = [re.sub(r"(?m)^(?=.)", "  ", write([entry])) for entry in entries]
            parts.append(f"\n{title}:\n" + "\n".join(items) if items else f"\n{title}: []\n")
    return "".join(parts)


def schedule_entry(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schedule's definition as it is written in a file: in a fixed order, without default values."""
    spec, steps = canonical_spec(definition["spec"]), definition["steps"]
    values = {
        **definition,
        "spec": _sorted(definition["spec"]) if spec is None else spec,
        "memo": _sorted(definition["memo"]),
    }
    entry = {name: values[name] for name, field in SCHEDULE.items() if not _is_default(field, values[name])}
    return entry | {"steps": [step_entry(step, alone=len(steps) == 1) for step in steps]}


def step_entry(step: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
    """Return a step as it is written in a file.

    `alone` means that the schedule has no other step. Otherwise, the index is included even if it is 0: a
    list of steps without indexes would suggest that the steps run in the order of the list.
    """
    always = () if alone else ("index",)
    if "template" in step:
        return _templated_entry(step, always)
    values = {**step, "config": _short_config(step["step_type"], step["config"])}
    return {
        name: values[name]
        for name, field in STEP.items()
        if name in always or not _is_default(field, values[name])
    }


def _templated_entry(step: Mapping[str, Any], always: Sequence[str]) -> dict[str, Any]:
    """Return a step with a template as it is written in a file: only the fields that the step sets itself.

    Default values are included, because the template may have other values. Only an index of 0 is left out,
    unless `always` contains "index".
    """
    values = {name: _sorted(step[name]) for name in ("index", "name", "template", *STEP) if name in step}
    is_usual = _is_default(STEP["index"], values["index"]) and "index" not in always
    return _without(values, "index") if is_usual else values


def template_entry(name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
    config = _short_config(definition["step_type"], definition["config"])
    values = {"name": name, **definition, "config": config}
    return {key: values[key] for key, field in TEMPLATE.items() if not _is_default(field, values[key])}


def calendar_entry(name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
    excluded = canonical_exclusions(definition["excluded"])
    description = {"description": definition["description"]} if definition["description"] else {}
    return {
        "name": name,
        **description,
        "excluded": _sorted(definition["excluded"]) if excluded is None else excluded,
    }


def canonical_spec(spec: object) -> dict[str, object] | None:
    """Return the spec in the canonical form in which it is stored, or None if it is invalid."""
    try:
        return _parsed(spec).as_json()
    except SpecError:
        return None


def started_in_words(definition: Mapping[str, Any]) -> str:
    return in_words(_parsed(definition["spec"]), definition["topics"])


def _parsed(spec: object) -> Spec:
    """Parse a spec as if its shared calendars were empty: a spec is written with only their names."""
    return Spec.parse(spec, {name: [] for name in names_in(spec)})


def canonical_exclusions(excluded: object) -> list[object] | None:
    try:
        return [item.as_json() for item in calendar_items(excluded)]
    except SpecError:
        return None


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two definitions as lines that begin with a space, - or +."""
    for change in compare(before, after):
        old, new = _lines(change.before, change.after), _lines(change.after, change.before)
        yield f"  {change.path}:"
        for line in list(unified_diff(old, new, n=2, lineterm=""))[2:]:
            if not line.startswith("@@"):
                yield f"    {line[0]} {line[1:]}"
            elif not FROM_THE_START.match(line):
                yield "    …"


def _lines(value: Any, other: Any) -> list[str]:
    """Return the lines of a string, or of any other value as YAML.

    None has no lines, because it means that the value is missing. But if `other`, the value to compare with,
    is a number, None is a stored null: return the line "null".
    """
    match value:
        case None:
            return ["null"] if isinstance(other, int) else []
        case str():
            return value.splitlines() or [""]
        case {"name": _, "step_type": _} | {"name": _, "template": _}:
            return write(step_entry(value, alone=False)).splitlines()
    return write(value).removesuffix("...\n").splitlines()


def _by_name(rows: Iterable[Any]) -> list[Any]:
    """Sort the rows by name in Python, because databases sort differently."""
    return sorted(rows, key=lambda row: (row.name.lower(), row.name))


def _is_default(field: models.Field[Any, Any], value: object) -> bool:
    default = field.get_default()
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def _short_config(step_type: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config without the default values of the step type, in the order of the type's fields."""
    kind = step_types.get(step_type)
    order = [setting.name for setting in kind.fields] if kind else []
    names = sorted(config, key=lambda name: (order.index(name) if name in order else len(order), name))
    whole = {name: _sorted(config[name]) for name in names}
    if kind is None:
        return whole
    needed = {name: whole[name] for name in whole if _cleaned(kind, _without(whole, name)) != config}
    return needed if _cleaned(kind, needed) == config else whole


def _cleaned(kind: StepKind, config: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return kind.clean(config)
    except ConfigError:
        return None


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _sorted(value: Any) -> Any:
    """Return a value with its keys sorted at all levels. PostgreSQL does not keep the order of keys."""
    match value:
        case dict():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case list():
            return [_sorted(item) for item in value]
    return value
