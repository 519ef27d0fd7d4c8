"""Read a template from JSON: its sizes, its rules, and how these depend on each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from identity.values import LARGEST, Kind
from schedules.placeholders import hint

from .checks import LONGEST_TEXT, Errors, Wrong, json_object, refuse_unknown, whole
from .rule_forms import RuleReader, Use
from .rules import Rule

MOST_OBJECTS = 10_000_000
MOST_ATTRIBUTES = 200


class TemplateError(ValueError):
    """The template is wrong; `errors` says what to do, by path, such as “attributes.salary.range”."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in errors.items()))
        self.errors = dict(errors)


@dataclass(frozen=True)
class Definition:
    """What a template says. `uses` are, by attribute, the attributes on whose values it depends."""

    seed: int
    count: int
    rules: Mapping[str, Rule]
    uses: Mapping[str, Sequence[str]]


def read(data: object) -> Definition:
    """Return what the JSON value says; raise TemplateError with all that is wrong."""
    errors = Errors()
    said = errors.attempt(json_object, (), data)
    definition = None if said is None else _definition(said, errors)
    if errors.found or definition is None:
        raise TemplateError({".".join(path) or "template": message for path, message in errors.found.items()})
    return definition


def _definition(said: Mapping[str, Any], errors: Errors) -> Definition:
    """Read all parts; where one is wrong, something else stands for it, so that the others are read too."""
    errors.attempt(refuse_unknown, (), said, ("seed", "count", "attributes"))
    seed = errors.attempt(whole, ("seed",), said.get("seed", 0), 0, LARGEST) or 0
    count = errors.attempt(whole, ("count",), said.get("count"), 1, MOST_OBJECTS) or 1
    written = errors.attempt(_attributes, said.get("attributes")) or {}
    reader = RuleReader(seed, errors)
    rules = {name: rule for name in written if (rule := reader.read(("attributes", name), written[name]))}
    for use in reader.uses:
        errors.attempt(_check_use, use, written, rules)
    uses = {name: _used(name, reader.uses, rules) for name in rules}
    errors.attempt(_refuse_circles, uses)
    return Definition(seed, count, rules, uses)


def _attributes(data: object) -> dict[str, Any]:
    attributes = json_object(("attributes",), data)
    if not 0 < len(attributes) <= MOST_ATTRIBUTES:
        raise Wrong(("attributes",), f"must have 1 to {MOST_ATTRIBUTES} attributes, not {len(attributes)}")
    folded: dict[str, str] = {}
    for name in attributes:
        path = ("attributes", name)
        if not 0 < len(name) <= LONGEST_TEXT or name != name.strip() or set(name) & set("{}:"):
            raise Wrong(
                path, f"cannot be a name; use 1 to {LONGEST_TEXT} characters, no {{, }} or :, no outer spaces"
            )
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise Wrong(path, f"differs from “{other}” only in case; rename one of them")
    return attributes


def _check_use(use: Use, written: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    if use.attribute not in written:
        raise Wrong(use.path, f"“{use.attribute}” is not an attribute; {hint(use.attribute, written)}")
    rule = rules.get(use.attribute)
    if rule is None:
        return
    if use.what == "id" and not rule.is_id:
        raise Wrong(
            use.path,
            f"“{use.attribute}” does not identify objects; use an attribute with a sequence, a uuid or a "
            "unique pattern, without “fill”",
        )
    if use.what == "value" and (rule.is_multi or rule.kind is Kind.REFERENCE):
        raise Wrong(
            use.path, f"“{use.attribute}” is a reference or a list; use an attribute with a single value"
        )


def _used(attribute: str, uses: Iterable[Use], rules: Mapping[str, Rule]) -> list[str]:
    found = [use.attribute for use in uses if use.path[1] == attribute and use.what == "value"]
    return [name for name in dict.fromkeys(found) if name in rules]


def _refuse_circles(uses: Mapping[str, Sequence[str]]) -> None:
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        raise Wrong(
            ("attributes", circle[0]), f"depends on itself: {' → '.join(circle)}; remove one of these uses"
        ) from None
