"""The spec against hand-checked instants, and against an oracle that looks at every instant of a window."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from schedules.spec import Spec, SpecError
from tests.schedules import oracle
from tests.schedules.oracle import DAY, HOUR, MINUTE, MONTHS, SECOND, WEEKDAYS

# Half an hour in Lord Howe; at midnight in Cairo, Havana and Beirut; a day in Apia; two hours in Troll.
ZONES = (
    *("UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "Africa/Cairo", "America/Havana"),
    *("Asia/Beirut", "Pacific/Apia", "Antarctica/Troll"),
)
YEARS = (2001, 2006, 2010, 2011, 2014, 2021, 2023, 2024, 2026, 2027, 2037, 2038, 2096, 2099)

Data = dict[str, Any]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def instants(*texts: str) -> list[datetime]:
    return [instant(text) for text in texts]


def cron(*lines: str, **others: Any) -> Data:
    return {"cron": list(lines), **others}


class Change(NamedTuple):
    """A change of the clocks, with the window that is looked at."""

    zone: str
    after: str
    until: str

    def times(self, texts: str) -> list[datetime]:
        """From a day of the window and a time: 08T07:00."""
        first, last = self.after[:8], self.until[:8]
        return [instant((first if text[:2] >= self.after[8:10] else last) + text) for text in texts.split()]


SPRING = Change("America/New_York", "2026-03-07T08:00", "2026-03-09T12:00")  # 8th, 07:00Z, 02:00 -> 03:00
AUTUMN = Change("America/New_York", "2026-10-31T12:00", "2026-11-02T12:00")  # 1st, 06:00Z, 02:00 -> 01:00
HALF_GAP = Change("Australia/Lord_Howe", "2026-10-03T12:00", "2026-10-04T17:00")  # 15:30Z, 02:00 -> 02:30
HALF_FOLD = Change("Australia/Lord_Howe", "2026-04-04T12:00", "2026-04-05T16:00")  # 15:00Z, 02:00 -> 01:30
CAIRO = Change("Africa/Cairo", "2026-04-22T23:00", "2026-04-30T23:00")  # 23rd, 22:00Z, 00:00 -> 01:00
CAIRO_FOLD = Change("Africa/Cairo", "2026-10-29T12:00", "2026-10-30T12:00")  # 29th, 21:00Z, 24:00 -> 23:00
HAVANA = Change("America/Havana", "2026-10-31T12:00", "2026-11-02T12:00")  # 1st, 05:00Z, 01:00 -> 00:00
TROLL = Change("Antarctica/Troll", "2026-03-28T12:00", "2026-03-30T12:00")  # 29th, 01:00Z, 01:00 -> 03:00
TROLL_FOLD = Change("Antarctica/Troll", "2026-10-24T12:00", "2026-10-25T12:00")  # 25th, 01:00Z, 2 hours
APIA = Change("Pacific/Apia", "2011-12-29T12:00", "2011-12-31T23:00")  # 30th, 10:00Z, to the 31st


class Case(NamedTuple):
    """Without times of their own, times are literally the same."""

    what: str
    change: Change
    spec: Data
    times: str
    literally: str | None = None


HALF_PAST_TWO, HALF_PAST_ONE = "30 2 * * *", "30 1 * * *"
FIVE_TIMES = {"times": ["01:59", "02:00", "02:30", "02:59", "03:01"], "weekdays": "sun"}
WALL = {"from": "2026-11-01T01:15", "until": "2026-11-01T01:30"}
INSTANTS = {"from": "2026-11-01T05:15:00Z", "until": "2026-11-01T01:15:00-05:00"}
TWO_HOURS = cron(HALF_PAST_ONE, "59 2 * * *")
NOT_LATER = [{"hour": "4-23"}]
FROM_HERE = cron(HALF_PAST_TWO, start_at="2026-03-08T07:00Z")
ONE_OFF = {"at": ["2026-11-01T01:30", "2026-11-01T06:15:00Z"]}
CASES = [
    Case("in the gap", SPRING, cron(HALF_PAST_TWO), "08T07:00 09T06:30", "09T06:30"),
    Case("meets a regular time", SPRING, cron(HALF_PAST_TWO, "0 3 8 * *"), "08T07:00 09T06:30"),
    Case("several", SPRING, {"patterns": [FIVE_TIMES]}, "08T06:59 08T07:00 08T07:01", "08T06:59 08T07:01"),
    Case("any hour", SPRING, cron("30 * 8 3 *", exclude=NOT_LATER), "08T05:30 08T06:30 08T07:30"),
    Case("any minute of an hour that is not", SPRING, cron("*/30 2 * * *"), "09T06:00 09T06:30"),
    Case("excluded before it moves", SPRING, cron(HALF_PAST_TWO, exclude=[{"hour": "2"}]), ""),
    Case("from this instant", SPRING, FROM_HERE, "08T07:00 09T06:30", "09T06:30"),
    Case("until this instant", SPRING, cron(HALF_PAST_TWO, end_at="2026-03-08T06:59:59Z"), ""),
    Case("in the fold", AUTUMN, cron(HALF_PAST_ONE), "01T05:30 02T06:30", "01T05:30 01T06:30 02T06:30"),
    Case("any minute", AUTUMN, cron("*/30 1 1 11 *"), "01T05:00 01T05:30 01T06:00 01T06:30"),
    Case("elapsed time", AUTUMN, {"every": [{"every": "1d", "offset": "5m"}]}, "01T00:05 02T00:05"),
    Case("one-off times", AUTUMN, ONE_OFF, "01T05:30 01T06:15"),
    Case("wall", AUTUMN, cron("*/15 1 1 11 *", exclude=[WALL]), "01T05:00 01T05:45 01T06:00 01T06:45"),
    Case("instants", AUTUMN, cron("*/15 1 1 11 *", exclude=[INSTANTS]), "01T05:00 01T06:30 01T06:45"),
    Case("in the gap", HALF_GAP, cron("15 2 * * *"), "03T15:30 04T15:15", "04T15:15"),
    Case("in the fold", HALF_FOLD, cron("45 1 * * *"), "04T14:45 05T15:15", "04T14:45 04T15:15 05T15:15"),
    Case("midnight in the gap", CAIRO, cron("0 0 20-25 * *"), "23T22:00 24T21:00", "24T21:00"),
    Case("before midnight", CAIRO_FOLD, cron("30 23 * * *"), "29T20:30", "29T20:30 29T21:30"),
    Case("midnight twice", HAVANA, cron("0 0 * * *"), "01T04:00 02T05:00", "01T04:00 01T05:00 02T05:00"),
    Case("two hours are missing", TROLL, TWO_HOURS, "29T01:00 29T23:30 30T00:59", "29T23:30 30T00:59"),
    Case("twice", TROLL_FOLD, TWO_HOURS, "24T23:30 25T00:59", "24T23:30 25T00:59 25T01:30 25T02:59"),
    Case("a day is missing", APIA, cron("0 12 * * *"), "29T22:00 30T22:00 31T22:00"),
    Case("nothing makes up for a whole day", APIA, cron("0 12 30 12 *"), ""),
    Case("the 31st follows the 29th", APIA, cron("59 23 29 12 *", "0 0 31 12 *"), "30T09:59 30T10:00"),
]


@pytest.mark.parametrize("dst", ["cron", "literal"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.change.zone}, {case.what}")
def test_when_the_clocks_change(case: Case, dst: str) -> None:
    data = {**case.spec, "time_zone": case.change.zone, "dst": dst}
    after, until = instant(case.change.after), instant(case.change.until)
    expected = case.change.times(case.times if dst == "cron" or case.literally is None else case.literally)
    assert Spec.parse(data).times(after, until) == expected
    assert oracle.times(data, after, until) == expected


FRIDAY_13 = {"day_of_month": "13", "day_of_week": "fri"}


@pytest.mark.parametrize(
    ("data", "window", "expected"),
    [
        (cron("0 0 29 2 *"), "2088-03-01 2108-12-31", "2092-02-29 2096-02-29 2104-02-29 2108-02-29"),
        (cron("0 0 31 * *"), "2026-01-31 2026-12-31", "03-31 05-31 07-31 08-31 10-31 12-31"),
        (cron("0 0 28,L * *"), "2028-01-29 2028-03-31", "01-31 02-28 02-29 03-28 03-31"),
        (cron("0 0 * 1-3 5L", "0 0 * 4-5 L5"), "2026-01-01 2026-06-30", "01-30 02-27 03-27 04-24 05-29"),
        (cron("0 0 * * fri#5"), "2026-01-01 2026-12-31", "01-30 05-29 07-31 10-30"),
        (cron("0 0 13 2-3 fri"), "2026-01-31 2026-03-14", "02-06 02-13 02-20 02-27 03-06 03-13"),
        # A day field that begins with a star restricts the other.
        (cron("0 0 */2 6 mon", "0 0 6 6 */6"), "2026-01-01 2026-12-31", "06-01 06-06 06-15 06-29"),
        ({"calendars": [FRIDAY_13]}, "2026-01-01 2026-12-31", "02-13 03-13 11-13"),
        (cron("0 0 1 1 * 2027-2029/2"), "2026-01-01 2032-12-31", "2027-01-01 2029-01-01"),
        # After the first moment of the window, up to the last.
        (cron("@yearly", "@monthly"), "2026-11-01 2027-01-01", "2026-12-01 2027-01-01"),
        # The epoch was a Thursday.
        ({"every": ["7d"]}, "1970-01-01 1970-01-29", "01-08 01-15 01-22 01-29"),
    ],
)
def test_fires_on_these_days(data: Data, window: str, expected: str) -> None:
    after, until = instants(*window.split())
    days = [instant(day if len(day) > 5 else f"{after.year}-{day}") for day in expected.split()]
    assert Spec.parse(data).times(after, until) == days
    assert oracle.times(data, after, until, step=DAY) == days


ENGLAND, USA = {"holidays": "GB", "subdivision": "ENG"}, {"holidays": "US"}


class TestHolidays:
    """Weekdays at noon; what is left out are the days that the governments name."""

    @pytest.mark.parametrize(
        ("place", "year", "off"),
        [
            # Boxing Day is moved from a Saturday; the New Year of 2028 is moved into 2027.
            (ENGLAND, 2026, "01-01 04-03 04-06 05-04 05-25 08-31 12-25 12-28"),
            (USA, 2027, "01-01 01-18 02-15 05-31 06-18 07-05 09-06 10-11 11-11 11-25 12-24 12-31"),
        ],
    )
    def test_days_off(self, place: Data, year: int, off: str) -> None:
        noons = {"cron": ["0 12 * * mon-fri"], "time_zone": "Europe/Berlin"}
        start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
        everything = Spec.parse(noons).times(start, end)
        for item in (place, {"calendar": "days off"}):
            left = Spec.parse({**noons, "exclude": [item]}, {"days off": [place]}).times(start, end)
            assert " ".join(f"{at:%m-%d}" for at in everything if at not in left) == off
            assert set(left) < set(everything)

    def test_a_holiday_is_a_day_on_the_clock_of_the_schedule(self) -> None:
        """Christmas Day in Auckland is over before it is noon in London."""
        spec = Spec.parse(cron("30 0 * * *", exclude=[ENGLAND], time_zone="Pacific/Auckland"))
        expected = instants("2025-12-23T11:30", "2025-12-26T11:30")
        assert spec.times(instant("2025-12-23"), instant("2025-12-27")) == expected

    def test_a_shared_calendar_is_the_union_of_its_items(self) -> None:
        calendars = {
            "freeze": [{"dates": "2026-12-24/2026-12-28"}, ENGLAND],
            "maintenance": [{"day_of_week": "wed", "hour": "12"}],
            "not named": "broken, but not asked",
        }
        exclude = [{"calendar": "freeze"}, {"calendar": "maintenance"}, {"dates": "2026-12-31"}]
        spec = Spec.parse(cron("0 11,12 * * *", exclude=exclude), calendars)
        times = spec.times(instant("2026-12-22T13:00"), instant("2027-01-02T11:30"))
        assert [f"{at:%d %H:%M}" for at in times] == [
            "23 11:00",
            "29 11:00",
            "29 12:00",
            "30 11:00",
            "02 11:00",
        ]
        assert spec.calendar_names == ("freeze", "maintenance")


class Scene(NamedTuple):
    """A stretch of time around a moment, which is one at which the clocks change if they do in that zone."""

    zone: str
    dst: str
    after: datetime
    until: datetime
    moment: datetime

    @property
    def instants(self) -> list[datetime]:
        return [self.moment + n * MINUTE for n in (-60, -30, -15, -1, 0, 15, 30, 60)]

    @property
    def walls(self) -> list[datetime]:
        """What the clock shows around the moment, by the old and the new offset: inside a gap, too."""
        offsets = sorted({offset_at(self.moment + shift, self.zone) for shift in (-MINUTE, MINUTE)})
        return [(at + offset).replace(tzinfo=None) for at in self.instants for offset in offsets]

    @property
    def one_off_walls(self) -> list[datetime]:
        """Without those that are refused because they would never come."""
        return [wall for wall in self.walls if is_shown(wall, self.zone) or self.is_made_up_for]

    @property
    def is_made_up_for(self) -> bool:
        return self.dst == "cron" and self.moment != instant("2011-12-30T10:00")


@cache
def clock_changes(zone: str) -> list[datetime]:
    """The first instants at which the clock of the zone counts from another offset."""
    half_an_hour = timedelta(minutes=30)
    days = [datetime(year, 1, 1, tzinfo=UTC) + n * DAY for year in YEARS for n in range(365)]
    days = [day for day in days if offset_at(day, zone) != offset_at(day + DAY, zone)]
    return [
        next(at for n in range(49) if offset_at(at := day + n * half_an_hour, zone) != offset_at(day, zone))
        for day in days
    ]


def offset_at(at: datetime, zone: str) -> timedelta:
    offset = at.astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return offset


def is_shown(wall: datetime, zone: str) -> bool:
    there = wall.replace(tzinfo=ZoneInfo(zone))
    return there.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) == wall


class Part(NamedTuple):
    """One item of a field: a star, a number or a range, with or without a step."""

    start: int | None
    end: int | None = None
    step: int | None = None

    def as_text(self, names: Mapping[int, str]) -> str:
        text = "*" if self.start is None else names.get(self.start, str(self.start))
        text += "" if self.end is None else f"-{names.get(self.end, str(self.end))}"
        return text + (f"/{self.step}" if self.step else "")

    def as_json(self) -> Any:
        """The same as a number or an object, where there is a way to write it so."""
        if self.start is None or (self.end is None and self.step):
            return self.as_text({})
        if self.end is None:
            return self.start
        return {"start": self.start, "end": self.end, **({"step": self.step} if self.step else {})}


FIELDS = oracle.LIMITS | {"year": (2000, 2099)}
NAMES = {"month": dict(enumerate(MONTHS, 1)), "day_of_week": dict(enumerate(WEEKDAYS))}
WHOLE_MINUTES = [name for name in FIELDS if name != "second"]
DATES = ["day_of_month", "month", "year", "day_of_week"]
INTERVALS = ["7m", "1h", "1d", {"every": "90m", "offset": "5m"}, {"every": "3h", "offset": "61m"}]
ALIASES = ["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@every 45m/10m", "@every 2h"]


class Writer:
    """Writes specs of all kinds that have something to do with a scene."""

    def __init__(self, random: Random, scene: Scene) -> None:
        self.random = random
        self.scene = scene

    def spec(self, rules: Data) -> tuple[Data, Data]:
        """The rules with zone and mode, perhaps bounds and exclusions; some of these in a shared calendar."""
        exclude = [self.exclusion() for _ in range(self.random.choice([0, 0, 1, 1, 2]))]
        shared = self.random.randint(0, len(exclude))
        items = [*([{"calendar": "shared"}] if shared else []), *exclude[shared:]]
        data = {**rules, "dst": self.scene.dst, **({"exclude": items} if items else {}), **self.bounds()}
        calendars = {"shared": exclude[:shared]} if shared else {}
        if set(rules) == {"cron"} and self.random.random() < 0.2:
            prefix = self.random.choice(["TZ", "CRON_TZ"])
            lines = [f"{prefix}={self.scene.zone} {line}" for line in rules["cron"]]
            return {**data, "cron": lines}, calendars
        return {**data, "time_zone": self.scene.zone}, calendars

    def bounds(self) -> Data:
        """With an offset, or far from the change: which pass a bound without one means is not written."""
        start, end = sorted(self.random.choices(self.scene.instants, k=2))
        far = {
            name: self.naive(self.scene.moment + n * HOUR) for name, n in (("start_at", -30), ("end_at", 30))
        }
        near = {"start_at": start.isoformat(), "end_at": end.isoformat()}
        drawn = {name: self.random.choice([None] * 8 + [near[name], far[name]]) for name in near}
        return {name: text for name, text in drawn.items() if text}

    def naive(self, at: datetime) -> str:
        return wall_text(at.astimezone(ZoneInfo(self.scene.zone)).replace(tzinfo=None))

    def clock_rule(self) -> Data:
        """One rule that names times of day around the moment, in one of the many ways to do so."""
        wall, other = self.random.choices(self.scene.walls, k=2)
        first, last = sorted([f"{wall:%H:%M}", f"{other:%H:%M}"])
        ways: list[Data] = [
            *({"cron": [line]} for line in clock_lines(wall, other)),
            *({"calendars": [fields]} for fields in clock_calendars(wall, other)),
            {"patterns": [{"times": [first]}]},
            {"patterns": [{"times": sorted({first, last})}]},
            {"patterns": [{"every": "25m", "from": first, "until": last}]},
            {"patterns": [{"every": "1h", "from": first, "until": "23:59"}]},
            {"at": [self.one_off_time()]},
            {"at": [self.one_off_time(), self.one_off_time()]},
            {"every": ["10m"]},
        ]
        return self.random.choice(ways)

    def rule_of_seconds(self) -> Data:
        wall = self.random.choice(self.scene.walls)
        second = self.random.choice(["7", "59", "*", "*/20", "30/7", "0,1,58-59", "0-59/13"])
        clock = self.random.choice([f"{wall:%M %H}", f"* {wall:%H}", f"{wall:%M} *", "0/10 *"])
        fields = {"second": second, "minute": f"{wall.minute}-59", "hour": wall.hour}
        ways: list[Data] = [
            {"cron": [f"{second} {clock} * * * *"]},
            {"cron": [f"{second} {clock} {wall.day} {wall.month} * {wall.year}"]},
            {"calendars": [fields]},
            {"calendars": [{**fields, "minute": "*/3"}]},
            {"every": ["45s", {"every": "90s", "offset": "1s"}]},
            {"cron": ["@every 421s/7s"]},
            {"at": [f"{wall_text(self.random.choice(self.scene.one_off_walls))}:59"]},
        ]
        return self.random.choice(ways)

    def rules(self) -> Data:
        """One to three kinds of rules, all on whole minutes."""
        kinds: dict[str, Callable[[], Any]] = {
            "cron": lambda: self.random.choice(
                [self.cron_line(), self.cron_line(), self.random.choice(ALIASES)]
            ),
            "calendars": lambda: self.calendar(WHOLE_MINUTES, at_most=4),
            "patterns": self.pattern,
            "every": lambda: self.random.choice(INTERVALS),
            "at": self.one_off_time,
        }
        chosen = self.random.sample(list(kinds), k=self.random.randint(1, 3))
        return {kind: [kinds[kind]() for _ in range(self.random.randint(1, 2))] for kind in chosen}

    def cron_line(self, *, time: str | None = None, open_days: float = 0.7) -> str:
        clock = time or f"{self.text('minute')} {self.text('hour')}"
        last_days = self.random.choice(["L", "15,L", "1-3,L"])
        day = self.star_or(open_days, self.text("day_of_month"), last_days)
        weekday = self.star_or(open_days, self.text("day_of_week"), self.weekday())
        month, year = self.star_or(open_days, self.text("month")), self.star_or(open_days, self.text("year"))
        line = f"{clock} {day} {month} {weekday}"
        line = self.random.choice([line, f"{line} {year}", f"0 {line} {year}"])
        return line + self.random.choice(["", "", " # said why"])

    def star_or(self, chance: float, *others: str) -> str:
        return "*" if self.random.random() < chance else self.random.choice(others)

    def weekday(self) -> str:
        weekday, nth = self.random.randint(0, 6), self.random.randint(1, 5)
        named = [f"L{weekday}", f"{weekday}L", f"{WEEKDAYS[weekday]}#{nth}", f"{weekday}#{nth}"]
        return self.random.choice([*named, "7", "5-7", "1-7/2"])

    def text(self, name: str) -> str:
        names = self.random.choice([NAMES.get(name, {}), {}])
        text = ",".join(part.as_text(names) for part in self.parts(name))
        return self.random.choice([text, text.upper()])

    def calendar(self, names: list[str], *, at_most: int) -> Data:
        fields: Data = {}
        for name in self.random.sample(names, k=self.random.randint(1, at_most)):
            parts = self.parts(name)
            text = ",".join(part.as_text(NAMES.get(name, {})) for part in parts)
            fields[name] = self.random.choice([text, [part.as_json() for part in parts], parts[0].as_json()])
        return fields

    def parts(self, name: str) -> list[Part]:
        return [self.part(name) for _ in range(self.random.choice([1, 1, 2]))]

    def part(self, name: str) -> Part:
        """Left out is what is not written: where years begin and end, and whether a week ends with 6 or 7."""
        low, high = FIELDS[name]
        near = [oracle.part_of(wall, name) for wall in self.scene.walls]
        start = self.random.choice([*near, self.random.randint(low, high)])
        end, step = self.random.randint(start, high), self.random.choice([1, 2, 3, 5, 7, 15, 20])
        parts = [Part(start)] * 4 + [Part(None), Part(start, end), Part(start, end, step)]
        parts += [] if name == "year" else [Part(None, step=step)]
        parts += [] if name in ("year", "day_of_week") else [Part(start, step=step)]
        return self.random.choice(parts)

    def pattern(self) -> Data:
        weekdays = self.random.choice(["", "", "mon-fri", "sun,mon", "thu-sat"])
        days = {"weekdays": weekdays} if weekdays else {}
        if self.random.random() < 0.5:
            return {"times": sorted({self.clock_time() for _ in range(self.random.randint(1, 4))}), **days}
        first, last = sorted([self.clock_time(), self.clock_time()])
        every = self.random.choice(["1m", "7m", "25m", "30m", "45m", "1h", "5h"])
        return {"every": every, "from": first, "until": last, **days}

    def clock_time(self) -> str:
        anywhere = f"{self.random.randint(0, 23):02}:{self.random.randint(0, 59):02}"
        return self.random.choice([f"{self.random.choice(self.scene.walls):%H:%M}", anywhere])

    def one_off_time(self) -> str:
        at = self.random.choice([self.scene.after, *self.scene.instants, self.scene.until])
        wall = self.random.choice(self.scene.one_off_walls)
        return self.random.choice([wall_text(wall), self.instant_text(at)])

    def exclusion(self) -> Data:
        start, end = sorted(self.random.choices(self.scene.instants, k=2))
        first, last = sorted(self.random.choices(self.scene.walls, k=2))
        day = first.date() + self.random.randint(-1, 1) * DAY
        kinds: list[Data] = [
            {"dates": self.random.choice([f"{day}", f"{day}/{day + DAY}", f"{day - 2 * DAY}/{day}"])},
            {"from": wall_text(first), "until": wall_text(last)},
            {"from": self.instant_text(start), "until": self.instant_text(end)},
            {"hour": first.hour},
            {"minute": f"{first.minute}", "hour": f"{first.hour}"},
            self.calendar(list(FIELDS), at_most=2),
        ]
        return self.random.choice(kinds)

    def instant_text(self, at: datetime) -> str:
        return self.random.choice([at, at.astimezone(ZoneInfo(self.scene.zone))]).isoformat()


def clock_lines(wall: datetime, other: datetime) -> list[str]:
    minute, hour, weekday = wall.minute, wall.hour, WEEKDAYS[wall.isoweekday() % 7]
    return [
        f"{minute} {hour} * * *",
        f"{minute} {hour} {wall.day} {wall.month} * {wall.year}",
        f"{minute} {hour} * * {weekday}",
        f"{minute},{other.minute} {hour},{other.hour} * * *",
        f"0 {minute}/7 {hour} * * * *",
        f"{minute} {min(hour, other.hour)}-{max(hour, other.hour)} * * *",
        f"{minute} * * * *",
        f"{minute} */1 * * *",
        f"* {hour} * * *",
        f"*/10 {hour} * * *",
        f"{minute},* {hour} * * *",
        f"0 *,{minute} {hour} * * * {wall.year}",
    ]


def clock_calendars(wall: datetime, other: datetime) -> list[Data]:
    minute, hour, weekday = wall.minute, wall.hour, WEEKDAYS[wall.isoweekday() % 7]
    return [
        {"minute": minute, "hour": hour},
        {"minute": minute, "hour": hour, "day_of_week": weekday},
        {"minute": f"{minute}", "hour": f"{hour}", "day_of_month": wall.day, "month": wall.month},
        {"minute": [minute, {"start": 5, "end": 50, "step": 15}], "hour": [hour, f"{other.hour}"]},
        {"minute": "*/15", "hour": hour},
        {"minute": ["*/20", 1], "hour": hour},
        {"minute": minute, "hour": "*"},
        {"minute": minute, "hour": {"start": 0, "end": 23}},
        {"hour": hour},
        {"hour": "*/1"},
    ]


def scene_of(seed: int, random: Random, *, reach: timedelta, zones: tuple[str, ...]) -> Scene:
    """Reaches that far from the moment, or less; seeds in a row have all zones in both modes."""
    zone = zones[seed % len(zones)]
    anywhere = datetime(random.choice(YEARS), 1, 1, tzinfo=UTC) + random.randint(0, 8640) * HOUR
    moment = random.choice(clock_changes(zone) or [anywhere])
    before, behind = random.choices([reach, reach, reach / 2, 7 * MINUTE], k=2)
    mode = ("cron", "literal")[seed // len(zones) % 2]
    return Scene(zone, mode, moment - before, moment + behind, moment)


def writers(seeds: range, *, reach: timedelta, zones: tuple[str, ...] = ZONES) -> Iterator[Writer]:
    for seed in seeds:
        random = Random(seed)
        yield Writer(random, scene_of(seed, random, reach=reach, zones=zones))


def wall_text(wall: datetime) -> str:
    return wall.isoformat(timespec="minutes")


def agrees(written: tuple[Data, Data], scene: Scene, *, step: timedelta) -> None:
    data, calendars = written
    expected = oracle.times(data, scene.after, scene.until, calendars=calendars, step=step)
    spec = parsed(data, calendars)
    if spec is None:
        assert any(not oracle.times(rule, scene.after, scene.until, step=step) for rule in apart(data)), (
            written
        )
        return
    assert spec.times(scene.after, scene.until) == expected, written
    assert spec.times(scene.after, scene.until, limit=2) == expected[:2], written
    assert Spec.parse(spec.as_json(), calendars).times(scene.after, scene.until) == expected, written
    pairs = list(pairwise([scene.after, *expected]))
    for before, after in pairs[:: 1 + len(pairs) // 60]:
        assert spec.next(before) == after, written
    for at in scene.instants:
        later = [time for time in expected if time > at >= scene.after]
        assert not later or spec.next(at + SECOND / 2) == later[0], written
    if not spec.exclude:
        following = spec.next(expected[-1] if expected else scene.after)
        assert following is None or following > scene.until, written


def parsed(data: Data, calendars: Data) -> Spec | None:
    """None: refused, as the days that one of its rules names do not exist."""
    try:
        return Spec.parse(data, calendars)
    except SpecError as error:
        if "never match" not in error.message:
            raise
        return None


def apart(data: Data) -> Iterator[Data]:
    for kind in ("cron", "calendars"):
        for rule in data.get(kind, []):
            yield {"time_zone": oracle.zone_of(data), kind: [rule]}


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    """What is drawn from each of them differs; what fails is shown as the spec itself."""
    rest = pytest.param(range(few, many), marks=pytest.mark.long, id="many")
    return pytest.mark.parametrize("seeds", [pytest.param(range(few), id="few"), rest])


class TestAgainstTheOracle:
    @seeds(360, 1500)
    def test_every_minute_around_a_change_of_the_clocks(self, seeds: range) -> None:
        for writer in writers(seeds, reach=4 * HOUR):
            agrees(writer.spec(writer.clock_rule()), writer.scene, step=MINUTE)

    @seeds(36, 300)
    def test_every_minute_of_several_days(self, seeds: range) -> None:
        for writer in writers(seeds, reach=36 * HOUR):
            agrees(writer.spec(writer.rules()), writer.scene, step=MINUTE)

    @seeds(54, 150)
    def test_every_second_around_a_change_of_the_clocks(self, seeds: range) -> None:
        for writer in writers(seeds, reach=32 * MINUTE):
            agrees(writer.spec(writer.rule_of_seconds()), writer.scene, step=SECOND)

    @seeds(8, 60)
    def test_every_hour_of_a_year(self, seeds: range) -> None:
        """Where clocks differ from Greenwich by whole hours."""
        zones = tuple(zone for zone in ZONES if zone != "Australia/Lord_Howe")
        for writer in writers(seeds, reach=183 * DAY, zones=zones):
            line = writer.cron_line(time=f"0 {writer.text('hour')}")
            agrees(writer.spec({"cron": [line]}), writer.scene, step=HOUR)

    @seeds(16, 100)
    def test_every_day_of_sixteen_years(self, seeds: range) -> None:
        for seed in seeds:
            random = Random(seed)
            year = (2004, 2024, 2034, 2098)[seed % 4]
            moment = datetime(year, random.randint(1, 12), 1, tzinfo=UTC) - DAY
            scene = Scene("UTC", "cron", moment - 8 * 365 * DAY, moment + 8 * 365 * DAY, moment)
            writer = Writer(random, scene)
            lines = [writer.cron_line(time="0 0", open_days=0.4) for _ in range(random.randint(1, 2))]
            calendars = [writer.calendar(DATES, at_most=4) for _ in range(random.randint(1, 2))]
            agrees(writer.spec(random.choice([{"cron": lines}, {"calendars": calendars}])), scene, step=DAY)


def test_many_next_times_leave_nothing_behind() -> None:
    data = {
        "cron": ["*/20 * * * *", "0 9 L * *"],
        "every": [{"every": "7h", "offset": "3m"}],
        "patterns": [{"every": "25m", "from": "09:00", "until": "17:30"}],
        "exclude": [{"day_of_week": "sun"}, {"dates": "2026-12-24"}, {"holidays": "GB"}],
        "time_zone": "Europe/London",
    }
    spec = Spec.parse(data)
    kept: list[datetime] = []

    def walk(count: int, *, keep: bool = False) -> None:
        at: datetime | None = instant("2026-10-01")
        for _ in range(count):
            assert at is not None
            at = spec.next(at)
            if keep and at is not None:
                kept.append(at)

    walk(300)
    assert growth(lambda: walk(2_000)) < 16 * 1024
    assert growth(lambda: walk(400, keep=True)) > 16 * 1024, "keeping a fifth of them would show"


def growth(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
