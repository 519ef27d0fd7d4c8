"""The commands about schedules: what they print, what they tell programs, what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from activities.models import Activity
from database import clock
from operations.initiator import Initiator
from schedules.models import Backfill, Schedule
from tests.base import NOW, SOMEBODY, fresh, make_schedule, run_until_idle, seconds, start, step
from tests.commands import refusal, said, told

pytestmark = pytest.mark.django_db
DAILY = {"cron": ["0 2 * * *"], "time_zone": "Europe/London"}


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


class TestSchedules:
    def test_a_table_says_when_each_runs_next_and_programs_get_the_same_as_json(self) -> None:
        assert "importschedules FILE" in said("schedules")[0]
        schedule = make_schedule(name="Nightly", spec=DAILY, tags=["people"])
        assert said("schedules") == [
            "State     Schedule  Next run  At                When                               Tags",
            "✓ active  Nightly   in 23 h   Tue 02:00 London  At 02:00 every day, Europe/London  people",
        ]
        [row] = told("schedules")["schedules"]
        assert (row["id"], row["state"]) == (schedule.pk, "active")
        assert row["next_run_at"] == "2026-11-17T02:00:00Z"
        schedule.pause(initiator=SOMEBODY, now=NOW, note="red \x1b[31malert")
        assert "\x1b" not in "".join(said("schedules"))

    def test_filters(self) -> None:
        make_schedule(name="Alpha", tags=["x"])
        make_schedule(name="Beta", tags=["x", "y"])
        make_schedule(name="Halted").pause(initiator=SOMEBODY, now=NOW, note="bank holiday")
        make_schedule(name="Gone").close(initiator=SOMEBODY, now=NOW)
        Schedule.objects.filter(pk=make_schedule(name="Broken").pk).update(spec_error="cron: nonsense")
        wanted = {
            "": ["Alpha", "Beta", "Broken", "Halted"],
            "--state paused": ["Halted"],
            "--state active": ["Alpha", "Beta"],
            "--state broken": ["Broken"],
            "--state closed": ["Gone"],
            "--state all": ["Alpha", "Beta", "Broken", "Gone", "Halted"],
            "--state overdue": [],
            "--tag x": ["Alpha", "Beta"],
            "--tag x --tag y": ["Beta"],
            "ET": ["Beta"],
            "--outcome failed": [],
        }
        for given, names in wanted.items():
            rows = told("schedules", *given.split())["schedules"]
            assert [row["name"] for row in rows] == names == said("schedules", *given.split(), "--names"), (
                given
            )

    def test_more_than_the_limit_is_said_and_costs_no_more_queries(
        self, django_assert_num_queries: Any
    ) -> None:
        for _ in range(3):
            make_schedule(spec=DAILY)
        with django_assert_num_queries(1):
            said("schedules")
        assert (
            said("schedules", "--limit", "2")[-1] == "Showing the first 2 schedules; use --limit to see more."
        )
        assert told("schedules", "--limit", "2")["is_more"] is True


def test_one_is_described_with_its_state_runs_and_next_times() -> None:
    execution = start(step(), name="Nightly HR Sync", spec=DAILY)
    run_until_idle()
    lines = said("describe", "nightly hr sync")
    assert lines[0] == "Nightly HR Sync  ✓ active"
    assert any(line.startswith(f"{execution.pk} ") and "✓ completed" in line for line in lines)
    assert "Next runs (Europe/London)  From now" in lines
    Schedule.objects.get().pause(initiator=SOMEBODY, now=NOW, note="the bank moves")
    assert "Paused   by ada: the bank moves" in said("describe", "  nightly HR SYNC ")
    assert told("describe", str(execution.schedule_id))["counters"]["started"] == 1
    make_schedule(name="Payroll export")
    for wanted in ("nigtly", "Nightly HR Snyc"):
        words = f"Unknown schedule “{wanted}”; did you mean Nightly HR Sync?"
        assert refusal("describe", wanted) == words


def test_why_has_an_answer_for_any_time() -> None:
    make_schedule(name="Nightly", spec=DAILY)
    for time, sentence in (
        ("2026-11-17T02:00", "Will run."),
        ("2026-11-17T02:00:00Z", "Will run."),
        ("2026-11-17 03:00", "The schedule does not run at this time"),
        ("2:00", "The schedule did not exist yet"),
    ):
        assert sentence in said("why", "nightly", time)[0]
        assert sentence in told("why", "nightly", time)["sentence"]
    assert "is not a time; write it like 2026-12-01T09:00" in refusal("why", "nightly", "yesterday")


class TestPauseAndResume:
    def test_a_note_and_an_end(self) -> None:
        schedule = make_schedule(name="Nightly", spec=DAILY)
        assert said("pause", "nightly", "--note", "the bank moves", "--until", "2026-11-18T09:00") == [
            "“Nightly” is paused until 2026-11-18 09:00:00 Europe/London."
        ]
        paused = fresh(schedule)
        assert (paused.status, paused.pause_note) == ("paused", "the bank moves")
        assert Activity.objects.get(operation="pause").initiator_name == Initiator.command("pause").name
        assert said("resume", "nightly") == ["“Nightly” is resumed."]
        told("pause", "nightly", "--for", "90m")
        assert fresh(schedule).paused_until == NOW + seconds(5_400)

    def test_several_at_once_by_name_and_tag_or_all_together(self) -> None:
        make_schedule(name="Alpha", tags=["x"])
        make_schedule(name="Gamma")
        make_schedule(name="Other")
        paused = told("pause", "gamma", "--tag", "x")["paused"]
        assert [row["schedule"] for row in paused] == ["Gamma", "Alpha"]
        assert told("pause", "--all", "--note", "maintenance") == {"paused_together": 1, "left": 2}
        assert told("resume", "--all", "--discard") == {"resumed_together": 1, "left": 2}
        assert [each.is_paused for each in Schedule.objects.order_by("name")] == [True, True, False]

    def test_a_tag_leaves_a_schedules_own_pause_as_it_is(self) -> None:
        payroll, ledger = (make_schedule(name=name, tags=["finance"]) for name in ("Payroll", "Ledger"))
        told("pause", "payroll", "--note", "audit", "--until", "2026-12-01")
        own = fresh(payroll)
        assert said("pause", "--tag", "finance", "--for", "2h") == [
            "“Ledger” is paused until 2026-11-16 05:00:00 UTC.",
            "“Payroll” is already paused until Tue 2026-12-01 00:00:00 UTC (audit). Nothing was changed.",
        ]
        assert fresh(ledger).paused_until == NOW + seconds(7_200)
        way = "To resume it, use “resume Payroll”."
        left = f"“Payroll” stays paused: it was not paused with --tag finance. {way}"
        assert said("resume", "--tag", "finance") == ["“Ledger” is resumed.", left]
        assert refusal("resume", "--tag", "finance") == f"Nothing was resumed. {left}"
        assert (fresh(payroll).token, fresh(payroll).paused_until) == (own.token, own.paused_until)
        assert told("resume", "payroll")["resumed"] == ["Payroll"]
        assert "No schedule with the tag finance is paused." in refusal("resume", "--tag", "finance")

    def test_what_makes_no_sense_is_refused(self) -> None:
        make_schedule(name="Nightly", spec=DAILY)
        for given, words in (
            ("pause", "Give the name of at least one schedule"),
            ("resume", "Give the name of at least one schedule"),
            ("resume Nightly", "“Nightly” is not paused."),
            ("pause Nightly --until 2026-01-01", "The pause must end in the future."),
            ("pause --tag nope", "No open schedule has the tag nope."),
            ("pause --all --for 2d", "cannot be combined with --until or --for"),
        ):
            assert words in refusal(*given.split())


def test_the_next_time_is_left_out_and_taken_back() -> None:
    schedule = make_schedule(name="Nightly", spec=DAILY)
    assert said("skipnext", "nightly") == [
        "“Nightly” will skip its run at 2026-11-17 02:00:00 Europe/London."
    ]
    assert fresh(schedule).skips == {"2026-11-17T02:00:00Z": Initiator.command("skipnext").name}
    assert told("skipnext", "nightly", "--undo", "2026-11-17T02:00")["is_skipped"] is False
    assert fresh(schedule).skips == {}


def test_a_backfill_is_rehearsed_and_asked_for() -> None:
    make_schedule(name="Nightly", spec=DAILY)
    asked = ("backfill", "nightly", "--from", "2026-11-14", "--to", "2026-11-15", "--which", "all")
    assert said(*asked, "--dry-run") == [
        "Dry run: 2 runs of “Nightly” would start.",
        "  2026-11-14 02:00:00 Europe/London",
        "  2026-11-15 02:00:00 Europe/London",
    ]
    assert not Backfill.objects.exists()
    facts = told(*asked)
    backfill = Backfill.objects.get(pk=facts["backfill"])
    assert (backfill.which, backfill.overlap, backfill.total) == ("all", "buffer_all", 2)
    assert backfill.initiator_name == Initiator.command("backfill").name
    assert facts["first_times"][0] == "2026-11-14T02:00:00Z"
    for first, words in (
        ("2026-11-16", "end_at: The range ends before it starts"),
        ("tomorrow", "--from: 'tomorrow' is not a time"),
    ):
        assert words in refusal("backfill", "nightly", "--from", first, "--to", "2026-11-14")


@pytest.mark.parametrize(
    ("start", "which", "words"),
    [
        ("2026-11-15T03:00", "all", ["“Nightly” has no scheduled times in this range."]),
        (
            "2026-11-15",
            "failed",
            ["no runs of “Nightly” would start.", "Left out: 1 never executed."],
        ),
    ],
)
def test_a_rehearsal_may_find_nothing_to_do(start: str, which: str, words: list[str]) -> None:
    make_schedule(name="Nightly", spec=DAILY)
    asked = ("backfill", "nightly", "--from", start, "--to", "2026-11-15", "--which", which)
    assert said(*asked, "--dry-run") == [f"Dry run: {words[0]}", *words[1:]]
    assert told(*asked, "--dry-run")["chosen"] == 0
    assert refusal(*asked)
