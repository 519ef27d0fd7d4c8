"""A spec as a person types it: one rule per line. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from .spec import Spec
from .wording import SpecError

FIELDS = ("cron", "every", "at", "time_zone", "dst")
# A comment needs a space before it: 5#3 is a (refused) cron expression.
_COMMENT = re.compile(r"(?:^|\s)#.*")
_OFFSET = re.compile(r"(?P<every>.*\S)\s+offset\s+(?P<offset>\S.*)")


def from_text(typed: Mapping[str, str]) -> dict[str, Any]:
    """The JSON of what was typed, unchecked."""
    spec: dict[str, Any] = {
        "cron": _lines(typed["cron"]),
        "every": [_interval(line) for line in _lines(typed["every"])],
        "at": _lines(typed["at"]),
    }
    return spec | {name: typed[name] for name in ("time_zone", "dst") if typed[name]}


def to_text(spec: object) -> dict[str, str]:
    """What to put into the form; also of a spec that is broken, so that it can be mended."""
    known = spec if isinstance(spec, Mapping) else {}
    zone = str(known.get("time_zone", Spec.time_zone))
    return {
        "cron": _explained([str(rule) for rule in _list(known, "cron")], zone),
        "every": "\n".join(_interval_text(rule) for rule in _list(known, "every")),
        "at": "\n".join(_moment_text(str(rule), zone) for rule in _list(known, "at")),
        "time_zone": zone,
        "dst": str(known.get("dst", Spec.dst)),
    }


def _lines(text: str) -> list[str]:
    bare = (_COMMENT.sub("", line).strip() for line in text.splitlines())
    return [line for line in bare if line]


def _interval(line: str) -> object:
    if parts := _OFFSET.fullmatch(line):
        return {"every": _number(parts["every"]), "offset": _number(parts["offset"])}
    return _number(line)


def _number(text: str) -> str | int:
    """A bare number of seconds; longer ones are no durations either way, and stay text."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _list(spec: Mapping[str, object], name: str) -> list[object]:
    rules = spec.get(name, [])
    return rules if isinstance(rules, list) else [rules]


def _explained(rules: list[str], zone: str) -> str:
    width = max((len(rule) for rule in rules), default=0)
    return "\n".join(f"{rule:{width}}{_explanation(rule, zone)}" for rule in rules)


def _explanation(rule: str, zone: str) -> str:
    try:
        return f"   # {Spec.parse({'cron': [rule], 'time_zone': zone}).describe()}"
    except SpecError:
        return ""


def _interval_text(rule: object) -> str:
    return f"{rule.get('every')} offset {rule.get('offset')}" if isinstance(rule, Mapping) else str(rule)


def _moment_text(rule: str, zone: str) -> str:
    """On the schedule's own clock, with its offset, so that it stays the same instant."""
    try:
        at = datetime.fromisoformat(rule).astimezone(ZoneInfo(zone))
    except (ValueError, KeyError, OSError):
        return rule
    return at.isoformat(sep=" ", timespec="seconds" if at.second else "minutes")
