from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from schedules.spec import Spec, SpecError, timeline
from schedules.spec.explanation import Verdict
from schedules.spec.intervals import Interval

NOW = datetime(2026, 11, 16, 2, 17, 33, tzinfo=UTC)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def cron(expression: str, time_zone: str = "UTC", dst: str = "cron") -> Spec:
    return Spec.parse({"cron": [expression], "time_zone": time_zone, "dst": dst})


def days_of(spec: Spec, after: str, until: str) -> list[str]:
    """The dates of the nominal times, on the clock of the spec."""
    zone = ZoneInfo(spec.time_zone)
    return [f"{at.astimezone(zone):%Y-%m-%d}" for at in spec.times(instant(after), instant(until))]


def clock_of(spec: Spec, day: str) -> list[str]:
    """The times of one day of UTC."""
    return [f"{at:%H:%M:%S}" for at in spec.times(instant(day) - SECOND, instant(day) + DAY - SECOND)]


class TestAccepted:
    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            pytest.param("*/100 * * * *", "2026-11-16T03:00", id="step past the end"),
            pytest.param("0 0 29 2 *", "2028-02-29T00:00", id="leap day"),
            pytest.param("0 0 21 * fri", "2026-11-20T00:00", id="both days: the Friday comes first"),
            pytest.param("0 0 19 * fri", "2026-11-19T00:00", id="both days: the 19th comes first"),
            pytest.param("0 0 */7 * fri", "2027-01-01T00:00", id="a starred day: both must match"),
            pytest.param("0 0 30 2 mon", "2027-02-01T00:00", id="no such day, but Mondays"),
            pytest.param("@hourly", "2026-11-16T03:00", id="@hourly"),
            pytest.param("@daily", "2026-11-17T00:00", id="@daily"),
            pytest.param("@MIDNIGHT", "2026-11-17T00:00", id="@midnight"),
            pytest.param("@weekly", "2026-11-22T00:00", id="@weekly"),
            pytest.param("@monthly", "2026-12-01T00:00", id="@monthly"),
            pytest.param("@yearly", "2027-01-01T00:00", id="@yearly"),
            pytest.param("@annually", "2027-01-01T00:00", id="@annually"),
            pytest.param("5-5 * * * *", "2026-11-16T03:05", id="a range of one"),
            pytest.param("59/5 * * * *", "2026-11-16T02:59", id="a step from the last value"),
            pytest.param("0 0 * FEB-apr/2 *", "2027-02-01T00:00", id="month names"),
            pytest.param("0 0 * * Sat-Sun", "2026-11-21T00:00", id="a range to Sunday"),
            pytest.param("0 0 * * sun-sun", "2026-11-22T00:00", id="Sunday only"),
            pytest.param("0 0 * * 7", "2026-11-22T00:00", id="Sunday as 7"),
            pytest.param("17 2 16 11 *", "2027-11-16T02:17", id="just missed by seconds"),
            pytest.param("18 2 16 11 *", "2026-11-16T02:18", id="within the minute"),
            pytest.param("0 0 * January,february *", "2027-01-01T00:00", id="months in full"),
            pytest.param("0 0 * * Tues-thurs", "2026-11-17T00:00", id="weekdays in more letters"),
            pytest.param("0 9 * * * 2028", "2028-01-01T09:00", id="a year"),
            pytest.param("0 9 * * * 2020-2030/5", "2030-01-01T09:00", id="every fifth year"),
            pytest.param("*/10 17 2 16 11 * 2026-2028/2", "2026-11-16T02:17:40", id="all seven fields"),
            pytest.param("33 17 2 * * * *", "2026-11-17T02:17:33", id="this very second is over"),
            pytest.param("0 0 L * *", "2026-11-30T00:00", id="last day of the month"),
            pytest.param("0 0 20,l * *", "2026-11-20T00:00", id="a date or the last day"),
            pytest.param("0 0 * * fri#2", "2026-12-11T00:00", id="second Friday"),
            pytest.param("0 0 * * sun#1,7#3", "2026-12-06T00:00", id="first and third Sunday"),
            pytest.param("0 0 * * mon-wed#1", "2026-12-01T00:00", id="first Monday, Tuesday, Wednesday"),
            pytest.param("0 0 * * L5", "2026-11-27T00:00", id="last Friday"),
            pytest.param("0 0 * * Lsun", "2026-11-29T00:00", id="last Sunday by name"),
            pytest.param("0 0 * * tue,fri#4", "2026-11-17T00:00", id="Tuesdays and a fourth Friday"),
            pytest.param("0 0 25 * L5", "2026-11-25T00:00", id="a date or the last Friday"),
        ],
    )
    def test_cron(self, expression: str, expected: str) -> None:
        assert cron(expression).next(NOW) == instant(expected)

    NO_SUCH_DAY = "leaves out the months without such a day; L is the last day of each month"

    @pytest.mark.parametrize(
        ("data", "note"),
        [
            ({"cron": ["*/100 * * * *"]}, "minute */100 steps past 59: only its first value matches"),
            (
                {"cron": ["0 0 13 * fri"]},
                "0 0 13 * fri gives both day of month and day of week: a day that matches either is enough",
            ),
            ({"cron": ["0 0 */2 * fri"]}, ""),
            ({"cron": ["*/59 9-17 * * mon-fri"]}, ""),
            ({"cron": ["@daily"]}, ""),
            ({"cron": ["0 0 * * fri#2,mon-fri/3#1"]}, ""),
            ({"cron": ["0 0 31 * *"]}, f"0 0 31 * * {NO_SUCH_DAY}"),
            ({"cron": ["0 0 29 2 *"]}, f"0 0 29 2 * {NO_SUCH_DAY}"),
            ({"cron": ["0 0 31 1,12 *"]}, ""),
            ({"cron": ["0 0 30,L * *"]}, ""),
            ({"cron": ["0 0 15,31 * *"]}, ""),
            ({"calendars": [{"hour": "*/30"}]}, "hour */30 steps past 23: only its first value matches"),
            ({"calendars": [{"day_of_month": "30"}]}, f"day_of_month {NO_SUCH_DAY}"),
            ({"calendars": [{"day_of_month": "13", "day_of_week": "fri"}]}, ""),
            (
                {"patterns": [{"every": "2h", "from": "09:00", "until": "10:59"}]},
                "every 2h from 09:00 to 10:59 gives 09:00 alone",
            ),
            ({"patterns": [{"every": "2h", "from": "09:00", "until": "11:00"}]}, ""),
        ],
    )
    def test_a_note_on_what_may_surprise(self, data: object, note: str) -> None:
        assert Spec.parse(data).notes == ((note,) if note else ())

    @pytest.mark.parametrize("expression", ["0 0 1,L * *", "0 0 * * L0,L3", "0 0 * * sun#1,wed#5"])
    def test_last_and_nth_days_are_those_of_croniter(self, expression: str) -> None:
        start = instant("2023-01-01")
        theirs = croniter(expression, start)
        times = cron(expression).times(start, instant("2033-01-01"))
        assert len(times) > 50
        assert times == [theirs.get_next(datetime) for _ in times]

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
            ("2026-07-01T09:00", "Europe/London", "2026-07-01T08:00"),
            ("2026-07-01 09:00\n", "Asia/Kathmandu", "2026-07-01T03:15"),
            ("2026-12-01T09:00:30.75+02:00", "Asia/Tokyo", "2026-12-01T07:00:30"),
        ],
    )
    def test_one_off_times(self, text: str, time_zone: str, expected: str) -> None:
        spec = Spec.parse({"at": [text], "time_zone": time_zone})
        assert spec.at == (instant(expected),)
        assert spec.next(instant("2026-01-01")) == instant(expected)
        assert spec.next(instant(expected)) is None

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
            (
                {"cron": ["TZ=Asia/Tokyo 0 9 * * * # nine", "@every 1h/5m"], "every": ["65m", "2h"]},
                {
                    "cron": ["0 9 * * *"],
                    "every": [{"every": "1h", "offset": "5m"}, "1h5m", "2h"],
                    "time_zone": "Asia/Tokyo",
                },
            ),
            (
                {
                    "calendars": [{"hour": 9}, {"hour": "9", "minute": 0}],
                    "patterns": [{"times": ["09:00"]}, {"weekdays": "*", "times": ["09:00"]}],
                    "exclude": [{"day_of_week": "sat"}, {"day_of_week": ["sat"]}],
                    "start_at": "2027-01-01",
                    "jitter": 60,
                },
                {
                    "calendars": [{"hour": "9"}],
                    "patterns": [{"times": ["09:00"]}],
                    "exclude": [{"day_of_week": "sat"}],
                    "start_at": "2027-01-01T00:00:00Z",
                    "jitter": "1m",
                },
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


class TestCalendars:
    @pytest.mark.parametrize(
        ("calendar", "expected"),
        [
            pytest.param({}, "2026-11-17T00:00", id="midnight"),
            pytest.param({"hour": 9}, "2026-11-16T09:00", id="a number"),
            pytest.param({"hour": "9-17/4"}, "2026-11-16T09:00", id="a range with a step"),
            pytest.param({"hour": "*", "minute": "17", "second": "34"}, "2026-11-16T02:17:34", id="seconds"),
            pytest.param({"minute": "5/10", "hour": "2"}, "2026-11-16T02:25", id="from a value to the end"),
            pytest.param({"hour": {"start": 1, "end": 9, "step": 4}}, "2026-11-16T05:00", id="an object"),
            pytest.param({"hour": [1, "3-4"]}, "2026-11-16T03:00", id="a list"),
            pytest.param(
                {"day_of_month": "1-7", "day_of_week": "mon"}, "2026-12-07T00:00", id="first Monday"
            ),
            pytest.param({"day_of_month": "L"}, "2026-11-30T00:00", id="last day"),
            pytest.param({"day_of_week": "tue#2"}, "2026-12-08T00:00", id="second Tuesday"),
            pytest.param({"month": "jan-mar", "hour": "8"}, "2027-01-01T08:00", id="months by name"),
            pytest.param({"year": 2030}, "2030-01-01T00:00", id="a year"),
            pytest.param({"year": "2026-2030/4", "month": 12}, "2026-12-01T00:00", id="years with a step"),
        ],
    )
    def test_the_next_time(self, calendar: object, expected: str) -> None:
        assert Spec.parse({"calendars": [calendar]}).next(NOW) == instant(expected)


class TestPatterns:
    def test_each_time_keeps_its_own_minutes(self) -> None:
        spec = Spec.parse({"patterns": [{"times": ["12:30", "09:00", "23:59:59"]}]})
        assert clock_of(spec, "2026-11-16") == ["09:00:00", "12:30:00", "23:59:59"]

    @pytest.mark.parametrize(
        ("window", "expected"),
        [
            pytest.param(
                {"every": "3h", "from": "09:00", "until": "18:00"},
                ["09:00:00", "12:00:00", "15:00:00", "18:00:00"],
                id="both ends count",
            ),
            pytest.param(
                {"every": "25m", "from": "09:10", "until": "10:24"},
                ["09:10:00", "09:35:00", "10:00:00"],
                id="counted from its start",
            ),
            pytest.param(
                {"every": "90s", "from": "09:00", "until": "09:04"},
                ["09:00:00", "09:01:30", "09:03:00"],
                id="seconds",
            ),
            pytest.param({"every": "8h"}, ["00:00:00", "08:00:00", "16:00:00"], id="the whole day"),
            pytest.param({"every": "1d", "from": "07:15"}, ["07:15:00"], id="once a day"),
            pytest.param({"every": "1h", "from": "09:00", "until": "09:00"}, ["09:00:00"], id="one moment"),
        ],
    )
    def test_a_daily_window(self, window: object, expected: list[str]) -> None:
        assert clock_of(Spec.parse({"patterns": [window]}), "2026-11-16") == expected

    @pytest.mark.parametrize(
        ("weekdays", "days"),
        [
            ("mon,wed", ["16", "18", "23", "25"]),
            ("sat-sun", ["21", "22", "28", "29"]),
            (["tue", 4], ["17", "19", "24", "26"]),
            ("0", ["22", "29"]),
            ("fri#4", ["27"]),
        ],
    )
    def test_weekdays(self, weekdays: object, days: list[str]) -> None:
        spec = Spec.parse({"patterns": [{"times": ["09:00"], "weekdays": weekdays}]})
        expected = [f"2026-11-{day}" for day in days]
        assert days_of(spec, "2026-11-16", "2026-11-30") == expected


class TestBounds:
    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({}, ["01:00:00", "02:00:00", "03:00:00", "04:00:00"]),
            ({"start_at": "2026-11-16T02:00"}, ["02:00:00", "03:00:00", "04:00:00"]),
            ({"start_at": "2026-11-16T02:00:01Z"}, ["03:00:00", "04:00:00"]),
            ({"end_at": "2026-11-16T02:00"}, ["01:00:00", "02:00:00"]),
            ({"end_at": "2026-11-16T01:59:59.999Z"}, ["01:00:00"]),
            ({"start_at": "2026-11-16T02:00Z", "end_at": "2026-11-16T02:00Z"}, ["02:00:00"]),
            ({"start_at": "2027-01-01"}, []),
            ({"end_at": "2026-11-15"}, []),
        ],
    )
    def test_are_inclusive(self, bounds: dict[str, object], expected: list[str]) -> None:
        spec = Spec.parse({"every": ["1h"], **bounds})
        times = spec.times(instant("2026-11-16T00:00"), instant("2026-11-16T04:30"))
        assert [f"{at:%H:%M:%S}" for at in times] == expected

    def test_the_last_time_is_followed_by_none(self) -> None:
        spec = Spec.parse({"cron": ["0 9 * * *"], "end_at": "2026-11-17"})
        assert spec.next(instant("2026-11-17T08:00")) == instant("2026-11-17T09:00")
        assert spec.next(instant("2026-11-17T09:00")) is None


LONDON = "Europe/London"


class TestExclusions:
    @pytest.mark.parametrize(
        ("item", "left"),
        [
            pytest.param({"dates": "2026-11-17"}, "16 18 19 20 21 22", id="a date"),
            pytest.param({"dates": "2026-11-17/2026-11-20"}, "16 21 22", id="dates, both included"),
            pytest.param({"day_of_week": "sat,sun"}, "16 17 18 19 20", id="weekends"),
            pytest.param({"day_of_month": "16-20/2"}, "17 19 21 22", id="every other day"),
            pytest.param(
                {"day_of_month": "16-20", "day_of_week": "fri"}, "16 17 18 19 21 22", id="both days"
            ),
            pytest.param({"year": "2025"}, "16 17 18 19 20 21 22", id="another year"),
            pytest.param({"month": "nov", "year": "2026"}, "", id="the month"),
            pytest.param({"hour": "9"}, "", id="its hour"),
            pytest.param({"minute": "0", "second": "0"}, "", id="its minute"),
            pytest.param({"second": "1-59"}, "16 17 18 19 20 21 22", id="other seconds"),
            pytest.param(
                {"from": "2026-11-17T09:00", "until": "2026-11-19T09:00"}, "16 20 21 22", id="both ends count"
            ),
            pytest.param(
                {"from": "2026-11-17T09:00:01", "until": "2026-11-19T08:59:59"},
                "16 17 19 20 21 22",
                id="inside",
            ),
            pytest.param(
                {"from": "2026-11-17T10:00+01:00", "until": "2026-11-17T09:00Z"},
                "16 18 19 20 21 22",
                id="instants",
            ),
        ],
    )
    def test_meet_every_kind_of_rule(self, item: object, left: str) -> None:
        at_nine: list[dict[str, object]] = [
            {"cron": ["0 9 * * *"]},
            {"every": [{"every": "1d", "offset": "9h"}]},
            {"calendars": [{"hour": 9}]},
            {"patterns": [{"times": ["09:00"]}]},
            {"at": [f"2026-11-{day}T09:00" for day in range(16, 23)]},
        ]
        for rules in at_nine:
            spec = Spec.parse({**rules, "exclude": [item], "time_zone": LONDON})
            days = days_of(spec, "2026-11-16T00:00", "2026-11-22T12:00")
            assert days == [f"2026-11-{day}" for day in left.split()], rules

    @pytest.mark.parametrize("field", ["minute", "hour", "day"])
    def test_what_follows_is_left(self, field: str) -> None:
        item = {"day_of_month" if field == "day" else field: "*/2"}
        spec = Spec.parse({"every": ["20s"], "exclude": [item]})
        times = [instant("2026-11-16") + n * 20 * SECOND for n in range(2 * 4320)]
        excluded = int(field == "day")  # days count from 1
        left = [at for at in times if getattr(at, field) % 2 != excluded]
        assert spec.times(times[0] - SECOND, times[-1]) == left

    def test_all_of_them_count(self) -> None:
        exclude = [{"day_of_week": "sat,sun"}, {"dates": "2026-11-17"}, {"dates": "2026-11-19/2026-11-20"}]
        spec = Spec.parse({"cron": ["0 9 * * *"], "exclude": exclude})
        days = days_of(spec, "2026-11-16", "2026-11-25")
        assert days == [f"2026-11-{day}" for day in (16, 18, 23, 24)]

    def test_a_day_is_one_of_the_clock_and_not_of_utc(self) -> None:
        spec = Spec.parse(
            {"every": ["1h"], "exclude": [{"dates": "2026-11-17"}], "time_zone": "Pacific/Auckland"}
        )
        times = spec.times(instant("2026-11-16T00:00"), instant("2026-11-18T00:00"))
        assert [at for at in times if at.day == 16][-1] == instant("2026-11-16T10:00")
        assert next(at for at in times if at.day == 17) == instant("2026-11-17T11:00")

    @pytest.mark.parametrize(
        ("item", "is_left"),
        [
            ({"minute": 30}, False),
            ({"dates": "2026-03-29"}, False),
            ({"from": "2026-03-29T01:10", "until": "2026-03-29T01:40"}, False),
            ({"from": "2026-03-29T02:00", "until": "2026-03-29T02:00"}, True),
            ({"from": "2026-03-29T01:00Z", "until": "2026-03-29T01:00Z"}, False),
        ],
    )
    def test_a_time_in_a_gap_is_asked_before_it_moves(self, item: object, is_left: bool) -> None:
        spec = Spec.parse({"cron": ["30 1 * * *"], "exclude": [item], "time_zone": LONDON})
        times = spec.times(instant("2026-03-28T12:00"), instant("2026-03-29T12:00"))
        assert times == ([instant("2026-03-29T01:00")] if is_left else [])

    @pytest.mark.parametrize(("hour", "is_left"), [(1, True), (2, False)])
    def test_a_one_off_in_a_gap_is_the_instant_it_moved_to(self, hour: int, is_left: bool) -> None:
        """A spec keeps one-off times as instants: what a clock would have shown is not known any more."""
        data = {"at": ["2026-03-29T01:30"], "exclude": [{"hour": hour}], "time_zone": LONDON}
        spec = Spec.parse(data)
        for each in (spec, Spec.parse(spec.as_json())):
            assert each.next(instant("2026-01-01")) == (instant("2026-03-29T01:00") if is_left else None)


class TestSharedCalendars:
    DATA: dict[str, object] = {"cron": ["0 9 * * *"], "exclude": [{"calendar": "Days off"}]}

    def test_a_spec_names_them(self) -> None:
        exclude = [{"calendar": "b"}, {"dates": "2026-12-24"}, {"calendar": "a"}]
        assert Spec.parse({"exclude": exclude}, {"a": [], "b": []}).calendar_names == ("b", "a")
        assert Spec.parse({"cron": ["0 9 * * *"]}).calendar_names == ()

    def test_an_empty_one_excludes_nothing(self) -> None:
        assert Spec.parse(self.DATA, {"Days off": []}).next(NOW) == instant("2026-11-16T09:00")

    def test_another_definition_is_another_spec(self) -> None:
        before = Spec.parse(self.DATA, {"Days off": []})
        after = Spec.parse(self.DATA, {"Days off": [{"dates": "2026-11-16"}]})
        assert before != after
        assert after.next(NOW) == instant("2026-11-17T09:00")
        assert Spec.parse(self.DATA, {"Days off": [], "Another": []}) is before

    def test_a_long_one_is_read_once_for_all_that_use_it(self) -> None:
        days_off = [{"dates": f"{year}-12-{day:02}"} for year in range(2000, 2050) for day in range(1, 21)]
        specs = [
            Spec.parse({**self.DATA, "cron": [f"{minute} 9 * * *"]}, {"Days off": copy.deepcopy(days_off)})
            for minute in range(3)
        ]
        assert len({id(spec.exclude[0]) for spec in specs}) == 1
        assert specs[2].next(instant("2026-11-30T12:00")) == instant("2026-12-21T09:02")


class TestDaylightSaving:
    """Times are UTC."""

    @pytest.mark.parametrize(
        ("rule", "dst", "spring", "autumn"),
        [
            ({"calendars": [{"hour": "1", "minute": "30"}]}, "cron", "01:00", "00:30"),
            ({"calendars": [{"hour": "1", "minute": "30"}]}, "literal", "", "00:30 01:30"),
            ({"calendars": [{"hour": "1", "minute": "*/30"}]}, "cron", "", "00:00 00:30 01:00 01:30"),
            pytest.param(
                {"calendars": [{"hour": "1", "minute": {"start": 0, "end": 59, "step": 30}}]},
                "cron",
                "01:00",
                "00:00 00:30",
                id="the same minutes without a star: fixed",
            ),
            pytest.param(
                {"calendars": [{"hour": "1", "minute": "30", "second": "*/30"}]},
                "cron",
                "01:00",
                "00:30 00:30:30",
                id="a star in seconds only: fixed",
            ),
            ({"patterns": [{"times": ["01:30"]}]}, "cron", "01:00", "00:30"),
            ({"patterns": [{"times": ["01:30"]}]}, "literal", "", "00:30 01:30"),
            (
                {"patterns": [{"every": "45m", "from": "00:30", "until": "02:45"}]},
                "cron",
                "00:30 01:00 01:45",
                "23:30 00:15 02:00 02:45",
            ),
        ],
    )
    def test_calendars_and_patterns_in_london(
        self, rule: dict[str, object], dst: str, spring: str, autumn: str
    ) -> None:
        spec = Spec.parse({**rule, "time_zone": LONDON, "dst": dst})
        for change, expected in (("2026-03-29", spring), ("2026-10-25", autumn)):
            times = spec.times(instant(change) - DAY / 24, instant(change) + DAY / 8)
            assert [f"{at:%H:%M:%S}".removesuffix(":00") for at in times] == expected.split()

    @pytest.mark.parametrize(
        ("expression", "dst", "after", "expected"),
        [
            ("40 1 * * *", "cron", "2026-11-01T05:30", "2026-11-01T05:40"),
            ("40 1 * * *", "cron", "2026-11-01T06:10", "2026-11-02T06:40"),
            ("0 2 * * *", "cron", "2026-11-01T06:10", "2026-11-01T07:00"),
            ("20 1 * * *", "literal", "2026-11-01T05:30", "2026-11-01T06:20"),
            ("20 1 * * *", "literal", "2026-11-01T06:19:59", "2026-11-01T06:20"),
            ("20 1 * * *", "literal", "2026-11-01T06:20", "2026-11-02T06:20"),
        ],
    )
    def test_asked_inside_a_fold(self, expression: str, dst: str, after: str, expected: str) -> None:
        assert cron(expression, "America/New_York", dst).next(instant(after)) == instant(expected)


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
                {
                    "cron": ["0 9 * * mon-fri"],
                    "time_zone": "Europe/London",
                    "exclude": [{"calendar": "UK holidays"}],
                },
                "At 09:00 on weekdays, Europe/London, except UK holidays",
            ),
            (
                {
                    "every": ["1h"],
                    "start_at": "2027-01-01",
                    "end_at": "2027-12-31",
                    "time_zone": "Asia/Tokyo",
                },
                "Every hour, Asia/Tokyo, from 1 January 2027, until 31 December 2027",
            ),
            (
                {"every": ["1h"], "start_at": "2027-01-01T09:30", "end_at": "2027-12-31T23:59"},
                "Every hour, UTC, from 1 January 2027 09:30, until 31 December 2027 23:59",
            ),
            ({"every": ["1h"], "jitter": "5m"}, "Every hour, up to 5 minutes later"),
            (
                {
                    "cron": ["0 9 * * *"],
                    "start_at": "2027-01-01",
                    "exclude": [
                        {"dates": "2027-12-24/2028-01-02"},
                        {"dates": "2027-08-01"},
                        {"from": "2027-02-01T22:00", "until": "2027-02-02T04:00:30"},
                        {"from": "2027-02-01T22:00Z", "until": "2027-02-02T04:00Z"},
                        {"holidays": "GB", "subdivision": "ENG"},
                        {"holidays": "BA"},
                        {"day_of_week": "sat,sun"},
                    ],
                    "jitter": "90s",
                },
                "At 09:00 every day, UTC, from 1 January 2027, except 24 December 2027 to 2 January 2028, "
                "1 August 2027, 1 February 2027 22:00 to 2 February 2027 04:00:30, "
                "1 February 2027 22:00 to 2 February 2027 04:00 UTC, "
                "public holidays (United Kingdom, England), public holidays (Bosnia and Herzegovina) "
                "and at weekends, up to 1 minute 30 seconds later",
            ),
            (
                {"every": ["1h"], "exclude": [{"dates": f"2027-01-{day:02}"} for day in range(1, 14)]},
                "Every hour, UTC, except "
                + ", ".join(f"{day} January 2027" for day in range(1, 11))
                + " and 3 more",
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
        assert Spec.parse(data, {"UK holidays": []}).describe() == sentence

    @pytest.mark.parametrize(
        ("pattern", "sentence"),
        [
            ({"times": ["09:00"]}, "At 09:00 every day, UTC"),
            ({"times": ["09:00", "12:30"], "weekdays": "mon-fri"}, "At 09:00 and 12:30 on weekdays, UTC"),
            ({"times": ["09:00:30"], "weekdays": "sun"}, "At 09:00:30 on Sunday, UTC"),
            (
                {"times": [f"{hour:02}:05" for hour in range(12)]},
                "At " + ", ".join(f"{hour:02}:05" for hour in range(10)) + " and 2 more times every day, UTC",
            ),
            (
                {"every": "25m", "from": "09:00", "until": "17:30", "weekdays": "mon,wed"},
                "Every 25 minutes from 09:00 to 17:30 on Monday and Wednesday, UTC",
            ),
            ({"every": "1h"}, "Every hour from 00:00 to 23:59:59, UTC"),
            ({"every": "2h", "from": "09:00", "until": "10:00"}, "At 09:00 every day, UTC"),
            ({"times": ["09:00"], "weekdays": "fri#1"}, "At 09:00 on the first Friday of the month, UTC"),
        ],
    )
    def test_patterns(self, pattern: object, sentence: str) -> None:
        assert Spec.parse({"patterns": [pattern]}).describe() == sentence

    @pytest.mark.parametrize(
        ("calendar", "sentence"),
        [
            ({}, "At 00:00 every day, UTC"),
            (
                {"hour": "9-17", "minute": "*/15", "day_of_week": "1-5"},
                "Every 15 minutes from 09:00 to 17:45 on weekdays",
            ),
            (
                {"hour": 9, "day_of_month": "1-7", "day_of_week": "mon"},
                "At 09:00 on the 1st to 7th of the month if that is Monday",
            ),
            ({"hour": 9, "year": 2027}, "At 09:00 in 2027"),
            ({"hour": 9, "month": "jun", "year": "2026-2030"}, "At 09:00 in June from 2026 to 2030"),
            ({"hour": 9, "year": "2026-2040/2"}, "At 09:00 in 2026, 2028, 2030, 2032, 2034 and 3 more years"),
            ({"second": "*", "minute": "*", "hour": "*"}, "Every second"),
            ({"second": "*/10", "minute": "*", "hour": "9-10"}, "Every 10 seconds from 09:00:00 to 10:59:50"),
            ({"second": "30", "minute": "*", "hour": "*"}, "At second 30 of every minute"),
            (
                {"second": "5,10", "minute": "*", "hour": "9"},
                "At seconds 5 and 10 of every minute past hour 9",
            ),
            ({"second": "30", "hour": 9}, "At 09:00:30 every day"),
            (
                {"second": "0,30", "minute": "0-30/5", "hour": "*"},
                "At seconds 0 and 30 of minutes 0, 5, 10, 15, 20, 25 and 30 past every hour",
            ),
        ],
    )
    def test_calendars(self, calendar: object, sentence: str) -> None:
        assert Spec.parse({"calendars": [calendar]}).describe().removesuffix(
            ", UTC"
        ) == sentence.removesuffix(", UTC")

    @pytest.mark.parametrize(
        ("calendar", "words"),
        [
            ({"day_of_week": "sun"}, "on Sunday"),
            ({"month": "aug"}, "in August"),
            ({"year": "2027"}, "in 2027"),
            ({"day_of_month": "L"}, "on the last day of the month"),
            ({"hour": "22-23"}, "from 22:00 to 24:00"),
            ({"hour": "22,2", "day_of_week": "sun"}, "during hours 2 and 22 on Sunday"),
            ({"minute": "0-29"}, "during minutes 0 to 29 past every hour"),
            ({"hour": "9", "minute": "0", "second": "0"}, "at 09:00"),
            ({"hour": "*"}, "all the time"),
        ],
    )
    def test_excluded_calendars(self, calendar: object, words: str) -> None:
        assert (
            Spec.parse({"every": ["1h"], "exclude": [calendar]}).describe()
            == f"Every hour, UTC, except {words}"
        )

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
            ("0 9 * * * 2027", "At 09:00 in 2027, Europe/London"),
            ("0 9 * * mon 2027-2029", "At 09:00 on Monday from 2027 to 2029, Europe/London"),
            ("30 0 9 * * * *", "At 09:00:30 every day, Europe/London"),
            ("*/15 * * * * * *", "Every 15 seconds"),
            ("0 0 L * *", "At 00:00 on the last day of the month, Europe/London"),
            ("0 0 15,L 6 *", "At 00:00 on the 15th and the last day of June, Europe/London"),
            ("0 0 * * fri#2", "At 00:00 on the second Friday of the month, Europe/London"),
            (
                "0 0 * 6 mon#1,L5",
                "At 00:00 on the first Monday and the last Friday of June, Europe/London",
            ),
            ("0 0 * * tue,fri#4", "At 00:00 on Tuesday and the fourth Friday of the month, Europe/London"),
            (
                "0 0 L * L5",
                "At 00:00 on the last day of the month or on the last Friday of the month, Europe/London",
            ),
        ],
    )
    def test_cron(self, expression: str, sentence: str) -> None:
        assert cron(expression, "Europe/London").describe() == sentence


class TestExplain:
    """The asked instants are UTC; the words speak of the clock of the spec."""

    SHARED: dict[str, object] = {
        "UK holidays": [{"holidays": "GB", "subdivision": "ENG"}],
        "Freeze": [{"dates": "2026-12-18/2027-01-03", "comment": "year end"}, {"hour": "13"}],
    }
    WEEKDAYS: dict[str, object] = {"cron": ["0 9 * * mon-fri"], "time_zone": LONDON}

    @pytest.mark.parametrize(
        ("more", "at", "kind", "words"),
        [
            ({}, "2027-05-04T08:00", "nominal", "it is one of its times"),
            ({}, "2027-05-04T08:00:00.5", "nominal", "it is one of its times"),
            (
                {},
                "2027-05-04T03:00",
                "unmatched",
                "no rule gives this time; the nearest times are 3 May 2027 09:00 and 4 May 2027 09:00",
            ),
            (
                {"end_at": "2027-05-04"},
                "2027-05-04T20:00",
                "unmatched",
                "no rule gives this time; the nearest time is 4 May 2027 09:00",
            ),
            (
                {"start_at": "2027-05-04"},
                "2027-05-03T08:00",
                "before_start",
                "it is before the start, 4 May 2027 00:00",
            ),
            (
                {"end_at": "2026-12-31T23:59"},
                "2027-01-04T09:00",
                "after_end",
                "it is after the end, 31 December 2026 23:59",
            ),
            ({"end_at": "2026-12-31T09:00"}, "2026-12-31T09:00:00.9", "nominal", "it is one of its times"),
            (
                {"exclude": [{"calendar": "UK holidays"}]},
                "2027-05-03T08:00",
                "excluded",
                "3 May 2027 is May Day (UK holidays)",
            ),
            (
                {"exclude": [{"holidays": "GB", "subdivision": "ENG"}]},
                "2027-05-03T08:00",
                "excluded",
                "3 May 2027 is May Day (United Kingdom, England)",
            ),
            (
                {"exclude": [{"holidays": "DE", "subdivision": "BY"}]},
                "2027-05-06T08:00",
                "excluded",
                "6 May 2027 is Ascension Day (Germany, Bayern)",
            ),
            (
                {"exclude": [{"calendar": "Freeze"}]},
                "2026-12-22T09:00",
                "excluded",
                "22 December 2026 is excluded (Freeze: year end: 18 December 2026 to 3 January 2027)",
            ),
            (
                {"exclude": [{"dates": "2026-12-22"}]},
                "2026-12-22T09:00",
                "excluded",
                "22 December 2026 is excluded",
            ),
            (
                {"exclude": [{"hour": "9-10", "comment": "backups"}]},
                "2026-12-22T09:00",
                "excluded",
                "22 December 2026 09:00 is excluded (backups: from 09:00 to 11:00)",
            ),
            (
                {"exclude": [{"from": "2026-12-22T08:00", "until": "2026-12-22T10:00"}]},
                "2026-12-22T09:00",
                "excluded",
                "22 December 2026 09:00 is excluded (22 December 2026 08:00 to 22 December 2026 10:00)",
            ),
            (
                {"exclude": [{"dates": "2026-12-19/2026-12-20"}]},
                "2026-12-19T09:00",
                "unmatched",
                (
                    "no rule gives this time; "
                    "the nearest times are 18 December 2026 09:00 and 21 December 2026 09:00"
                ),
            ),
            (
                {"cron": []},
                "2027-05-04T08:00",
                "manual",
                "it has no times of its own: it runs only when somebody starts it",
            ),
            ({}, "1950-01-01T09:00", "unmatched", "times lie between 1970 and 2999"),
            ({}, "3500-01-01T09:00", "unmatched", "times lie between 1970 and 2999"),
        ],
    )
    def test_any_instant(self, more: dict[str, object], at: str, kind: str, words: str) -> None:
        spec = Spec.parse(self.WEEKDAYS | more, self.SHARED)
        assert spec.explain(instant(at)) == Verdict(kind, words)

    @pytest.mark.parametrize(
        ("rule", "dst", "at", "kind", "words"),
        [
            (
                "30 1 * * *",
                "literal",
                "2026-03-29T01:30",
                "gap",
                (
                    "the clocks of Europe/London go from 01:00 to 02:00 on 29 March 2026: "
                    "01:30 does not exist on that day"
                ),
            ),
            (
                "30 1 * * *",
                "cron",
                "2026-03-29T01:30",
                "gap",
                (
                    "the clocks of Europe/London go from 01:00 to 02:00 on 29 March 2026: "
                    "01:30 does not exist on that day, and takes place at 02:00"
                ),
            ),
            (
                "30 1 * * *",
                "cron",
                "2026-03-29T01:00",
                "nominal",
                "it is one of its times (moved: 01:30 does not exist on 29 March 2026)",
            ),
            (
                "30 1 * * *",
                "cron",
                "2026-10-25T01:30",
                "unmatched",
                "01:30 comes twice on 25 October 2026, and the first of the two counts",
            ),
            (
                "30 1 * * *",
                "cron",
                "2026-10-25T00:30",
                "nominal",
                "it is one of its times (first of two 01:30s)",
            ),
            (
                "30 1 * * *",
                "literal",
                "2026-10-25T01:30",
                "nominal",
                "it is one of its times (second of two 01:30s)",
            ),
            (
                "0 12 * * *",
                "cron",
                "2026-03-29T01:30",
                "unmatched",
                (
                    "no rule gives this time; "
                    "the nearest times are 28 March 2026 12:00 and 29 March 2026 12:00"
                ),
            ),
            (
                "0 12 * * *",
                "cron",
                "2026-10-25T01:30",
                "unmatched",
                "no rule gives this time; "
                "the nearest times are 24 October 2026 12:00 and 25 October 2026 12:00",
            ),
        ],
    )
    def test_where_clocks_change(self, rule: str, dst: str, at: str, kind: str, words: str) -> None:
        assert cron(rule, LONDON, dst).explain(instant(at)) == Verdict(kind, words)

    def test_a_day_that_was_left_out(self) -> None:
        verdict = cron("0 12 * * *", "Pacific/Apia").explain(instant("2011-12-30T22:00"))
        assert verdict.kind == "nominal"
        literal = cron("30 0 30 12 *", "Pacific/Apia").explain(instant("2011-12-30T10:30"))
        assert literal == Verdict(
            "gap",
            "the clocks of Pacific/Apia go from 30 December 2011 00:00 to 31 December 2011 00:00: "
            "00:30 does not exist on that day",
        )

    def test_an_excluded_time_that_would_have_moved(self) -> None:
        spec = Spec.parse({"cron": ["30 1 * * *"], "exclude": [{"minute": "30"}], "time_zone": LONDON})
        assert spec.explain(instant("2026-03-29T01:00")) == Verdict(
            "excluded", "29 March 2026 01:30 is excluded (during minute 30 past every hour)"
        )

    def test_nothing_but_exclusions_around(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "CANDIDATES", 200)
        spec = Spec.parse({"cron": ["0 9 * * mon"], "exclude": [{"day_of_week": "mon"}]})
        assert spec.explain(NOW) == Verdict("unmatched", "no rule gives this time")

    @pytest.mark.parametrize(("change", "count"), [("2026-03-29T01:00", 2), ("2026-10-25T01:00", 3)])
    def test_says_nominal_of_the_nominal_times_and_of_no_other(self, change: str, count: int) -> None:
        spec = Spec.parse(
            {"cron": ["30 1 * * *", "*/20 2 * * *"], "exclude": [{"minute": "40"}], "time_zone": LONDON}
        )
        around = [instant(change) + timedelta(minutes=10 * n) for n in range(-18, 19)]
        nominal = [at for at in around if spec.explain(at).kind == "nominal"]
        assert nominal == spec.times(around[0] - SECOND, around[-1])
        assert len(nominal) == count


class TestUpcoming:
    def test_rows(self) -> None:
        spec = Spec.parse({"cron": ["30 9 * * *"], "jitter": "5m", "time_zone": LONDON})
        rows = spec.upcoming(instant("2026-10-24T00:00"), 3, "nightly")
        assert [f"{row.at:%d %H:%M %Z}" for row in rows] == ["24 08:30 UTC", "25 09:30 UTC", "26 09:30 UTC"]
        assert [f"{row.local:%d %H:%M %Z}" for row in rows] == [
            "24 09:30 BST",
            "25 09:30 GMT",
            "26 09:30 GMT",
        ]
        assert [row.due_at for row in rows] == [spec.due_at(row.at, "nightly") for row in rows]
        assert any(row.due_at > row.at for row in rows)
        assert [row.note for row in rows] == ["", "", ""]

    def test_without_jitter_a_time_is_due_at_once(self) -> None:
        rows = cron("0 9 * * *").upcoming(NOW, 3, "nightly")
        assert [row.due_at for row in rows] == [row.at for row in rows]

    def test_as_many_as_there_are(self) -> None:
        assert len(Spec.parse({"at": ["2026-12-01T09:00"]}).upcoming(NOW, 10, "x")) == 1
        assert Spec.parse({}).upcoming(NOW, 10, "x") == []

    @pytest.mark.parametrize(
        ("rules", "dst", "after", "notes"),
        [
            (
                {"cron": ["30 1 * * *"]},
                "cron",
                "2026-03-28T12:00",
                ["moved: 01:30 does not exist on 29 March 2026", "", ""],
            ),
            ({"cron": ["*/30 1 * * *"]}, "cron", "2026-03-28T12:00", ["", "", ""]),
            (
                {"cron": ["0-30/15 1 * * *"]},
                "cron",
                "2026-03-28T12:00",
                ["moved: 01:00, 01:15 and 01:30 do not exist on 29 March 2026", "", ""],
            ),
            (
                {"patterns": [{"every": "5m", "from": "01:00", "until": "01:20"}]},
                "cron",
                "2026-03-28T12:00",
                ["moved: 01:00, 01:05, 01:10 and others do not exist on 29 March 2026", "", ""],
            ),
            (
                {"cron": ["30 1,2 * * *", "0 2 * * *"]},
                "cron",
                "2026-03-28T12:00",
                ["also for what is missing: 01:30 does not exist on 29 March 2026", "", ""],
            ),
            ({"cron": ["30 1 * * *"]}, "cron", "2026-10-24T12:00", ["first of two 01:30s", "", ""]),
            (
                {"cron": ["30 1 * * *"]},
                "literal",
                "2026-10-24T12:00",
                ["first of two 01:30s", "second of two 01:30s", ""],
            ),
            (
                {"every": ["1h"]},
                "cron",
                "2026-10-24T23:00",
                ["first of two 01:00s", "second of two 01:00s", ""],
            ),
            ({"cron": ["0 2 * * *"]}, "cron", "2026-10-24T12:00", ["", "", ""]),
        ],
    )
    def test_notes(self, rules: dict[str, object], dst: str, after: str, notes: list[str]) -> None:
        spec = Spec.parse({**rules, "time_zone": LONDON, "dst": dst})
        assert [row.note for row in spec.upcoming(instant(after), 3, "x")] == notes

    def test_notes_far_from_greenwich(self) -> None:
        rows = cron("30 0,1 * * *", "America/New_York").upcoming(instant("2026-11-01T00:00"), 3, "x")
        assert [row.note for row in rows] == ["", "first of two 01:30s", ""]


@pytest.mark.parametrize("dst", ["cron", "literal"])
@pytest.mark.parametrize(
    ("zone", "expression"),
    [("Australia/Lord_Howe", "45 */2 * * sun"), ("Pacific/Apia", "15 0,3,12 1-15,30 * fri")],
)
def test_the_times_are_the_same_however_they_are_asked_for(zone: str, expression: str, dst: str) -> None:
    start, end = instant("2011-09-01"), instant("2012-06-01")
    spec = cron(expression, zone, dst)
    times = spec.times(start, end)
    assert len(times) > 100
    for earlier, later in pairwise([start, *times]):
        asked = (earlier, later - SECOND, earlier + (later - earlier) / 2)
        assert [spec.next(at) for at in asked] == [later] * 3
    sliced, cursor = [], start
    while batch := spec.times(cursor, end, limit=100):
        sliced += batch
        cursor = batch[-1]
    assert sliced == times
