"""The documents that define connected systems, identity types and sync rules, in pages, API and files.

A document is a JSON object. `checked` adds defaults and says what is wrong with it, by path. What only the
database knows, such as whether a name is in use, is checked when a document is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError

from text.clean import clean_json

from .models import Attribute, ConnectedSystem, Flow, IdentityType, RunProfile, SyncRule
from .models.defined import Defined
from .values import Kind, Match

LONGEST_NAME = 100
MOST_ENTRIES = 2_000
REQUIRED = object()


@dataclass(frozen=True)
class Part:
    """One entry of a document: its type, and its default value unless it is required."""

    type: type
    default: Any = REQUIRED
    choices: Sequence[str] = ()
    # The parts of each object in a list.
    parts: Mapping[str, Part] | None = None
    most: int = 0
    least: int = 0


NAME = Part(str, most=LONGEST_NAME)
ATTRIBUTE = {
    "name": NAME,
    "kind": Part(str, Kind.TEXT.value, [kind.value for kind in Kind]),
    "multi": Part(bool, False),
}
ACCOUNT_ATTRIBUTE = ATTRIBUTE | {
    "writable": Part(str, "yes", Attribute.Writable.values),
    "match": Part(str, Match.EXACT.value, [match.value for match in Match]),
    "selected": Part(bool, True),
    "credential": Part(bool, False),
}
TYPE = {
    "name": NAME,
    "external_id": NAME,
    "secondary_id": Part(str, "", most=LONGEST_NAME),
    "selected": Part(bool, True),
    "attributes": Part(list, (), parts=ACCOUNT_ATTRIBUTE),
}
LIMIT = {"percent": Part(int, None, most=100), "count": Part(int, None), "floor": Part(int, 5)}
PROFILE = {
    "name": NAME,
    "run_type": Part(str, choices=RunProfile.RunType.values),
    "page_size": Part(int, 1_000, most=10_000, least=1),
    "limits": Part(dict, {}),
    "items": Part(str, RunProfile.Items.CHANGES.value, RunProfile.Items.values),
}
SYSTEM = {
    "name": NAME,
    "connector": NAME,
    "config": Part(dict, {}),
    "types": Part(list, (), parts=TYPE),
    "profiles": Part(list, (), parts=PROFILE),
}
IDENTITY_TYPE = {
    "name": NAME,
    "display": Part(str, "", most=LONGEST_NAME),
    "deletion": Part(str, IdentityType.Deletion.MANUAL.value, IdentityType.Deletion.values),
    "sources": Part(list, ()),
    "sources_mode": Part(str, IdentityType.Sources.ALL.value, IdentityType.Sources.values),
    "grace_days": Part(int, 0, most=36_500),
    "attributes": Part(list, (), parts=ATTRIBUTE),
}
FLOW = {
    "target": NAME,
    "source": Part(str, "", most=LONGEST_NAME),
    "expression": Part(str, "", most=4_000),
    "priority": Part(int, None),
    "null_is_value": Part(bool, False),
    "when": Part(str, Flow.When.ALWAYS.value, Flow.When.values),
    "merges": Part(bool, False),
}
RULE = {
    "name": NAME,
    "direction": Part(str, choices=SyncRule.Direction.values),
    "system": NAME,
    "object_type": NAME,
    "identity_type": NAME,
    "enabled": Part(bool, True),
    "position": Part(int, 0),
    "scope": Part(dict, {}),
    "joins": Part(list, ()),
    "creates": Part(bool, True),
    "out_of_scope": Part(str, SyncRule.OutOfScope.DISCONNECT.value, SyncRule.OutOfScope.values),
    "deprovision": Part(str, SyncRule.Deprovision.DISCONNECT.value, SyncRule.Deprovision.values),
    "disable_values": Part(dict, {}),
    "enforces": Part(bool, True),
    "recalls": Part(bool, True),
    "flows": Part(list, (), parts=FLOW),
}
LIMITS = ("absent", "losses", "deletes")
PARTS: dict[type[Defined], Mapping[str, Part]] = {
    ConnectedSystem: SYSTEM,
    IdentityType: IDENTITY_TYPE,
    SyncRule: RULE,
}


def checked(document: object, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return the document with defaults; raise ValidationError with messages by path."""
    errors: dict[str, str] = {}
    cleaned = _checked(clean_json(document), parts, "", errors)
    for place, profile in enumerate(cleaned.get("profiles", ())):
        profile["limits"] = _limits(profile["limits"], f"profiles.{place}.limits.", errors)
    if errors:
        raise ValidationError(errors)
    return cleaned


def _checked(given: object, parts: Mapping[str, Part], path: str, errors: dict[str, str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        errors[path.rstrip(".") or "document"] = f"Must be an object, not {_shown(given)}."
        return {}
    for name in given.keys() - parts.keys():
        errors[f"{path}{name}"] = f"Unknown. {_meant(name, parts)}"
    return {name: _value(given.get(name), part, f"{path}{name}", errors) for name, part in parts.items()}


def _value(value: object, part: Part, path: str, errors: dict[str, str]) -> Any:
    if value is None or (value == "" and part.default is REQUIRED):
        if part.default is REQUIRED:
            errors[path] = "This is required."
        return list(part.default) if part.default == () else part.default
    if not isinstance(value, part.type) or (part.type is int and isinstance(value, bool)):
        errors[path] = f"Must be {_NAMES[part.type]}, not {_shown(value)}."
        return value
    if part.parts is not None:
        return _listed(value, part, path, errors)
    if wrong := _wrong(value, part):
        errors[path] = wrong
    return value.strip() if isinstance(value, str) and part is NAME else value


def _listed(values: Any, part: Part, path: str, errors: dict[str, str]) -> list[Any]:
    if len(values) > MOST_ENTRIES:
        errors[path] = f"Has {len(values):,} entries; at most {MOST_ENTRIES:,} are allowed."
        return []
    assert part.parts is not None
    made = [_checked(each, part.parts, f"{path}.{place}.", errors) for place, each in enumerate(values)]
    known: set[str] = set()
    for place, each in enumerate(made):
        name = str(each.get("name") or each.get("target") or "").casefold()
        if name and name in known:
            errors[f"{path}.{place}.name" if "name" in each else f"{path}.{place}.target"] = (
                "Occurs twice. Use each name once."
            )
        known.add(name)
    return made


def _wrong(value: Any, part: Part) -> str:
    if part.choices and value not in part.choices:
        return f"Must be one of {', '.join(part.choices)}, not {_shown(value)}."
    if isinstance(value, str) and part.most and len(value) > part.most:
        return f"Has {len(value):,} characters; at most {part.most:,} are allowed."
    if isinstance(value, int) and not isinstance(value, bool):
        most = part.most or 1_000_000_000
        if not part.least <= value <= most:
            return f"Must be from {part.least:,} to {most:,}, not {value:,}."
    return ""


def _limits(limits: object, path: str, errors: dict[str, str]) -> dict[str, Any]:
    if not isinstance(limits, dict):
        return {}
    for name in limits.keys() - set(LIMITS):
        errors[f"{path}{name}"] = f"Unknown. Known limits: {', '.join(LIMITS)}."
    known = {name: limits[name] for name in LIMITS if limits.get(name) is not None}
    return {name: _checked(each, LIMIT, f"{path}{name}.", errors) for name, each in known.items()}


def _meant(name: str, parts: Mapping[str, Part]) -> str:
    close = get_close_matches(str(name), list(parts), n=1)
    return f"Did you mean “{close[0]}”?" if close else f"Known names: {', '.join(parts)}."


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:60]}…" if len(text) > 60 else text


_NAMES = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
