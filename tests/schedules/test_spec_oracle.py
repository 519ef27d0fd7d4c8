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
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from schedules.spec import Spec, SpecError
from tests.schedules import oracle
from tests.schedules.oracle import DAY, HOUR, MINUTE, MONTHS, SECOND, WEEKDAYS

ZONES = (
    "UTC",
    "America/New_York",
    "Europe/London",
    "Australia/Lord_Howe",  # half an hour
    "Africa/Cairo",
    "America/Havana",
    "Asia/Beirut",  # the three change at midnight
    "Pacific/Apia",  # 30 December 2011 did not exist
    "Antarctica/Troll",  # two hours
)
YEARS = (2001, 2006, 2010, 2011, 2014, 2021, 2023, 2024, 2026, 2027, 2037, 2038, 2096, 2099)

Data = dict[str, Any]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def instants(*texts: str) -> list[datetime]:
    return [instant(text) for text in texts]


class Case(NamedTuple):
    zone: str
    spec: Data
    after: str
    until: str
    cron: list[str]
    literal: list[str]


class TestClockChanges:
    """What the clocks do.

    New York: 8 March 2026, 07:00Z, 02:00 -> 03:00; 1 November 2026, 06:00Z, 02:00 -> 01:00.
    Lord Howe: 3 October 2026, 15:30Z, 02:00 -> 02:30; 4 April 2026, 15:00Z, 02:00 -> 01:30 (a day on).
    Cairo: 23 April 2026, 22:00Z, 00:00 -> 01:00 (the 24th); 29 October 2026, 21:00Z, 24:00 -> 23:00.
    Havana: 8 March 2026, 05:00Z, 00:00 -> 01:00; 1 November 2026, 05:00Z, 01:00 -> 00:00.
    Beirut: 28 March 2026, 22:00Z, 00:00 -> 01:00 (the 29th); 24 October 2026, 21:00Z, 24:00 -> 23:00.
    Troll: 29 March 2026, 01:00Z, 01:00 -> 03:00; 25 October 2026, 01:00Z, 03:00 -> 01:00.
    Apia: 30 December 2011, 10:00Z, from the end of the 29th to the start of the 31st.
    """

    CASES = {
        "New York, in the gap": Case(
            "America/New_York",
            {"cron": ["30 2 * * *"]},
            "2026-03-07",
            "2026-03-09T23:59",
            cron=["2026-03-07T07:30", "2026-03-08T07:00", "2026-03-09T06:30"],
            literal=["2026-03-07T07:30", "2026-03-09T06:30"],
        ),
        "New York, the gap meets a regular time": Case(
            "America/New_York",
            {"cron": ["30 2 * * *", "0 3 * * *"]},
            "2026-03-08",
            "2026-03-08T23:59",
            cron=["2026-03-08T07:00"],
            literal=["2026-03-08T07:00"],
        ),
        "New York, several times in the gap": Case(
            "America/New_York",
            {"patterns": [{"times": ["01:59", "02:00", "02:30", "02:59", "03:01"]}]},
            "2026-03-08T06:00",
            "2026-03-08T08:00",
            cron=["2026-03-08T06:59", "2026-03-08T07:00", "2026-03-08T07:01"],
            literal=["2026-03-08T06:59", "2026-03-08T07:01"],
        ),
        "New York, any hour skips the gap": Case(
            "America/New_York",
            {"cron": ["30 * * * *"]},
            "2026-03-08T06:00",
            "2026-03-08T08:00",
            cron=["2026-03-08T06:30", "2026-03-08T07:30"],
            literal=["2026-03-08T06:30", "2026-03-08T07:30"],
        ),
        "New York, any minute of an hour that does not exist": Case(
            "America/New_York",
            {"cron": ["*/30 2 * * *"]},
            "2026-03-08",
            "2026-03-09T06:29",
            cron=["2026-03-09T06:00"],
            literal=["2026-03-09T06:00"],
        ),
        "New York, in the fold": Case(
            "America/New_York",
            {"cron": ["30 1 * * *"]},
            "2026-10-31",
            "2026-11-02T23:59",
            cron=["2026-10-31T05:30", "2026-11-01T05:30", "2026-11-02T06:30"],
            literal=["2026-10-31T05:30", "2026-11-01T05:30", "2026-11-01T06:30", "2026-11-02T06:30"],
        ),
        "New York, any minute fires in both passes": Case(
            "America/New_York",
            {"cron": ["*/30 1 * * *"]},
            "2026-11-01",
            "2026-11-01T23:59",
            cron=["2026-11-01T05:00", "2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30"],
            literal=["2026-11-01T05:00", "2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30"],
        ),
        "New York, asked in the second pass": Case(
            "America/New_York",
            {"cron": ["30 1 * * *"]},
            "2026-11-01T06:00",
            "2026-11-02T06:30",
            cron=["2026-11-02T06:30"],
            literal=["2026-11-01T06:30", "2026-11-02T06:30"],
        ),
        "New York, intervals are elapsed time": Case(
            "America/New_York",
            {"every": [{"every": "1h", "offset": "5m"}]},
            "2026-11-01T04:30",
            "2026-11-01T08:00",
            cron=["2026-11-01T05:05", "2026-11-01T06:05", "2026-11-01T07:05"],
            literal=["2026-11-01T05:05", "2026-11-01T06:05", "2026-11-01T07:05"],
        ),
        "New York, one-off times in the fold": Case(
            "America/New_York",
            {"at": ["2026-11-01T01:30", "2026-11-01T06:15:00Z"]},
            "2026-10-31",
            "2026-11-02",
            cron=["2026-11-01T05:30", "2026-11-01T06:15"],
            literal=["2026-11-01T05:30", "2026-11-01T06:15"],
        ),
        "New York, an exclusion tests the time before it moves": Case(
            "America/New_York",
            {"cron": ["30 2 * * *"], "exclude": [{"hour": "2"}]},
            "2026-03-07T08:00",
            "2026-03-10",
            cron=[],
            literal=[],
        ),
        "New York, and not the time it moves to": Case(
            "America/New_York",
            {"cron": ["30 2 * * *"], "exclude": [{"hour": "3"}]},
            "2026-03-07T08:00",
            "2026-03-10",
            cron=["2026-03-08T07:00", "2026-03-09T06:30"],
            literal=["2026-03-09T06:30"],
        ),
        "New York, a window without an offset covers both passes": Case(
            "America/New_York",
            {
                "cron": ["*/15 1 * * *"],
                "exclude": [{"from": "2026-11-01T01:15", "until": "2026-11-01T01:30"}],
            },
            "2026-11-01",
            "2026-11-01T12:00",
            cron=["2026-11-01T05:00", "2026-11-01T05:45", "2026-11-01T06:00", "2026-11-01T06:45"],
            literal=["2026-11-01T05:00", "2026-11-01T05:45", "2026-11-01T06:00", "2026-11-01T06:45"],
        ),
        "New York, a window with an offset covers instants": Case(
            "America/New_York",
            {
                "cron": ["*/15 1 * * *"],
                "exclude": [{"from": "2026-11-01T05:15:00Z", "until": "2026-11-01T01:15:00-05:00"}],
            },
            "2026-11-01",
            "2026-11-01T12:00",
            cron=["2026-11-01T05:00", "2026-11-01T06:30", "2026-11-01T06:45"],
            literal=["2026-11-01T05:00", "2026-11-01T06:30", "2026-11-01T06:45"],
        ),
        "New York, the start tests the instant": Case(
            "America/New_York",
            {"cron": ["30 2 * * *"], "start_at": "2026-03-08T07:00:00Z"},
            "2026-03-07",
            "2026-03-09",
            cron=["2026-03-08T07:00"],
            literal=[],
        ),
        "New York, the end tests the instant": Case(
            "America/New_York",
            {"cron": ["30 2 * * *"], "end_at": "2026-03-08T06:59:59Z"},
            "2026-03-07T08:00",
            "2026-03-10",
            cron=[],
            literal=[],
        ),
        "Lord Howe, in the gap": Case(
            "Australia/Lord_Howe",
            {"cron": ["15 2 * * *"]},
            "2026-10-02",
            "2026-10-05",
            cron=["2026-10-02T15:45", "2026-10-03T15:30", "2026-10-04T15:15"],
            literal=["2026-10-02T15:45", "2026-10-04T15:15"],
        ),
        "Lord Howe, in the fold": Case(
            "Australia/Lord_Howe",
            {"cron": ["45 1 * * *"]},
            "2026-04-03T15:00",
            "2026-04-06",
            cron=["2026-04-04T14:45", "2026-04-05T15:15"],
            literal=["2026-04-04T14:45", "2026-04-04T15:15", "2026-04-05T15:15"],
        ),
        "Lord Howe, any hour in the fold": Case(
            "Australia/Lord_Howe",
            {"cron": ["15,45 * * * *"]},
            "2026-04-04T14:00",
            "2026-04-04T16:00",
            cron=["2026-04-04T14:15", "2026-04-04T14:45", "2026-04-04T15:15", "2026-04-04T15:45"],
            literal=["2026-04-04T14:15", "2026-04-04T14:45", "2026-04-04T15:15", "2026-04-04T15:45"],
        ),
        "Cairo, midnight in the gap": Case(
            "Africa/Cairo",
            {"cron": ["0 0 * * *"]},
            "2026-04-22T21:00",
            "2026-04-25",
            cron=["2026-04-22T22:00", "2026-04-23T22:00", "2026-04-24T21:00"],
            literal=["2026-04-22T22:00", "2026-04-24T21:00"],
        ),
        "Cairo, the day that begins in the gap is excluded": Case(
            "Africa/Cairo",
            {"cron": ["0 0 * * *"], "exclude": [{"dates": "2026-04-24"}]},
            "2026-04-22T21:00",
            "2026-04-25",
            cron=["2026-04-22T22:00", "2026-04-24T21:00"],
            literal=["2026-04-22T22:00", "2026-04-24T21:00"],
        ),
        "Cairo, only on that weekday": Case(
            "Africa/Cairo",
            {"calendars": [{"day_of_week": "fri"}]},
            "2026-04-16T23:00",
            "2026-05-01",
            cron=["2026-04-23T22:00", "2026-04-30T21:00"],
            literal=["2026-04-30T21:00"],
        ),
        "Cairo, the hour before midnight twice": Case(
            "Africa/Cairo",
            {"cron": ["30 23 * * *", "0 0 * * *"]},
            "2026-10-29T12:00",
            "2026-10-30T12:00",
            cron=["2026-10-29T20:30", "2026-10-29T22:00"],
            literal=["2026-10-29T20:30", "2026-10-29T21:30", "2026-10-29T22:00"],
        ),
        "Troll, two hours are missing": Case(
            "Antarctica/Troll",
            {"cron": ["30 1 * * *", "59 2 * * *"]},
            "2026-03-28T12:00",
            "2026-03-30T12:00",
            cron=["2026-03-29T01:00", "2026-03-29T23:30", "2026-03-30T00:59"],
            literal=["2026-03-29T23:30", "2026-03-30T00:59"],
        ),
        "Troll, two hours come twice": Case(
            "Antarctica/Troll",
            {"cron": ["30 1 * * *", "59 2 * * *"]},
            "2026-10-24T12:00",
            "2026-10-25T12:00",
            cron=["2026-10-24T23:30", "2026-10-25T00:59"],
            literal=["2026-10-24T23:30", "2026-10-25T00:59", "2026-10-25T01:30", "2026-10-25T02:59"],
        ),
        "Apia, the day that is missing": Case(
            "Pacific/Apia",
            {"cron": ["0 12 * * *"]},
            "2011-12-29",
            "2012-01-01",
            cron=["2011-12-29T22:00", "2011-12-30T22:00", "2011-12-31T22:00"],
            literal=["2011-12-29T22:00", "2011-12-30T22:00", "2011-12-31T22:00"],
        ),
        "Apia, nothing makes up for a whole day": Case(
            "Pacific/Apia",
            {"cron": ["0 12 30 12 *"]},
            "2011-12-27",
            "2012-01-03",
            cron=[],
            literal=[],
        ),
        "Apia, the day after begins where the day before ended": Case(
            "Pacific/Apia",
            {"cron": ["59 23 29 12 *", "0 0 31 12 *"]},
            "2011-12-28",
            "2012-01-02",
            cron=["2011-12-30T09:59", "2011-12-30T10:00"],
            literal=["2011-12-30T09:59", "2011-12-30T10:00"],
        ),
        "Havana, midnight in the gap": Case(
            "America/Havana",
            {"cron": ["0 0 * * *"]},
            "2026-03-07T04:00",
            "2026-03-09T12:00",
            cron=["2026-03-07T05:00", "2026-03-08T05:00", "2026-03-09T04:00"],
            literal=["2026-03-07T05:00", "2026-03-09T04:00"],
        ),
        "Havana, midnight twice": Case(
            "America/Havana",
            {"cron": ["0 0 * * *"]},
            "2026-10-31T12:00",
            "2026-11-02T12:00",
            cron=["2026-11-01T04:00", "2026-11-02T05:00"],
            literal=["2026-11-01T04:00", "2026-11-01T05:00", "2026-11-02T05:00"],
        ),
        "Beirut, midnight in the gap": Case(
            "Asia/Beirut",
            {"cron": ["0 0 * * *"]},
            "2026-03-27T21:00",
            "2026-03-30",
            cron=["2026-03-27T22:00", "2026-03-28T22:00", "2026-03-29T21:00"],
            literal=["2026-03-27T22:00", "2026-03-29T21:00"],
        ),
        "Beirut, the hour before midnight twice": Case(
            "Asia/Beirut",
            {"cron": ["30 23 * * sat", "0 0 * * sun"]},
            "2026-10-24T12:00",
            "2026-10-25T12:00",
            cron=["2026-10-24T20:30", "2026-10-24T22:00"],
            literal=["2026-10-24T20:30", "2026-10-24T21:30", "2026-10-24T22:00"],
        ),
    }

    @pytest.mark.parametrize("dst", ["cron", "literal"])
    @pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
    def test_fires_at_these_instants(self, case: Case, dst: str) -> None:
        data = {**case.spec, "time_zone": case.zone, "dst": dst}
        after, until = instant(case.after), instant(case.until)
        expected = instants(*(case.cron if dst == "cron" else case.literal))
        assert Spec.parse(data).times(after, until) == expected
        assert oracle.times(data, after, until) == expected


class TestOneOffTimesInAGap:
    def test_moves_behind_the_gap(self) -> None:
        data = {"at": ["2026-03-08T02:30"], "time_zone": "America/New_York"}
        assert Spec.parse(data).next(instant("2026-03-01")) == instant("2026-03-08T07:00")

    @pytest.mark.parametrize(
        ("hour", "expected"), [("2", "2026-03-08T07:00"), ("3", None)], ids=["not before it moves", "after"]
    )
    def test_an_exclusion_tests_the_time(self, hour: str, expected: str | None) -> None:
        data = {
            "at": ["2026-03-08T02:30"],
            "exclude": [{"hour": hour}],
            "time_zone": "America/New_York",
        }
        at = Spec.parse(data).next(instant("2026-03-01"))
        assert at == (instant(expected) if expected else None)

    @pytest.mark.parametrize(
        ("wall", "zone", "dst"),
        [
            pytest.param("2026-03-08T02:30", "America/New_York", "literal", id="literal"),
            pytest.param("2011-12-30T18:00", "Pacific/Apia", "literal", id="literal, a missing day"),
            pytest.param("2011-12-30T18:00", "Pacific/Apia", "cron", id="more than three hours"),
        ],
    )
    def test_is_refused_where_it_would_never_come(self, wall: str, zone: str, dst: str) -> None:
        with pytest.raises(SpecError, match=f"at: {wall} does not exist: the clocks of {zone} go from"):
            Spec.parse({"at": [wall], "time_zone": zone, "dst": dst})


class TestDates:
    @pytest.mark.parametrize(
        ("data", "after", "until", "expected"),
        [
            pytest.param(
                {"cron": ["0 0 29 2 *"]},
                "2088-01-01",
                "2108-12-31",
                ["2088-02-29", "2092-02-29", "2096-02-29", "2104-02-29", "2108-02-29"],
                id="leap days, and 2100 has none",
            ),
            pytest.param(
                {"calendars": [{"month": "feb", "day_of_month": 29}]},
                "1996-03-01",
                "2008-03-01",
                ["2000-02-29", "2004-02-29", "2008-02-29"],
                id="2000 has one",
            ),
            pytest.param(
                {"cron": ["0 0 31 * *"]},
                "2026-01-31",
                "2026-12-31",
                ["2026-03-31", "2026-05-31", "2026-07-31", "2026-08-31", "2026-10-31", "2026-12-31"],
                id="the 31st",
            ),
            pytest.param(
                {"cron": ["0 0 L * *"]},
                "2027-12-01",
                "2028-04-30",
                ["2027-12-31", "2028-01-31", "2028-02-29", "2028-03-31", "2028-04-30"],
                id="the last day of a month",
            ),
            pytest.param(
                {"cron": ["0 0 28,L 2 *"]},
                "2027-01-01",
                "2028-12-31",
                ["2027-02-28", "2028-02-28", "2028-02-29"],
                id="the 28th and the last day, which may be the same",
            ),
            pytest.param(
                {"cron": ["0 0 * * L5"]},
                "2026-01-01",
                "2026-05-31",
                ["2026-01-30", "2026-02-27", "2026-03-27", "2026-04-24", "2026-05-29"],
                id="the last Friday",
            ),
            pytest.param(
                {"cron": ["0 0 * 1-3 5L"]},
                "2026-01-01",
                "2026-05-31",
                ["2026-01-30", "2026-02-27", "2026-03-27"],
                id="the last Friday, the other way round",
            ),
            pytest.param(
                {"cron": ["0 0 * * fri#5"]},
                "2026-01-01",
                "2026-12-31",
                ["2026-01-30", "2026-05-29", "2026-07-31", "2026-10-30"],
                id="the fifth Friday",
            ),
            pytest.param(
                {"cron": ["0 0 13 2-3 fri"]},
                "2026-01-31",
                "2026-03-14",
                [
                    "2026-02-06",
                    "2026-02-13",
                    "2026-02-20",
                    "2026-02-27",
                    "2026-03-06",
                    "2026-03-13",
                ],
                id="cron: the 13th or a Friday",
            ),
            pytest.param(
                {"cron": ["0 0 */2 6 mon", "0 0 6 6 */6"]},
                "2026-01-01",
                "2026-12-31",
                ["2026-06-01", "2026-06-06", "2026-06-15", "2026-06-29"],
                id="cron: a day field that begins with a star restricts the other",
            ),
            pytest.param(
                {"calendars": [{"day_of_month": "13", "day_of_week": "fri"}]},
                "2026-01-01",
                "2026-12-31",
                ["2026-02-13", "2026-03-13", "2026-11-13"],
                id="a calendar: Friday the 13th",
            ),
            pytest.param(
                {"cron": ["0 0 1 1 * 2027-2029/2"]},
                "2026-01-01",
                "2099-12-31",
                ["2027-01-01", "2029-01-01"],
                id="six fields, the year last",
            ),
            pytest.param(
                {"cron": ["@yearly", "@monthly"], "exclude": [{"month": "2-12"}]},
                "2026-01-01",
                "2028-01-01",
                ["2027-01-01", "2028-01-01"],
                id="both ends of the window: after the first, up to the last",
            ),
            pytest.param(
                {"every": ["7d"]},
                "1970-01-01",
                "1970-01-29",
                ["1970-01-08", "1970-01-15", "1970-01-22", "1970-01-29"],
                id="an interval counts from the epoch",
            ),
        ],
    )
    def test_fires_on_these_days(self, data: Data, after: str, until: str, expected: list[str]) -> None:
        start, end = instant(after), instant(until)
        assert Spec.parse(data).times(start, end) == instants(*expected)
        assert oracle.times(data, start, end, step=DAY) == instants(*expected)

    @pytest.mark.parametrize(
        ("data", "after", "expected"),
        [
            pytest.param({"cron": ["0 0 29 2 *"]}, "2096-02-29", "2104-02-29", id="eight years without"),
            pytest.param({"cron": ["0 0 1 1 * 2027"]}, "2027-01-01", None, id="the year is over"),
            pytest.param(
                {"cron": ["59 59 23 31 12 * 2027"]},
                "2026-12-31T23:59:59",
                "2027-12-31T23:59:59",
                id="seven fields, the last second of a year",
            ),
            pytest.param({"at": ["2026-12-01T09:00"]}, "2026-12-01T09:00", None, id="a one-off time is over"),
            pytest.param(
                {"cron": ["@daily"], "end_at": "2026-12-31T00:00"},
                "2026-12-30",
                "2026-12-31",
                id="the end is inclusive",
            ),
            pytest.param(
                {"cron": ["@daily"], "end_at": "2026-12-31T00:00"}, "2026-12-31", None, id="after the end"
            ),
            pytest.param(
                {"cron": ["@daily"], "start_at": "2026-12-31T00:00"},
                "1999-12-31",
                "2026-12-31",
                id="the start is inclusive",
            ),
            pytest.param({"cron": ["@yearly"]}, "9999-06-01", None, id="the end of the calendar"),
            pytest.param({}, "2026-01-01", None, id="no rule at all"),
        ],
    )
    def test_the_next_time(self, data: Data, after: str, expected: str | None) -> None:
        assert Spec.parse(data).next(instant(after)) == (instant(expected) if expected else None)


class TestTimesOfDay:
    MONDAY = "2026-06-01"

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            pytest.param(
                {"patterns": [{"times": ["09:00", "12:30"], "weekdays": "mon-fri"}]},
                ["2026-06-01T09:00", "2026-06-01T12:30", "2026-06-02T09:00", "2026-06-02T12:30"],
                id="each time keeps its own minutes",
            ),
            pytest.param(
                {"patterns": [{"every": "25m", "from": "09:00", "until": "10:15", "weekdays": "tue"}]},
                ["2026-06-02T09:00", "2026-06-02T09:25", "2026-06-02T09:50", "2026-06-02T10:15"],
                id="a window counts from its start and includes its end",
            ),
            pytest.param(
                {"patterns": [{"every": "7h", "from": "02:30", "until": "20:00"}]},
                [f"2026-06-0{day}T{hour}:30" for day in (1, 2) for hour in ("02", "09", "16")],
                id="hours in a window",
            ),
            pytest.param(
                {"cron": ["@every 20h/5h"]},
                ["2026-06-01T05:00", "2026-06-02T01:00", "2026-06-02T21:00"],
                id="@every with an offset: this Monday begins 24,726 times 20 hours after the epoch",
            ),
            pytest.param(
                {"calendars": [{"hour": "5/8", "minute": [{"start": 10, "end": 50, "step": 20}, 59]}]},
                [
                    f"2026-06-0{day}T{hour}:{minute}"
                    for day in (1, 2)
                    for hour in ("05", "13", "21")
                    for minute in ("10", "30", "50", "59")
                ],
                id="ranges with steps, in text and as objects",
            ),
        ],
    )
    def test_fires_on_monday_and_tuesday(self, data: Data, expected: list[str]) -> None:
        start, end = instant(self.MONDAY), instant(self.MONDAY) + 2 * DAY - SECOND
        assert Spec.parse(data).times(start, end) == instants(*expected)
        assert oracle.times(data, start, end) == instants(*expected)


class TestHolidays:
    """Weekdays at noon; what is left out are the days that the governments name."""

    @pytest.mark.parametrize(
        ("item", "year", "days_off"),
        [
            pytest.param(
                {"holidays": "GB", "subdivision": "ENG"},
                2026,
                ["01-01", "04-03", "04-06", "05-04", "05-25", "08-31", "12-25", "12-28"],
                id="England 2026, Boxing Day moved from a Saturday",
            ),
            pytest.param(
                {"holidays": "GB", "subdivision": "ENG"},
                2027,
                ["01-01", "03-26", "03-29", "05-03", "05-31", "08-30", "12-27", "12-28"],
                id="England 2027, both Christmas days moved",
            ),
            pytest.param(
                {"holidays": "US"},
                2026,
                [
                    *("01-01", "01-19", "02-16", "05-25", "06-19", "07-03"),
                    *("09-07", "10-12", "11-11", "11-26", "12-25"),
                ],
                id="US 2026, Independence Day moved to the Friday",
            ),
            pytest.param(
                {"holidays": "US"},
                2027,
                [
                    *("01-01", "01-18", "02-15", "05-31", "06-18", "07-05"),
                    *("09-06", "10-11", "11-11", "11-25", "12-24", "12-31"),
                ],
                id="US 2027, the New Year of 2028 moved into it",
            ),
            pytest.param(
                {"holidays": "DE", "subdivision": "BY"},
                2026,
                ["01-01", "01-06", "04-03", "04-06", "05-01", "05-14", "05-25", "06-04", "12-25"],
                id="Bavaria 2026",
            ),
            pytest.param(
                {"holidays": "DE", "subdivision": "BY"},
                2027,
                ["01-01", "01-06", "03-26", "03-29", "05-06", "05-17", "05-27", "11-01"],
                id="Bavaria 2027",
            ),
            pytest.param(
                {"holidays": "DE"},
                2027,
                ["01-01", "03-26", "03-29", "05-06", "05-17"],
                id="all of Germany 2027",
            ),
        ],
    )
    @pytest.mark.parametrize("is_shared", [False, True], ids=["in the spec", "in a shared calendar"])
    def test_days_off(self, item: Data, year: int, days_off: list[str], is_shared: bool) -> None:
        noons = {"cron": ["0 12 * * mon-fri"], "time_zone": "Europe/Berlin"}
        exclude, calendars = ([{"calendar": "days off"}], {"days off": [item]}) if is_shared else ([item], {})
        start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
        everything = Spec.parse(noons).times(start, end)
        left = Spec.parse({**noons, "exclude": exclude}, calendars).times(start, end)
        assert [f"{at:%m-%d}" for at in everything if at not in left] == days_off
        assert set(left) < set(everything)

    def test_a_holiday_is_a_day_on_the_clock_of_the_schedule(self) -> None:
        """Christmas Day in Auckland is over before it is noon in London."""
        data = {
            "cron": ["30 0 * * *"],
            "time_zone": "Pacific/Auckland",
            "exclude": [{"holidays": "GB", "subdivision": "ENG"}],
        }
        expected = instants("2025-12-23T11:30", "2025-12-26T11:30")
        assert Spec.parse(data).times(instant("2025-12-23"), instant("2025-12-27")) == expected

    def test_a_shared_calendar_is_the_union_of_its_items(self) -> None:
        calendars = {
            "freeze": [
                {"dates": "2026-12-24/2026-12-27"},
                {"from": "2026-12-28T22:00", "until": "2026-12-29T11:59"},
                {"holidays": "GB", "subdivision": "ENG"},
            ],
            "maintenance": [{"day_of_week": "wed", "hour": "12"}],
            "not named": [{"day_of_week": "*"}],
        }
        data = {
            "patterns": [{"times": ["11:00", "12:00"]}],
            "exclude": [{"calendar": "freeze"}, {"calendar": "maintenance"}, {"dates": "2026-12-31"}],
        }
        spec = Spec.parse(data, calendars)
        assert spec.times(instant("2026-12-23"), instant("2027-01-02T11:30")) == instants(
            "2026-12-23T11:00", "2026-12-29T12:00", "2026-12-30T11:00", "2027-01-02T11:00"
        )
        assert spec.calendar_names == ("freeze", "maintenance")

    def test_the_same_spec_with_another_calendar_is_another_spec(self) -> None:
        data = {"cron": ["@daily"], "exclude": [{"calendar": "closed"}]}
        first, second = (
            Spec.parse(data, {"closed": [{"dates": day}]}) for day in ("2026-06-02", "2026-06-03")
        )
        assert first.next(instant("2026-06-01")) == instant("2026-06-03")
        assert second.next(instant("2026-06-01")) == instant("2026-06-02")


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
    days = [datetime(year, 1, 1, tzinfo=UTC) + n * DAY for year in YEARS for n in range(365)]
    return [
        clock_change(zone, day, day + DAY)
        for day in days
        if offset_at(day, zone) != offset_at(day + DAY, zone)
    ]


def clock_change(zone: str, before: datetime, after: datetime) -> datetime:
    while after - before > MINUTE:
        between = before + (after - before) // (2 * MINUTE) * MINUTE
        if offset_at(between, zone) == offset_at(before, zone):
            before = between
        else:
            after = between
    return after


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


class Field(NamedTuple):
    low: int
    high: int
    of: Callable[[datetime], int]
    names: Mapping[int, str] = {}


FIELDS = {
    "second": Field(0, 59, lambda wall: wall.second),
    "minute": Field(0, 59, lambda wall: wall.minute),
    "hour": Field(0, 23, lambda wall: wall.hour),
    "day_of_month": Field(1, 31, lambda wall: wall.day),
    "month": Field(1, 12, lambda wall: wall.month, dict(enumerate(MONTHS, 1))),
    "year": Field(2000, 2099, lambda wall: wall.year),
    "day_of_week": Field(0, 6, lambda wall: wall.isoweekday() % 7, dict(enumerate(WEEKDAYS))),
}
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
        names = self.random.choice([FIELDS[name].names, {}])
        text = ",".join(part.as_text(names) for part in self.parts(name))
        return self.random.choice([text, text.upper()])

    def calendar(self, names: list[str], *, at_most: int) -> Data:
        fields: Data = {}
        for name in self.random.sample(names, k=self.random.randint(1, at_most)):
            parts = self.parts(name)
            text = ",".join(part.as_text(FIELDS[name].names) for part in parts)
            fields[name] = self.random.choice([text, [part.as_json() for part in parts], parts[0].as_json()])
        return fields

    def parts(self, name: str) -> list[Part]:
        return [self.part(name) for _ in range(self.random.choice([1, 1, 2]))]

    def part(self, name: str) -> Part:
        """Left out is what is not written: where years begin and end, and whether a week ends with 6 or 7."""
        field = FIELDS[name]
        near = [field.of(wall) for wall in self.scene.walls]
        start = self.random.choice([*near, self.random.randint(field.low, field.high)])
        end, step = self.random.randint(start, field.high), self.random.choice([1, 2, 3, 5, 7, 15, 20])
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


def scene_of(random: Random, *, reach: timedelta, zones: tuple[str, ...] = ZONES) -> Scene:
    """Reaches that far from the moment, or less."""
    zone = random.choice(zones)
    anywhere = datetime(random.choice(YEARS), 1, 1, tzinfo=UTC) + random.randint(0, 8640) * HOUR
    moment = random.choice(clock_changes(zone) or [anywhere])
    before, behind = random.choices([reach, reach, reach / 2, 7 * MINUTE], k=2)
    return Scene(zone, random.choice(["cron", "literal"]), moment - before, moment + behind, moment)


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
    for before, after in pairwise([scene.after, *expected[:200]]):
        assert spec.next(before) == after, written
    for at in scene.instants:
        later = [time for time in expected if time > at >= scene.after]
        assert not later or spec.next(at + SECOND / 2) == later[0], written
    assert not comes_within(spec, scene, after=expected[-1] if expected else scene.after), written


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


def comes_within(spec: Spec, scene: Scene, *, after: datetime) -> bool:
    """A spec whose exclusions leave nothing is given up after a while, which is beyond any scene."""
    try:
        at = spec.next(after)
    except SpecError as error:
        if error.field != "exclude":
            raise
        return False
    return at is not None and at <= scene.until


def examples(count: int) -> settings:
    return settings(max_examples=count, derandomize=True, deadline=None, phases=[Phase.generate])


randoms = st.randoms(use_true_random=True)


class TestAgainstTheOracle:
    """Each example is one seed, so that all of them differ; what fails is shown as the spec itself."""

    @examples(1500)
    @given(randoms)
    def test_every_minute_around_a_change_of_the_clocks(self, random: Random) -> None:
        scene = scene_of(random, reach=4 * HOUR)
        writer = Writer(random, scene)
        agrees(writer.spec(writer.clock_rule()), scene, step=MINUTE)

    @examples(300)
    @given(randoms)
    def test_every_minute_of_several_days(self, random: Random) -> None:
        scene = scene_of(random, reach=36 * HOUR)
        writer = Writer(random, scene)
        agrees(writer.spec(writer.rules()), scene, step=MINUTE)

    @examples(150)
    @given(randoms)
    def test_every_second_around_a_change_of_the_clocks(self, random: Random) -> None:
        scene = scene_of(random, reach=32 * MINUTE)
        wall = random.choice(scene.walls)
        second = random.choice(["7", "59", "*", "*/20", "30/7", "0,1,58-59", "0-59/13"])
        clock = random.choice([f"{wall:%M %H}", f"* {wall:%H}", f"{wall:%M} *", "0/10 *"])
        fields = {"second": second, "minute": f"{wall.minute}-59", "hour": wall.hour}
        ways: list[Data] = [
            {"cron": [f"{second} {clock} * * * *"]},
            {"cron": [f"{second} {clock} {wall.day} {wall.month} * {wall.year}"]},
            {"calendars": [fields]},
            {"calendars": [{**fields, "minute": "*/3"}]},
            {"every": ["45s", {"every": "90s", "offset": "1s"}]},
            {"cron": ["@every 421s/7s"]},
            {"at": [f"{wall_text(random.choice(scene.one_off_walls))}:59"]},
        ]
        agrees(Writer(random, scene).spec(random.choice(ways)), scene, step=SECOND)

    @examples(60)
    @given(randoms)
    def test_every_hour_of_a_year(self, random: Random) -> None:
        """Where clocks differ from Greenwich by whole hours."""
        zones = tuple(zone for zone in ZONES if zone != "Australia/Lord_Howe")
        scene = scene_of(random, reach=183 * DAY, zones=zones)
        writer = Writer(random, scene)
        agrees(writer.spec({"cron": [writer.cron_line(time=f"0 {writer.text('hour')}")]}), scene, step=HOUR)

    @examples(100)
    @given(randoms)
    def test_every_day_of_sixteen_years(self, random: Random) -> None:
        moment = datetime(random.choice([2004, 2024, 2034, 2098]), random.randint(1, 12), 1, tzinfo=UTC) - DAY
        scene = Scene("UTC", "cron", moment - 8 * 365 * DAY, moment + 8 * 365 * DAY, moment)
        writer = Writer(random, scene)
        lines = [writer.cron_line(time="0 0", open_days=0.4) for _ in range(random.randint(1, 2))]
        calendars = [writer.calendar(DATES, at_most=4) for _ in range(random.randint(1, 2))]
        agrees(writer.spec(random.choice([{"cron": lines}, {"calendars": calendars}])), scene, step=DAY)


class TestMemory:
    BOUND = 64 * 1024

    def test_ten_thousand_next_times_leave_nothing_behind(self) -> None:
        data = {
            "cron": ["*/20 * * * *", "0 9 L * *"],
            "every": [{"every": "7h", "offset": "3m"}],
            "calendars": [{"hour": "9-17", "minute": "30", "day_of_week": "mon-fri"}],
            "patterns": [{"every": "25m", "from": "09:00", "until": "17:30"}],
            "exclude": [{"day_of_week": "sun"}, {"dates": "2026-12-24"}, {"holidays": "GB"}],
            "time_zone": "Europe/London",
        }
        spec = Spec.parse(data)
        kept: list[datetime] = []
        walk(spec, 500)
        assert growth(lambda: walk(spec, 10_000)) < self.BOUND
        assert growth(lambda: walk(spec, 2_000, kept)) > self.BOUND, "keeping a fifth of them would show"


def walk(spec: Spec, count: int, kept: list[datetime] | None = None) -> None:
    at: datetime | None = instant("2026-10-01")
    for _ in range(count):
        assert at is not None
        at = spec.next(at)
        if kept is not None and at is not None:
            kept.append(at)


def growth(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
