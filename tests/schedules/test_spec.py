"""What a spec says: times that the oracle cannot write, notes, sentences, and why an instant is no time."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from schedules.spec import Spec, SpecError, timeline
from schedules.spec.explanation import Verdict
from schedules.spec.intervals import Interval

NOW = datetime(2026, 11, 16, 2, 17, 33, tzinfo=UTC)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
LONDON = "Europe/London"


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def cron(expression: str, time_zone: str = "UTC", dst: str = "cron") -> Spec:
    return Spec.parse({"cron": [expression], "time_zone": time_zone, "dst": dst})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("*/100 * * * *", "2026-11-16T03:00", id="step past the end"),
        pytest.param("0 0 21 * fri", "2026-11-20T00:00", id="both days: the Friday comes first"),
        pytest.param("0 0 */7 * fri", "2027-01-01T00:00", id="a starred day: both must match"),
        pytest.param("0 0 30 2 mon", "2027-02-01T00:00", id="no such day, but Mondays"),
        pytest.param("@MIDNIGHT", "2026-11-17T00:00", id="@midnight"),
        pytest.param("@annually", "2027-01-01T00:00", id="@annually"),
        pytest.param("0 0 * * sun-sun", "2026-11-22T00:00", id="Sunday only"),
        pytest.param("0 0 * January,february *", "2027-01-01T00:00", id="months in full"),
        pytest.param("0 0 * * Tues-thurs", "2026-11-17T00:00", id="weekdays in more letters"),
        pytest.param("33 17 2 * * * *", "2026-11-17T02:17:33", id="this very second is over"),
        pytest.param("0 0 20,l * *", "2026-11-20T00:00", id="a date or the last day"),
        pytest.param("0 0 * * sat#4,7#4", "2026-11-22T00:00", id="fourth Saturday and Sunday"),
        pytest.param("0 0 * * mon-wed#1", "2026-12-01T00:00", id="first Monday, Tuesday, Wednesday"),
        pytest.param("0 0 * * Lsun", "2026-11-29T00:00", id="last Sunday by name"),
    ],
)
def test_the_next_time_of_a_cron_string(expression: str, expected: str) -> None:
    assert cron(expression).next(NOW) == instant(expected)


@pytest.mark.parametrize(
    ("data", "after", "expected"),
    [
        ({"every": ["15m"]}, "2026-11-16T02:29:59.999999", "2026-11-16T02:30:00"),
        ({"every": ["15m"]}, "2026-11-16T02:30:00.000001", "2026-11-16T02:45:00"),
        ({"every": ["1h"]}, "1960-01-01T00:00:00", "1970-01-01T00:00:00"),
        ({"cron": ["0 0 * * Sat-Sun"]}, "2026-11-21", "2026-11-22"),
        ({"cron": ["0 0 * * Sat-Sun"]}, "2026-11-22", "2026-11-28"),
        ({"patterns": [{"times": ["23:59:59"]}]}, "2026-11-16T09:00", "2026-11-16T23:59:59"),
        ({"patterns": [{"every": "90s", "from": "09:00"}]}, "2026-11-16T09:00", "2026-11-16T09:01:30"),
        ({"patterns": [{"every": "8h"}]}, "2026-11-16T16:00", "2026-11-17T00:00"),
        ({"patterns": [{"times": ["09:00"], "weekdays": "fri#4"}]}, "2026-11-16", "2026-11-27T09:00"),
        ({"patterns": [{"times": ["09:00"], "weekdays": ["tue", 0]}]}, "2026-11-18", "2026-11-22T09:00"),
    ],
)
def test_the_next_time_of_other_rules(data: object, after: str, expected: str) -> None:
    assert Spec.parse(data).next(instant(after)) == instant(expected)


@pytest.mark.parametrize(
    ("rule", "note"),
    [
        ("*/100 * * * *", "minute */100 steps past 59: only the first value matches"),
        ("0 0 13 * fri", "day of month and day of week: a day has to match only one of them"),
        ("0 0 */2 * fri", ""),
        ("*/59 9-17 * * mon-fri", ""),
        ("0 0 * * fri#2,mon-fri/3#1", ""),
        ("0 0 31 * *", "0 0 31 * * skips months that are too short"),
        ("0 0 29 2 *", "skips months that are too short"),
        ("0 0 31 1,12 *", ""),
        ("0 0 30,L * *", ""),
        ("0 0 15,31 * *", ""),
        ({"calendars": [{"hour": "*/30"}]}, "hour */30 steps past 23: only the first value matches"),
        ({"calendars": [{"day_of_month": "30"}]}, "day_of_month skips months that are too short"),
        ({"calendars": [{"day_of_month": "13", "day_of_week": "fri"}]}, ""),
        ({"patterns": [{"every": "2h", "from": "09:00", "until": "10:59"}]}, "10:59 runs only at 09:00"),
        ({"patterns": [{"every": "2h", "from": "09:00", "until": "11:00"}]}, ""),
    ],
)
def test_a_note_on_what_may_surprise(rule: Any, note: str) -> None:
    notes = Spec.parse({"cron": [rule]} if isinstance(rule, str) else rule).notes
    assert [note in each for each in notes] == ([True] if note else [])


def test_a_spec_built_directly_is_canonical_too() -> None:
    tokyo = datetime(2026, 12, 1, 9, tzinfo=ZoneInfo("Asia/Tokyo"))
    spec = Spec(cron=("0  9 * * *",), every=(Interval(60), Interval(60)), at=(tokyo, tokyo))
    assert Spec.parse(spec.as_json()) == spec
    assert spec.at[0].tzinfo is UTC
    with pytest.raises(SpecError, match="never matches"):
        Spec(cron=("0 0 31 2 *",))


def test_times_are_utc_whatever_zone_asks() -> None:
    for spec in (cron("0 9 * * *", "Europe/Paris"), Spec.parse({"every": ["1h"]})):
        upcoming = spec.next(NOW.astimezone(ZoneInfo("Asia/Tokyo")))
        assert upcoming is not None
        assert upcoming.tzinfo is UTC
        assert upcoming == spec.next(NOW)


@pytest.mark.parametrize(
    ("spec", "after"),
    [
        (cron("* * * * *", "America/New_York"), "2999-12-31T23:59:00"),
        (cron("* * * * *", "Pacific/Auckland"), "2999-12-31T23:59:00"),
        (cron("0 0 29 2 *"), "2996-02-29T00:00:00"),
        (Spec.parse({"every": ["1s"]}), "2999-12-31T23:59:59"),
    ],
)
def test_the_search_ends(spec: Spec, after: str) -> None:
    assert spec.next(instant(after)) is None
    assert spec.times(instant(after), instant("9999-12-31T23:59:59")) == []


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Auckland"])
def test_the_ends_of_time_do_not_overflow(zone: str) -> None:
    spec = cron("0 0 * * *", zone)
    earliest = spec.next(datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")))
    assert earliest is not None
    assert earliest.year == 1970
    assert spec.next(datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))) is None


AT_NINE: list[dict[str, object]] = [
    {"cron": ["0 9 * * *"]},
    {"every": [{"every": "1d", "offset": "9h"}]},
    {"calendars": [{"hour": 9}]},
    {"patterns": [{"times": ["09:00"]}]},
    {"at": [f"2026-11-{day}T09:00" for day in range(16, 21)]},
]


@pytest.mark.parametrize(
    ("item", "left"),
    [
        pytest.param({"dates": "2026-11-17/2026-11-19"}, "16 20", id="dates, both included"),
        pytest.param({"day_of_month": "16-19", "day_of_week": "wed"}, "16 17 19 20", id="both days"),
        pytest.param({"year": "2025"}, "16 17 18 19 20", id="another year"),
        pytest.param({"hour": "9"}, "", id="its hour"),
        pytest.param({"second": "1-59"}, "16 17 18 19 20", id="other seconds"),
        pytest.param({"from": "2026-11-17T09:00", "until": "2026-11-19T09:00"}, "16 20", id="ends count"),
        ({"from": "2026-11-17T09:00:01", "until": "2026-11-18T08:59:59"}, "16 17 18 19 20"),
        ({"from": "2026-11-17T10:00+01:00", "until": "2026-11-17T09:00Z"}, "16 18 19 20"),
    ],
)
def test_exclusions_meet_every_kind_of_rule(item: object, left: str) -> None:
    for rules in AT_NINE:
        spec = Spec.parse({**rules, "exclude": [item], "time_zone": LONDON})
        times = spec.times(instant("2026-11-16T00:00"), instant("2026-11-20T12:00"))
        assert " ".join(f"{at:%d}" for at in times) == left, rules


class TestSharedCalendars:
    DATA: dict[str, object] = {"cron": ["0 9 * * *"], "exclude": [{"calendar": "Days off"}]}

    def test_another_definition_is_another_spec(self) -> None:
        before = Spec.parse(self.DATA, {"Days off": []})
        after = Spec.parse(self.DATA, {"Days off": [{"dates": "2026-11-16"}]})
        assert before != after
        assert before.next(NOW) == instant("2026-11-16T09:00")
        assert after.next(NOW) == instant("2026-11-17T09:00")
        assert Spec.parse(dict(reversed(self.DATA.items())), {"Days off": [], "Another": []}) is before

    def test_a_long_one_is_read_once_for_all_that_use_it(self) -> None:
        days_off = [{"dates": f"{year}-12-{day:02}"} for year in range(2000, 2050) for day in range(1, 21)]
        specs = [
            Spec.parse({**self.DATA, "cron": [f"{minute} 9 * * *"]}, {"Days off": copy.deepcopy(days_off)})
            for minute in range(3)
        ]
        assert len({id(spec.exclude[0]) for spec in specs}) == 1
        assert specs[2].next(instant("2026-11-30T12:00")) == instant("2026-12-21T09:02")


@pytest.mark.parametrize(
    ("calendar", "dst", "spring", "autumn"),
    [
        pytest.param({"minute": "30"}, "cron", "01:00", "00:30", id="fixed"),
        pytest.param({"minute": "30"}, "literal", "", "00:30 01:30", id="literal"),
        pytest.param({"minute": "*/30"}, "cron", "", "00:00 00:30 01:00 01:30", id="a star"),
        pytest.param({"minute": "0-59/30"}, "cron", "01:00", "00:00 00:30", id="without a star: fixed"),
        pytest.param({"minute": "30", "second": "*/30"}, "cron", "01:00", "00:30 00:30:30", id="fixed, too"),
    ],
)
def test_one_oclock_where_clocks_change(calendar: dict[str, str], dst: str, spring: str, autumn: str) -> None:
    spec = Spec.parse({"calendars": [{"hour": "1", **calendar}], "time_zone": LONDON, "dst": dst})
    for change, expected in (("2026-03-29", spring), ("2026-10-25", autumn)):
        times = spec.times(instant(change) - DAY / 24, instant(change) + DAY / 8)
        assert [f"{at:%H:%M:%S}".removesuffix(":00") for at in times] == expected.split()


EXCEPT_MANY: dict[str, object] = {
    "cron": ["0 9 * * *"],
    "exclude": [
        {"dates": "2027-12-24/2028-01-02"},
        {"dates": "2027-08-01"},
        {"from": "2027-02-01T22:00", "until": "2027-02-02T04:00:30"},
        {"from": "2027-02-01T22:00Z", "until": "2027-02-02T04:00Z"},
        {"holidays": "GB", "subdivision": "ENG"},
        {"holidays": "BA"},
        {"calendar": "UK holidays"},
    ],
    "jitter": "90s",
}
TWELVE_TIMES = [f"{hour:02}:05" for hour in range(12)]


class TestDescribe:
    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            ({}, "Only when started by hand"),
            ({"every": ["1h"]}, "Every hour"),
            ({"every": ["90m"]}, "Every 1 hour 30 minutes"),
            ({"every": [{"every": "2d", "offset": "65s"}]}, "Every 2 days, offset by 1 minute 5 seconds"),
            ({"at": ["2026-12-01T09:00"]}, "Once, at 09:00 on 1 December 2026, UTC"),
            (
                {"at": ["2026-07-01T09:00:07Z"], "every": ["15m"], "time_zone": LONDON},
                "Every 15 minutes; once, at 10:00:07 on 1 July 2026, Europe/London",
            ),
            (
                {"every": ["1h"], "start_at": "2027-01-01", "end_at": "2027-12-31", "time_zone": LONDON},
                "Every hour, Europe/London, from 1 January 2027, until 31 December 2027",
            ),
            (
                {"every": ["1h"], "start_at": "2027-01-01T09:30", "end_at": "2027-12-31T23:59"},
                "Every hour, UTC, from 1 January 2027 09:30, until 31 December 2027 23:59",
            ),
            (
                EXCEPT_MANY,
                "At 09:00 every day, UTC, except 24 December 2027 to 2 January 2028, 1 August 2027, "
                "1 February 2027 22:00 to 2 February 2027 04:00:30, "
                "1 February 2027 22:00 to 2 February 2027 04:00 UTC, "
                "public holidays (United Kingdom, England), public holidays (Bosnia and Herzegovina) "
                "and UK holidays, up to 1 minute 30 seconds later",
            ),
            (
                {"every": ["1h"], "exclude": [{"dates": f"2027-01-{day:02}"} for day in range(1, 14)]},
                f"Every hour, UTC, except {', '.join(f'{n} January 2027' for n in range(1, 11))} and 3 more",
            ),
            (
                {"every": [f"{n}h" for n in range(2, 14)]},
                f"E{'; '.join(f'every {n} hours' for n in range(2, 12))[1:]}; and 2 more rules",
            ),
        ],
    )
    def test_specs(self, data: object, sentence: str) -> None:
        assert Spec.parse(data, {"UK holidays": []}).describe() == sentence

    @pytest.mark.parametrize(
        ("rule", "sentence"),
        [
            ("* * * * *", "Every minute"),
            ("*/15 * * * *", "Every 15 minutes"),
            ("@hourly", "Every hour, UTC"),
            ("5 * * * *", "At minute 5 past every hour, UTC"),
            ("*/25 * * * *", "At minutes 0, 25 and 50 past every hour, UTC"),
            ("0 */2 * * *", "Every 2 hours, UTC"),
            ("5 */6 * * *", "Every 6 hours from 00:05, UTC"),
            ("0 */12 * * *", "At 00:00 and 12:00 every day, UTC"),
            ("0 9-17 * * mon-fri", "Every hour from 09:00 to 17:00 on weekdays, UTC"),
            ("*/15 9-17 * * *", "Every 15 minutes from 09:00 to 17:45, UTC"),
            ("10-20,40 1,4-6 * * *", "At minutes 10 to 20 and 40 past hours 1 and 4 to 6, UTC"),
            ("1-49/8 4 * * *", "At minutes 1, 9, 17, 25, 33, 41 and 49 past hour 4, UTC"),
            ("0 9,18 * * sat,sun", "At 09:00 and 18:00 at weekends, UTC"),
            ("0 9 * * mon-thu", "At 09:00 from Monday to Thursday, UTC"),
            ("0 0 1,2,3,11,22 * *", "At 00:00 on the 1st to 3rd, 11th and 22nd of the month, UTC"),
            ("0 0 1 jan,jul *", "At 00:00 on the 1st of January and July, UTC"),
            ("0 0 * jun-aug *", "At 00:00 from June to August, UTC"),
            ("0 0 * jun sun", "At 00:00 on Sunday in June, UTC"),
            ("0 0 */2 * *", "At 00:00 on every 2nd day from the 1st to the 31st of the month, UTC"),
            ("0 0 13 6 fri", "At 00:00 on the 13th of June or on Friday in June, UTC"),
            ("0 0 1 * 0-6", "At 00:00 on the 1st of the month or on any day, UTC"),
            ("0 0 */30 * 1,2", "At 00:00 on the 1st and 31st of the month if that is Monday or Tuesday, UTC"),
            ("0 9 * * mon 2027-2029", "At 09:00 on Monday from 2027 to 2029, UTC"),
            ("0 9 * * * 2026-2040/2", "At 09:00 in 2026, 2028, 2030, 2032, 2034 and 3 more years, UTC"),
            ("*/15 * * * * * *", "Every 15 seconds"),
            ("*/10 * 9-10 * * * *", "Every 10 seconds from 09:00:00 to 10:59:50, UTC"),
            ("30 * * * * * *", "At second 30 of every minute, UTC"),
            ("5,10 * 9 * * * *", "At seconds 5 and 10 of every minute past hour 9, UTC"),
            ("0,30 1,3,5,8 * * * * *", "At seconds 0 and 30 of minutes 1, 3, 5 and 8 past every hour, UTC"),
            ("0 0 15,L 6 *", "At 00:00 on the 15th and the last day of June, UTC"),
            ("0 0 * 6 mon#1,L5", "At 00:00 on the first Monday and the last Friday of June, UTC"),
            ("0 0 * * tue,fri#4", "At 00:00 on Tuesday and the fourth Friday of the month, UTC"),
            ("0 0 L * L5", "At 00:00 on the last day of the month or on the last Friday of the month, UTC"),
            ({"times": ["09:00", "12:30"], "weekdays": "mon-fri"}, "At 09:00 and 12:30 on weekdays, UTC"),
            ({"times": TWELVE_TIMES}, f"At {', '.join(TWELVE_TIMES[:10])} and 2 more times every day, UTC"),
            ({"every": "25m", "until": "17:30"}, "Every 25 minutes from 00:00 to 17:30, UTC"),
            ({"every": "2h", "from": "09:00", "until": "10:00"}, "At 09:00 every day, UTC"),
        ],
    )
    def test_cron_strings_and_patterns(self, rule: object, sentence: str) -> None:
        assert Spec.parse({"cron" if isinstance(rule, str) else "patterns": [rule]}).describe() == sentence

    @pytest.mark.parametrize(
        ("calendar", "words"),
        [
            ({"day_of_week": "sun"}, "on Sunday"),
            ({"month": "aug"}, "in August"),
            ({"day_of_month": "L"}, "on the last day of the month"),
            ({"hour": "22-23"}, "from 22:00 to 24:00"),
            ({"hour": "22,2", "day_of_week": "sun"}, "during hours 2 and 22 on Sunday"),
            ({"minute": "0-29"}, "during minutes 0 to 29 past every hour"),
            ({"hour": "9", "minute": "0", "second": "0"}, "at 09:00"),
            ({"hour": "*"}, "all the time"),
        ],
    )
    def test_excluded_calendars(self, calendar: object, words: str) -> None:
        spec = Spec.parse({"every": ["1h"], "exclude": [calendar]})
        assert spec.describe() == f"Every hour, UTC, except {words}"


class TestExplain:
    """The asked instants are UTC; the words speak of the clock of the spec."""

    @pytest.mark.parametrize(
        ("more", "at", "kind", "words"),
        [
            ({}, "2027-05-04T08:00:00.5", "nominal", "this is one of the schedule's times"),
            ({}, "2027-05-04T03:00", "unmatched", "times are 3 May 2027 09:00 and 4 May 2027 09:00"),
            ({"end_at": "2027-05-04"}, "2027-05-04T20:00", "unmatched", "nearest time is 4 May 2027 09:00"),
            (
                {"start_at": "2027-05-04"},
                "2027-05-03T08:00",
                "before_start",
                "the start of the schedule, 4 May 2027 00:00",
            ),
            (
                {"end_at": "2026-12-31T23:59"},
                "2027-01-04T09:00",
                "after_end",
                "end of the schedule, 31 December 2026 23:59",
            ),
            (
                {"end_at": "2026-12-31T09:00"},
                "2026-12-31T09:00:00.9",
                "nominal",
                "this is one of the schedule's times",
            ),
            ({"cron": []}, "2027-05-04T08:00", "manual", "runs only when started by hand or by an event"),
            ({}, "1950-01-01T09:00", "unmatched", "schedules have times from 1970 to 2999 only"),
            ({}, "3500-01-01T09:00", "unmatched", "schedules have times from 1970 to 2999 only"),
        ],
    )
    def test_any_instant(self, more: dict[str, object], at: str, kind: str, words: str) -> None:
        spec = Spec.parse({"cron": ["0 9 * * mon-fri"], "time_zone": LONDON} | more)
        verdict = spec.explain(instant(at))
        assert (verdict.kind, verdict.words.endswith(words)) == (kind, True)

    SHARED: dict[str, object] = {
        "UK holidays": [{"holidays": "GB", "subdivision": "ENG"}],
        "Freeze": [{"dates": "2026-12-18/2027-01-03", "comment": "year end"}, {"hour": "13"}],
    }
    WINDOW = {"from": "2026-12-25T08:00", "until": "2026-12-26T10:00"}

    @pytest.mark.parametrize(
        ("item", "words"),
        [
            ({"calendar": "UK holidays"}, " is Christmas Day (UK holidays)"),
            ({"holidays": "GB"}, " is Christmas Day (United Kingdom)"),
            ({"calendar": "Freeze"}, " is excluded (Freeze: year end: 18 December 2026 to 3 January 2027)"),
            ({"dates": "2026-12-25"}, " is excluded"),
            ({"hour": "9-10", "comment": "backups"}, " 09:00 is excluded (backups: from 09:00 to 11:00)"),
            (WINDOW, " 09:00 is excluded (25 December 2026 08:00 to 26 December 2026 10:00)"),
        ],
    )
    def test_an_excluded_time(self, item: object, words: str) -> None:
        spec = Spec.parse({"cron": ["0 9 * * *"], "time_zone": LONDON, "exclude": [item]}, self.SHARED)
        told = spec.explain(instant("2026-12-25T09:00"))
        assert told == Verdict("excluded", f"25 December 2026{words}")

    @pytest.mark.parametrize(
        ("rule", "dst", "at", "kind", "words"),
        [
            ("30 1 * * *", "literal", "2026-03-29T01:30", "gap", "2026: 01:30 does not exist on that day"),
            (
                "30 1 * * *",
                "cron",
                "2026-03-29T01:30",
                "gap",
                "exist on that day, so the run takes place at 02:00",
            ),
            ("30 1 * * *", "cron", "2026-03-29T01:00", "nominal", "01:30 does not exist on 29 March 2026)"),
            (
                "30 1 * * *",
                "cron",
                "2026-10-25T01:30",
                "unmatched",
                "2026; the schedule runs only the first time",
            ),
            (
                "30 1 * * *",
                "cron",
                "2026-10-25T00:30",
                "nominal",
                "the schedule's times (01:30 occurs twice: the first time)",
            ),
            (
                "30 1 * * *",
                "literal",
                "2026-10-25T01:30",
                "nominal",
                "the schedule's times (01:30 occurs twice: the second time)",
            ),
            ("0 12 * * *", "cron", "2026-03-29T01:30", "unmatched", "2026 12:00 and 29 March 2026 12:00"),
            ("0 12 * * *", "cron", "2026-10-25T01:30", "unmatched", "2026 12:00 and 25 October 2026 12:00"),
        ],
    )
    def test_where_clocks_change(self, rule: str, dst: str, at: str, kind: str, words: str) -> None:
        verdict = cron(rule, LONDON, dst).explain(instant(at))
        assert (verdict.kind, verdict.words.endswith(words)) == (kind, True)

    def test_a_day_that_was_left_out(self) -> None:
        assert cron("30 0 30 12 *", "Pacific/Apia").explain(instant("2011-12-30T10:30")) == Verdict(
            "gap",
            "the clocks in Pacific/Apia go from 30 December 2011 00:00 to 31 December 2011 00:00: "
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
        assert spec.explain(NOW) == Verdict("unmatched", "no rule matches this time")

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
        rows = spec.upcoming(instant("2026-10-24T00:00"), 2, "nightly")
        assert [f"{row.at:%d %H:%M %Z}" for row in rows] == ["24 08:30 UTC", "25 09:30 UTC"]
        assert [f"{row.local:%d %H:%M %Z}" for row in rows] == ["24 09:30 BST", "25 09:30 GMT"]
        assert [row.due_at for row in rows] == [spec.due_at(row.at, "nightly") for row in rows]
        assert any(row.due_at > row.at for row in rows)

    SPRING, AUTUMN = "2026-03-28T12:00", "2026-10-24T12:00"
    FIRST, SECOND = (f"01:30 occurs twice: the {which} time" for which in ("first", "second"))

    @pytest.mark.parametrize(
        ("rules", "dst", "after", "notes"),
        [
            (["30 1 * * *"], "cron", SPRING, ["moved: 01:30 does not exist on 29 March 2026", ""]),
            (["*/30 1 * * *"], "cron", SPRING, ["", ""]),
            (["0-30/15 1 * * *"], "cron", SPRING, ["moved: 01:00, 01:15 and 01:30 do not exist on 29 March"]),
            (["0-20/5 1 * * *"], "cron", SPRING, ["moved: 01:00, 01:05, 01:10 and others do not exist on"]),
            (
                ["30 1,2 * * *", "0 2 * * *"],
                "cron",
                SPRING,
                ["also covers times that the clocks skip: 01:30 does", ""],
            ),
            (["30 1 * * *"], "cron", AUTUMN, [FIRST, "", ""]),
            (["30 1 * * *"], "literal", AUTUMN, [FIRST, SECOND, ""]),
            (["@every 1h/30m"], "cron", "2026-10-25T00:00", [FIRST, SECOND, ""]),
            (["0 2 * * *"], "cron", AUTUMN, ["", ""]),
        ],
    )
    def test_notes(self, rules: list[str], dst: str, after: str, notes: list[str]) -> None:
        spec = Spec.parse({"cron": rules, "time_zone": LONDON, "dst": dst})
        rows = spec.upcoming(instant(after), len(notes), "x")
        assert [
            row.note[: len(note)] if note else row.note for row, note in zip(rows, notes, strict=True)
        ] == notes

    def test_notes_far_from_greenwich(self) -> None:
        rows = cron("30 0,1 * * *", "America/New_York").upcoming(instant("2026-11-01T00:00"), 3, "x")
        assert [row.note for row in rows] == ["", "01:30 occurs twice: the first time", ""]
