"""What the buttons of the editor do to a draft. Nothing is saved by any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from schedules.models import MAX_STEPS, TaskTemplate

from . import exclusions, plan, rules, steps
from .draft import Draft, Part, fresh_key

Change = tuple[Draft, str]


def apply(draft: Draft, command: str, templates: Mapping[str, TaskTemplate]) -> Change:
    """The draft after it, and words for those who do not see the page; unknown commands change nothing."""
    verb, _, rest = command.partition(".")
    key, _, argument = rest.partition(".")
    if verb in ADDING:
        return ADDING[verb](draft, rest)
    if verb in MOVING:
        return _moved(draft, verb, key, argument)
    if verb in CHANGING:
        return _changed(draft, verb, key, templates)
    if verb == "chip":
        return _with_expression(draft, key, argument), "The expression is filled in."
    if verb.startswith("remove-"):
        return _removed(draft, verb.removeprefix("remove-"), key)
    return draft, ""


def _add_rule(draft: Draft, kind: str) -> Change:
    if kind not in rules.KINDS:
        return draft, ""
    form = rules.KINDS[kind]
    part = Part(fresh_key(draft.rules), {"kind": kind, "new": "yes", **form.start})
    return replace(draft, rules=[*draft.rules, part]), f"A rule was added: {form.title}."


def _add_exclusion(draft: Draft, kind: str) -> Change:
    if kind not in exclusions.KINDS:
        return draft, ""
    form = exclusions.KINDS[kind]
    part = Part(fresh_key(draft.exclusions), {"kind": kind, "new": "yes", **form.start})
    return replace(draft, exclusions=[*draft.exclusions, part]), f"An exclusion was added: {form.title}."


def _add_step(draft: Draft, beside: str) -> Change:
    if len(draft.steps) >= MAX_STEPS:
        return draft, f"A schedule has at most {MAX_STEPS} steps."
    part = Part(fresh_key(draft.steps), {**steps.fresh("", {}), "name": "", "new": "yes"})
    return replace(draft, steps=plan.added(draft.steps, part, beside=beside)), "A step was added."


def _copy_step(draft: Draft, key: str) -> Change:
    found = _part(draft.steps, key)
    if found is None or len(draft.steps) >= MAX_STEPS:
        return draft, ""
    name = _copied_name(found.texts.get("name", ""), {part.texts.get("name", "") for part in draft.steps})
    part = Part(fresh_key(draft.steps), {**found.texts, "name": name, "new": "yes"})
    return replace(draft, steps=plan.added(draft.steps, part)), f"{_named(found)} was copied to the end."


ADDING: dict[str, Callable[[Draft, str], Change]] = {
    "add-rule": _add_rule,
    "add-exclusion": _add_exclusion,
    "add-step": _add_step,
    "copy-step": _copy_step,
}
MOVING = ("earlier", "later", "join", "put")
CHANGING = ("follow", "json", "open")


def _moved(draft: Draft, verb: str, key: str, argument: str) -> Change:
    step = _part(draft.steps, key)
    if step is None:
        return draft, ""
    match verb:
        case "earlier":
            moved = plan.earlier(draft.steps, key)
        case "later":
            moved = plan.later(draft.steps, key)
        case "join":
            moved = plan.joined(draft.steps, key)
        case _:
            where, _, other = argument.partition(".")
            moved = plan.put(draft.steps, key, **{where: other} if where in ("beside", "before") else {})
    return replace(draft, steps=moved), f"{_named(step)} {_place_words(moved, key)}."


def _place_words(moved: list[Part], key: str) -> str:
    groups = plan.groups_of(moved)
    for number, group in enumerate(groups, 1):
        if others := [part for part in group if part.key != key]:
            if len(others) < len(group):
                beside = " and ".join(map(_named, others))
                return f"is now in group {number} of {len(groups)}, beside {beside}"
        elif group and group[0].key == key:
            return f"is now in group {number} of {len(groups)}, on its own"
    return "stays where it was"


def _changed(draft: Draft, verb: str, key: str, templates: Mapping[str, TaskTemplate]) -> Change:
    step = _part(draft.steps, key)
    if step is None:
        return draft, ""
    if verb == "open":
        texts, said = step.texts | {"open": "yes", "new": "yes"}, f"{_named(step)} is open."
    elif verb == "json":
        texts, said = steps.turned(step.texts, templates), "The settings are shown in the other way."
    else:
        place = {name: step.texts.get(name, "") for name in ("index", "name")}
        texts = steps.fresh(step.texts.get("runs", ""), templates) | place
        said = f"{_named(step)} follows its template again."
    changed = [Part(key, texts) if part.key == key else part for part in draft.steps]
    return replace(draft, steps=changed), said


def _with_expression(draft: Draft, key: str, expression: str) -> Draft:
    changed = [
        Part(key, part.texts | {"expression": expression}) if part.key == key else part
        for part in draft.rules
    ]
    return replace(draft, rules=changed)


def _removed(draft: Draft, what: str, key: str) -> Change:
    def without(parts: list[Part]) -> list[Part]:
        return [part for part in parts if part.key != key]

    match what:
        case "rule":
            return replace(draft, rules=without(draft.rules)), "The rule was removed."
        case "exclusion":
            return replace(draft, exclusions=without(draft.exclusions)), "The exclusion was removed."
        case "step":
            left = plan.in_order(plan.groups_of(without(draft.steps)))
            return replace(draft, steps=left), "The step was removed."
    return draft, ""


def _part(parts: list[Part], key: str) -> Part | None:
    return next((part for part in parts if part.key == key), None)


def _named(part: Part) -> str:
    return f"“{part.texts.get('name', '').strip() or 'the step without a name'}”"


def _copied_name(name: str, taken: set[str]) -> str:
    """One that no other step has."""
    copies = (f"{name} {number}" for number in range(2, MAX_STEPS + 3))
    return next((copy for copy in copies if copy not in taken), name)
