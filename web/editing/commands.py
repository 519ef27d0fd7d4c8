"""The commands of the buttons in the schedule editor, which change the form data but save nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

from django.http import QueryDict

from schedules.forms.sent import data_of, put
from schedules.forms.spec_items import EXCLUDE, EXCLUSION_FORMS, RULE_FORMS, RULES, Kinds
from schedules.forms.steps import StepForm
from schedules.forms.times import MOST_FORMS, item_data
from schedules.models import MAX_STEPS
from text.numbers import whole_number

from . import plan
from .data import (
    MOST_STEP_FORMS,
    STEPS,
    added,
    count_of,
    indices_of,
    put_indices,
    read_folded,
    removed,
)


def apply(data: QueryDict, command: str) -> str:
    """Apply a command, such as `copy-step.3`, to the form data; return an announcement for screen readers.

    The announcement is empty if the command is unknown or has no effect.
    """
    verb, _, rest = command.partition(".")
    key, _, argument = rest.partition(".")
    step = whole_number(key)
    if verb in ADDING:
        return ADDING[verb](data, rest)
    if verb in REMOVING:
        return _remove(data, *REMOVING[verb], key)
    if verb == "chip":
        return _fill_in(data, key, argument)
    if verb in ON_STEPS and step is not None and step in indices_of(data):
        return ON_STEPS[verb](data, step, argument)
    return ""


def _add_item(prefix: str, kinds: Kinds, said: str, data: QueryDict, kind: str) -> str:
    form = kinds.get(kind)
    number = added(data, prefix, most=MOST_FORMS) if form else None
    if form is None or number is None:
        return ""
    put(data, item_data(form, f"{prefix}-{number}", form.start) | {f"{prefix}-{number}-new": ["yes"]})
    return f"{said} was added: {form.title}."


def _add_step(data: QueryDict, beside: str) -> str:
    indices, other = indices_of(data), whole_number(beside)
    number = _added_step(data)
    if number is None:
        return f"A schedule can have at most {MAX_STEPS} steps."
    index = indices[other] if other in indices else max(indices.values(), default=-1) + 1
    initial = StepForm(prefix=f"{STEPS}-{number}", initial={"index": index})
    put(data, data_of(initial) | {f"{initial.prefix}-new": ["yes"]})
    return "A step was added."


def _copy_step(data: QueryDict, step: int, _: str) -> str:
    indices = indices_of(data)
    number = _added_step(data)
    if number is None:
        return ""
    before, after = f"{STEPS}-{step}-", f"{STEPS}-{number}-"
    copied = {name.removeprefix(before): data.getlist(name) for name in data if name.startswith(before)}
    own = {"index": [str(max(indices.values()) + 1)], "new": ["yes"], "open": ["yes"]}
    name = _copied_name(_name(data, step), {_name(data, each) for each in indices})
    if folded := data.get(f"{before}folded"):
        own["folded"] = [json.dumps(read_folded(folded) | {"name": name})]
    else:
        own["name"] = [name]
    put(data, {f"{after}{name}": values for name, values in (copied | own).items()})
    return f"A copy of {_named(data, step)} was added at the end."


def _added_step(data: QueryDict) -> int | None:
    is_full = len(indices_of(data)) >= MAX_STEPS
    return None if is_full else added(data, STEPS, most=MOST_STEP_FORMS)


def _move(verb: Callable[[plan.Indices, int], dict[int, int]], data: QueryDict, step: int, _: str) -> str:
    return _put_moved(data, step, verb(indices_of(data), step))


def _drop(data: QueryDict, step: int, argument: str) -> str:
    where, _, other = argument.partition(".")
    target = {where: whole_number(other)} if where in ("beside", "before") else {}
    return _put_moved(data, step, plan.put(indices_of(data), step, **target))


def _put_moved(data: QueryDict, step: int, moved: Mapping[int, int]) -> str:
    put_indices(data, moved)
    groups = plan.groups_of(moved)
    number, group = next((n, group) for n, group in enumerate(groups, 1) if step in group)
    beside = " and ".join(_named(data, each) for each in group if each != step)
    place = f"beside {beside}" if beside else "on its own"
    return f"{_named(data, step)} is now in group {number} of {len(groups)}, {place}."


def _open_step(data: QueryDict, step: int, _: str) -> str:
    prefix = f"{STEPS}-{step}"
    put(data, {f"{prefix}-open": ["yes"], f"{prefix}-new": ["yes"]})
    return f"{_named(data, step)} is open."


def _follow_template(data: QueryDict, step: int, _: str) -> str:
    # Without the `drawn_for` field, the form shows the values of its template.
    put(data, {f"{STEPS}-{step}-drawn_for": []})
    return f"{_named(data, step)} uses the values of its template again."


def _fill_in(data: QueryDict, key: str, expression: str) -> str:
    number = whole_number(key)
    if number is None or number >= count_of(data, RULES):
        return ""
    data[f"{RULES}-{number}-expression"] = expression
    return f"The cron expression is now “{expression}”."


def _remove(data: QueryDict, prefix: str, said: str, key: str) -> str:
    number = whole_number(key)
    if number is None or number >= count_of(data, prefix):
        return ""
    removed(data, prefix, number)
    return f"The {said} was removed."


ADDING: dict[str, Callable[[QueryDict, str], str]] = {
    "add-rule": partial(_add_item, RULES, RULE_FORMS, "A rule"),
    "add-exclusion": partial(_add_item, EXCLUDE, EXCLUSION_FORMS, "An exclusion"),
    "add-step": _add_step,
}
REMOVING = {
    "remove-rule": (RULES, "rule"),
    "remove-exclusion": (EXCLUDE, "exclusion"),
    "remove-step": (STEPS, "step"),
}
ON_STEPS: dict[str, Callable[[QueryDict, int, str], str]] = {
    "copy-step": _copy_step,
    "earlier": partial(_move, plan.earlier),
    "later": partial(_move, plan.later),
    "join": partial(_move, plan.joined),
    "put": _drop,
    "open": _open_step,
    "follow": _follow_template,
}


def _name(data: QueryDict, step: int) -> str:
    """Return the name of a step, whether or not the step is folded."""
    prefix = f"{STEPS}-{step}"
    if folded := data.get(f"{prefix}-folded"):
        return str(read_folded(folded).get("name", "")).strip()
    return data.get(f"{prefix}-name", "").strip()


def _named(data: QueryDict, step: int) -> str:
    return f"“{_name(data, step) or 'the unnamed step'}”"


def _copied_name(name: str, taken: set[str]) -> str:
    """Return `name` with a number added, so that the result is not in `taken`."""
    copies = (f"{name} {number}" for number in range(2, MAX_STEPS + 3))
    return next((copy for copy in copies if copy not in taken), name)
