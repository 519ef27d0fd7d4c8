"""Specs as people type them: one rule per line, with its meaning as a comment. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from .spec import NO_CALENDARS, Spec, SpecError
from .spec.exclusions import calendar_in_words, calendar_items
from .spec.structured import KEYS
from .spec.wording import shown

# Text with characters that have a meaning in a line is written in quotation marks, as in JSON.
QUOTED = r'"(?:[^"\\]|\\.)*"'
LISTS = ("cron", "every", "calendars", "patterns", "at", "exclude")
FIELDS = (*LISTS, "start_at", "end_at", "jitter", "time_zone", "dst")
# A comment needs a space before it: fri#2 is the second Friday.
_BARE = re.compile(rf"(?:{QUOTED}|(?!(?:^|(?<=\s))#).)*")
_PLAIN = re.compile(r'(?!")[^#"]*')
_OFFSET = re.compile(r"(?P<every>.+) offset (?P<offset>.+)")
_TIMES = re.compile(r"at (?P<times>.+?)(?: on (?P<weekdays>.+))?", re.IGNORECASE)
_WINDOW = re.compile(
    r"every (?P<every>\S+)(?: from (?P<from>\S+))?(?: until (?P<until>\S+))?(?: on (?P<weekdays>.+))?",
    re.IGNORECASE,
)
_COMMENTED = re.compile(r"(?P<item>.*?)\bcomment:(?P<comment>.*)", re.IGNORECASE)
_CALENDAR = re.compile(r"calendar[\s:](?P<name>.+)", re.IGNORECASE)
_DATES = re.compile(r"dates?[ :](?P<dates>.+)", re.IGNORECASE)
_BETWEEN = re.compile(r"from (?P<from>.+?) until (?P<until>.+)", re.IGNORECASE)
_HOLIDAYS = re.compile(r"holidays[ :] ?(?P<holidays>\S+)(?: (?P<subdivision>.+))?", re.IGNORECASE)
_KEY = re.compile(
    rf"(?:^|(?<=[\s,;]))(?P<key>{'|'.join(key.replace('_', '[ _]') for key in KEYS)})\s*:", re.IGNORECASE
)
_PATTERN_FORMS = "at 09:00, 12:30 on mon-fri, or every 25m from 09:00 until 17:30 on mon,wed"
_STRUCTURED_FORM = "hour: 9-17, minute: 0,30, day_of_week: mon-fri"
_EXCLUSION_FORMS = (
    "dates 2026-12-24/2027-01-02, from 2026-12-01 22:00 until 2026-12-02 04:00, holidays GB ENG, "
    "or day_of_week: sat,sun"
)


def from_text(typed: Mapping[str, str]) -> dict[str, Any]:
    """Convert a typed spec to its JSON form; raise SpecError for a line that cannot be read."""
    spec: dict[str, Any] = {
        "cron": _lines(typed.get("cron", "")),
        "every": [_interval(line) for line in _lines(typed.get("every", ""))],
        "calendars": _each("calendars", typed, _structured),
        "patterns": _each("patterns", typed, _pattern),
        "at": _lines(typed.get("at", "")),
        "exclude": _each("exclude", typed, _exclusion),
    }
    return spec | {name: typed[name] for name in FIELDS if name not in LISTS and typed.get(name)}


def exclusions_from_text(text: str) -> list[object]:
    """Convert the typed exclusions of a shared calendar to their JSON form."""
    return _each("excluded", {"excluded": text}, _exclusion)


def to_text(spec: object, calendars: Mapping[str, object] = NO_CALENDARS) -> dict[str, str]:
    """Return the text of each form field for a spec, even for a broken one, so that it can be corrected."""
    known = spec if isinstance(spec, Mapping) else {}
    zone, dst = str(known.get("time_zone", Spec.time_zone)), str(known.get("dst", Spec.dst))
    return {
        "cron": _explained(known, "cron", str, zone),
        "every": "\n".join(_interval_text(rule) for rule in _list(known, "every")),
        "calendars": _explained(known, "calendars", _structured_text, zone),
        "patterns": _explained(known, "patterns", _pattern_text, zone),
        "at": "\n".join(_moment_text(str(rule), zone) for rule in _list(known, "at")),
        "exclude": _exclusions_text(_list(known, "exclude"), calendars),
        "start_at": _bound_text("start_at", known, zone, dst),
        "end_at": _bound_text("end_at", known, zone, dst),
        "jitter": str(known.get("jitter", "")),
        "time_zone": zone,
        "dst": dst,
    }


def exclusions_to_text(excluded: object) -> str:
    return _exclusions_text(excluded if isinstance(excluded, list) else [excluded], NO_CALENDARS)


def _lines(text: str) -> list[str]:
    bare = (_without_comment(line) for line in text.splitlines())
    return [line for line in bare if line]


def _without_comment(line: str) -> str:
    found = _BARE.match(line.strip())
    return found[0].strip() if found else ""


def _each(name: str, typed: Mapping[str, str], read: Callable[[str, str], object]) -> list[object]:
    lines = _lines(typed.get(name, ""))
    return [_json(name, line) if line.startswith("{") else read(name, line) for line in lines]


def _json(name: str, line: str) -> object:
    """Return the object in a line that is written as JSON; raise SpecError if it is not valid."""
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        raise SpecError(name, f"{shown(line)} looks like JSON, but is not valid JSON") from None


def _interval(line: str) -> object:
    if parts := _OFFSET.fullmatch(_spaced(line)):
        return {"every": _number(parts["every"]), "offset": _number(parts["offset"])}
    return _number(line)


def _number(text: str) -> str | int:
    """Return a number without a unit, which means seconds, as an integer; return other text unchanged.

    A number with more than 18 digits also stays text.
    """
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _pattern(name: str, line: str) -> dict[str, object]:
    rule = _spaced(line)
    if parts := _TIMES.fullmatch(rule):
        times: dict[str, object] = {"times": re.split(r"[\s,]+", parts["times"].strip(" ,"))}
        return times | _given({"weekdays": parts["weekdays"]})
    if parts := _WINDOW.fullmatch(rule):
        return {**_given(parts.groupdict()), "every": _number(parts["every"])}
    raise SpecError(name, f"{shown(line)} is not understood; write, for example: {_PATTERN_FORMS}")


def _structured(name: str, line: str, forms: str = _STRUCTURED_FORM) -> dict[str, str]:
    item, comment = _comment(line)
    keys = list(_KEY.finditer(item))
    if not keys or item[: keys[0].start()].strip(" ,;"):
        raise SpecError(name, f"{shown(line)} is not understood; write, for example: {forms}")
    ends = [key.start() for key in keys[1:]] + [len(item)]
    values: dict[str, str] = {}
    for key, end in zip(keys, ends, strict=True):
        field = key["key"].lower().replace(" ", "_")
        if field in values:
            raise SpecError(name, f"{field} is given twice in {shown(line)}")
        values[field] = item[key.end() : end].strip(" \t,;")
    return values | comment


def _exclusion(name: str, line: str) -> dict[str, str]:
    if (parts := _CALENDAR.fullmatch(line)) and name == "exclude":
        return {"calendar": unquoted(parts["name"])}
    item, comment = _comment(line)
    for form in (_DATES, _BETWEEN, _HOLIDAYS):
        if parts := form.fullmatch(_spaced(item)):
            return _given(parts.groupdict()) | comment
    calendar = "calendar UK holidays, " if name == "exclude" else ""
    return _structured(name, line, forms=calendar + _EXCLUSION_FORMS)


def _comment(line: str) -> tuple[str, dict[str, str]]:
    parts = _COMMENTED.fullmatch(line)
    return (parts["item"].rstrip(" \t,;"), {"comment": unquoted(parts["comment"])}) if parts else (line, {})


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: text.strip() for name, text in values.items() if text is not None}


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _list(spec: Mapping[str, object], name: str) -> list[object]:
    rules = spec.get(name, [])
    return rules if isinstance(rules, list) else [rules]


def _explained(spec: Mapping[str, object], name: str, text: Callable[[Any], str], zone: str) -> str:
    rules = _list(spec, name)
    return _aligned([text(rule) for rule in rules], [_meaning(name, rule, zone) for rule in rules])


def _aligned(lines: list[str], meanings: list[str]) -> str:
    width = max(map(len, lines), default=0)
    pairs = zip(lines, meanings, strict=True)
    return "\n".join(f"{line:{width}}   # {meaning}" if meaning else line for line, meaning in pairs)


def _meaning(name: str, rule: object, zone: str) -> str:
    try:
        return Spec.parse({name: [rule], "time_zone": zone}).describe()
    except SpecError:
        return ""


def _interval_text(rule: object) -> str:
    return f"{rule.get('every')} offset {rule.get('offset')}" if isinstance(rule, Mapping) else str(rule)


def _pattern_text(rule: Any) -> str:
    match rule:
        case {"times": [*times], **rest} if rest.keys() <= {"weekdays"} and _are_words(times):
            text = f"at {', '.join(times)}"
        case {"every": str(every), **rest} if rest.keys() <= {"from", "until", "weekdays"}:
            text = f"every {every}" + _words(rest, "from") + _words(rest, "until")
        case _:
            return quoted(rule)
    return text + (f" on {rest['weekdays']}" if "weekdays" in rest else "")


def _words(values: Mapping[Any, object], name: str) -> str:
    return f" {name} {values[name]}" if name in values else ""


def _are_words(values: list[object]) -> bool:
    return bool(values) and all(isinstance(value, str) and value.split() == [value] for value in values)


def _structured_text(rule: object, default: str = "hour: 0") -> str:
    """Return a structured rule as text; `default` is the text for a rule whose values are all defaults."""
    if not isinstance(rule, Mapping) or not all(isinstance(value, str) for value in rule.values()):
        return quoted(rule)
    text = ", ".join(f"{key}: {value}" for key, value in rule.items() if key != "comment") or default
    return _commented(text, rule) if text and rule.keys() <= {*KEYS, "comment"} else quoted(rule)


def _exclusions_text(items: list[object], calendars: Mapping[str, object]) -> str:
    return _aligned([_exclusion_text(item) for item in items], [_left_out(item, calendars) for item in items])


def _exclusion_text(item: Any) -> str:
    match item:
        case {"calendar": str(name)} if name.isprintable():
            return f"calendar {name if _PLAIN.fullmatch(name) else quoted(name)}"
        case {"dates": str(dates)}:
            return _commented(f"dates {dates}", item)
        case {"from": str(start), "until": str(until)}:
            return _commented(f"from {_short(start)} until {_short(until)}", item)
        case {"holidays": str(country)}:
            return _commented(f"holidays {country} {item.get('subdivision', '')}".strip(), item)
    return _structured_text(item, default="")


def _left_out(item: object, calendars: Mapping[str, object]) -> str:
    try:
        if isinstance(item, Mapping) and "calendar" in item:
            return calendar_in_words(calendars.get(item["calendar"], []))
        return calendar_items([item])[0].words()
    except (SpecError, TypeError):
        return ""


def _commented(text: str, item: Mapping[str, Any]) -> str:
    """Return the text of an item with its comment. Quotes allow any character in the comment."""
    return f"{text}, comment: {quoted(item['comment'])}" if "comment" in item else text


def _short(moment: str) -> str:
    """Return a time such as 2026-12-01T22:00:00 in the short form 2026-12-01 22:00."""
    return re.sub(r"^(\S{10})T(\d\d:\d\d):00(?=Z?$)", r"\1 \2", moment)


def _bound_text(name: str, spec: Mapping[str, object], zone: str, dst: str) -> str:
    """Return a bound as text: only the date, if the date alone means the same bound."""
    if not spec.get(name):
        return ""
    text = _moment_text(str(spec[name]), zone)
    try:
        day = Spec.parse({name: text[:10], "time_zone": zone, "dst": dst}).as_json()
    except SpecError:
        return text
    return text[:10] if day.get(name) == spec[name] else text


def _moment_text(rule: str, zone: str) -> str:
    """Return a time in the schedule's time zone with its UTC offset, so that the text means one instant."""
    try:
        at = datetime.fromisoformat(rule).astimezone(ZoneInfo(zone))
    except (ValueError, KeyError, OSError, OverflowError):
        return rule
    return at.isoformat(sep=" ", timespec="seconds" if at.second else "minutes")


def quoted(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def unquoted(text: str) -> str:
    """Return text without its quotation marks; text that is not valid JSON stays unchanged."""
    text = text.strip()
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text
