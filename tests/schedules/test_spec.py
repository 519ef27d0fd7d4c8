from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.spec import Interval, Spec
from schedules.wording import SpecError

NOW = datetime(2026, 11, 16, 2, 17, 33, tzinfo=UTC)


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def cron(expression: str, time_zone: str = "UTC", dst: str = "cron") -> Spec:
    return Spec.parse({"cron": [expression], "time_zone": time_zone, "dst": dst})


def nested_list(depth: int) -> list[object]:
    nested: list[object] = []
    for _ in range(depth):
        nested = [nested]
    return nested


class TestRefused:
    """The numbers are the rows of the list of bad inputs that this part has to meet."""

    @pytest.mark.parametrize(
        ("expression", "message"),
        [
            pytest.param("", "is empty; 5 fields expected", id="1 empty"),
            pytest.param(" \n", "is empty; 5 fields expected", id="1 blank"),
            pytest.param("* * * *", "5 fields expected, got 4", id="2 four fields"),
            pytest.param("0 0 * * * *", "5 fields expected, got 6", id="3 six fields"),
            pytest.param("0 0 * * * * 2030", "5 fields expected, got 7", id="3 seven fields"),
            pytest.param("60 * * * *", "minute 60 is out of range 0\N{EN DASH}59", id="4 minute 60"),
            pytest.param("* 24 * * *", "hour 24 is out of range 0\N{EN DASH}23", id="5 hour 24"),
            pytest.param("* * 0 * *", "day of month 0 is out of range 1\N{EN DASH}31", id="6 day 0"),
            pytest.param("* * 32 * *", "day of month 32 is out of range 1\N{EN DASH}31", id="6 day 32"),
            pytest.param("* * * 13 *", "month 13 is out of range 1\N{EN DASH}12", id="7 month 13"),
            pytest.param("* * * 0 *", "month 0 is out of range 1\N{EN DASH}12", id="7 month 0"),
            pytest.param("* * * * 8", "day of week 8 is out of range 0\N{EN DASH}7", id="8 day of week 8"),
            pytest.param("5-1 * * * *", "minute range '5-1' runs backwards", id="9 backwards"),
            pytest.param("* * * dec-jan *", "month range 'dec-jan' runs backwards", id="9 backwards names"),
            pytest.param("* * * * 5-0", "day of week range '5-0' runs backwards", id="9 backwards to Sunday"),
            pytest.param("5-60 * * * *", "minute 60 is out of range", id="9 end out of range"),
            pytest.param("*/0 * * * *", "minute '*/0' has step 0; a step is 1 or more", id="10 step 0"),
            pytest.param("*/-1 * * * *", "minute '*/-1' is not understood", id="11 negative step"),
            pytest.param("*/ * * * *", "minute '*/' is not understood", id="11 no step"),
            pytest.param("*/1/2 * * * *", "minute '*/1/2' is not understood", id="11 two steps"),
            pytest.param("-5 * * * *", "minute '-5' is not understood", id="11 negative value"),
            pytest.param("1,,2 * * * *", "minute '1,,2' is not understood", id="13 hole in a list"),
            pytest.param("1, * * * *", "minute '1,' is not understood", id="13 open list"),
            pytest.param("FOO", "5 fields expected, got 1", id="14 a word"),
            pytest.param("FOO * * * *", "minute 'FOO' is not understood; allowed: 0", id="14 word as minute"),
            pytest.param("* * * FOO *", "month 'FOO' is not understood; allowed: 1", id="14 word as month"),
            pytest.param("* * * mon *", "month 'mon' is not understood", id="14 weekday as month"),
            pytest.param("0 0 30 2 *", "'0 0 30 2 *' never matches", id="15 30 February"),
            pytest.param("0 0 31 4,6,9,11 *", "never matches", id="16 31st of short months"),
            pytest.param("0," * 5_000 + "0 * * * *", "10,009 characters are too many", id="18 10 kB"),
            pytest.param("\uff15 * * * *", "only ASCII characters are allowed", id="19 full-width digit"),
            pytest.param("5\u200b * * * *", "only ASCII characters are allowed", id="19 zero-width space"),
            pytest.param("5\0 * * * *", "minute '5\\x00' is not understood", id="19 NUL"),
            pytest.param("@reboot", "@reboot is not supported", id="21 @reboot"),
            pytest.param("@every 5m", "'@every 5m' is not known; allowed: @hourly", id="21 @every"),
            pytest.param("@noon", "'@noon' is not known; allowed: @hourly", id="21 unknown shorthand"),
            pytest.param("0 0 L * *", "day of month 'L' is not supported", id="22 L"),
            pytest.param("0 0 15W * *", "day of month '15W' is not supported", id="22 W"),
            pytest.param("0 0 * * fri#2", "day of week 'fri#2' is not supported", id="22 #"),
            pytest.param("0 0 * * 5L", "day of week '5L' is not supported", id="22 last Friday"),
            pytest.param("0 0 ? * *", "day of month '?' is not supported", id="22 ?"),
            pytest.param("H * * * *", "minute 'H' is not supported", id="22 hash"),
            pytest.param("R(0-9) * * * *", "minute 'R(0-9)' is not supported", id="22 random"),
        ],
    )
    def test_cron(self, expression: str, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            cron(expression)
        assert caught.value.field == "cron"
        assert message in caught.value.message
        assert str(caught.value) == f"cron: {caught.value.message}"
        assert len(str(caught.value)) < 300

    @pytest.mark.parametrize(
        ("item", "message"),
        [
            pytest.param(0, "0 seconds is out of range 1s\N{EN DASH}3660d", id="24 zero"),
            pytest.param(-300, "-300 seconds is out of range", id="24 negative"),
            pytest.param("-5m", "'-5m' is not a duration; write 90s, 15m, 1h30m, 2d", id="24 negative text"),
            pytest.param("1e9d", "'1e9d' is not a duration", id="25 exponent"),
            pytest.param("999999999d", "86399999913600 seconds is out of range", id="25 too long"),
            pytest.param("3661d", "316310400 seconds is out of range", id="25 past the maximum"),
            pytest.param("9" * 5_000 + "s", "is not a duration", id="25 5,000 digits as text"),
            pytest.param(10**5_000, "a number of more than 18 digits", id="25 5,000 digits"),
            pytest.param("0s", "0 seconds is out of range", id="26 below the minimum"),
            pytest.param("0.5s", "'0.5s' is not a duration", id="26 half a second"),
            pytest.param(True, "true is not a duration", id="36 a bool"),
            pytest.param("3", "'3' is not a duration", id="36 no unit"),
            pytest.param(1e400, "Infinity is not a duration", id="36 infinity"),
            pytest.param(float("nan"), "NaN is not a duration", id="36 not a number"),
            pytest.param(60.0, "60.0 is not a duration", id="36 a float"),
            pytest.param("", "'' is not a duration", id="36 empty"),
            pytest.param("30m1h", "'30m1h' is not a duration", id="36 units out of order"),
            pytest.param("\uff15m", "is not a duration", id="19 full-width digit"),
            pytest.param(None, "null is not a duration", id="36 null"),
            pytest.param([], "a list is not a duration", id="36 a list"),
            pytest.param(nested_list(100_000), "a list is not a duration", id="36 deep list"),
            pytest.param({"offset": "5m"}, "null is not a duration", id="36 offset alone"),
            pytest.param(
                {"every": "1h", "offset": "1h"}, "at least 0s and less than 1h", id="36 offset too long"
            ),
            pytest.param(
                {"every": "1h", "offset": -1}, "offset -1 seconds is out of range", id="36 offset < 0"
            ),
            pytest.param(
                {"every": "1h", "phase": "5m"}, "unknown key 'phase'; allowed: every and offset", id="36"
            ),
        ],
    )
    def test_every(self, item: object, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            Spec.parse({"every": [item]})
        assert caught.value.field == "every"
        assert message in caught.value.message

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            pytest.param("Europe/Lodnon", "did you mean Europe/London?", id="27 a slip"),
            pytest.param("europe/london", "did you mean Europe/London?", id="27 lower case"),
            pytest.param("London", "did you mean Europe/London?", id="27 a city"),
            pytest.param("New York", "did you mean America/New_York?", id="27 two words"),
            pytest.param("utc", "did you mean UTC?", id="27 lower-case UTC"),
            pytest.param("Mars/Olympus", "is not a known time zone; use UTC or a place", id="27 unknown"),
            pytest.param("", "is not a known time zone", id="27 empty"),
            pytest.param("Europe", "is not a known time zone", id="27 a folder"),
            pytest.param("Europe/", "is not a known time zone", id="27 a folder with a slash"),
            pytest.param("../../etc/passwd", "is not a known time zone", id="27 a path"),
            pytest.param("/etc/localtime", "is not a known time zone", id="27 an absolute path"),
            pytest.param("Europe/Lon\0don", "did you mean Europe/London?", id="27 NUL"),
            pytest.param("\ud800/x", "is not a known time zone", id="27 lone surrogate"),
            pytest.param("x" * 10_000, "is not a known time zone", id="27 10 kB"),
            pytest.param("EST5EDT", "is an abbreviation, not a place; use America/New_York", id="28 EST5EDT"),
            pytest.param("CET", "is an abbreviation, not a place; use Europe/Brussels", id="28 CET"),
            pytest.param("localtime", "is not a known time zone", id="28 this machine's zone"),
            pytest.param("right/Europe/London", "did you mean Europe/London?", id="28 with leap seconds"),
            pytest.param(None, "text expected, got null", id="27 null"),
            pytest.param(0, "text expected, got 0", id="27 a number"),
        ],
    )
    def test_time_zone(self, name: object, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            Spec.parse({"time_zone": name})
        assert caught.value.field == "time_zone"
        assert message in caught.value.message
        assert len(caught.value.message) < 200

    @pytest.mark.parametrize(
        ("item", "message"),
        [
            pytest.param("9999-12-31T23:59", "year 9999 is out of range 1970\N{EN DASH}2999", id="31 9999"),
            pytest.param("9999-12-31T23:59-05:00", "year 9999 is out of range", id="31 9999 with offset"),
            pytest.param("0001-01-01T00:00", "year 1 is out of range 1970\N{EN DASH}2999", id="31 0001"),
            pytest.param("0001-01-01T00:00+05:00", "year 1 is out of range", id="31 0001 with offset"),
            pytest.param("2999-12-31T23:59-05:00", "is out of range", id="31 past the end in UTC"),
            pytest.param("2026-02-30T09:00", "is not a time: day", id="32 30 February"),
            pytest.param("2026-02-30", "is not a time; write 2026-12-01T09:00", id="32 without time"),
            pytest.param("2026-13-01T09:00", "is not a time: month must be in 1..12", id="32 month 13"),
            pytest.param("2026-12-01T24:00", "is not a time: hour must be in 0..23", id="32 hour 24"),
            pytest.param("2026-12-01T09:00+25:00", "is not a time: ", id="33 offset of 25 h"),
            pytest.param("tomorrow", "'tomorrow' is not a time", id="32 a word"),
            pytest.param("２026-12-01T09:00", "is not a time", id="19 full-width digit"),  # noqa: RUF001
            pytest.param(1_800_000_000, "text expected, got 1800000000", id="36 a number"),
            pytest.param(True, "text expected, got true", id="36 a bool"),
        ],
    )
    def test_at(self, item: object, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            Spec.parse({"at": [item]})
        assert caught.value.field == "at"
        assert message in caught.value.message

    @pytest.mark.parametrize(
        ("wall", "time_zone", "dst", "message"),
        [
            (
                "2011-12-30T12:00",
                "Pacific/Apia",
                "cron",
                "2011-12-30T12:00 does not exist: the clocks of Pacific/Apia go "
                "from 2011-12-30 00:00 to 2011-12-31 00:00",
            ),
            (
                "2026-03-08T02:30",
                "America/New_York",
                "literal",
                "2026-03-08T02:30 does not exist: the clocks of America/New_York go "
                "from 2026-03-08 02:00 to 2026-03-08 03:00",
            ),
        ],
    )
    def test_a_one_off_that_no_clock_shows(self, wall: str, time_zone: str, dst: str, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            Spec.parse({"at": [wall], "time_zone": time_zone, "dst": dst})
        assert str(caught.value) == f"at: {message}"

    @pytest.mark.parametrize(
        ("data", "field", "message"),
        [
            ([], "", "an object with cron, every, at, time_zone and dst expected, got a list"),
            (None, "", "an object with cron, every, at, time_zone and dst expected, got null"),
            ("0 9 * * *", "", "an object with cron, every, at, time_zone and dst expected, got '0 9 * * *'"),
            ({"crno": []}, "", "unknown key 'crno'; allowed: cron, every, at, time_zone and dst"),
            ({1: []}, "", "unknown key '1'; allowed: cron, every, at, time_zone and dst"),
            (
                {"jitter": nested_list(100_000)},
                "",
                "unknown key 'jitter'; allowed: cron, every, at, time_zone and dst",
            ),
            ({"cron": "0 9 * * *"}, "cron", "a list expected, got '0 9 * * *'"),
            ({"cron": None}, "cron", "a list expected, got null"),
            ({"cron": [5]}, "cron", "text expected, got 5"),
            ({"cron": ["0 9 * * *"] * 101}, "cron", "101 entries are too many; at most 100"),
            ({"every": {"every": "1h"}}, "every", "a list expected, got an object"),
            ({"at": ["2026-12-01T09:00"] * 1_001}, "at", "1,001 entries are too many; at most 1,000"),
            ({"dst": "summer"}, "dst", "'summer' is not allowed; choose cron or literal"),
            ({"dst": False}, "dst", "text expected, got false"),
        ],
    )
    def test_shape(self, data: object, field: str, message: str) -> None:
        with pytest.raises(SpecError) as caught:
            Spec.parse(data)
        assert (caught.value.field, caught.value.message) == (field, message)
        assert str(caught.value) == (f"{field}: {message}" if field else message)

    @pytest.mark.parametrize(
        ("moments", "last"),
        [
            pytest.param(["2026-11-16T02:17:33Z"], "2026-11-16 02:17:33 UTC", id="34 this very second"),
            pytest.param(
                ["2026-11-16T02:17", "2020-01-01T09:00"], "2026-11-16 02:17:00 UTC", id="34 all past"
            ),
        ],
    )
    def test_only_in_the_past(self, moments: list[str], last: str) -> None:
        with pytest.raises(SpecError) as caught:
            Spec.parse({"at": moments}).check(NOW)
        assert str(caught.value) == f"at: only matches in the past; the last time is {last}"

    @pytest.mark.parametrize(
        "data",
        [
            {},
            {"at": ["2020-01-01T09:00", "2026-11-16T02:18"]},
            {"at": ["2020-01-01T09:00"], "every": ["1h"]},
            {"cron": ["0 0 29 2 *"]},
        ],
    )
    def test_specs_with_a_future_may_be_saved(self, data: object) -> None:
        spec = Spec.parse(data)
        spec.check(NOW)
        assert spec.is_manual or spec.next(NOW) is not None

    def test_no_depth_of_nesting_is_too_much(self) -> None:
        for depth in range(900, 1010):
            with pytest.raises(SpecError, match="a list is not a duration"):
                Spec.parse({"every": nested_list(depth)})

    def test_an_error_survives_copying(self) -> None:
        error = SpecError("cron", "is empty")
        for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (twin.field, twin.message, str(twin)) == ("cron", "is empty", "cron: is empty")

    def test_an_instant_without_offset(self) -> None:
        naive = NOW.replace(tzinfo=None)
        with pytest.raises(ValueError, match="with a UTC offset expected"):
            Spec().next(naive)
        with pytest.raises(SpecError, match="has no UTC offset"):
            Spec(at=(naive,))


class TestAccepted:
    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            pytest.param("*/100 * * * *", "2026-11-16T03:00", id="12 step past the end"),
            pytest.param("0 0 29 2 *", "2028-02-29T00:00", id="17 leap day"),
            pytest.param("0 9 * * *\n", "2026-11-16T09:00", id="20 trailing newline"),
            pytest.param(" 0\t9  *  * * ", "2026-11-16T09:00", id="20 odd spaces"),
            pytest.param("0 0 20 * fri", "2026-11-20T00:00", id="23 both days: 20 November is a Friday"),
            pytest.param("0 0 21 * fri", "2026-11-20T00:00", id="23 both days: the Friday comes first"),
            pytest.param("0 0 19 * fri", "2026-11-19T00:00", id="23 both days: the 19th comes first"),
            pytest.param("0 0 */7 * fri", "2027-01-01T00:00", id="23 a starred day: both must match"),
            pytest.param("0 0 30 2 mon", "2027-02-01T00:00", id="15 no such day, but Mondays"),
            pytest.param("@hourly", "2026-11-16T03:00", id="@hourly"),
            pytest.param("@daily", "2026-11-17T00:00", id="@daily"),
            pytest.param("@MIDNIGHT", "2026-11-17T00:00", id="@midnight"),
            pytest.param("@weekly", "2026-11-22T00:00", id="@weekly"),
            pytest.param("@monthly", "2026-12-01T00:00", id="@monthly"),
            pytest.param("@yearly", "2027-01-01T00:00", id="@yearly"),
            pytest.param("@annually", "2027-01-01T00:00", id="@annually"),
            pytest.param("5-5 * * * *", "2026-11-16T03:05", id="a range of one"),
            pytest.param("59/5 * * * *", "2026-11-16T02:59", id="a step from the last value"),
            pytest.param("50/5 * * * *", "2026-11-16T02:50", id="a step from a value"),
            pytest.param("0 0 * FEB-apr/2 *", "2027-02-01T00:00", id="month names"),
            pytest.param("0 0 * * Sat-Sun", "2026-11-21T00:00", id="a range to Sunday"),
            pytest.param("0 0 * * sun-sun", "2026-11-22T00:00", id="Sunday only"),
            pytest.param("0 0 * * 7", "2026-11-22T00:00", id="Sunday as 7"),
            pytest.param("0 0 31 * *", "2026-12-31T00:00", id="month end"),
            pytest.param("17 2 16 11 *", "2027-11-16T02:17", id="just missed by seconds"),
            pytest.param("18 2 16 11 *", "2026-11-16T02:18", id="within the minute"),
            pytest.param("0 0 5 12 *", "2026-12-05T00:00", id="an earlier day of a later month"),
            pytest.param("59 23 31 12 *", "2026-12-31T23:59", id="last minute of the year"),
        ],
    )
    def test_cron(self, expression: str, expected: str) -> None:
        assert cron(expression).next(NOW) == instant(expected)

    @pytest.mark.parametrize(
        ("expression", "notes"),
        [
            ("*/100 * * * *", ("minute */100 steps past 59: only its first value matches",)),
            (
                "0 0 13 * fri",
                (
                    "0 0 13 * fri gives both day of month and day of week: "
                    "a day that matches either is enough",
                ),
            ),
            ("0 0 */2 * fri", ()),
            ("*/59 9-17 * * mon-fri", ()),
            ("@daily", ()),
        ],
    )
    def test_notes_on_what_may_surprise(self, expression: str, notes: tuple[str, ...]) -> None:
        assert cron(expression).notes == notes

    @pytest.mark.parametrize(
        ("item", "seconds", "offset"),
        [
            ("90s", 90, 0),
            ("15m", 900, 0),
            (" 1h30m ", 5400, 0),
            ("2d", 172800, 0),
            ("1d2h3m4s", 93784, 0),
            (45, 45, 0),
            ("1s", 1, 0),
            ("3660d", 316224000, 0),
            ({"every": "1h", "offset": "5m"}, 3600, 300),
            ({"every": 60, "offset": 0}, 60, 0),
        ],
    )
    def test_durations(self, item: object, seconds: int, offset: int) -> None:
        assert Spec.parse({"every": [item]}).every == (Interval(seconds, offset),)

    @pytest.mark.parametrize(
        ("item", "after", "expected"),
        [
            ("15m", "2026-11-16T02:17:33", "2026-11-16T02:30:00"),
            ("15m", "2026-11-16T02:30:00", "2026-11-16T02:45:00"),
            ("15m", "2026-11-16T02:29:59.999999", "2026-11-16T02:30:00"),
            ("15m", "2026-11-16T02:30:00.000001", "2026-11-16T02:45:00"),
            ({"every": "1h", "offset": "5m"}, "2026-11-16T02:17:33", "2026-11-16T03:05:00"),
            ({"every": "1h", "offset": "20m"}, "2026-11-16T02:17:33", "2026-11-16T02:20:00"),
            ("1s", "2026-11-16T02:17:33", "2026-11-16T02:17:34"),
            ("7d", "2026-11-16T02:17:33", "2026-11-19T00:00:00"),  # the epoch was a Thursday
            ("1h", "1960-01-01T00:00:00", "1970-01-01T00:00:00"),
        ],
    )
    def test_intervals_count_from_the_epoch(self, item: object, after: str, expected: str) -> None:
        assert Spec.parse({"every": [item]}).next(instant(after)) == instant(expected)

    @pytest.mark.parametrize(
        ("text", "time_zone", "expected"),
        [
            pytest.param("2026-12-01T09:00", "UTC", "2026-12-01T09:00", id="29 naive: the zone's clock"),
            pytest.param("2026-07-01T09:00", "Europe/London", "2026-07-01T08:00", id="29 naive, in summer"),
            pytest.param(
                "2026-07-01 09:00", "Asia/Kathmandu", "2026-07-01T03:15", id="29 naive, with a space"
            ),
            pytest.param("2026-12-01T09:00Z", "Asia/Tokyo", "2026-12-01T09:00", id="33 UTC"),
            pytest.param("2026-12-01T09:00:30.75+02:00", "UTC", "2026-12-01T07:00:30", id="33 normalised"),
            pytest.param("2026-12-01T09:00\n", "UTC", "2026-12-01T09:00", id="20 trailing newline"),
            pytest.param("2026-03-08T02:30", "America/New_York", "2026-03-08T07:00", id="35 in a gap"),
            pytest.param("2026-11-01T01:30", "America/New_York", "2026-11-01T05:30", id="35 in a fold"),
            pytest.param(
                "2026-11-01T01:30-05:00", "America/New_York", "2026-11-01T06:30", id="35 second pass"
            ),
        ],
    )
    def test_one_off_times(self, text: str, time_zone: str, expected: str) -> None:
        spec = Spec.parse({"at": [text], "time_zone": time_zone})
        assert spec.at == (instant(expected),)
        assert spec.next(instant("2026-01-01")) == instant(expected)
        assert spec.next(instant(expected)) is None

    def test_a_one_off_in_a_fold_is_once_in_both_modes(self) -> None:
        spec = Spec.parse({"at": ["2026-11-01T01:30"], "time_zone": "America/New_York", "dst": "literal"})
        assert spec.at == (instant("2026-11-01T05:30"),)

    @pytest.mark.parametrize(
        ("data", "canonical"),
        [
            ({}, {}),
            ({"cron": [], "time_zone": "UTC", "dst": "cron"}, {}),
            ({"time_zone": "Asia/Tokyo"}, {"time_zone": "Asia/Tokyo"}),
            ({"cron": [" 0  9 * * * \n", "0 9 * * *", "@daily"]}, {"cron": ["0 9 * * *", "@daily"]}),
            ({"every": ["90m", 5400, "1h30m"]}, {"every": ["1h30m"]}),
            (
                {"every": [{"every": 3600, "offset": 300}, {"every": "60s", "offset": "0s"}]},
                {"every": [{"every": "1h", "offset": "5m"}, "1m"]},
            ),
            (
                {"at": ["2026-12-02T09:00Z", "2026-12-01T09:00:00.5+01:00"], "dst": "literal"},
                {"at": ["2026-12-01T08:00:00Z", "2026-12-02T09:00:00Z"], "dst": "literal"},
            ),
        ],
    )
    def test_canonical_form(self, data: object, canonical: object) -> None:
        spec = Spec.parse(data)
        assert spec.as_json() == canonical
        assert Spec.parse(spec.as_json()) == spec
        assert Spec.parse(json.loads(json.dumps(spec.as_json()))) == spec

    def test_a_spec_built_directly_is_canonical_too(self) -> None:
        tokyo = datetime(2026, 12, 1, 9, tzinfo=ZoneInfo("Asia/Tokyo"))
        spec = Spec(cron=("0  9 * * *",), every=(Interval(60), Interval(60)), at=(tokyo, tokyo))
        assert Spec.parse(spec.as_json()) == spec
        assert spec.at[0].tzinfo is UTC
        with pytest.raises(SpecError, match="never matches"):
            Spec(cron=("0 0 31 2 *",))

    def test_equal_json_is_compiled_once(self) -> None:
        data = {"cron": ["0 9 * * 1-5"], "time_zone": "Europe/London"}
        assert Spec.parse(data) is Spec.parse(dict(reversed(data.items())))


class TestTimes:
    def test_manual_only(self) -> None:
        spec = Spec.parse({})
        assert spec.is_manual
        assert spec.next(NOW) is None
        assert spec.times(NOW, NOW + timedelta(days=400)) == []
        spec.check(NOW)

    def test_after_is_exclusive_until_is_inclusive(self) -> None:
        spec = cron("0 * * * *")
        times = spec.times(instant("2026-01-01T00:00"), instant("2026-01-01T03:00"))
        assert times == [instant(f"2026-01-01T0{hour}:00") for hour in (1, 2, 3)]
        assert spec.times(instant("2026-01-01T00:00"), instant("2026-01-01T00:59:59")) == []
        assert spec.times(instant("2026-01-02T00:00"), instant("2026-01-01T00:00")) == []

    def test_limit(self) -> None:
        spec = cron("* * * * *")
        year = instant("2026-01-01"), instant("2027-01-01")
        assert spec.times(*year, limit=0) == []
        assert len(spec.times(*year, limit=7)) == 7
        assert spec.times(*year, limit=7)[-1] == instant("2026-01-01T00:07")

    def test_seconds(self) -> None:
        times = Spec.parse({"every": ["1s"]}).times(NOW, NOW + timedelta(seconds=90))
        assert times == [NOW + timedelta(seconds=second) for second in range(1, 91)]

    def test_the_union_names_each_time_once(self) -> None:
        spec = Spec.parse(
            {
                "cron": ["0 9 * * *", "0,30 9 * * *"],
                "every": ["3h"],
                "at": ["2026-01-01T09:00", "2026-01-01T10:00:05"],
            }
        )
        times = spec.times(instant("2026-01-01T06:00"), instant("2026-01-01T12:00"))
        assert [f"{time:%H:%M:%S}" for time in times] == ["09:00:00", "09:30:00", "10:00:05", "12:00:00"]

    def test_times_are_utc_whatever_zone_asks(self) -> None:
        asked = NOW.astimezone(ZoneInfo("Asia/Tokyo"))
        for spec in (cron("0 9 * * *", "Europe/Paris"), Spec.parse({"every": ["1h"]})):
            upcoming = spec.next(asked)
            assert upcoming is not None
            assert upcoming.tzinfo is UTC
            assert upcoming == spec.next(NOW)

    def test_leap_days_cross_2100(self) -> None:
        times = cron("0 0 29 2 *").times(instant("2090-01-01"), instant("2110-01-01"))
        assert [time.year for time in times] == [2092, 2096, 2104, 2108]

    @pytest.mark.parametrize(
        ("spec", "after"),
        [
            (cron("* * * * *"), "2999-12-31T23:59:00"),
            (cron("* * * * *", "America/New_York"), "2999-12-31T23:59:00"),
            (cron("* * * * *", "Pacific/Auckland"), "2999-12-31T23:59:00"),
            (cron("0 0 29 2 *"), "2996-02-29T00:00:00"),
            (Spec.parse({"every": ["1s"]}), "2999-12-31T23:59:59"),
            (Spec.parse({"every": ["1s"]}), "9999-12-31T23:59:59"),
        ],
    )
    def test_the_search_ends(self, spec: Spec, after: str) -> None:
        assert spec.next(instant(after)) is None
        assert spec.times(instant(after), instant("9999-12-31T23:59:59")) == []

    @pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Auckland"])
    def test_the_ends_of_time_do_not_overflow(self, zone: str) -> None:
        spec = cron("0 0 * * *", zone)
        earliest = spec.next(datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")))
        assert earliest is not None
        assert earliest.year == 1970
        assert spec.next(datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))) is None


class TestDaylightSaving:
    """In the names: what the clock does, and the rule. Times are UTC."""

    @pytest.mark.parametrize(
        ("expression", "time_zone", "dst", "after", "until", "expected"),
        [
            pytest.param(
                *("30 2 * * *", "America/New_York", "cron", "2026-03-07T12:00", "2026-03-09T12:00"),
                ["2026-03-08T07:00", "2026-03-09T06:30"],
                id="New York gap, fixed: at its end",
            ),
            pytest.param(
                *("30 2 * * *", "America/New_York", "literal", "2026-03-07T12:00", "2026-03-09T12:00"),
                ["2026-03-09T06:30"],
                id="New York gap, literal: skipped",
            ),
            pytest.param(
                *("0,20,40 2,3 * * *", "America/New_York", "cron", "2026-03-07T12:00", "2026-03-08T12:00"),
                ["2026-03-08T07:00", "2026-03-08T07:20", "2026-03-08T07:40"],
                id="New York gap, fixed: once, also when it meets a regular time",
            ),
            pytest.param(
                *("*/20 2 * * *", "America/New_York", "cron", "2026-03-07T12:00", "2026-03-09T06:20"),
                ["2026-03-09T06:00", "2026-03-09T06:20"],
                id="New York gap, wildcard minute: nothing",
            ),
            pytest.param(
                *("30 * * * *", "America/New_York", "cron", "2026-03-08T05:00", "2026-03-08T09:00"),
                ["2026-03-08T05:30", "2026-03-08T06:30", "2026-03-08T07:30", "2026-03-08T08:30"],
                id="New York gap, wildcard hour: every hour that is",
            ),
            pytest.param(
                *("30 1 * * *", "America/New_York", "cron", "2026-10-31T12:00", "2026-11-02T12:00"),
                ["2026-11-01T05:30", "2026-11-02T06:30"],
                id="New York fold, fixed: first pass",
            ),
            pytest.param(
                *("30 1 * * *", "America/New_York", "literal", "2026-10-31T12:00", "2026-11-02T12:00"),
                ["2026-11-01T05:30", "2026-11-01T06:30", "2026-11-02T06:30"],
                id="New York fold, literal: twice",
            ),
            pytest.param(
                *("*/30 1 * * *", "America/New_York", "cron", "2026-11-01T00:00", "2026-11-01T12:00"),
                ["2026-11-01T05:00", "2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30"],
                id="New York fold, wildcard: both passes",
            ),
            pytest.param(
                *("15 2 * * *", "Australia/Lord_Howe", "cron", "2026-10-03T00:00", "2026-10-04T20:00"),
                ["2026-10-03T15:30", "2026-10-04T15:15"],
                id="Lord Howe gap of 30 min, fixed: at its end",
            ),
            pytest.param(
                *("45 1 * * *", "Australia/Lord_Howe", "cron", "2026-04-04T00:00", "2026-04-05T20:00"),
                ["2026-04-04T14:45", "2026-04-05T15:15"],
                id="Lord Howe fold of 30 min, fixed: first pass",
            ),
            pytest.param(
                *("45 * * * *", "Australia/Lord_Howe", "cron", "2026-04-04T14:00", "2026-04-04T17:00"),
                ["2026-04-04T14:45", "2026-04-04T15:15", "2026-04-04T16:15"],
                id="Lord Howe fold of 30 min, wildcard: both passes",
            ),
            pytest.param(
                *("0 0 * * *", "Africa/Cairo", "cron", "2026-04-22T23:00", "2026-04-25T12:00"),
                ["2026-04-23T22:00", "2026-04-24T21:00"],
                id="Cairo gap at midnight, fixed: at its end",
            ),
            pytest.param(
                *("0 0 24 4 *", "Africa/Cairo", "literal", "2026-01-01T00:00", "2027-12-31T00:00"),
                ["2027-04-23T22:00"],
                id="Cairo gap at midnight, literal: next year",
            ),
            pytest.param(
                *("30 1,2 * * *", "Antarctica/Troll", "cron", "2026-03-28T12:00", "2026-03-29T12:00"),
                ["2026-03-29T01:00"],
                id="Troll gap of 2 h, fixed: once at its end",
            ),
            pytest.param(
                *("30 1 * * *", "Antarctica/Troll", "literal", "2026-10-24T12:00", "2026-10-25T12:00"),
                ["2026-10-24T23:30", "2026-10-25T01:30"],
                id="Troll fold of 2 h, literal: twice",
            ),
            pytest.param(
                *("0 12 * * *", "Pacific/Apia", "cron", "2011-12-29T12:00", "2011-12-31T23:00"),
                ["2011-12-29T22:00", "2011-12-30T22:00", "2011-12-31T22:00"],
                id="Apia without 30 December, fixed: nothing on it",
            ),
            pytest.param(
                *("0 12 30 12 *", "Pacific/Apia", "cron", "2011-01-01T00:00", "2012-12-31T00:00"),
                ["2012-12-29T22:00"],
                id="Apia without 30 December, fixed: next year",
            ),
        ],
    )
    def test_rules(
        self, expression: str, time_zone: str, dst: str, after: str, until: str, expected: list[str]
    ) -> None:
        times = cron(expression, time_zone, dst).times(instant(after), instant(until))
        assert times == [instant(text) for text in expected]

    @pytest.mark.parametrize(
        ("expression", "dst", "after", "expected"),
        [
            pytest.param(
                "40 1 * * *", "cron", "2026-11-01T05:30", "2026-11-01T05:40", id="first pass, fixed"
            ),
            pytest.param(
                "40 1 * * *", "cron", "2026-11-01T06:10", "2026-11-02T06:40", id="second pass, fixed"
            ),
            pytest.param("0 2 * * *", "cron", "2026-11-01T06:10", "2026-11-01T07:00", id="its end, fixed"),
            pytest.param(
                "20 1 * * *", "literal", "2026-11-01T05:30", "2026-11-01T06:20", id="first pass, literal"
            ),
            pytest.param(
                "20 1 * * *", "literal", "2026-11-01T06:19:59", "2026-11-01T06:20", id="a second before"
            ),
            pytest.param(
                "20 1 * * *", "literal", "2026-11-01T06:20", "2026-11-02T06:20", id="second pass, literal"
            ),
        ],
    )
    def test_asked_inside_a_fold(self, expression: str, dst: str, after: str, expected: str) -> None:
        assert cron(expression, "America/New_York", dst).next(instant(after)) == instant(expected)

    def test_intervals_are_elapsed_time(self) -> None:
        spec = Spec.parse({"every": ["1h"], "time_zone": "America/New_York"})
        times = spec.times(instant("2026-10-31"), instant("2026-11-03"))
        assert times == [instant("2026-10-31") + timedelta(hours=hour) for hour in range(1, 73)]


class TestDescribe:
    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            ({}, "Only when started by hand"),
            ({"every": ["15m"]}, "Every 15 minutes"),
            ({"every": ["1h"]}, "Every hour"),
            ({"every": ["1s"]}, "Every second"),
            ({"every": ["90m"]}, "Every 1 hour 30 minutes"),
            ({"every": ["2d"]}, "Every 2 days"),
            ({"every": [{"every": "1h", "offset": "65s"}]}, "Every hour, offset by 1 minute 5 seconds"),
            ({"at": ["2026-12-01T09:00"]}, "Once, at 09:00 on 1 December 2026, UTC"),
            (
                {"at": ["2026-07-01T09:00:07Z"], "time_zone": "Europe/London"},
                "Once, at 10:00:07 on 1 July 2026, Europe/London",
            ),
            (
                {"cron": ["0 9 * * 1-5"], "every": ["15m"], "time_zone": "Europe/London"},
                "At 09:00 on weekdays; every 15 minutes, Europe/London",
            ),
            (
                {"at": [f"2026-12-{day:02}T09:00" for day in range(1, 13)]},
                "; ".join(
                    ["Once, at 09:00 on 1 December 2026"]
                    + [f"once, at 09:00 on {day} December 2026" for day in range(2, 11)]
                )
                + "; and 2 more rules, UTC",
            ),
        ],
    )
    def test_specs(self, data: object, sentence: str) -> None:
        assert Spec.parse(data).describe() == sentence

    @pytest.mark.parametrize(
        ("expression", "sentence"),
        [
            ("* * * * *", "Every minute"),
            ("*/15 * * * *", "Every 15 minutes"),
            ("@hourly", "Every hour, Europe/London"),
            ("5 * * * *", "At minute 5 past every hour, Europe/London"),
            ("*/25 * * * *", "At minutes 0, 25 and 50 past every hour, Europe/London"),
            ("0 */2 * * *", "Every 2 hours, Europe/London"),
            ("5 */6 * * *", "Every 6 hours from 00:05, Europe/London"),
            ("0 */12 * * *", "At 00:00 and 12:00 every day, Europe/London"),
            ("0 9-17 * * mon-fri", "Every hour from 09:00 to 17:00 on weekdays, Europe/London"),
            ("*/15 9-17 * * mon-fri", "Every 15 minutes from 09:00 to 17:45 on weekdays, Europe/London"),
            ("* 9 * * *", "Every minute from 09:00 to 09:59, Europe/London"),
            ("10-20,40 1,4-6 * * *", "At minutes 10 to 20 and 40 past hours 1 and 4 to 6, Europe/London"),
            ("1-50/7 4 * * *", "At minutes 1, 8, 15, 22, 29, 36, 43 and 50 past hour 4, Europe/London"),
            ("30 2 * * *", "At 02:30 every day, Europe/London"),
            ("0 9 * * 1-5", "At 09:00 on weekdays, Europe/London"),
            ("0 9,18 * * sat,sun", "At 09:00 and 18:00 at weekends, Europe/London"),
            ("0 9 * * mon,wed,fri", "At 09:00 on Monday, Wednesday and Friday, Europe/London"),
            ("0 9 * * mon-thu", "At 09:00 from Monday to Thursday, Europe/London"),
            ("@weekly", "At 00:00 on Sunday, Europe/London"),
            (
                "0 0 1,2,3,11,22,31 * *",
                "At 00:00 on the 1st to 3rd, 11th, 22nd and 31st of the month, Europe/London",
            ),
            ("0 0 1 jan,jul *", "At 00:00 on the 1st of January and July, Europe/London"),
            ("0 0 * jun-aug *", "At 00:00 from June to August, Europe/London"),
            ("0 0 * jun sun", "At 00:00 on Sunday in June, Europe/London"),
            ("0 0 */2 * *", "At 00:00 on every 2nd day from the 1st to the 31st of the month, Europe/London"),
            ("0 0 13 * fri", "At 00:00 on the 13th of the month or on Friday, Europe/London"),
            ("0 0 13 6 fri", "At 00:00 on the 13th of June or on Friday in June, Europe/London"),
            ("0 0 1 * 0-6", "At 00:00 on the 1st of the month or on any day, Europe/London"),
            (
                "0 0 */15 * mon,tue",
                "At 00:00 on the 1st, 16th and 31st of the month if that is Monday or Tuesday, Europe/London",
            ),
        ],
    )
    def test_cron(self, expression: str, sentence: str) -> None:
        assert cron(expression, "Europe/London").describe() == sentence


class Field(NamedTuple):
    text: str
    values: frozenset[int]


class Rule(NamedTuple):
    """A cron string together with the values that it was written from: the oracle parses nothing."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def text(self) -> str:
        return " ".join(field.text for field in self)

    @property
    def is_wildcard(self) -> bool:
        return self.minute.text[0] == "*" or self.hour.text[0] == "*"

    def can_match(self) -> bool:
        longest = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
        starred = self.day.text[0] == "*" or self.weekday.text[0] == "*"
        days = any(day <= longest.get(month, 31) for day in self.day.values for month in self.month.values)
        return days or not starred

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minute.values or wall.hour not in self.hour.values:
            return False
        if wall.month not in self.month.values:
            return False
        day, weekday = wall.day in self.day.values, wall.isoweekday() % 7 in self.weekday.values
        starred = self.day.text[0] == "*" or self.weekday.text[0] == "*"
        return (day and weekday) if starred else (day or weekday)


MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
MONTH_NAMES = dict(enumerate(MONTHS, 1))
WEEKDAY_NAMES = dict(enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"]))


@st.composite
def items(draw: st.DrawFn, low: int, high: int, names: dict[int, str]) -> Field:
    def written(value: int) -> str:
        return names[value] if value in names and draw(st.booleans()) else str(value)

    start, end = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    step = draw(st.integers(1, high - low + 3))
    top = 6 if high == 7 else high
    kind = draw(st.sampled_from(["single", "range", "stepped range", "open step", "star step"]))
    text, values = {
        "single": (written(start), range(start, start + 1)),
        "range": (f"{written(start)}-{written(end)}", range(start, end + 1)),
        "stepped range": (f"{written(start)}-{written(end)}/{step}", range(start, end + 1, step)),
        "open step": (f"{written(start)}/{step}", range(start, high + 1, step)),
        "star step": (f"*/{step}", range(low, top + 1, step)),
    }[kind]
    return Field(text, frozenset(value % 7 if high == 7 else value for value in values))


def fields(low: int, high: int, names: dict[int, str] | None = None) -> st.SearchStrategy[Field]:
    star = Field("*", frozenset(range(low, high + 1)))
    listed = st.lists(items(low, high, names or {}), min_size=1, max_size=3).map(
        lambda parts: Field(
            ",".join(part.text for part in parts), frozenset().union(*(part.values for part in parts))
        )
    )
    return st.one_of(st.just(star), listed)


rules = st.builds(
    Rule,
    minute=fields(0, 59),
    hour=st.one_of(fields(0, 23), st.integers(0, 3).map(lambda hour: Field(str(hour), frozenset([hour])))),
    day=st.one_of(st.just(Field("*", frozenset(range(1, 32)))), fields(1, 31)),
    month=st.one_of(st.just(Field("*", frozenset(range(1, 13)))), fields(1, 12, MONTH_NAMES)),
    weekday=st.one_of(st.just(Field("*", frozenset(range(7)))), fields(0, 7, WEEKDAY_NAMES)),
)


class Tick(NamedTuple):
    """One minute of real time, and what a clock on the wall does in it."""

    instant: datetime
    wall: datetime
    shown_before: bool
    skipped: tuple[datetime, ...]


MINUTE = timedelta(minutes=1)


@cache
def ticks(zone: str, start: datetime, end: datetime) -> list[Tick]:
    timeline: list[Tick] = []
    shown: set[datetime] = set()
    now, clock = start, ZoneInfo(zone)
    while now <= end:
        wall = now.astimezone(clock).replace(tzinfo=None, fold=0)
        skipped = []
        if timeline:
            expected = timeline[-1].wall + MINUTE
            skipped = [expected + index * MINUTE for index in range((wall - expected) // MINUTE)]
        timeline.append(Tick(now, wall, wall in shown, tuple(skipped)))
        shown.add(wall)
        now += MINUTE
    return timeline


def expected_times(rule: Rule, dst: str, timeline: list[Tick]) -> list[datetime]:
    if dst == "literal" or rule.is_wildcard:
        return [tick.instant for tick in timeline if rule.matches(tick.wall)]
    return [
        tick.instant
        for tick in timeline
        if (rule.matches(tick.wall) and not tick.shown_before)
        or (len(tick.skipped) <= 180 and any(rule.matches(wall) for wall in tick.skipped))
    ]


CHANGES = [
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Europe/London", "2026-03-29T01:00"),
    ("Europe/London", "2026-10-25T01:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("Africa/Cairo", "2026-04-23T22:00"),
    ("Africa/Cairo", "2026-10-29T21:00"),
    ("America/Havana", "2026-03-08T05:00"),
    ("America/Havana", "2026-11-01T05:00"),
    ("Asia/Beirut", "2026-03-28T22:00"),
    ("Asia/Beirut", "2026-10-24T21:00"),
    ("Antarctica/Troll", "2026-03-29T01:00"),
    ("Antarctica/Troll", "2026-10-25T01:00"),
    ("Pacific/Apia", "2011-09-24T14:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Pacific/Apia", "2012-03-31T14:00"),
]
WARM_UP = timedelta(days=1)
AROUND = timedelta(hours=36)


def around(zone: str, change: str) -> tuple[datetime, datetime, list[Tick]]:
    start, end = instant(change) - AROUND, instant(change) + AROUND
    timeline = ticks(zone, start - WARM_UP, end)
    return start, end, timeline


class TestAgainstTheOracle:
    """The oracle watches a clock minute by minute and shares no code with what it judges."""

    @pytest.mark.parametrize(("zone", "change"), CHANGES)
    def test_it_looks_where_the_clocks_change(self, zone: str, change: str) -> None:
        start, end, timeline = around(zone, change)
        offsets = {tick.instant: tick.wall - tick.instant.replace(tzinfo=None) for tick in timeline}
        assert offsets[instant(change)] != offsets[instant(change) - MINUTE]
        assert any(tick.skipped or tick.shown_before for tick in timeline if start < tick.instant <= end)

    @pytest.mark.parametrize("dst", ["cron", "literal"])
    @settings(max_examples=250, derandomize=True, deadline=None)
    @given(rule=rules, change=st.sampled_from(CHANGES), seconds=st.integers(-7200, 7200))
    def test_cron(self, dst: str, rule: Rule, change: tuple[str, str], seconds: int) -> None:
        zone, when = change
        if not rule.can_match():
            with pytest.raises(SpecError, match="never matches"):
                cron(rule.text, zone, dst)
            return
        spec = cron(rule.text, zone, dst)
        start, end, timeline = around(zone, when)
        expected = [time for time in expected_times(rule, dst, timeline) if start < time <= end]
        assert spec.times(start, end) == expected
        asked = instant(when) + timedelta(seconds=seconds)
        upcoming = spec.next(asked)
        later = [time for time in expected if time > asked]
        assert (upcoming == later[0]) if later else (upcoming is None or upcoming > end)

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(
        intervals=st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 3999)), min_size=1, max_size=3),
        moments=st.lists(st.integers(0, 3600), max_size=3),
    )
    def test_intervals_and_moments(self, intervals: list[tuple[int, int]], moments: list[int]) -> None:
        pairs = [(seconds, offset % seconds) for seconds, offset in intervals]
        spec = Spec.parse(
            {
                "every": [{"every": seconds, "offset": offset} for seconds, offset in pairs],
                "at": [f"{NOW + timedelta(seconds=moment):%Y-%m-%dT%H:%M:%SZ}" for moment in moments],
            }
        )
        epoch = int(NOW.timestamp())
        expected = [
            NOW + timedelta(seconds=second)
            for second in range(1, 3601)
            if second in moments or any((epoch + second) % every == offset for every, offset in pairs)
        ]
        assert spec.times(NOW, NOW + timedelta(hours=1)) == expected

    @pytest.mark.parametrize("dst", ["cron", "literal"])
    @pytest.mark.parametrize(
        ("zone", "expression"),
        [
            ("America/New_York", "*/20 0-3 * * *"),
            ("Europe/London", "0,30 1,2 * * *"),
            ("Australia/Lord_Howe", "45 */2 * * sun"),
            ("Pacific/Apia", "15 0,3,12 1-15,30 * fri"),
        ],
    )
    def test_a_full_year(self, zone: str, expression: str, dst: str) -> None:
        start, end = instant("2011-06-01"), instant("2012-06-01")
        spec = cron(expression, zone, dst)
        times = spec.times(start, end)
        chained, upcoming = [], spec.next(start)
        while upcoming is not None and upcoming <= end:
            chained.append(upcoming)
            upcoming = spec.next(upcoming)
        assert times == chained
        assert all(spec.next(time - timedelta(seconds=1)) == time for time in times)
        assert all(spec.next(earlier + (later - earlier) / 2) == later for earlier, later in pairwise(times))
        sliced, cursor = [], start
        while batch := spec.times(cursor, end, limit=100):
            sliced += batch
            cursor = batch[-1]
        assert sliced == times
