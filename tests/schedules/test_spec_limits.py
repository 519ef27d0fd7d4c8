"""What a spec refuses, with words that name the field and the way out; and what it takes and puts right."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from holidays.utils import list_supported_countries
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schedules.spec import Spec, SpecError
from schedules.spec.exclusions import calendar_items

NOW = datetime(2026, 11, 16, 2, 17, 33, tzinfo=UTC)
KEYS = "cron, every, calendars, patterns, at, exclude, start_at, end_at, jitter, time_zone and dst"
LISTS = ("cron", "every", "calendars", "patterns", "exclude", "at")
TO = "\N{EN DASH}"


def refusal(data: object, calendars: dict[str, object] | None = None) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Spec.parse(data, calendars or {})
    error = caught.value
    assert str(error) == (f"{error.field}: {error.message}" if error.field else error.message)
    assert len(str(error)) < 600
    assert str(error).isprintable()
    return error


def dates(count: int) -> list[object]:
    return [{"dates": f"{2030 + n // 28}-01-{1 + n % 28:02}"} for n in range(count)]


def nested_list(depth: int) -> list[object]:
    nested: list[object] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def of(field: str, value: object) -> dict[str, object]:
    return {field: [value] if field in LISTS else value}


SHARED: dict[str, object] = {
    "UK holidays": [{"holidays": "GB"}],
    "Closing days": [{"dates": "2026-12-24"}],
    "Broken": [{"dates": "soon"}],
    "No list": {"dates": "2026-12-24"},
    "No JSON": [{"dates": float("nan")}],
    "Deep": nested_list(100_000),
}

# By field: a value, and what is said about it.
REFUSED: dict[str, list[tuple[object, str]]] = {
    "cron": [
        (" \n", "is empty; expected 5 fields"),
        ("TZ=Europe/London", "is empty; expected 5 fields"),
        ("* * * *", "expected 5 fields (minute, hour, day of month, month, day of week), got 4"),
        ("0 0 0 * * * * 2030", "day of week), got 8"),
        ("0 0 * * * 1969", f"year 1969 is outside the range 1970{TO}2999"),
        ("0 0 * * * 3000", f"year 3000 is outside the range 1970{TO}2999"),
        ("60 0 0 * * * *", f"second 60 is outside the range 0{TO}59"),
        ("60 * * * *", f"minute 60 is outside the range 0{TO}59"),
        ("* 24 * * *", f"hour 24 is outside the range 0{TO}23"),
        ("* * 0 * *", f"day of month 0 is outside the range 1{TO}31"),
        ("* * 32 * *", f"day of month 32 is outside the range 1{TO}31"),
        ("* * * 13 *", f"month 13 is outside the range 1{TO}12"),
        ("* * * * 8", f"day of week 8 is outside the range 0{TO}7"),
        ("* * * * 8#2", f"day of week 8 is outside the range 0{TO}7"),
        ("5-1 * * * *", "minute range '5-1' runs backwards"),
        ("* * * * 5-0", "day of week range '5-0' runs backwards"),
        ("*/0 * * * *", "minute '*/0' has step 0; a step must be 1 or more"),
        ("1,,2 * * * *", "minute '1,,2' is not understood"),
        ("* * * janitor *", "month 'janitor' is not understood"),
        ("* * * * mo", "day of week 'mo' is not understood"),
        ("0 0 30 2 *", "'0 0 30 2 *' never matches"),
        ("0 0 29 2 * 2026-2027", "never matches"),
        ("0," * 5_000 + "0 * * * *", "10,009 characters are too many"),
        ("9" * 990 + " * * * *", "more than 18 digits is outside the range"),
        ("\uff15 * * * *", "only ASCII characters are allowed"),
        ("5\0 * * * *", "minute '5\\x00' is not understood"),
        ("@reboot", "@reboot is not supported"),
        ("@noon", "'@noon' is not a known shorthand; allowed: @hourly"),
        ("@every soon", "'soon' is not a duration; write it like 90s"),
        ("@every 1h/1h", "at least 0s and less than 1h"),
        ("0 0 15W * *", "day of month '15W' is not supported"),
        ("R(0-9) * * * *", "minute 'R(0-9)' is not supported"),
        ("0 0 * L *", "month 'L' is not supported"),
        ("0 0 * * L", "day of week 'L' is not supported"),
        ("0 0 1#2 * *", "day of month '1#2' is not supported"),
        ("0 0 * * fri#6", "'fri#6' is not understood; allowed: fri#1 to fri#5, and Lfri for the last Friday"),
        ("TZ=Europe/Lodnon 0 9 * * *", "did you mean Europe/London?"),
    ],
    "every": [
        (0, f"0 seconds is outside the range 1s{TO}3660d"),
        ("3661d", "316310400 seconds is outside the range"),
        ("9" * 5_000 + "s", "is not a duration"),
        (10**5_000, "a number with more than 18 digits"),
        (True, "true is not a duration"),
        ("", "'' is not a duration"),
        (float("nan"), "NaN is not a duration"),
        ("\uff15m", "is not a duration"),
        (nested_list(100_000), "a list is not a duration"),
        ({"offset": "5m"}, "null is not a duration"),
        ({"every": "1h", "offset": "1h"}, "at least 0s and less than 1h"),
        ({"every": "1h", "offset": -1}, "the offset of -1 seconds is not allowed: it must be at least 0s"),
        ({"every": "1h", "phase": "5m"}, "unknown key 'phase'; allowed: every and offset"),
    ],
    "calendars": [
        ({"minute": 60}, f"minute 60 is outside the range 0{TO}59"),
        ({"hour": -1}, f"hour -1 is outside the range 0{TO}23"),
        ({"year": 10**5_000}, "year a number with more than 18 digits is outside the range"),
        ({"hour": "\uff19"}, "hour '\uff19' is not understood"),
        ({"hour": True}, 'hour: expected text such as "1-5", a number, {"start": 1, "end": 5, "step": 2}'),
        ({"hour": []}, "hour has 0 entries; a list can have 1 to 100"),
        ({"hour": [9] * 101}, "hour has 101 entries; a list can have 1 to 100"),
        ({"hour": nested_list(100_000)}, "or a list of these, got a list"),
        ({"hour": "1," * 5_000 + "1"}, "hour has 10,001 characters; at most 1,000"),
        ({"hour": {"start": 9, "step": 2}}, "hour: a range with a step needs an end, such as"),
        ({"hour": {"end": 9}}, "hour: a range needs a start, such as"),
        ({"hour": {"start": 9, "end": 17, "by": 2}}, "unknown key 'by'; allowed: start, end and step"),
        ({"hour": {"start": 17, "end": 9}}, "hour range '17-9' runs backwards; put the smaller value first"),
        (
            {"hour": {"start": 9, "end": 17, "step": 0}},
            "the step must be a whole number from 1 to 9999, not 0",
        ),
        (
            {"hour": {"start": 9, "end": 17, "step": True}},
            "hour: the step must be a whole number from 1 to 9999, not true",
        ),
        ({"day_of_month": 30, "month": "feb"}, "day of month 30 and month feb never match together"),
        ({"day_of_week": "fri#2", "day_of_month": "15"}, "never match together: no day matches all of them"),
        ({"hours": 9}, "unknown key 'hours'; allowed: second, minute, hour, day_of_month, month, day_of"),
        ({"comment": 5}, "expected text, got 5"),
        ({"comment": "x" * 201}, "the comment has 201 characters; at most 200 are allowed"),
        ({"comment": "a\0b"}, "contains characters that cannot be printed"),
        (None, "allowed keys: second, minute, hour"),
    ],
    "patterns": [
        ({}, 'expected either times or every, such as {"times": ["09:00", "12:30"]} or {"every": "15m"'),
        ({"times": ["09:00"], "from": "08:00"}, "unknown key 'from'; allowed: times and weekdays"),
        ({"every": "5m", "to": "08:00"}, "unknown key 'to'; allowed: every, from, until and weekdays"),
        ({"times": []}, 'times is empty; give at least one time, such as ["09:00"]'),
        ({"times": ["09:00"] * 1_441}, "1,441 entries are too many; at most 1,440"),
        ({"times": ["24:00"]}, "times: '24:00' is not a time of day; use 00:00 to 23:59:59, such as 09:30"),
        ({"times": [900]}, "expected text, got 900"),
        ({"every": 0}, f"every: 0 seconds is outside the range 1s{TO}1d"),
        ({"every": "25h"}, f"every: 90000 seconds is outside the range 1s{TO}1d"),
        (
            {"every": "5m", "from": "22:00", "until": "06:00"},
            "(06:00) is earlier than from (22:00); for a window",
        ),
        ({"every": "5m", "until": "24:00"}, "until: '24:00' is not a time of day"),
        ({"times": ["09:00"], "weekdays": "mon-son"}, "day of week 'mon-son' is not understood"),
    ],
    "time_zone": [
        ("Europe/Lodnon", "did you mean Europe/London?"),
        ("New York", "did you mean America/New_York?"),
        ("Europe/", "is not a known time zone"),
        ("../../etc/passwd", "is not a known time zone"),
        ("Europe/Lon\0don", "did you mean Europe/London?"),
        ("\ud800/x", "is not a known time zone"),
        ("x" * 1_000, "is not a known time zone"),
        ("x" * 1_001, "1,001 characters are too many; at most 1,000"),
        ("CET", "is an abbreviation, not a place; use Europe/Brussels"),
        ("right/Europe/London", "did you mean Europe/London?"),
        (None, "expected text, got null"),
    ],
    "start_at": [("2026-02-30", "'2026-02-30' is not a date: day"), ([], "expected text, got a list")],
    "end_at": [("3000-01-01", f"year 3000 is outside the range 1970{TO}2999")],
    "at": [("2026-02-28", "is not a time; write it like 2026-12-01T09:00")],
    "jitter": [
        (-1, f"-1 seconds is outside the range 0s{TO}3660d"),
        ("3661d", "is outside the range"),
        (None, "null is not a duration"),
    ],
    "dst": [("summer", "is not allowed; choose cron or literal"), (False, "expected text, got false")],
    "exclude": [
        ({}, '{"calendar": "UK holidays"}, {"dates": "2026-12-24/2027-01-02"}, {"from"'),
        ("2026-12-24", "}, got '2026-12-24'"),
        ({"date": "2026-12-24"}, "unknown key 'date'; allowed: {\"calendar\""),
        ({"dates": "2026-12-24/"}, "'' is not a date; write it like 2026-12-25"),
        ({"dates": "2026-12-24/2026-12-01"}, "the dates 2026-12-24/2026-12-01 run backwards"),
        ({"dates": ["2026-12-24"]}, "expected text, got a list"),
        ({"dates": "2026-12-24", "holidays": "GB"}, "unknown key 'holidays'; allowed: dates and comment"),
        ({"from": "2026-12-01T22:00"}, "give both from and until, such as"),
        (
            {"from": "2026-12-01", "until": "2026-12-02T00:00"},
            "'2026-12-01' is not a time; write it like",
        ),
        (
            {"from": "2026-12-02T04:00", "until": "2026-12-01T22:00"},
            "is earlier than from ('2026-12-02T04:00')",
        ),
        (
            {"from": "2026-12-01T22:00", "until": "2026-12-02T04:00Z"},
            "either both with a UTC offset or both without",
        ),
        (
            {"holidays": "XX"},
            "'XX' is not the code of a country with known public holidays; use a code such as GB",
        ),
        ({"holidays": "Germny"}, "did you mean DE (Germany)?"),
        ({"holidays": "GB", "subdivision": "BY"}, "of United Kingdom (GB); use ENG, NIR, SCT or WLS"),
        (
            {"holidays": "LU", "subdivision": "BY"},
            "not a subdivision of Luxembourg (LU); this country has no subdivisions",
        ),
        ({"subdivision": "ENG"}, 'a subdivision needs a country, such as {"holidays": "GB"'),
        ({"comment": "x"}, "this would exclude every time; give at least one of second, minute, hour"),
        ({"month": "feb", "day_of_month": "30"}, "never match together"),
        ({"calendar": "UK holidys"}, "unknown calendar 'UK holidys'; did you mean 'UK holidays'?"),
        ({"calendar": "x"}, "unknown calendar 'x'; create it first, or choose 'Broken', 'Clos"),
        ({"calendar": "x" * 10_000}, "10,000 characters are too many"),
        ({"calendar": "UK holidays", "dates": "2026-12-24"}, "unknown key 'dates'; allowed: calendar"),
        ({"calendar": "Broken"}, "the calendar 'Broken' is invalid: 'soon' is not a date"),
        ({"calendar": "No list"}, "the calendar 'No list' is invalid: expected a list, got an object"),
        ({"calendar": "No JSON"}, "the calendar 'No JSON' is invalid: expected text, got NaN"),
        ({"calendar": "Deep"}, "}, got a list"),
    ],
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_no_field_takes(field: str) -> None:
    wrong = []
    for value, message in REFUSED[field]:
        error = refusal(of(field, value), SHARED)
        if error.field != field or message not in error.message:
            wrong.append((message, error))
    assert wrong == []


# By field: a value, and what is stored instead.
NORMALISED: dict[str, list[tuple[Any, Any]]] = {
    "cron": [("0 9 * * fri#2 #x", "0 9 * * fri#2")],
    "every": [
        ("90s", "1m30s"),
        (" 90m ", "1h30m"),
        ("1d2h3m4s", "1d2h3m4s"),
        (45, "45s"),
        ("3660d", "3660d"),
        ({"every": 3600, "offset": 300}, {"every": "1h", "offset": "5m"}),
        ({"every": 60, "offset": "0s"}, "1m"),
    ],
    "calendars": [
        ({}, {}),
        ({"second": 0, "minute": "0", "hour": "0", "month": "*"}, {}),
        ({"hour": " 9 , 17 "}, {"hour": "9,17"}),
        ({"hour": [9, "11-13", {"start": 15, "end": 19, "step": 2}]}, {"hour": "9,11-13,15-19/2"}),
        ({"hour": {"start": 9}}, {"hour": "9"}),
        ({"hour": "1," * 499 + "10"}, {"hour": "1," * 499 + "10"}),  # 1,000 characters
        ({"hour": {"start": 9, "end": 17, "step": 1}}, {"hour": "9-17"}),
        ({"month": {"start": "jan", "end": "mar"}}, {"month": "jan-mar"}),
        ({"hour": "12", "comment": " lunch "}, {"hour": "12", "comment": "lunch"}),
    ],
    "patterns": [
        ({"times": ["12:30", "09:00", "09:00:00"]}, {"times": ["09:00", "12:30"]}),
        ({"times": ["09:00:05"], "weekdays": "*"}, {"times": ["09:00:05"]}),
        ({"times": ["09:00"], "weekdays": ["mon", 3]}, {"times": ["09:00"], "weekdays": "mon,3"}),
        ({"every": 1500}, {"every": "25m", "from": "00:00", "until": "23:59:59"}),
    ],
    "jitter": [("90s", "1m30s"), (300, "5m"), ("0s", None), (0, None)],
    "start_at": [(None, None), ("2027-01-01", "2027-01-01T00:00:00Z")],
    "end_at": [(None, None), ("2027-12-31", "2027-12-31T23:59:59Z")],
    "exclude": [
        ({"dates": "2026-12-24/2026-12-24"}, {"dates": "2026-12-24"}),
        ({"dates": " 2026-12-24 ", "comment": "x "}, {"dates": "2026-12-24", "comment": "x"}),
        (
            {"from": "2026-12-01 22:00", "until": "2026-12-02T04:00:01.5"},
            {"from": "2026-12-01T22:00:00", "until": "2026-12-02T04:00:01"},
        ),
        ({"holidays": "gb"}, {"holidays": "GB"}),
        ({"holidays": "GBR", "subdivision": ""}, {"holidays": "GB"}),
        ({"holidays": "UK", "subdivision": "england"}, {"holidays": "GB", "subdivision": "ENG"}),
        ({"day_of_week": ["sat", "sun"]}, {"day_of_week": "sat,sun"}),
        ({"second": 0, "hour": "*"}, {"second": "0"}),
        ({"day_of_week": "*", "comment": "stop"}, {"second": "*", "comment": "stop"}),
        ({"calendar": " UK holidays "}, {"calendar": "UK holidays"}),
    ],
}


@pytest.mark.parametrize("field", NORMALISED)
def test_what_a_field_puts_right(field: str) -> None:
    wrong = []
    for value, canonical in NORMALISED[field]:
        spec = Spec.parse(of(field, value), SHARED)
        expected = {} if canonical is None else of(field, canonical)
        if spec.as_json() != expected or Spec.parse(spec.as_json(), SHARED) != spec:
            wrong.append((value, spec.as_json()))
    assert wrong == []


CRON = "0 9 * * *"
HOURLY = {"every": "1h", "from": "00:00", "until": "23:59:59"}


@pytest.mark.parametrize(
    ("data", "canonical"),
    [
        ({"cron": [], "time_zone": "UTC", "dst": "cron"}, {}),
        ({"time_zone": "Asia/Tokyo", "dst": "literal"}, {"time_zone": "Asia/Tokyo", "dst": "literal"}),
        ({"cron": [" 0\t9  * * * \n", f"{CRON} # daily", "@daily"]}, {"cron": [CRON, "@daily"]}),
        ({"every": ["90m", 5400, "1h30m"]}, {"every": ["1h30m"]}),
        ({"calendars": [{"hour": 9}, {"hour": "9", "minute": 0}]}, {"calendars": [{"hour": "9"}]}),
        ({"patterns": [{"every": "1h"}, {"every": 3600, "weekdays": "*"}]}, {"patterns": [HOURLY]}),
        ({"exclude": [{"month": "jan"}, {"month": ["jan"]}]}, {"exclude": [{"month": "jan"}]}),
        (
            {"cron": ["@every 90m/5m", CRON, "@EVERY 1h"], "every": ["65m"]},
            {"cron": [CRON], "every": [{"every": "1h30m", "offset": "5m"}, "1h", "1h5m"]},
        ),
        (
            {"cron": [f"TZ=Asia/Tokyo {CRON}", "CRON_TZ=Asia/Tokyo @daily"], "time_zone": "Asia/Tokyo"},
            {"cron": [CRON, "@daily"], "time_zone": "Asia/Tokyo"},
        ),
        ({"cron": [f"TZ=Asia/Tokyo {CRON}"]}, {"cron": [CRON], "time_zone": "Asia/Tokyo"}),
        (
            {"at": ["2026-12-01T09:00", "2026-12-01 08:00\n", "2026-12-02T09:00:00.5+01:00"]},
            {"at": ["2026-12-01T08:00:00Z", "2026-12-01T09:00:00Z", "2026-12-02T08:00:00Z"]},
        ),
        (
            {"start_at": "2027-01-01T09:00", "end_at": "2027-01-01", "time_zone": "Asia/Tokyo"},
            {"start_at": "2027-01-01T00:00:00Z", "end_at": "2027-01-01T14:59:59Z", "time_zone": "Asia/Tokyo"},
        ),
        (
            {"start_at": "2027-01-01T09:00", "end_at": "2027-01-01T09:00:00.9Z"},
            {"start_at": "2027-01-01T09:00:00Z", "end_at": "2027-01-01T09:00:00Z"},
        ),
    ],
)
def test_the_canonical_form_of_a_whole_spec(data: object, canonical: object) -> None:
    spec = Spec.parse(data)
    assert spec.as_json() == canonical
    assert Spec.parse(json.loads(json.dumps(spec.as_json()))) == spec


BAD_MOMENTS = [
    ("9999-12-31T23:59", f"year 9999 is outside the range 1970{TO}2999"),
    ("0001-01-01T00:00+05:00", f"year 1 is outside the range 1970{TO}2999"),
    ("2999-12-31T23:59-05:00", "is outside the range"),
    ("2026-02-30T09:00", "is not a time: day"),
    ("2026-12-01T09:00+25:00", "is not a time: "),
    ("tomorrow", "'tomorrow' is not a time; write it like 2026-12-01T09:00 (in the"),
    ("\uff12026-12-01T09:00", "is not a time"),
    ("x" * 10_000, "10,000 characters are too many"),
    (True, "expected text, got true"),
]


@pytest.mark.parametrize("field", ["at", "start_at", "end_at"])
class TestMoments:
    def test_refused(self, field: str) -> None:
        errors = [refusal(of(field, value)) for value, _ in BAD_MOMENTS]
        assert {error.field for error in errors} == {field}
        told = zip(errors, BAD_MOMENTS, strict=True)
        assert [error for error, (_, message) in told if message not in error.message] == []

    @pytest.mark.parametrize(
        ("wall", "time_zone", "dst", "jump"),
        [
            ("2011-12-30T12:00", "Pacific/Apia", "cron", "from 2011-12-30 00:00 to 2011-12-31 00:00"),
            ("2026-03-08T02:30", "America/New_York", "literal", "from 2026-03-08 02:00 to 2026-03-08 03:00"),
        ],
    )
    def test_what_no_clock_shows(self, field: str, wall: str, time_zone: str, dst: str, jump: str) -> None:
        error = refusal({**of(field, wall), "time_zone": time_zone, "dst": dst})
        assert str(error) == f"{field}: {wall} does not exist: the clocks in {time_zone} go {jump}"

    @pytest.mark.parametrize(
        ("wall", "time_zone", "expected"),
        [
            ("2026-03-08T02:30", "America/New_York", "2026-03-08T07:00:00Z"),
            ("2026-11-01T01:30", "America/New_York", "2026-11-01T05:30:00Z"),
            ("2026-11-01T01:30-05:00", "America/New_York", "2026-11-01T06:30:00Z"),
            ("2026-03-29T01:30", "Antarctica/Troll", "2026-03-29T01:00:00Z"),
        ],
    )
    def test_what_a_clock_shows_twice_or_leaps_over(
        self, field: str, wall: str, time_zone: str, expected: str
    ) -> None:
        spec = Spec.parse({**of(field, wall), "time_zone": time_zone})
        assert spec.as_json() == {**of(field, expected), "time_zone": time_zone}


class TestExclude:
    @pytest.mark.parametrize(
        ("definition", "message"),
        [
            ({}, "excluded: expected a list, got an object"),
            ([{"dates": "2026-12-24"}] * 1_001, "excluded: 1,001 entries are too many; at most 1,000"),
            ([{"hour": 9}, {"calendar": "x"}], "excluded: item 2: a calendar cannot refer"),
            ([5], 'excluded: expected {"dates": "2026-12-24/2027-01-02"}, {"from"'),
        ],
    )
    def test_the_definition_of_a_shared_calendar(self, definition: object, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            calendar_items(definition, name="excluded")
        assert str(caught.value).startswith(message)

    def test_how_many_a_spec_may_have_in_all(self) -> None:
        calendars: dict[str, object] = {"600": dates(600), "400": dates(400)}
        names = [{"calendar": name} for name in calendars]
        assert len(Spec.parse({"every": ["1h"], "exclude": names}, calendars).exclude) == 2
        error = refusal({"every": ["1h"], "exclude": [*names, *dates(1)]}, calendars)
        assert str(error).startswith(
            "exclude: 1,001 items are too many; at most 1,000 are allowed, including the items of shared"
        )

    def test_how_many_places_it_may_have_holidays_of(self) -> None:
        """However often it says so of the same one."""
        closed = {"every": ["1h"], "exclude": [{"calendar": "Closed"}]}
        places = [{"holidays": code} for code in sorted(list_supported_countries(include_aliases=False))]
        again = [{**place, "comment": "again"} for place in places[:100]]
        Spec.parse(closed, {"Closed": [*places[:100], *again]})
        error = refusal(closed, {"Closed": places[:101]})
        assert (
            str(error)
            == "exclude: the public holidays of 101 places are too many; at most 100 places are allowed"
        )


class TestShape:
    @pytest.mark.parametrize(
        ("data", "field", "message"),
        [
            ([], "", f"expected an object, got a list; allowed keys: {KEYS}"),
            (None, "", f"expected an object, got null; allowed keys: {KEYS}"),
            ({"crno": []}, "", f"unknown key 'crno'; allowed: {KEYS}"),
            ({1: []}, "", f"unknown key '1'; allowed: {KEYS}"),
            ({"cron": [5]}, "cron", "expected text, got 5"),
            *(({field: "x"}, field, "expected a list, got 'x'") for field in LISTS),
            *(({field: [{}] * 101}, field, "101 entries are too many; at most 100") for field in LISTS[:5]),
            ({"at": ["2026-12-01T09:00"] * 1_001}, "at", "1,001 entries are too many; at most 1,000"),
            ({"cron": [CRON, "61 * * * *"]}, "cron", "item 2: minute 61 is outside the range"),
            ({"calendars": [{"hour": 9}, {"hour": 24}]}, "calendars", "item 2: hour 24 is outside the range"),
            ({"patterns": [{"times": ["09:00"]}, {}]}, "patterns", "item 2: expected either times or every"),
            ({"every": ["1h", "0s", "-1"]}, "every", "item 2: 0 seconds is outside the range"),
            ({"at": ["2026-12-01T09:00", "soon"]}, "at", "item 2: 'soon' is not a time"),
            ({"exclude": [{"hour": 9}, {"dates": "x"}]}, "exclude", "item 2: 'x' is not a date"),
            ({"exclude": [{"calendar": "x"}]}, "exclude", "unknown calendar 'x'; create it first"),
            (
                {"cron": ["TZ=Asia/Tokyo @daily", "TZ=UTC @daily"]},
                "cron",
                "the cron strings have different time zones (Asia/Tokyo and UTC)",
            ),
            (
                {"cron": ["TZ=Asia/Tokyo @daily"], "time_zone": "UTC"},
                "cron",
                "TZ=Asia/Tokyo differs from time_zone 'UTC'",
            ),
            (
                {"start_at": "2027-01-01T09:00", "end_at": "2027-01-01T08:59:59"},
                "end_at",
                "2027-01-01T08:59:59Z is before start_at, 2027-01-01T09:00:00Z",
            ),
        ],
    )
    def test_refused(self, data: object, field: str, message: str) -> None:
        error = refusal(data)
        assert error.field == field
        assert error.message.startswith(message)

    @pytest.mark.parametrize("field", [*LISTS, "jitter", "dst", "start_at"])
    def test_no_depth_of_nesting_is_too_much(self, field: str) -> None:
        for depth in [*range(960, 1010, 3), 100_000]:
            assert refusal({field: nested_list(depth)}).field == field

    def test_an_error_survives_copying(self) -> None:
        error = SpecError("cron", "is empty")
        for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (twin.field, twin.message, str(twin)) == ("cron", "is empty", "cron: is empty")

    def test_an_instant_without_offset(self) -> None:
        naive = NOW.replace(tzinfo=None)
        with pytest.raises(ValueError, match="expected an instant with a UTC offset"):
            Spec().next(naive)
        with pytest.raises(SpecError, match="has no UTC offset"):
            Spec(at=(naive,))


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["0 9 * * *", "15m", "2026-12-01T09:00", "2026-12-24", "GB", "mon-fri", "09:00", "*", "L"]
    ),
)
FIELD_NAMES = [
    *("cron", "every", "calendars", "patterns", "at", "exclude", "start_at", "end_at", "jitter", "time_zone"),
    *("dst", "calendar", "dates", "from", "until", "holidays", "subdivision", "times", "weekdays", "comment"),
    *("second", "minute", "hour", "day_of_month", "month", "year", "day_of_week", "start", "end", "step"),
]
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(FIELD_NAMES), st.text(max_size=5)), inner, max_size=4),
    ),
    max_leaves=12,
)


class TestAnyShape:
    @settings(max_examples=100)
    @given(
        data=st.one_of(values, st.dictionaries(st.sampled_from(FIELD_NAMES[:11]), values, max_size=5)),
        calendars=st.dictionaries(st.text(max_size=3), values, max_size=2),
    )
    @example(data={"exclude": [{"calendar": []}]}, calendars={})
    @example(data={"exclude": 5, "cron": ["x"]}, calendars={})
    def test_is_taken_or_refused_and_never_breaks(self, data: object, calendars: dict[str, object]) -> None:
        try:
            spec = Spec.parse(data, calendars)
            spec.check(NOW, minimum_seconds=60)
        except SpecError as refused:
            error = refused
        else:
            assert Spec.parse(json.loads(json.dumps(spec.as_json())), calendars) == spec
            assert spec.describe()
            assert len(spec.upcoming(NOW, 3, "x")) <= 3
            return
        assert error.message
        assert str(error).isprintable()


CHRISTMAS = {"at": ["2026-12-25T09:00"], "exclude": [{"holidays": "GB"}]}


class TestCheck:
    @pytest.mark.parametrize(
        ("data", "field", "message"),
        [
            (
                {"at": ["2026-11-16T02:17:33Z"]},
                "at",
                "in the past; the last one was 2026-11-16 02:17:33 UTC",
            ),
            ({"cron": ["0 9 * * * 2020-2025"]}, "cron", "in the past; the last one was 2025-12-31 09:00:00"),
            (
                {"calendars": [{"second": "*", "year": 2025}]},
                "calendars",
                "last one was 2025-12-31 00:00:59",
            ),
            ({"calendars": [{"year": 2025}], "at": ["2026-01-01T00:00"]}, "", "last one was 2026-01-01"),
            (
                {"cron": [CRON], "end_at": "2026-11-16T08:59"},
                "end_at",
                "the next time would be 2026-11-16T09:00",
            ),
            (
                {"at": ["2026-12-01T09:00"], "start_at": "2027-01-01"},
                "start_at",
                "next time would be 2026-12-01T",
            ),
            ({"cron": [CRON], "exclude": [{"dates": "2026-01-01/2999-12-31"}]}, "exclude", "be 2026-11-16"),
            (
                {"cron": ["0 9 * * mon"], "exclude": [{"day_of_week": "mon"}]},
                "exclude",
                "no scheduled times are left",
            ),
            (CHRISTMAS | {"end_at": "2026-12-20"}, "at", "this spec has no scheduled times"),
        ],
    )
    def test_refused(self, data: object, field: str, message: str) -> None:
        with pytest.raises(SpecError, match=message) as caught:
            Spec.parse(data).check(NOW)
        assert caught.value.field == field

    @pytest.mark.parametrize(
        ("data", "minimum", "message"),
        [
            ({"every": ["59s"]}, 60, "every: 2026-11-16T02:17:38Z and 2026-11-16T02:18:37Z are 59s apart;"),
            ({"cron": ["* * * * *"]}, 61, "cron: 2026-11-16T02:18:00Z and 2026-11-16T02:19:00Z are 1m apart"),
            ({"cron": [CRON], "at": ["2026-11-20T09:00:01"]}, 2, "2026-11-20T09:00:00Z and 2026"),
        ],
    )
    def test_times_too_close_together(self, data: object, minimum: int, message: str) -> None:
        spec = Spec.parse(data)
        spec.check(NOW)
        with pytest.raises(SpecError) as caught:
            spec.check(NOW, minimum_seconds=minimum)
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize(
        ("data", "minimum"),
        [
            ({}, 60),
            ({"every": ["1m"]}, 60),
            ({"at": ["2020-01-01T09:00", "2026-11-16T02:18"]}, 1),
            ({"cron": ["0 0 29 2 *"]}, 86_400),
            ({"every": ["1s"], "exclude": [{"second": "1-59"}]}, 60),
            ({"start_at": "2020-01-01", "end_at": "2020-12-31", "jitter": "5m"}, 1),
        ],
    )
    def test_specs_with_a_future_may_be_saved(self, data: object, minimum: int) -> None:
        spec = Spec.parse(data)
        spec.check(NOW, minimum_seconds=minimum)
        assert spec.is_manual or spec.next(NOW) is not None


COUNTRIES = ["GB", "US", "DE", "FR", "IT", "ES", "PT", "NL", "BE", "CH", "AT", "PL", "CZ", "SE", "NO", "FI"]
NO_INSTANT = {"from": "2026-01-01T00:00Z", "until": "2999-12-31T23:59:59Z"}


class TestNoSpecHangsATick:
    """A tick has seconds, and there are many schedules. What is counted is the same on every machine."""

    @pytest.mark.parametrize(
        ("rule", "excluded"),
        [
            pytest.param({"every": ["1s"]}, [{"second": "*/2"}, {"second": "1/2"}], id="each second"),
            pytest.param({"cron": ["0 9 25 12 *"]}, [{"holidays": code} for code in COUNTRIES], id="days"),
        ],
    )
    def test_nothing_is_left_but_it_takes_a_while_to_see(
        self, rule: dict[str, object], excluded: list[object]
    ) -> None:
        spec = Spec.parse({**rule, "exclude": excluded, "time_zone": "Europe/London"})

        def refused() -> None:
            with pytest.raises(SpecError, match="no scheduled times are left") as caught:
                spec.next(NOW)
            assert caught.value.field == "exclude"

        assert _calls(refused) < 10_000_000

    @pytest.mark.parametrize(
        "data",
        [
            {"every": ["1s"], "exclude": [{"dates": "2026-01-01/2999-12-31"}]},
            {"every": ["1s"], "exclude": [NO_INSTANT]},
            {"every": ["1s"], "exclude": [{"year": "2026-2999"}]},
            {"cron": ["* * * * * * 2000"]},
            {"calendars": [{"second": "*", "year": 1970}]},
        ],
    )
    def test_there_is_nothing_until_the_end_of_time(self, data: dict[str, object]) -> None:
        spec = Spec.parse(data | {"time_zone": "Europe/London"})
        assert _calls(lambda: spec.next(NOW)) < 1_000_000
        assert spec.next(NOW) is None
        assert _calls(lambda: spec.explain(NOW)) < 1_000_000

    def test_a_gap_of_a_thousand_years_is_one_step(self) -> None:
        spec = Spec.parse({"cron": ["0 0 29 2 * 2996"], "time_zone": "Europe/London"})
        assert _calls(lambda: spec.next(NOW)) < 10_000
        assert spec.next(NOW) == datetime(2996, 2, 29, tzinfo=UTC)

    def test_hundreds_of_rules(self) -> None:
        data = {
            "cron": [f"{n % 60} {n % 24} * * *" for n in range(100)],
            "every": [f"{3600 + n}s" for n in range(100)],
            "calendars": [{"second": str(n % 60), "minute": "*"} for n in range(100)],
            "patterns": [{"every": "1s", "from": "09:00", "until": "17:00"}] * 100,
            "at": [f"{NOW + timedelta(seconds=n):%Y-%m-%dT%H:%M:%SZ}" for n in range(1000)],
            "exclude": [{"dates": f"2026-12-{1 + n % 31:02}"} for n in range(100)],
        }
        spec = Spec.parse(data | {"time_zone": "Europe/London"})
        assert _calls(lambda: spec.times(NOW, NOW + timedelta(days=30), limit=1000)) < 500_000

    @pytest.mark.parametrize("rule", [{"every": ["1s"]}, {"cron": ["0 9 * * *"]}], ids=["dense", "daily"])
    @pytest.mark.parametrize(
        "item",
        [
            lambda n: {"year": 2030 + n % 900, "second": n % 60},
            lambda n: {"minute": 1 + n % 59, "second": n // 59},
            lambda n: {"dates": f"{2030 + n // 28}-01-{1 + n % 28:02}"},
            lambda n: {"holidays": "GB", "comment": str(n)},
        ],
        ids=["years", "minutes", "dates", "holidays"],
    )
    def test_a_thousand_exclusions(self, rule: dict[str, object], item: Callable[[int], object]) -> None:
        calendars = {f"{n}": [item(n * 10 + m) for m in range(10)] for n in range(100)}
        many = Spec.parse(rule | {"exclude": [{"calendar": name} for name in calendars]}, calendars)
        few = Spec.parse(rule | {"exclude": calendars["0"]})

        def calls(spec: Spec) -> int:
            spec.next(NOW)
            return _calls(lambda: spec.times(NOW, NOW + timedelta(days=2_000), limit=1000))

        assert calls(many) < 2 * calls(few), "a hundred times as many cost more than they should"

    def test_many_holiday_items_are_no_reason_to_give_up(self) -> None:
        excluded = [{"holidays": "GB", "comment": str(n)} for n in range(1000)]
        spec = Spec.parse({"cron": ["0 9 * * *"], "exclude": [{"calendar": "UK"}]}, {"UK": excluded})
        assert spec.next(datetime(2026, 12, 25, tzinfo=UTC)) == datetime(2026, 12, 27, 9, tzinfo=UTC)


def _calls(work: Callable[[], object]) -> int:
    """Of functions, and their returns."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
