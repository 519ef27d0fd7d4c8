"""What a form shows and what it saves: the same spec, whatever is in it."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.spec import Spec, SpecError
from schedules.spec.exclusions import calendar_items
from schedules.spec_text import exclusions_from_text, exclusions_to_text, from_text, to_text

CALENDARS = {"UK holidays": [{"holidays": "GB"}], 'a # "b" comment: c': []}

TYPED: list[tuple[str, str, dict[str, Any]]] = [
    # field, a line as a person types it, its canonical form
    ("patterns", "AT 12:30, 09:00  ON mon-fri", {"times": ["09:00", "12:30"], "weekdays": "mon-fri"}),
    ("patterns", "at 09:00 12:30 on sat, sun", {"times": ["09:00", "12:30"], "weekdays": "sat,sun"}),
    (
        "patterns",
        "every 25m from 09:00 until 17:30 on mon,wed   # often",
        {"every": "25m", "from": "09:00", "until": "17:30", "weekdays": "mon,wed"},
    ),
    ("patterns", "every 90 until 01:00", {"every": "1m30s", "from": "00:00", "until": "01:00"}),
    ("patterns", "at 09:00 on fri#2", {"times": ["09:00"], "weekdays": "fri#2"}),
    ("patterns", '{"times": ["09:00"]}', {"times": ["09:00"]}),
    ("calendars", "hour: 9-17, minute: 0,30", {"minute": "0,30", "hour": "9-17"}),
    ("calendars", "day of week: mon; Hour: 9", {"hour": "9", "day_of_week": "mon"}),
    ("calendars", "hour: 9, comment: early # bird", {"hour": "9", "comment": "early"}),
    ("calendars", 'hour: 9, comment: "early # bird"', {"hour": "9", "comment": "early # bird"}),
    ("calendars", "hour: 9 comment: hour: 5", {"hour": "9", "comment": "hour: 5"}),
    ("calendars", "hour: 0", {}),
    ("exclude", "calendar: UK holidays   # public holidays", {"calendar": "UK holidays"}),
    ("exclude", "date 2026-12-25, comment: Xmas", {"dates": "2026-12-25", "comment": "Xmas"}),
    (
        "exclude",
        "from 2026-12-01 22:00 until 2026-12-02 04:00",
        {"from": "2026-12-01T22:00:00", "until": "2026-12-02T04:00:00"},
    ),
    ("exclude", "holidays gb eng", {"holidays": "GB", "subdivision": "ENG"}),
    ("exclude", "holidays: DE", {"holidays": "DE"}),
]


@pytest.mark.parametrize(("field", "line", "rule"), TYPED, ids=[row[1] for row in TYPED])
def test_a_line_says_a_rule(field: str, line: str, rule: dict[str, Any]) -> None:
    assert parsed({field: f"\n  {line}\n# a comment\n"}).as_json().get(field) == [rule]


@pytest.mark.parametrize(
    ("field", "line", "words"),
    [
        (
            "patterns",
            "nine o'clock",
            "is not understood; write, for example: at 09:00, 12:30 on mon-fri, or every 25m",
        ),
        ("calendars", "9-17", "is not understood; write, for example: hour: 9-17"),
        ("calendars", "at hour: 9", "is not understood"),
        ("calendars", "hour: 9, hour: 10", "hour is given twice"),
        ("calendars", "{not json", "looks like JSON"),
        (
            "exclude",
            "christmas",
            "is not understood; write, for example: calendar UK holidays, dates 2026-12-24/2027",
        ),
        ("exclude", "calendar Nobody's", "unknown calendar"),
        ("exclude", "from 2026-12-01 22:00", "is not understood"),
    ],
)
def test_what_is_no_rule_is_told_at_its_field(field: str, line: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        parsed({field: line})
    assert refused.value.field == field


def test_a_shared_calendar_names_no_other_one() -> None:
    with pytest.raises(SpecError, match="is not understood; write, for example: dates") as refused:
        exclusions_from_text("calendar UK holidays")
    assert refused.value.field == "excluded"


def test_each_line_says_what_it_means() -> None:
    spec = {
        "patterns": [{"times": ["09:00"], "weekdays": "mon-fri"}],
        "calendars": [{"hour": "9", "day_of_month": "1"}],
        "exclude": [{"calendar": "UK holidays"}, {"holidays": "GB", "subdivision": "ENG"}],
        "time_zone": "Europe/London",
    }
    shown = to_text(spec, CALENDARS)
    assert shown["patterns"] == "at 09:00 on mon-fri   # At 09:00 on weekdays, Europe/London"
    assert shown["calendars"].endswith("   # At 09:00 on the 1st of the month, Europe/London")
    assert shown["exclude"].splitlines() == [
        "calendar UK holidays   # Public holidays (United Kingdom)",
        "holidays GB ENG        # public holidays (United Kingdom, England)",
    ]


@pytest.mark.parametrize(
    ("bound", "zone", "shown"),
    [
        ("2026-12-31", "Europe/London", "2026-12-31"),
        ("2026-12-31T23:59:59Z", "America/New_York", "2026-12-31 18:59:59-05:00"),
        ("2026-07-01T09:00", "Europe/London", "2026-07-01 09:00+01:00"),
    ],
)
def test_a_bound_is_shown_as_short_as_it_can_be(bound: str, zone: str, shown: str) -> None:
    data = {"every": ["1h"], "end_at": bound, "time_zone": zone}
    assert to_text(Spec.parse(data).as_json())["end_at"] == shown


@pytest.mark.parametrize(
    "spec",
    [
        [],
        "x",
        {"cron": "x"},
        {"patterns": [{"times": "09:00"}, 5, {"times": [1]}, {"every": 5}]},
        {"calendars": [{"hour": {"start": 1}}, None, {"huor": "5"}, {}]},
        {"exclude": [{"calendar": 5}, {"dates": None}, {}, "x", {"calendar": "a\u2028b"}]},
        {"start_at": 5, "end_at": "soon", "jitter": None, "time_zone": 5, "dst": []},
        {"at": [None], "every": [[]]},
    ],
)
def test_what_is_broken_is_shown_nevertheless(spec: Any) -> None:
    assert set(to_text(spec)) == set(to_text({}))


COMMENTS = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20)
TIMES = st.times().map(lambda time: f"{time:%H:%M}")
DATES = st.dates(min_value=date(2026, 1, 1), max_value=date(2090, 1, 1)).map(str)
MOMENTS = st.builds("{}T{}{}".format, DATES, TIMES, st.sampled_from(["Z", "+05:30", ":30Z"]))
WEEKDAYS = st.sampled_from(["*", "mon-fri", "sat,sun", "fri#2"])
DURATIONS = st.integers(1, 86_400).map(lambda seconds: f"{seconds}s")
STRUCTURED = {
    "second": st.sampled_from(["0", "30", "*/15"]),
    "minute": st.sampled_from(["0", "*/15", "5,35", "1-20/3"]),
    "hour": st.sampled_from(["0", "9-17", "8,20"]),
    "day_of_month": st.sampled_from(["1-7", "L", "15"]),
    "month": st.sampled_from(["jan-mar", "6"]),
    "year": st.sampled_from(["2026-2090/2", "2031"]),
    "day_of_week": WEEKDAYS,
}


def rules(*kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of(*kinds), max_size=4)


STRUCTURED_RULES = st.fixed_dictionaries({}, optional=STRUCTURED | {"comment": COMMENTS})
COMMENTED, ON_DAYS = {"comment": COMMENTS}, {"weekdays": WEEKDAYS}
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "cron": rules(st.sampled_from(["0 3 * * *", "*/5 9-17 * * mon-fri", "0 9 * * fri#2", "@daily"])),
        "every": rules(DURATIONS, st.fixed_dictionaries({"every": st.just("1h"), "offset": st.just("5m")})),
        "calendars": rules(STRUCTURED_RULES),
        "patterns": rules(
            st.fixed_dictionaries({"times": st.lists(TIMES, min_size=1, max_size=4)}, optional=ON_DAYS),
            st.fixed_dictionaries({"every": DURATIONS}, optional={"until": TIMES, **ON_DAYS}),
        ),
        "at": rules(MOMENTS),
        "exclude": rules(
            st.sampled_from([{"calendar": name} for name in CALENDARS]),
            st.fixed_dictionaries({"dates": DATES}, optional=COMMENTED),
            st.fixed_dictionaries({"from": MOMENTS, "until": MOMENTS}, optional=COMMENTED),
            st.fixed_dictionaries({"holidays": st.sampled_from(["GB", "DE"])}, optional=COMMENTED),
            STRUCTURED_RULES,
        ),
        "start_at": st.one_of(MOMENTS, DATES),
        "end_at": st.one_of(MOMENTS, DATES),
        "jitter": DURATIONS,
        "time_zone": st.sampled_from(["UTC", "Europe/London", "Australia/Lord_Howe", "Pacific/Apia"]),
        "dst": st.sampled_from(["cron", "literal"]),
    },
)


@given(SPECS)
@settings(max_examples=80)
def test_what_is_shown_and_saved_as_it_is_stays_the_same(data: dict[str, Any]) -> None:
    spec = valid(data)
    stored = spec.as_json()
    shown = to_text(stored, CALENDARS)
    assert parsed(shown).as_json() == stored
    assert parsed({name: text.replace("\n", "\r\n") for name, text in shown.items()}) == spec
    own: Any = [item.as_json() for item in spec.exclude if "calendar" not in item.as_json()]
    typed = exclusions_from_text(exclusions_to_text(own))
    assert [item.as_json() for item in calendar_items(typed)] == own


def valid(data: dict[str, Any]) -> Spec:
    """As much of it as is a spec: what is drawn may contradict itself."""
    try:
        return Spec.parse(data, CALENDARS)
    except SpecError as error:
        return valid({name: rule for name, rule in data.items() if name != error.field})


def parsed(typed: dict[str, str]) -> Spec:
    return Spec.parse(from_text(typed), CALENDARS)
