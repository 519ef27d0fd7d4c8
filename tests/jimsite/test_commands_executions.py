"""The commands about what runs: started, watched, cancelled and retried."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from activities.models import Activity, ActivityItem
from database import clock
from execution.models import Execution
from jimsite import following
from jimsite.progress import chosen
from operations.initiator import Initiator
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    enqueue,
    fresh,
    make_schedule,
    make_worker,
    queue,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.commands import refusal, said, told

pytestmark = pytest.mark.django_db
FAILING = step("work", 0, "fail")


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What happens while the command sleeps, one thing after the other."""

    def happens(*events: Callable[[], object]) -> None:
        left = list(events)
        sleep = lambda _: left.pop(0)()  # noqa: E731
        monkeypatch.setattr(following, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))

    return happens


def interrupted() -> None:
    raise KeyboardInterrupt


class TestRunSchedule:
    def test_it_is_started_and_says_which_execution_it_is(self) -> None:
        make_schedule(name="Nightly")
        [line] = said("runschedule", "nightly")
        execution = Execution.objects.get()
        assert line == f"Started “Nightly”: execution {execution.pk}."
        assert execution.activity.initiator_name == Initiator.command("runschedule").name
        words = refusal("runschedule", "nightly", code=3)
        assert f"Execution {execution.pk} is still running" in words
        assert "--overlap" in words
        assert told("runschedule", "nightly", "--overlap", "buffer_all")["execution"] is None
        assert (
            "waits for a running execution to end"
            in said("runschedule", "nightly", "--overlap", "buffer_all")[0]
        )

    def test_the_same_key_asks_for_the_same_run_of_a_time_that_is_read_on_its_clock(self) -> None:
        make_schedule(name="Nightly", spec={"cron": ["0 2 * * *"], "time_zone": "Asia/Tokyo"})
        asked = ("runschedule", "nightly", "--key", "monday", "--at", "2026-11-10T02:00")
        assert told(*asked) == told(*asked)
        assert Execution.objects.get().nominal_at == NOW - seconds(6 * 86_400 + 10 * 3_600)

    def test_waiting_shows_each_step_as_it_ends(self, meanwhile: Any) -> None:
        make_schedule(step("first"), step("alarm", 1, run_if="failure"), name="Nightly")
        meanwhile(run_until_idle)
        lines = said("runschedule", "nightly", "--wait")
        assert lines[0].startswith("Started “Nightly”: execution ")
        assert lines[1][10:].split(" (")[0] == "✓ completed  first"
        assert (
            lines[2][10:]
            == "↷ skipped  alarm: Not run: this step runs only after a failure, and no earlier step failed."
        )
        assert lines[3].startswith("“Nightly #")
        assert "completed after" in lines[3]

    def test_the_outcome_is_its_exit_code(self, meanwhile: Any) -> None:
        make_schedule(FAILING, name="Nightly")
        meanwhile(run_until_idle)
        assert "failed after" in refusal("runschedule", "nightly", "--wait", code=1)
        make_schedule(name="Daily")
        meanwhile(lambda: Execution.objects.latest("pk").cancel(initiator=SOMEBODY, now=NOW, reason="enough"))
        assert "cancelled after" in refusal("runschedule", "daily", "--wait", code=4)

    @pytest.mark.django_db(transaction=True)
    def test_one_that_waits_for_its_turn_is_followed_from_its_start(self, meanwhile: Any) -> None:
        start(name="Nightly")
        meanwhile(run_until_idle, run_until_idle)
        facts = told("runschedule", "nightly", "--overlap", "buffer_all", "--wait")
        assert (facts["state"], [each["status"] for each in facts["steps"]]) == ("completed", ["complete"])
        assert Execution.objects.count() == 2

    def test_one_that_is_never_started_is_told_so(self, meanwhile: Any) -> None:
        schedule = start(name="Nightly").schedule
        assert schedule is not None
        meanwhile(lambda: schedule.close(initiator=SOMEBODY, now=NOW))
        words = refusal("runschedule", "nightly", "--overlap", "buffer_all", "--wait", code=3)
        assert words == "The execution was not started: cancelled: closed."

    def test_patience_has_an_end(self) -> None:
        make_schedule(name="Nightly")
        words = refusal("runschedule", "nightly", "--wait", "--timeout", "1s", code=3)
        assert words == f"Timed out: execution {Execution.objects.get().pk} is still running."


@pytest.mark.django_db(transaction=True)  # an interrupt closes the connection
class TestInterrupts:
    def test_where_nobody_can_be_asked_it_goes_on(self, meanwhile: Any) -> None:
        make_schedule(name="Nightly")
        meanwhile(interrupted)
        words = refusal("runschedule", "nightly", "--wait", code=130)
        execution = Execution.objects.get()
        assert execution.status == "in_progress"
        assert f"“cancel {execution.pk}” to cancel it" in words

    def test_a_second_interrupt_leaves_at_once(self, meanwhile: Any) -> None:
        make_schedule(name="Nightly")
        execution_held = lambda: claim(make_worker())  # noqa: E731 so that it cannot end at once
        meanwhile(execution_held, interrupted, interrupted)
        refusal("runschedule", "nightly", "--wait", "--cancel-on-interrupt", code=130)
        assert Execution.objects.get().is_cancelling


class TestExecutions:
    def test_the_newest_comes_first_and_filters(self) -> None:
        first, second = start(name="Alpha"), start(FAILING, name="Beta")
        run_until_idle()
        rows = told("executions")["executions"]
        assert [(row["id"], row["state"]) for row in rows] == [
            (second.pk, "failed"),
            (first.pk, "completed"),
        ]
        assert said("executions", "alpha")[1].split()[:4] == [str(first.pk), "✓", "completed", "Alpha"]
        wanted = {"--state in_progress": 0, "--state cancelling": 0, "--state late": 0}
        wanted |= {"--state completed": 1, "--within 1h": 2, "--limit 1": 1}
        found = {given: len(told("executions", *given.split())["executions"]) for given in wanted}
        assert found == wanted

    def test_one_with_its_steps_and_the_last_attempt_of_each(self) -> None:
        execution = start(step("first"), step("second", 7, "fail", max_retries=1), name="Nightly")
        run_until_idle()
        facts = told("execution", f"#{execution.pk}")
        assert [(each["name"], each["attempt"], each["status"]) for each in facts["steps"]] == [
            ("first", 1, "complete"),
            ("second", 2, "pending"),
        ]
        run_until_idle(now=NOW + seconds(600))
        lines = said("execution", str(execution.pk))
        assert lines[0] == f"Nightly #{execution.pk}  ✕ failed"
        assert [line.split()[2:4] for line in lines if line[2:].startswith(("completed", "failed "))] == [
            ["first", "1"],
            ["second", "2"],
        ]
        for text in ("7", "seven", "99999999999999999999", ""):
            assert refusal("execution", text).startswith(f"Execution “{text}” was not found")

    def test_where_there_is_little_room_what_runs_and_failed_stays(self) -> None:
        rows = [Activity(pk=pk, status="complete", finished_at=NOW) for pk in range(10)]
        rows[3].status, rows[7].status = "failed_with_error", "in_progress"
        assert [row.pk for row in chosen(rows, most=2)] == [3, 7]
        assert chosen(rows, most=10) == rows

    def test_it_says_how_long_is_left_if_it_takes_as_long_as_usual(self) -> None:
        before = start(name="Nightly")
        run_until_idle()
        Execution.objects.filter(pk=before.pk).update(started_at=NOW - seconds(60))
        told("runschedule", "nightly")
        newest = Execution.objects.latest("pk")
        assert said("execution", str(newest.pk))[-1] == "0 of 1 steps done after 0 ms, about 1 min left"


class TestCancel:
    def test_an_execution_with_the_number_of_its_tasks(self) -> None:
        execution = start(step("a"), step("b"), step("c", 1), name="Nightly")
        assert "would be cancelled, with 3 tasks." in said("cancel", str(execution.pk), "--dry-run")[0]
        assert fresh(execution).status == "in_progress"
        assert said("cancel", str(execution.pk), "--reason", "enough") == [
            f"“Nightly #{execution.pk}” is being cancelled, with 3 tasks."
        ]
        ended = fresh(execution)
        assert (ended.status, ended.cancel_reason) == ("cancelled", "enough")

    def test_all_that_runs_of_a_schedule_or_at_once_or_a_job_by_its_id(self) -> None:
        execution = start(name="Nightly")
        claim(make_worker())
        assert "is being terminated" in said("cancel", str(execution.pk), "--terminate")[0]
        assert fresh(execution).status == "cancelled"
        [task] = enqueue(step("alone"))
        assert told("cancel", str(task.key))["cancelled"][0]["is_cancelled"] is True
        assert "has already ended" in said("cancel", str(task.key))[0]
        cleaned = start(step("a"), step("tidy", 1, run_if="always"))
        assert (
            said("cancel", str(cleaned.pk))[0]
            .strip()
            .endswith("with 1 task; clean-up will still run: “tidy”.")
        )
        told("runschedule", "nightly")
        [facts] = told("cancel", "--schedule", "nightly")["cancelled"]
        assert (facts["tasks"], facts["is_cancelled"]) == (1, True)
        assert refusal("cancel", "--schedule", "nightly") == "“Nightly” has no running executions."

    def test_what_is_not_there(self) -> None:
        for arguments, words in (
            ([], "Give the ids of executions or jobs"),
            (["1", "--schedule", "x"], "Give the ids of executions or jobs"),
            (["--schedule", "x"], "Unknown schedule “x”"),
            (["1"], "Execution “1” was not found"),
            ([str(uuid.UUID(int=7))], "Job 00000000"),
        ):
            assert words in refusal("cancel", *arguments)


class TestRetry:
    def test_what_failed_of_an_execution_or_all_of_it(self, meanwhile: Any) -> None:
        before = start(step("good"), step("bad", 1, "fail"), name="Nightly", overlap="allow_all")
        run_until_idle()
        again = Execution.objects.get(pk=told("retry", str(before.pk))["execution"])
        assert (again.retry_of_id, queue(again)) == (before.pk, {"bad": "queued"})
        whole = Execution.objects.get(pk=told("retry", str(before.pk), "--whole")["execution"])
        assert queue(whole) == {"good": "queued", "bad": "waiting"}
        meanwhile(run_until_idle)
        refusal("retry", str(before.pk), "--wait", code=1)

    def test_a_job(self) -> None:
        [task] = enqueue(step("alone", 0, "fail"))
        run_until_idle()
        assert "again as attempt 2" in said("retry", str(task.key))[0]
        assert "--follow" in refusal("retry", str(task.key), "--wait")


def test_everything_in_the_queue_says_what_it_waits_for() -> None:
    assert said("queue") == ["The queue is empty."]
    assert said("queue", "--pool", "elsewhere") == ["No tasks match these filters."]
    start(step("first"), step("second", 1), name="Nightly")
    enqueue(step("alone", priority=5, pool="reports"))
    lines = said("queue")
    assert lines[0] == "default: 1 queued, default: 1 waiting, reports: 1 queued"
    assert [line.split()[:3] for line in lines[3:]] == [
        ["○", "queued", "alone"],
        ["○", "queued", "first"],
        ["◔", "waiting", "second"],
    ]
    assert "no running worker serves pool reports" in lines[3]
    assert [row["name"] for row in told("queue", "--pool", "reports")["tasks"]] == ["alone"]
    assert told("queue", "--status", "processing")["tasks"] == []
    assert said("queue", "--limit", "1")[-1] == "Showing 1 of 3 tasks; use --limit to see more."


class TestActivity:
    def test_all_there_is_to_know_about_an_attempt_or_all_of_its_output(self) -> None:
        execution = start(step("work", 0, "talk", kwargs={"lines": 30}))
        run_until_idle()
        [attempt] = attempts(execution)
        lines = [f"line {number}" for number in range(30)]
        assert said("activity", str(attempt.pk))[0] == "work  ✓ completed"
        assert said("activity", str(attempt.pk))[-2:] == lines[-2:]
        facts = told("activity", str(attempt.pk), "--items")
        assert facts["output"][-1]["text"] == "line 29"
        assert [item["name"] for item in facts["item_rows"]][:2] == ["object 0", "object 1"]
        assert said("activity", str(attempt.pk), "--follow") == lines
        root = str(execution.activity_id)
        assert said("activity", root, "--follow") == [f"work │ {line}" for line in lines]
        out = io.StringIO()
        call_command("activity", root, "--follow", "--json", stdout=out)
        *rows, end = map(json.loads, out.getvalue().splitlines())
        assert ([row["text"] for row in rows], end["ended"]["status"]) == (lines, "complete")

    def test_items_of_objects_say_more_than_others_and_counted_objects_are_told(self) -> None:
        [task] = enqueue(step("sync"))
        pk = str(task.activity_id)
        Activity.objects.filter(pk=pk).update(items_total=12_345)
        assert said("activity", pk, "--items")[-1] == (
            "The step counted 12,345 objects without recording an item for each."
        )
        made = {"activity_id": task.activity_id, "outcome": "ok", "created_at": NOW}
        ActivityItem.objects.create(name="plain", message="as ever", **made)
        assert said("activity", pk, "--items")[-2].split() == ["Outcome", "Item", "Message"]
        own: dict[str, Any] = {"change": "updated", "error_type": "bad_value", "external_id": "e-1"}
        own |= {"data": {"department": ["Sales", "IT"], "line": 17}}
        ActivityItem.objects.create(name="ada", **made, **own)
        *_, head, plain, ada = said("activity", pk, "--items")
        assert head.split() == ["Outcome", "Change", "Item", "External", "id", "Error", "Message", "Data"]
        assert plain.split() == ["✓", "ok", "plain", "as", "ever"]
        words = "updated ada e-1 bad_value department: Sales → IT; line: 17"
        assert " ".join(ada.split()) == f"✓ ok {words}"
        facts = told("activity", pk, "--items")["item_rows"]
        assert facts == [
            {"name": "plain", "outcome": "ok", "message": "as ever"},
            {"name": "ada", "outcome": "ok", "message": ""} | own,
        ]

    def test_a_retry_is_followed_to_its_end_whose_outcome_is_the_exit_code(self) -> None:
        [task] = enqueue(step("alone", 0, "fail", max_retries=1))
        worker = make_worker()
        break_down(worker, *claim(worker))
        later = NOW + seconds(600)
        break_down(worker, *claim(worker, now=later), now=later)
        first = Activity.objects.get(task_key=task.key, attempt=1)
        assert "it broke" in refusal("activity", str(first.pk), "--follow", code=1)
        assert any("Failed permanently" in line for line in said("activity", str(task.key)))
        assert [each["attempt"] for each in told("activity", str(task.key))["attempts"]] == [1, 2]
        cancelled = start()
        cancelled.cancel(initiator=SOMEBODY, now=NOW)
        refusal("activity", str(cancelled.activity_id), "--follow", code=4)
        for text in ("999999", "x", str(uuid.UUID(int=7))):
            assert refusal("activity", text).startswith(f"Activity “{text}” was not found")


def test_a_wrong_option_is_told_in_the_usual_way() -> None:
    with pytest.raises(CommandError, match="must be a whole number from 1 to 10,000, not '0'"):
        call_command("queue", "--limit", "0")
    with pytest.raises(CommandError, match="must be a duration such as 90s"):
        call_command("executions", "--within", "soon")
