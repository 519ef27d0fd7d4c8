"""The values of attributes: how they are read, stored as JSON, and compared. Uses no database.

An object's attributes are a dict from name to value. An attribute without a value is not in the dict. The
value of a multi-valued attribute is a sorted list without duplicates. Dates and times are ISO 8601 text in
UTC, decimals and UUIDs are text, binary values are base64.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any
from uuid import UUID

from text.clean import clean_text

Attributes = dict[str, Any]
LARGEST = 2**63 - 1
TRUE, FALSE = {"true", "yes", "1", "t", "y"}, {"false", "no", "0", "f", "n"}


class Kind(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATE = "date"
    DATETIME = "datetime"
    UUID = "uuid"
    BINARY = "binary"
    REFERENCE = "reference"


class Match(StrEnum):
    """How two values of an attribute are compared to find out whether a system took what was sent."""

    EXACT = "exact"
    NOCASE = "nocase"
    IGNORE = "ignore"


class BadValue(ValueError):
    """The value does not fit the attribute; the message says why."""


def parse(kind: Kind, value: object) -> Any:
    """Return the single value as it is stored, or None if it is empty; raise BadValue if it does not fit."""
    if value is None or value == "":
        return None
    try:
        return _PARSE[kind](value)
    except BadValue:
        raise
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        raise BadValue(f"{_quoted(value)} is not {_NAMES[kind]}") from None


def parse_each(kind: Kind, values: Iterable[object]) -> list[Any] | None:
    """Return several values as they are stored: sorted, without duplicates; None if there are none."""
    parsed = (parse(kind, value) for value in values)
    return in_order(value for value in parsed if value is not None)


def in_order(values: Iterable[Any]) -> list[Any] | None:
    """Return the values of a multi-valued attribute as they are stored, or None if there are none."""
    found = list(values)
    if not found:
        return None
    return found if len(found) == 1 else sorted(set(found), key=lambda value: (str(type(value)), value))


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def canonical(value: object) -> str:
    """Return the value as JSON text that is the same for equal values."""
    return _ENCODER.encode(value)


def folded(value: object) -> str:
    """Return the value as text for comparisons that ignore case and the type of the value."""
    text = value if isinstance(value, str) else canonical(value)
    return text.strip().casefold()


def same(one: Any, other: Any, match: Match = Match.EXACT) -> bool:
    if match is Match.IGNORE or one == other:
        return True
    if match is Match.NOCASE:
        return {folded(value) for value in as_list(one)} == {folded(value) for value in as_list(other)}
    return False


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return what changed, as `{name: [old, new]}`; None stands for no value."""
    return {name: [was.get(name), now.get(name)] for name in {**was, **now} if was.get(name) != now.get(name)}


def converted(value: Any, source: Kind, target: Kind) -> Any:
    """Return one value of the kind `source` as a value of the kind `target`; raise BadValue if impossible."""
    if source == target or value is None:
        return value
    if target in (Kind.TEXT, Kind.REFERENCE):
        return value if isinstance(value, str) else canonical(value)
    if source is Kind.DATETIME and target is Kind.DATE:
        return value[:10]
    return parse(target, value)


def _integer(value: object) -> int:
    number = value if isinstance(value, int) and not isinstance(value, bool) else int(_digits(value))
    if abs(number) > LARGEST:
        raise BadValue(f"{_quoted(value)} is too large for a whole number")
    return number


def _decimal(value: object) -> str:
    number = Decimal(_digits(value))
    if not number.is_finite() or abs(number.adjusted()) > 100:
        raise BadValue(f"{_quoted(value)} is not a decimal number")
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _digits(value: object) -> str:
    """Return a number as text, in which Python accepts no `_`: `2026_01` is not the number 202601."""
    return str(value).strip().replace("_", "?")


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in TRUE | FALSE:
        raise BadValue(f"{_quoted(value)} is not yes or no (such as true, false, yes, no, 1 or 0)")
    return text in TRUE


def _date(value: object) -> str:
    return date.fromisoformat(str(value).strip()).isoformat()


def _datetime(value: object) -> str:
    """Parse a time; one without an offset is taken as UTC."""
    at = datetime.fromisoformat(str(value).strip())
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return at.isoformat().replace("+00:00", "Z")


def _binary(value: object) -> str | None:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode() or None
    try:
        return base64.b64encode(base64.b64decode(str(value).strip(), validate=True)).decode() or None
    except binascii.Error:
        raise BadValue(f"{_quoted(value)} is not base64") from None


def _text(value: object) -> str:
    if isinstance(value, str):
        return clean_text(value)
    return canonical(value)


def _quoted(value: object) -> str:
    text = clean_text(str(value))
    return f"“{text[:60]}…”" if len(text) > 60 else f"“{text}”"


_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
_PARSE: dict[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: _text,
    Kind.INTEGER: _integer,
    Kind.DECIMAL: _decimal,
    Kind.BOOLEAN: _boolean,
    Kind.DATE: _date,
    Kind.DATETIME: _datetime,
    Kind.UUID: lambda value: str(UUID(str(value).strip())),
    Kind.BINARY: _binary,
    Kind.REFERENCE: _text,
}
_NAMES = {
    Kind.TEXT: "text",
    Kind.INTEGER: "a whole number",
    Kind.DECIMAL: "a decimal number",
    Kind.BOOLEAN: "yes or no",
    Kind.DATE: "a date, such as 2026-01-31",
    Kind.DATETIME: "a time, such as 2026-01-31T09:00:00Z",
    Kind.UUID: "a UUID",
    Kind.BINARY: "base64",
    Kind.REFERENCE: "a reference",
}
