"""The exclusions of a spec: dates, spans, structured calendars, holidays, shared calendars."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, Protocol

from .moments import clock_reading, date_of
from .public_holidays import Place, country_of, holiday_name, place_words, subdivision_of
from .sentences import excluded_words
from .shapes import comment_of, each_of, list_of, object_of, text_of
from .structured import KEYS, Structured
from .wall_calendar import DAY, EPOCH_ORDINAL
from .wording import SpecError, date_words, listed, moment_words, shown

MOST_EXCLUSIONS = 100
MOST_CALENDAR_ITEMS = 1000
MOST_ITEMS = 1000
MOST_PLACES = 100
_MOST_SAID = 10
_FORMS = (
    '{"calendar": "UK holidays"}',
    '{"dates": "2026-12-24/2027-01-02"}',
    '{"from": "2026-12-01T22:00", "until": "2026-12-02T04:00"}',
    '{"holidays": "GB", "subdivision": "ENG"}',
    '{"day_of_week": "sat,sun"}',
)


class Exclusion(Protocol):
    def as_json(self) -> dict[str, str]: ...

    def words(self) -> str:
        """Return the words that follow “except” in the description of a spec."""

    def leaves_out(self, wall: int, instant: int) -> bool: ...

    def reason(self, wall: int, calendar: str) -> str:
        """Return why a wall time is excluded. `calendar` is the shared calendar of this exclusion, if any."""


class Span(NamedTuple):
    """The seconds from `start` up to, but not including, `end`."""

    start: int
    end: int

    def holds(self, second: int) -> bool:
        return self.start <= second < self.end


@dataclass(frozen=True)
class Dates:
    first: date
    last: date
    comment: str = ""

    @classmethod
    def parse(cls, name: str, item: object) -> Dates:
        data = object_of(name, item, allowed=("dates", "comment"))
        first, slash, last = text_of(name, data["dates"]).partition("/")
        dates = cls(date_of(name, first), date_of(name, last if slash else first), comment_of(name, data))
        if dates.last < dates.first:
            raise SpecError(name, f"the dates {first}/{last} run backwards; put the earlier one first")
        return dates

    @property
    def span(self) -> Span:
        return Span(_day_of(self.first) * DAY, (_day_of(self.last) + 1) * DAY)

    def as_json(self) -> dict[str, str]:
        dates = f"{self.first}" if self.first == self.last else f"{self.first}/{self.last}"
        return _with_comment({"dates": dates}, self.comment)

    def words(self) -> str:
        first, last = date_words(self.first), date_words(self.last)
        return first if first == last else f"{first} to {last}"

    def leaves_out(self, wall: int, instant: int) -> bool:
        return self.span.holds(wall)

    def reason(self, wall: int, calendar: str) -> str:
        dates = self.words() if self.first != self.last else ""
        return f"{date_words(_date_of(wall))} is excluded" + _in_brackets(calendar, self.comment, dates)


@dataclass(frozen=True)
class Between:
    """A span between two times: both are naive and in the time zone of the spec, or both are in UTC."""

    start: datetime
    until: datetime
    comment: str = ""

    @classmethod
    def parse(cls, name: str, item: object) -> Between:
        data = object_of(name, item, allowed=("from", "until", "comment"))
        if "from" not in data or "until" not in data:
            raise SpecError(name, f"give both from and until, such as {_FORMS[2]}")
        start, until = (_whole_second(clock_reading(name, data[key])) for key in ("from", "until"))
        if (start.tzinfo is None) != (until.tzinfo is None):
            raise SpecError(name, "write from and until either both with a UTC offset or both without")
        if until < start:
            raise SpecError(
                name, f"until ({shown(data['until'])}) is earlier than from ({shown(data['from'])})"
            )
        return cls(start, until, comment_of(name, data))

    @property
    def is_on_the_clock(self) -> bool:
        return self.start.tzinfo is None

    @property
    def span(self) -> Span:
        return Span(_seconds(self.start), _seconds(self.until) + 1)

    def as_json(self) -> dict[str, str]:
        form = "%Y-%m-%dT%H:%M:%S" + ("" if self.is_on_the_clock else "Z")
        span = {"from": self.start.strftime(form), "until": self.until.strftime(form)}
        return _with_comment(span, self.comment)

    def words(self) -> str:
        zone = "" if self.is_on_the_clock else " UTC"
        return f"{moment_words(self.start)} to {moment_words(self.until)}{zone}"

    def leaves_out(self, wall: int, instant: int) -> bool:
        return self.span.holds(wall if self.is_on_the_clock else instant)

    def reason(self, wall: int, calendar: str) -> str:
        return _left_out(wall) + _in_brackets(calendar, self.comment, self.words())


@dataclass(frozen=True)
class Holidays:
    country: str
    subdivision: str = ""
    comment: str = ""

    @classmethod
    def parse(cls, name: str, item: object) -> Holidays:
        data = object_of(name, item, allowed=("holidays", "subdivision", "comment"))
        if "holidays" not in data:
            raise SpecError(name, f"a subdivision needs a country, such as {_FORMS[3]}")
        country = country_of(name, text_of(name, data["holidays"]))
        subdivision = text_of(name, data.get("subdivision", ""))
        if subdivision:
            subdivision = subdivision_of(name, subdivision, country)
        return cls(country, subdivision, comment_of(name, data))

    @property
    def place(self) -> Place:
        return Place(self.country, self.subdivision)

    def name_on(self, day: int) -> str | None:
        return holiday_name(self.place, day)

    def as_json(self) -> dict[str, str]:
        place = {"holidays": self.country} | ({"subdivision": self.subdivision} if self.subdivision else {})
        return _with_comment(place, self.comment)

    def words(self) -> str:
        return f"public holidays ({place_words(self.place)})"

    def leaves_out(self, wall: int, instant: int) -> bool:
        return self.name_on(wall // DAY) is not None

    def reason(self, wall: int, calendar: str) -> str:
        source = calendar or place_words(self.place)
        return f"{date_words(_date_of(wall))} is {self.name_on(wall // DAY)}" + _in_brackets(source)


@dataclass(frozen=True)
class Matching:
    """An exclusion of the local times that match a structured calendar."""

    structured: Structured

    @classmethod
    def parse(cls, name: str, item: object) -> Matching:
        if isinstance(item, dict) and not any(key in item for key in KEYS):
            raise SpecError(name, f"this would exclude every time; give at least one of {listed(KEYS)}")
        return cls(Structured.parse(name, item, is_exclusion=True))

    def as_json(self) -> dict[str, str]:
        return self.structured.as_json()

    def words(self) -> str:
        return excluded_words(self.structured.calendar) or "all the time"

    def leaves_out(self, wall: int, instant: int) -> bool:
        return self.structured.calendar.matches(wall)

    def leaves_out_day(self, day: int) -> bool:
        """Return whether the whole day is excluded."""
        return self.structured.is_of_days and self.structured.calendar.matches(day * DAY)

    def reason(self, wall: int, calendar: str) -> str:
        return _left_out(wall) + _in_brackets(calendar, self.structured.comment, self.words())


@dataclass(frozen=True)
class Shared:
    """A reference to a shared calendar, parsed once for all schedules."""

    name: str
    items: tuple[Exclusion, ...] = ()

    @classmethod
    def parse(cls, name: str, definition: object) -> Shared:
        try:
            return _read_once(name, definition)
        except SpecError as error:
            raise SpecError("exclude", f"the calendar {shown(name)} is invalid: {error.message}") from error

    def __hash__(self) -> int:
        return hash((self.name, len(self.items)))

    def as_json(self) -> dict[str, str]:
        return {"calendar": self.name}

    def words(self) -> str:
        return self.name

    def leaves_out(self, wall: int, instant: int) -> bool:
        return any(item.leaves_out(wall, instant) for item in self.items)

    def reason(self, wall: int, calendar: str) -> str:
        return _left_out(wall) + _in_brackets(self.name)


def _read_once(name: str, definition: object) -> Shared:
    try:
        return _shared(name, json.dumps(definition, allow_nan=False))
    except SpecError:
        raise
    except (TypeError, ValueError, RecursionError):
        return Shared(name, calendar_items(definition))  # not JSON, which the parser reports more clearly


@lru_cache(maxsize=256)
def _shared(name: str, definition: str) -> Shared:
    return Shared(name, calendar_items(json.loads(definition)))


def exclusions_of(data: object, calendars: Mapping[str, object]) -> tuple[Exclusion, ...]:
    """Parse the exclusions of a spec, including those of its shared calendars."""
    lines = list_of("exclude", data, most=MOST_EXCLUSIONS)
    exclusions = each_of(lines, lambda line: _exclusion(line, calendars))
    _check_size(flat(exclusions))
    return exclusions


def _check_size(items: Sequence[Exclusion]) -> None:
    """Raise SpecError for too many items, or holidays of too many places: they would slow down ticks."""
    if len(items) > MOST_ITEMS:
        most = f"at most {MOST_ITEMS:,} are allowed, including the items of shared calendars"
        raise SpecError("exclude", f"{len(items):,} items are too many; {most}")
    count = len(places(items))
    if count > MOST_PLACES:
        most = f"at most {MOST_PLACES} places are allowed"
        raise SpecError("exclude", f"the public holidays of {count:,} places are too many; {most}")


def flat(exclusions: Iterable[Exclusion]) -> list[Exclusion]:
    """Return the exclusions with shared calendars replaced by their items."""
    lists = ((each.items if isinstance(each, Shared) else (each,)) for each in exclusions)
    return list(chain.from_iterable(lists))


def places(items: Iterable[Exclusion]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(item.place for item in items if isinstance(item, Holidays)))


def _exclusion(item: object, calendars: Mapping[str, object]) -> Exclusion:
    if not isinstance(item, dict) or "calendar" not in item:
        return _item("exclude", item, forms=_FORMS)
    name = text_of("exclude", object_of("exclude", item, allowed=("calendar",))["calendar"])
    if name not in calendars:
        raise SpecError("exclude", f"unknown calendar {shown(name)}; {_advice(name, sorted(calendars))}")
    calendar = calendars[name]
    return calendar if isinstance(calendar, Shared) else Shared.parse(name, calendar)


def _advice(name: str, known: Sequence[str]) -> str:
    if close := get_close_matches(name[:200], known, n=1):
        return f"did you mean {shown(close[0])}?"
    choices = listed([shown(each) for each in known[:10]], last="or") if known else ""
    return f"create it first, or choose {choices}" if choices else "create it first"


def calendar_items(definition: object, *, name: str = "definition") -> tuple[Exclusion, ...]:
    """Parse the items of a shared calendar. They cannot refer to other calendars."""
    items = list_of(name, definition, most=MOST_CALENDAR_ITEMS)
    return each_of(items, lambda item: _calendar_item(name, item))


def _calendar_item(name: str, item: object) -> Exclusion:
    if isinstance(item, dict) and "calendar" in item:
        raise SpecError(
            name, "a calendar cannot refer to another calendar; copy the items of that calendar instead"
        )
    return _item(name, item, forms=_FORMS[1:])


def _item(name: str, item: object, *, forms: Sequence[str]) -> Exclusion:
    if not isinstance(item, dict) or not item:
        raise SpecError(name, f"expected {listed(forms, last='or')}, got {shown(item)}")
    if "dates" in item:
        return Dates.parse(name, item)
    if "from" in item or "until" in item:
        return Between.parse(name, item)
    if "holidays" in item or "subdivision" in item:
        return Holidays.parse(name, item)
    if unknown := [key for key in item if key not in (*KEYS, "comment")]:
        raise SpecError(name, f"unknown key {shown(unknown[0])}; allowed: {listed(forms, last='or')}")
    return Matching.parse(name, item)


def calendar_in_words(definition: object) -> str:
    """Describe a shared calendar in one sentence."""
    sentence = exclusion_words(calendar_items(definition)) or "nothing"
    return sentence[0].upper() + sentence[1:]


def exclusion_words(items: Sequence[Exclusion]) -> str:
    hidden = [f"{len(items) - _MOST_SAID:,} more"] if len(items) > _MOST_SAID else []
    return listed([item.words() for item in items[:_MOST_SAID]] + hidden) if items else ""


def _with_comment(data: dict[str, str], comment: str) -> dict[str, str]:
    return data | ({"comment": comment} if comment else {})


def _left_out(wall: int) -> str:
    return f"{moment_words(datetime.fromtimestamp(wall, UTC))} is excluded"


def _in_brackets(*details: str) -> str:
    given = ": ".join(filter(None, details))
    return f" ({given})" if given else ""


def _whole_second(moment: datetime) -> datetime:
    return (moment.astimezone(UTC) if moment.tzinfo else moment).replace(microsecond=0)


def _seconds(moment: datetime) -> int:
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _day_of(day: date) -> int:
    return day.toordinal() - EPOCH_ORDINAL


def _date_of(wall: int) -> date:
    return date.fromordinal(wall // DAY + EPOCH_ORDINAL)
