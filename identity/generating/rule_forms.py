"""Read the rules of a template from JSON. What is wrong is collected, so that it can be shown all at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from execution.steps.fields import shown
from identity.values import LARGEST, Kind, in_order, parse
from schedules.placeholders import hint

from . import rules
from .checks import (
    Errors,
    Path,
    Wrong,
    decimal,
    flag,
    json_object,
    kind_of,
    pair,
    refuse_unknown,
    several,
    share,
    single,
    text,
    whole,
)
from .draws import Chance, Draws
from .rules import LONGEST_INSERTED, Rule
from .word_lists import WORD_LISTS

Said = Mapping[str, Any]
OPTIONS: dict[str, tuple[str, ...]] = {
    "choose": (),
    "range": ("step",),
    "date": (),
    "datetime": (),
    "boolean": (),
    "sequence": (),
    "uuid": (),
    "pattern": ("plain", "unique"),
    "by": ("values", "otherwise"),
    "manager": ("span",),
    "references": ("count",),
}
DEFAULT_SPAN, LARGEST_SPAN = 8, 1_000_000
MOST_REFERENCES = 10_000
LARGEST_WEIGHT = 1_000_000
# Far enough from the largest integer of a database to count on.
LARGEST_START = 10**18 - 1
LONGEST_PATH = 12  # about five rules inside each other
BACKWARDS = "begins after its end; write the smaller or earlier value first"
SECOND, EPOCH = timedelta(seconds=1), datetime(1970, 1, 1, tzinfo=UTC)
_INSERTION = re.compile(r"\{([^{}:]+)(?::([1-9][0-9]{0,2}))?\}")
_SEQUENCE = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


class Use(NamedTuple):
    """The rule at `path` uses an attribute: its value in the same object, or its values as ids of others."""

    path: Path
    attribute: str
    what: Literal["value", "id"]


class RuleReader:
    """Reads the rules of one template, notes what is wrong, and collects which attributes they use."""

    def __init__(self, seed: int, errors: Errors) -> None:
        self.uses: list[Use] = []
        self._seed = seed
        self._errors = errors
        self._forms: dict[str, Callable[[Path, Said], Rule | None]] = {
            "choose": self._choose,
            "range": self._range,
            "date": self._date,
            "datetime": self._datetime,
            "boolean": self._boolean,
            "sequence": self._sequence,
            "uuid": self._uuid,
            "pattern": self._pattern,
            "by": self._by,
            "manager": self._manager,
            "references": self._references,
        }

    def read(self, path: Path, data: object) -> Rule | None:
        """Return the rule, or None if it is wrong."""
        return self._errors.attempt(self._rule if isinstance(data, dict) else _constant, path, data)

    def _rule(self, path: Path, data: object) -> Rule | None:
        said = json_object(path, data)
        form = _form(path, said)
        refuse_unknown(path, said, (form, *OPTIONS[form], "fill"))
        rule = self._forms[form](path, said)
        if rule is None or "fill" not in said:
            return rule
        chance = Chance(share((*path, "fill"), said["fill"]), Draws(self._seed, *path, "fill"))
        return rules.Sometimes(kind=rule.kind, is_multi=rule.is_multi, rule=rule, chance=chance)

    def _choose(self, path: Path, said: Said) -> Rule:
        place = (*path, "choose")
        values, weights = _weighted(place, said["choose"])
        kind, stored = several(place, values)
        return rules.Choice(kind=kind, values=tuple(stored), weights=tuple(weights), draws=self._draws(path))

    def _range(self, path: Path, said: Said) -> Rule:
        place = (*path, "range")
        ends = pair(place, said["range"], "[1, 100]")
        is_whole = all(isinstance(each, int) for each in (*ends, said.get("step", 1)))
        step = decimal((*path, "step"), said.get("step", 1 if is_whole else 0.01))
        numbers = [decimal(place, ends[0]), decimal(place, ends[1]), step]
        if step <= 0:
            raise Wrong((*path, "step"), "must be greater than 0")
        places = max(_places(each) for each in numbers)
        first, last, apart = (_units(place, each, places) for each in numbers)
        if is_whole:
            return self._between(place, Kind.INTEGER, first, last, int, apart)
        return self._between(place, Kind.DECIMAL, first, last, _decimals(places), apart)

    def _date(self, path: Path, said: Said) -> Rule:
        place = (*path, "date")
        ends = pair(place, said["date"], '["2015-01-01", "2026-01-01"]')
        first, last = (date.fromisoformat(single(place, Kind.DATE, each)).toordinal() for each in ends)
        return self._between(place, Kind.DATE, first, last, _day)

    def _datetime(self, path: Path, said: Said) -> Rule:
        place = (*path, "datetime")
        ends = pair(place, said["datetime"], '["2026-01-01T08:00:00Z", "2026-01-31T18:00:00Z"]')
        first, last = (datetime.fromisoformat(single(place, Kind.DATETIME, each)) - EPOCH for each in ends)
        return self._between(place, Kind.DATETIME, first // SECOND, last // SECOND, _second)

    def _between(
        self, place: Path, kind: Kind, first: int, last: int, form: Callable[[int], Any], step: int = 1
    ) -> Rule:
        if first > last:
            raise Wrong(place, BACKWARDS)
        size = (last - first) // step + 1
        return rules.Range(kind=kind, first=first, step=step, size=size, form=form, draws=self._draws(place))

    def _boolean(self, path: Path, said: Said) -> Rule:
        return rules.YesOrNo(chance=Chance(share((*path, "boolean"), said["boolean"]), self._draws(path)))

    def _sequence(self, path: Path, said: Said) -> Rule:
        place, start = (*path, "sequence"), said["sequence"]
        if not isinstance(start, str):
            return rules.NumberSequence(first=whole(place, start, -LARGEST_START, LARGEST_START))
        parts = _SEQUENCE.fullmatch(text(place, start))
        if parts is None:
            raise Wrong(place, f"must end with a number, such as E0001, not {shown(start)}")
        return rules.TextSequence(before=parts[1], first=int(parts[2]), digits=len(parts[2]))

    def _uuid(self, path: Path, said: Said) -> Rule:
        if said["uuid"] is not True:
            raise Wrong((*path, "uuid"), f"must be true, not {shown(said['uuid'])}")
        return rules.RandomUUID(draws=self._draws(path))

    def _pattern(self, path: Path, said: Said) -> Rule:
        place = (*path, "pattern")
        *pieces, end = _INSERTION.split(text(place, said["pattern"]))
        insertions = tuple(map(_insertion, pieces[::3], pieces[1::3], pieces[2::3]))
        if any(brace in piece for piece in (*pieces[::3], end) for brace in "{}"):
            raise Wrong(place, "contains a brace that is not part of {name} or {name:3}; remove it")
        self.uses += [Use(place, each.attribute, "value") for each in insertions]
        is_plain = flag((*path, "plain"), said.get("plain", False))
        is_unique = flag((*path, "unique"), said.get("unique", False))
        return rules.Pattern(insertions=insertions, end=end, is_plain=is_plain, is_id=is_unique)

    def _by(self, path: Path, said: Said) -> Rule | None:
        if len(path) > LONGEST_PATH:
            raise Wrong(path, "is nested too deeply; use fewer rules inside rules")
        attribute = text((*path, "by"), said["by"])
        self.uses.append(Use((*path, "by"), attribute, "value"))
        place = (*path, "values")
        branches = json_object(place, said.get("values"))
        if not branches:
            raise Wrong(place, "is empty; write a rule for at least one value")
        chosen = {value: rule for value in branches if (rule := self.read((*place, value), branches[value]))}
        otherwise = self.read((*path, "otherwise"), said["otherwise"]) if "otherwise" in said else None
        sound = [rule for rule in (*chosen.values(), otherwise) if rule]
        if not sound:
            return None
        kind, is_multi = _common(place, sound)
        return rules.By(kind=kind, is_multi=is_multi, attribute=attribute, rules=chosen, otherwise=otherwise)

    def _manager(self, path: Path, said: Said) -> Rule:
        span = whole((*path, "span"), said.get("span", DEFAULT_SPAN), 1, LARGEST_SPAN)
        return rules.Manager(of=self._id((*path, "manager"), said["manager"]), span=span)

    def _references(self, path: Path, said: Said) -> Rule:
        place = (*path, "count")
        ends = pair(place, said.get("count"), "[0, 5]")
        least, most = (whole(place, each, 0, MOST_REFERENCES) for each in ends)
        if least > most:
            raise Wrong(place, BACKWARDS)
        of = self._id((*path, "references"), said["references"])
        return rules.References(of=of, least=least, most=most, draws=self._draws(path))

    def _id(self, place: Path, attribute: object) -> str:
        self.uses.append(Use(place, text(place, attribute), "id"))
        return self.uses[-1].attribute

    def _draws(self, path: Path) -> Draws:
        return Draws(self._seed, *path)


def _form(path: Path, said: Said) -> str:
    match [name for name in OPTIONS if name in said]:
        case [form]:
            return form
        case []:
            raise Wrong(path, f"does not say how to generate values; {hint(next(iter(said), ''), OPTIONS)}")
        case forms:
            raise Wrong(path, f"has {' and '.join(forms)}; keep one of these")


def _constant(path: Path, value: object) -> Rule:
    if value is None:
        raise Wrong(path, 'is missing; write a value, or a rule such as {"choose": ["a", "b"]}')
    if not isinstance(value, list):
        kind = kind_of(path, value)
        return rules.Constant(kind=kind, always=single(path, kind, value))
    kind, stored = several(path, value)
    return rules.Constant(kind=kind, always=in_order(stored), is_multi=True)


def _weighted(place: Path, given: object) -> tuple[list[Any], list[int]]:
    """Return the values from which to choose, and their weights."""
    match given:
        case dict():
            # In order, because a database may return the names of an object in another one.
            weights = dict(sorted(json_object(place, given).items()))
            checked = [whole((*place, name), weight, 1, LARGEST_WEIGHT) for name, weight in weights.items()]
            return list(weights), checked
        case list():
            return given, [1] * len(given)
        case str() if given in WORD_LISTS:
            return list(WORD_LISTS[given]), [1] * len(WORD_LISTS[given])
        case str():
            raise Wrong(place, f"{shown(given)} is not the name of a word list; {hint(given, WORD_LISTS)}")
    raise Wrong(place, "must be a list of values, an object of texts and weights, or the name of a word list")


def _insertion(before: str, attribute: str, length: str | None) -> rules.Insertion:
    return rules.Insertion(before, attribute, min(int(length or LONGEST_INSERTED), LONGEST_INSERTED))


def _common(place: Path, branches: list[Rule]) -> tuple[Kind, bool]:
    kinds = {(each.kind, each.is_multi): None for each in branches}
    if len(kinds) > 1:
        named = ", ".join(f"several of {kind}" if is_multi else str(kind) for kind, is_multi in kinds)
        raise Wrong(place, f"gives values of different kinds ({named}); use one kind for all")
    return next(iter(kinds))


def _places(number: Decimal) -> int:
    """Return how many digits follow the decimal point."""
    return max(0, -int(number.as_tuple().exponent))


def _units(place: Path, number: Decimal, places: int) -> int:
    scaled = number.scaleb(places)
    if abs(scaled) > LARGEST:
        raise Wrong(place, "needs too many digits; use smaller numbers or fewer decimal places")
    return int(scaled)


def _decimals(places: int) -> Callable[[int], Any]:
    return lambda units: parse(Kind.DECIMAL, Decimal(units).scaleb(-places))


def _day(ordinal: int) -> str:
    return date.fromordinal(ordinal).isoformat()


def _second(seconds: int) -> Any:
    return parse(Kind.DATETIME, EPOCH + seconds * SECOND)
