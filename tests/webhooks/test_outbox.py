"""Who is to be told is written down in the transaction in which it happens, or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import connection, transaction

from activities.models import Activity
from activities.signals import Event, activities_finished, noticed
from execution.loops import recovery
from execution.loops.invoker import invoke
from execution.loops.scheduler import is_due, next_due, tick
from execution.models import Execution, Worker
from schedules.generator import generate
from schedules.models import Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    enqueue,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.webhooks.base import contents, make_endpoint, told
from tests.workflows.base import work
from tests.workflows.orders import backing_off, meets, orders, stuck
from webhooks.events import KINDS
from webhooks.models import Delivery, Endpoint
from workflows import AuthRequired, Transient
from workflows.models import Run

pytestmark = pytest.mark.django_db
MINUTELY = {"cron": ["* * * * *"]}


def complete() -> None:
    start()
    run_until_idle()


def fail() -> None:
    start(step("work", 0, "fail"))
    run_until_idle()


def skip() -> None:
    enqueue(step())
    worker = make_worker()
    end(worker, *claim(worker), status="skipped")


def cancel() -> None:
    start().cancel(initiator=SOMEBODY, now=NOW, reason="enough")


def be_late() -> None:
    start(deadline_seconds=10)
    tick(NOW + seconds(10))


def pause() -> None:
    make_schedule().pause(initiator=SOMEBODY, now=NOW, note="holidays", until=NOW + seconds(60))


def be_overdue() -> None:
    make_schedule(spec=MINUTELY)
    Schedule.objects.notice_overdue(now=NOW + seconds(600), limit=10)


def miss() -> None:
    make_schedule(spec=MINUTELY, catch_up_seconds=60)
    generate(NOW + seconds(3_600))


def keep_failing() -> None:
    schedule = make_schedule(step("work", 0, "fail"), spec=MINUTELY)
    for minute in range(1, 4):
        at = NOW + seconds(60 * minute)
        generate(at)
        invoke(at)
        run_until_idle(now=at)
        invoke(at)
    assert Schedule.objects.get(pk=schedule.pk).recent_outcomes == "fff"


def lose_a_worker() -> None:
    worker = make_worker()
    start()
    claim(worker)
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)


def get_stuck() -> None:
    """Publishing and running are told of as well: they are activities like all others."""
    with orders():
        stuck(AuthRequired("sign in to the carrier"))


def disable_another() -> None:
    make_endpoint("worker.lost").disable(initiator=SOMEBODY, now=NOW, note="no more")


COMPLETED = ["execution.started", "activity.completed", "execution.completed"]
FAILED = ["execution.started", "activity.failed", "execution.failed"]
CANCELLED = ["execution.started", "activity.cancelled", "execution.cancelled"]
HOW: list[tuple[Callable[[], object], list[str]]] = [
    (complete, COMPLETED),
    (fail, FAILED),
    (skip, ["activity.skipped"]),
    (cancel, CANCELLED),
    (be_late, ["execution.started", "execution.late"]),
    (pause, ["schedule.paused"]),
    (be_overdue, ["schedule.overdue"]),
    (miss, ["schedule.missed"]),
    (keep_failing, [*FAILED * 3, "schedule.failing"]),
    (get_stuck, ["activity.completed"] * 2 + ["workflow.stuck", "activity.failed"]),
    (lose_a_worker, ["execution.started", "worker.lost"]),
    (disable_another, ["endpoint.disabled"]),
]


def test_each_kind_is_in_the_table() -> None:
    assert {kind for _, kinds in HOW for kind in kinds} == set(KINDS)


@pytest.mark.parametrize(("happen", "kinds"), HOW, ids=[row[0].__name__ for row in HOW])
def test_each_endpoint_is_told_once_of_what_it_wants_to_hear_and_of_nothing_else(
    happen: Callable[[], object], kinds: list[str]
) -> None:
    everything = make_endpoint()
    wanting = {kind: make_endpoint(kind) for kind in set(kinds)}
    others, disabled = make_endpoint(*(set(KINDS) - set(kinds))), make_endpoint()
    Endpoint.objects.filter(pk=disabled.pk).update(status="disabled")
    happen()
    assert told(everything) == kinds
    for kind, endpoint in wanting.items():
        assert told(endpoint) == [each for each in kinds if each == kind]
    assert told(others) == told(disabled) == []


def test_an_endpoint_of_one_schedule_hears_of_no_other() -> None:
    for name in ("Mine", "Other"):
        start(name=name)
    mine, other = Schedule.objects.order_by("pk")
    own = make_endpoint(schedules=[mine.pk])
    everything = make_endpoint()
    for schedule in (mine, other):
        schedule.pause(initiator=SOMEBODY, now=NOW)
    enqueue(step())
    run_until_idle()
    lose_a_worker()
    assert sorted(told(own)) == ["activity.completed", "execution.completed", "schedule.paused"]
    assert [data["schedule"]["name"] for data in contents("schedule.paused")] == ["Mine", "Mine", "Other"]
    assert {"activity.completed", "worker.lost"} <= set(told(everything))


def test_what_the_content_of_an_attempt_says() -> None:
    execution = start(step("import", 0, "fail", max_retries=1), name="Nightly")
    make_endpoint("activity.failed", "execution.failed")
    worker = make_worker()
    break_down(worker, *claim(worker), error="no route to host")
    later = NOW + seconds(60)
    break_down(worker, *claim(worker, now=later), now=later)
    first, second = contents("activity.failed")
    assert first["activity"] | {"id": 0, "key": "", "worker": ""} == {
        "id": 0, "name": "import", "status": "failed_with_error", "key": "", "attempt": 1, "retry_of": None,
        "step_index": 0, "worker": "", "started_at": NOW.isoformat(), "finished_at": NOW.isoformat(),
        "seconds": 0, "message": "", "error": "no route to host", "items_total": 0, "items_failed": 0,
        "result": None, "result_is_left_out": False,
    }  # fmt: skip
    assert first["schedule"] == {"id": execution.schedule_id, "name": "Nightly"}
    assert first["execution"] == {"id": execution.pk, "source": "manual"}
    assert (first["will_retry"], first["permanently_failed"]) == (True, False)
    assert (second["will_retry"], second["permanently_failed"]) == (False, True)
    assert second["activity"]["retry_of"] == first["activity"]["id"]
    assert second["activity"]["key"] == first["activity"]["key"]
    assert second["initiator"] == {"type": "user", "name": "ada"}


def test_each_end_of_an_attempt_is_told_as_one_of_four() -> None:
    make_endpoint()
    ends = dict.fromkeys(("complete", "complete_with_warning"), "activity.completed")
    ends |= dict.fromkeys(("complete_with_error", "failed_with_error"), "activity.failed")
    ends |= {"skipped": "activity.skipped", "cancelled": "activity.cancelled"}
    worker = make_worker()
    for status in ends:
        enqueue(step())
        end(worker, *claim(worker), status=status)
    assert told() == list(ends.values())
    for kind in ends.values():
        assert {data["permanently_failed"] for data in contents(kind)} == {kind == "activity.failed"}


def test_results_and_texts_are_told_as_far_as_they_are_short() -> None:
    make_endpoint("activity.completed")
    enqueue(step(), step())
    worker = make_worker()
    short, long = claim(worker)
    end(worker, short, result={"rows": 7}, message="x" * 3_000)
    end(worker, long, result=["x" * 9_000])
    first, second = (data["activity"] for data in contents("activity.completed"))
    assert (first["result"], len(first["message"])) == ({"rows": 7}, 2_001)
    assert (second["result"], second["result_is_left_out"]) == (None, True)


def test_what_the_content_of_an_execution_says() -> None:
    make_endpoint("execution.started", "execution.failed", "execution.late")
    execution = start(step("work", 0, "fail"), name="Nightly", deadline_seconds=5)
    tick(NOW + seconds(5))
    run_until_idle(now=NOW + seconds(6))
    kinds = ("execution.started", "execution.late", "execution.failed")
    started, late, failed = (contents(kind)[0]["execution"] for kind in kinds)
    assert started["id"] == late["id"] == failed["id"] == execution.pk
    assert (started["status"], failed["status"]) == ("in_progress", "failed")
    assert (started["finished_at"], failed["finished_at"]) == (None, (NOW + seconds(6)).isoformat())
    assert late["deadline_at"] == (NOW + seconds(5)).isoformat()
    assert "work" in failed["error"]
    assert contents(kinds[2])[0]["schedule"] == {"id": execution.schedule_id, "name": "Nightly"}


def test_what_the_others_say() -> None:
    make_endpoint()
    for happen in (pause, be_overdue, miss, keep_failing, lose_a_worker, disable_another):
        happen()
    ada, soon = {"type": "user", "name": "ada"}, (NOW + seconds(60)).isoformat()
    paused, missed = contents("schedule.paused")[0], contents("schedule.missed")[0]
    del paused["schedule"], missed["schedule"]
    assert paused == {"note": "holidays", "until": "2026-11-16T03:01:00Z", "initiator": ada}
    assert missed == {"count": 58, "first": soon, "last": (NOW + seconds(58 * 60)).isoformat()}
    assert contents("schedule.overdue")[0]["next_run_at"] == soon
    assert contents("schedule.failing")[0]["failures"] == 3
    assert contents("worker.lost")[0]["worker"]["tasks"] >= 1
    assert contents("endpoint.disabled")[0]["note"] == "no more"
    body = json.loads(Delivery.objects.filter(kind="worker.lost").values_list("body", flat=True)[0])
    assert (body["type"], body["timestamp"]) == ("worker.lost", NOW.isoformat())


def test_somebody_is_told_once_for_each_time_that_they_have_to_act() -> None:
    make_endpoint("workflow.stuck")
    with orders():
        run = backing_off()
        assert told() == []
        Run.objects.filter(pk=run.pk).update(transient=5)
        meets.append(Transient("still closed"))
        late = NOW + seconds(1_000)
        work(now=late)
        work(now=late + seconds(1_000))
        assert told() == ["workflow.stuck"]
        assert "Failed 6 times" in contents("workflow.stuck")[0]["issue"]
        meets.append(AuthRequired("sign in to the carrier"))
        Run.objects.open().get().retry("", initiator=SOMEBODY, now=late)
        work(now=late)
        run = Run.objects.open().get()
    told_of_run = {"id": run.pk, "handler": "Ship", "status": "paused:approval", "phase": "mutating"}
    told_of_run |= {"error": "sign in to the carrier", "created_at": late.isoformat()}
    issue = "Sign in to the carrier. An operator must approve or reject the run."
    workflow = {"slug": "orders", "title": "Orders"}
    assert contents("workflow.stuck")[1:] == [{"workflow": workflow, "issue": issue, "run": told_of_run}]


def test_each_endpoint_has_its_own_idea_of_failing() -> None:
    soon, later, never = (make_endpoint("schedule.failing", failures=n, among=n) for n in (1, 2, 9))
    keep_failing()
    assert [told(each) for each in (soon, later, never)] == [["schedule.failing"], ["schedule.failing"], []]


def test_what_was_taken_back_is_told_to_nobody() -> None:
    make_endpoint()
    worker = make_worker()
    start()
    before = told()
    with transaction.atomic():
        end(worker, *claim(worker))
        assert len(told()) > len(before)
        transaction.set_rollback(True)
    assert told() == before


def test_a_crash_is_told_of_once() -> None:
    make_endpoint("activity.failed", "worker.lost")
    start(step(max_retries=3))
    worker = make_worker()
    claim(worker)
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)
    for _ in range(2):
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        recovery.recover(NOW)
    assert told() == ["worker.lost", "activity.failed"]
    (failed,) = contents("activity.failed")
    assert (failed["activity"]["error"], failed["will_retry"]) == ("worker lost", True)


def test_a_retry_is_told_of_before_what_it_keeps() -> None:
    execution = start(step("a"), step("b", 1))
    worker = make_worker()
    end(worker, *claim(worker))
    break_down(worker, *claim(worker))
    make_endpoint()
    fresh(execution).retry(initiator=SOMEBODY, now=NOW)
    assert told() == ["execution.started", "activity.completed"]


def test_a_late_execution_is_told_of_once_and_wakes_the_scheduler() -> None:
    make_endpoint("execution.late")
    start(deadline_seconds=10)
    assert next_due(NOW) == NOW + seconds(10)
    assert not is_due(NOW + seconds(9))
    assert is_due(NOW + seconds(10))
    for later in (10, 11, 100):
        tick(NOW + seconds(later))
    assert told() == ["execution.late"]
    assert not is_due(NOW + seconds(200))
    start(deadline_seconds=500)
    run_until_idle()
    tick(NOW + seconds(600))
    assert told() == ["execution.late"], "one that ended in time is never late"


def test_an_overdue_time_is_told_of_once_and_the_next_one_again() -> None:
    make_endpoint("schedule.overdue")
    make_schedule(spec=MINUTELY)
    for later in (100, 600, 700):
        Schedule.objects.notice_overdue(now=NOW + seconds(later), limit=10)
    assert len(told()) == 1
    generate(NOW + seconds(700))
    Schedule.objects.notice_overdue(now=NOW + seconds(1_000), limit=10)
    assert len(told()) == 2


def test_thousands_of_missed_times_are_told_of_once() -> None:
    make_endpoint("schedule.missed")
    schedule = make_schedule(spec={"every": ["1s"]}, catch_up_seconds=0)
    generate(NOW + seconds(3_000))
    counts = [data["count"] for data in contents("schedule.missed")]
    assert len(counts) <= 5
    assert sum(counts) == Schedule.objects.get(pk=schedule.pk).missed_count > 2_000


def test_times_that_were_missed_while_paused_or_found_too_late_by_the_invoker_are_told_of() -> None:
    make_endpoint("schedule.missed")
    schedule = make_schedule(spec=MINUTELY, catch_up_seconds=60)
    schedule.pause(initiator=SOMEBODY, now=NOW)
    later = NOW + seconds(600)
    generate(later)
    schedule.resume(initiator=SOMEBODY, now=later)
    assert [data["count"] for data in contents("schedule.missed")] == [8]
    Schedule.objects.all().delete()
    make_schedule(spec=MINUTELY, catch_up_seconds=30, now=later)
    generate(later + seconds(60))
    invoke(later + seconds(300))
    assert [data["count"] for data in contents("schedule.missed")] == [8, 1]


def test_times_that_the_invoker_finds_too_late_are_told_of() -> None:
    make_endpoint("schedule.missed")
    make_schedule(spec=MINUTELY, catch_up_seconds=30)
    generate(NOW + seconds(60))
    invoke(NOW + seconds(300))
    assert [data["count"] for data in contents("schedule.missed")] == [1]


def test_without_listeners_the_end_of_work_costs_one_query_more(
    django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
) -> None:
    ids = [task.activity_id for task in enqueue(*[step()] * 20)]
    with django_assert_num_queries(1):
        activities_finished.send(Activity, ids=ids)
    make_endpoint("worker.lost")
    with django_assert_num_queries(1):
        activities_finished.send(Activity, ids=ids)


@pytest.mark.parametrize("size", [1, 10])
def test_with_listeners_it_costs_a_few_whatever_their_number(
    size: int, django_assert_num_queries: Callable[[int], AbstractContextManager[object]]
) -> None:
    for _ in range(3):
        make_endpoint("activity.completed", "execution.completed")
    worker = make_worker()
    for _ in range(size):
        start()
    tasks = claim(worker)
    # Without anybody to tell: 10 or 9. Twice, a savepoint, two queries and an insert; PostgreSQL is notified.
    with django_assert_num_queries(10 + 2 * 5 if connection.vendor == "sqlite" else 9 + 2 * 6):
        end(worker, *tasks)
    assert len(told()) == 2 * 3 * size


@pytest.mark.parametrize(
    ("what", "damaged"),
    [
        ("webhooks.outbox.body_of", lambda *_: 1 / 0),
        ("webhooks.outbox.body_of", lambda *_: None),  # which the table refuses
        ("webhooks.outbox.ACTIVITY", ("no_such_column",)),
        (None, {"kinds": 7, "schedules": {"a": 1}}),
    ],
)
def test_nothing_that_is_wrong_with_webhooks_undoes_what_happened(
    what: str | None, damaged: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_endpoint("activity.completed")
    monkeypatch.setattr(what, damaged) if what else Endpoint.objects.update(**damaged)
    with caplog.at_level(logging.ERROR):
        complete()
    assert Execution.objects.get().status == "completed"
    assert caplog.records
    assert told() == []


def test_one_bad_event_stops_no_other() -> None:
    make_endpoint("worker.lost")
    bad: dict[str, Any] = {}
    bad["itself"] = bad
    good = {"worker": {"id": "2"}}
    noticed.send(Worker, events=[Event("worker.lost", NOW, data=data) for data in (bad, good)])
    assert contents("worker.lost") == [good]
