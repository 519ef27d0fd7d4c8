"""Check parts of a template. The functions return a part in the form in which it is used, or raise Wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

from execution.steps.fields import shown
from identity.values import BadValue, Kind, parse
from schedules.placeholders import hint
from text.clean import clean_text

T = TypeVar("T")
Path = tuple[str, ...]
LONGEST_TEXT = 200
_KINDS = {bool: Kind.BOOLEAN, str: Kind.TEXT, int: Kind.INTEGER, float: Kind.DECIMAL}


class Wrong(ValueError):
    """Something at a path is wrong; the message says what to do."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class Errors:
    """All that is wrong, by path."""

    def __init__(self) -> None:
        self.found: dict[Path, str] = {}

    def attempt(self, check: Callable[..., T], *args: Any) -> T | None:
        """Return what the check returns, or None if it raises Wrong, and note why."""
        try:
            return check(*args)
        except Wrong as wrong:
            self.found[wrong.path] = str(wrong)
            return None


def json_object(path: Path, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Wrong(path, f"must be an object, such as {{…}}, not {shown(value)}")
    for name in value:
        if not isinstance(name, str):
            raise Wrong(path, f"has a name that is not text; write {shown(name)} in quotes")
        if clean_text(name) != name:
            raise Wrong(path, f"has the name {shown(name)}, with NUL or half a surrogate pair; rename it")
    return value


def refuse_unknown(path: Path, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise Wrong((*path, name), f"is unknown here; {hint(name, known)}")


def whole(path: Path, value: object, least: int, most: int) -> int:
    wanted = f"a whole number from {least:,} to {most:,}"
    if value is None:
        raise Wrong(path, f"is missing; write {wanted}")
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Wrong(path, f"must be {wanted}, not {shown(value)}")
    return value


def share(path: Path, percent: object) -> Fraction:
    """Return a percentage as a fraction from 0 to 1."""
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise Wrong(path, f"must be a percentage from 0 to 100, not {shown(percent)}")
    return Fraction(str(percent)) / 100


def flag(path: Path, value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(path, f"must be true or false, not {shown(value)}")
    return value


def text(path: Path, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_TEXT:
        raise Wrong(path, f"must be text of 1 to {LONGEST_TEXT} characters, not {shown(value)}")
    return clean_text(value)


def pair(path: Path, value: object, example: str) -> tuple[object, object]:
    if not isinstance(value, list) or len(value) != 2:
        raise Wrong(path, f"must be a list of the first and the last value, such as {example}")
    return value[0], value[1]


def decimal(path: Path, value: object) -> Decimal:
    kind = kind_of(path, value)
    if kind not in (Kind.INTEGER, Kind.DECIMAL):
        raise Wrong(path, f"must be a number, not {shown(value)}")
    return Decimal(str(single(path, kind, value)))


def single(path: Path, kind: Kind, value: object) -> Any:
    """Return a value as it is stored."""
    try:
        stored = parse(kind, value)
    except BadValue as bad:
        raise Wrong(path, f"contains a value that does not fit: {bad}") from None
    if stored is None:
        raise Wrong(
            path, "contains an empty value; remove it, and use “fill” if not all objects have a value"
        )
    return stored


def several(path: Path, values: list[Any]) -> tuple[Kind, list[Any]]:
    """Return the kind that all values have, and the values as they are stored."""
    kinds = {kind_of(path, each): None for each in values}
    if not kinds:
        raise Wrong(path, "is empty; write at least one value")
    kind = Kind.DECIMAL if kinds.keys() == {Kind.INTEGER, Kind.DECIMAL} else next(iter(kinds))
    if kind is not Kind.DECIMAL and len(kinds) > 1:
        raise Wrong(path, f"mixes values of different kinds ({', '.join(kinds)}); write all as the same kind")
    return kind, [single(path, kind, each) for each in values]


def kind_of(path: Path, value: object) -> Kind:
    for type_, kind in _KINDS.items():
        if isinstance(value, type_):
            return kind
    raise Wrong(path, f"must be text, a number, true or false, not {shown(value)}")
