"""The rules of a template: each returns the value that one attribute has in the object at an index."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from identity.values import Attributes, Kind, canonical, in_order

from .draws import Chance, Draws

LONGEST_INSERTED = 200
# Letters that do not consist of a plain letter and an accent.
_SPELLED = str.maketrans(
    {
        "ß": "ss",
        "æ": "ae",
        "œ": "oe",
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "ð": "d",
        "þ": "th",
        "\N{LATIN SMALL LETTER DOTLESS I}": "i",
    }
)
_NOT_PLAIN = re.compile(r"[^a-z0-9._@-]")


class Others(Protocol):
    """All objects of the template, as far as an object can refer to them."""

    @property
    def count(self) -> int: ...

    def has(self, index: int) -> bool: ...

    def id_of(self, index: int, attribute: str) -> Any: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule(ABC):
    """How the values of one attribute come about. `is_id`: each object has a value, and no two the same."""

    kind: Kind = Kind.TEXT
    is_multi: bool = False
    is_id: bool = False

    @abstractmethod
    def value(self, index: int, known: Attributes, others: Others) -> Any:
        """Return the value or None; `known` are the values of the attributes on which this one depends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Constant(Rule):
    always: Any

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        return self.always


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice(Rule):
    values: tuple[Any, ...]
    weights: tuple[int, ...]
    draws: Draws

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        return self.drawn(index)

    def drawn(self, index: int, turn: int = 0) -> Any:
        ends = self._ends
        return self.values[bisect_right(ends, self.draws.below(ends[-1], index, turn))]

    def without(self, value: Any) -> Choice:
        left = [pair for pair in zip(self.values, self.weights, strict=True) if pair[0] != value]
        return replace(self, values=tuple(each for each, _ in left), weights=tuple(each for _, each in left))

    def moved(self, moves: Mapping[int, int]) -> Moved:
        return Moved(kind=self.kind, choice=self, moves=moves)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.weights))


@dataclass(frozen=True, kw_only=True, eq=False)
class Range(Rule):
    """One of `size` whole numbers that are `step` apart; `form` turns it into a decimal, a date or a time."""

    first: int
    step: int
    size: int
    form: Callable[[int], Any]
    draws: Draws

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        return self.form(self.first + self.step * self.draws.below(self.size, index))


@dataclass(frozen=True, kw_only=True, eq=False)
class YesOrNo(Rule):
    kind: Kind = Kind.BOOLEAN
    chance: Chance

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        return self.chance.falls(index)


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberSequence(Rule):
    kind: Kind = Kind.INTEGER
    is_id: bool = True
    first: int

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        return self.first + index


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSequence(Rule):
    is_id: bool = True
    before: str
    first: int
    digits: int

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        return f"{self.before}{self.first + index:0{self.digits}d}"


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomUUID(Rule):
    kind: Kind = Kind.UUID
    is_id: bool = True
    draws: Draws

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        number = self.draws.number(index) << 64 | self.draws.number(index, 1)
        return str(UUID(int=number, version=4))


class Insertion(NamedTuple):
    """Text, followed by the first `length` characters of an attribute."""

    before: str
    attribute: str
    length: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Pattern(Rule):
    insertions: tuple[Insertion, ...]
    end: str
    is_plain: bool

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        text = "".join(self._parts(known))
        if self.is_id:
            return numbered(text, index + 1)
        return text or None

    def _parts(self, known: Attributes) -> Iterator[str]:
        for before, attribute, length in self.insertions:
            inserted = as_text(known.get(attribute, ""))
            yield before
            yield (plain(inserted) if self.is_plain else inserted)[:length]
        yield self.end


@dataclass(frozen=True, kw_only=True, eq=False)
class By(Rule):
    attribute: str
    rules: Mapping[str, Rule]
    otherwise: Rule | None

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        rule = self.rules.get(as_text(known.get(self.attribute, "")), self.otherwise)
        return rule and rule.value(index, known, others)


@dataclass(frozen=True, kw_only=True, eq=False)
class Manager(Rule):
    """The object above in a tree that is filled level by level; if it is absent, the next one above."""

    kind: Kind = Kind.REFERENCE
    of: str
    span: int

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        while index:
            index = (index - 1) // self.span
            if others.has(index):
                return as_text(others.id_of(index, self.of))
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class References(Rule):
    kind: Kind = Kind.REFERENCE
    is_multi: bool = True
    of: str
    least: int
    most: int
    draws: Draws

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        chosen = self._chosen(index, among=max(others.count - 1, index))
        # The numbers stand for all indexes but this one.
        chosen = {each + (each >= index) for each in chosen}
        return in_order(as_text(others.id_of(each, self.of)) for each in chosen if others.has(each))

    def _chosen(self, index: int, among: int) -> set[int]:
        """Return different numbers below `among`, all sets of the same size being equally likely."""
        size = min(self.least + self.draws.below(self.most - self.least + 1, index), among)
        chosen: set[int] = set()
        for turn, last in enumerate(range(among - size, among), start=1):
            drawn = self.draws.below(last + 1, index, turn)
            chosen.add(last if drawn in chosen else drawn)
        return chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class Sometimes(Rule):
    rule: Rule
    chance: Chance

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        return self.rule.value(index, known, others) if self.chance.falls(index) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved(Rule):
    """A choice that some objects have made again, each time for a different value."""

    choice: Choice
    moves: Mapping[int, int]

    def value(self, index: int, known: Attributes, others: Others) -> Any:
        held = self.choice.drawn(index)
        for turn in range(1, self.moves.get(index, 0) + 1):
            held = self.choice.without(held).drawn(index, turn)
        return held


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """Return the text as it can be used in user names: “Ørsted-O'Neill” becomes “orsted-oneill”."""
    letters = unicodedata.normalize("NFKD", text.lower().translate(_SPELLED))
    return _NOT_PLAIN.sub("", letters)


def numbered(text: str, number: int) -> str:
    """Append the number to the text, or to what is before its first @.

    The results for two numbers always differ: the number is what follows the last dot before the first @.
    """
    local, at, domain = text.partition("@")
    return f"{local}.{number}{at}{domain}"
