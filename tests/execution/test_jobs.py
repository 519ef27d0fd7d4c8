"""Work without a schedule: what may be asked for, and what comes of asking twice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction

from activities.models import Activity
from execution.models import Execution, Job, WorkerTask
from execution.models.adhoc import JobRequest, job_line
from execution.models.planned import AT_ONCE, Planned, add
from operations.initiator import Initiator
from schedules.models import Refused, Step, TaskTemplate
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    enqueue,
    everything,
    fresh,
    make_worker,
    run_until_idle,
    seconds,
    step,
)

pytestmark = pytest.mark.django_db


def ask(*requests: dict[str, Any], by: Initiator = SOMEBODY, now: datetime = NOW) -> list[uuid.UUID]:
    return WorkerTask.objects.enqueue(requests, initiator=by, now=now)


def found(key: uuid.UUID) -> Job:
    job = Job.find(key)
    assert job is not None
    return job


class TestIdempotencyKey:
    @pytest.mark.parametrize("outcome", ["queued", "complete", "failed_with_error"])
    def test_a_repeat_names_the_first_ones_job_and_another_request_is_refused(self, outcome: str) -> None:
        """Also when that has ended."""
        [first] = ask(step("job") | {"idempotency_key": "a"})
        if outcome != "queued":
            worker = make_worker()
            end(worker, *claim(worker), status=outcome)
        before = everything()
        assert ask(step("job") | {"idempotency_key": "a"}) == [first]
        with pytest.raises(Refused, match="another request"):
            ask(step("job", priority=1) | {"idempotency_key": "a"})
        assert everything() == before
        assert found(first).state == outcome

    def test_for_as_long_as_there_is_a_record_of_its_last_attempt(self) -> None:
        job = step("job") | {"idempotency_key": "a"}
        [first] = ask(job)
        worker = make_worker()
        break_down(worker, *claim(worker))
        later = NOW + timedelta(days=91)
        found(first).retry(initiator=SOMEBODY, now=later)
        Activity.objects.prune_single(before=NOW + timedelta(days=1), limit=10)
        assert ask(job, now=later) == [first]
        assert WorkerTask.objects.count() == 1
        end(worker, *claim(worker, now=later), now=later)
        Activity.objects.prune_single(before=later + timedelta(days=1), limit=10)
        assert Job.find(first) is None
        assert not Activity.objects.filter(task_key=first).exists()

    def test_the_step_is_told_the_key_of_its_job(self) -> None:
        asked = step("job", 0, "result", kwargs={"value": "{{ idempotency_key }}"})
        [key] = ask(asked | {"idempotency_key": "a"})
        run_until_idle()
        assert found(key).activity.result == str(key)

    def test_everybody_has_keys_of_their_own(self) -> None:
        [mine] = ask(step("job") | {"idempotency_key": "a"})
        [yours] = ask(step("job") | {"idempotency_key": "a"}, by=Initiator("user", "8", "bob"))
        assert mine != yours


class TestDeduplication:
    JOB = step("job") | {"dedup_key": "report"}

    def test_in_one_batch_the_first_is_queued(self) -> None:
        """And what has an idempotency key is one job."""
        assert [found(key).state for key in ask(self.JOB, self.JOB)] == ["queued", "skipped"]
        first, second = ask(*[step("job") | {"idempotency_key": "a"}] * 2)
        assert first == second

    @pytest.mark.parametrize("state", ["queued", "running", "waiting for its retry"])
    def test_a_job_is_skipped_whose_twin_has_not_ended(self, state: str) -> None:
        [twin] = ask(self.JOB | {"max_retries": 1})
        worker = make_worker()
        held = claim(worker) if state != "queued" else []
        if state == "waiting for its retry":
            break_down(worker, *held)
        [key] = ask(self.JOB)
        skipped = found(key)
        assert (skipped.task, skipped.state) == (None, "skipped")
        assert str(twin) in skipped.activity.message
        assert skipped.activity.finished_at == NOW

    def test_once_the_twin_has_ended_it_is_queued(self) -> None:
        ask(self.JOB)
        run_until_idle()
        [key] = ask(self.JOB)
        assert found(key).state == "queued"

    def test_a_retry_is_refused_while_a_twin_is_there(self) -> None:
        [first] = ask(self.JOB)
        worker = make_worker()
        break_down(worker, *claim(worker))
        ask(self.JOB)
        with pytest.raises(Refused, match="a job with the same deduplication key"):
            found(first).retry(initiator=SOMEBODY, now=NOW)


BAD_REQUESTS: list[tuple[str, list[Any]]] = [
    ("position", ["3", True, 10**12, 1.5]),
    ("available_at", ["tomorrow", datetime(2026, 12, 1), NOW + seconds(10**9)]),  # noqa: DTZ001
    ("idempotency_key", ["x" * 201, "a\x00b", 7]),
    ("dedup_key", ["a\nb", ["a"]]),
    ("priority", [1001, "high", False]),
    ("pool", [""]),
    ("resources", ["ldap", [7], ["a\nb"]]),
    ("retry_on", [{"a": 1}]),
    ("retry_factor", [0.5, "fast"]),
    ("retry_jitter", [101]),
    ("max_failed_percent", [101, "5"]),
    ("retry_cap_seconds", [-1]),
    ("max_retries", [-1, True]),
    ("timeout_seconds", [5.0]),
    # What only means something beside other steps.
    ("index", [3, True]),
    ("continue_on_failure", [0, True]),
    ("run_if", ["maybe", "always", "failure"]),
    ("step_type", ["story"]),
    ("config", [{}]),
    ("template", ["Missing", ["Report"]]),
    ("status", ["complete"]),
    ("attempt", [2]),
]
FINE = {"max_retries": 1, "priority": 0, "timeout_seconds": 5, "continue_on_failure": False}


def complaint(call: Callable[[], object]) -> list[str]:
    """The fields that are told to be wrong."""
    with pytest.raises(ValidationError) as caught:
        call()
    return list(caught.value.message_dict)


def test_a_bad_request_is_told_its_field_and_nothing_is_queued() -> None:
    """Also if one of equal value, but of the right type, came before it."""
    ask(step("good") | FINE)
    before, wrong = everything(), []
    for field, values in BAD_REQUESTS:
        for value in values:
            told = complaint(partial(ask, step("good"), step("bad") | {field: value}))
            if [path.partition(".")[0] for path in told] != [field]:
                wrong.append((field, value, told))
    assert wrong == []
    for request in (None, 7, "job", [], ["job"], [["name", "job"]]):
        with pytest.raises(ValidationError, match="expected fields and values, found"):
            ask(step("good"), request)  # type: ignore[arg-type]
    assert everything() == before


@pytest.mark.parametrize("field", ["config", "retry_on", "resources", "position", "dedup_key"])
def test_what_is_nested_for_ever_is_told_its_field(field: str) -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    bad = step("bad") | {field: deep}
    assert complaint(lambda: ask(bad | {"idempotency_key": "a"})) == [field]
    [path] = complaint(lambda: Execution.objects.submit("Group", [bad], initiator=SOMEBODY, now=NOW))
    # What only a single job may have is an unknown field of a step.
    assert path == (f"steps.0.{field}" if field in Step.FIELDS else "steps.0")


BAD_GROUPS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("name", ["  ", "x" * 201, "a\u202eb", 7], {}),
    ("mode", ["random", ["steps"]], {}),
    ("on_failure", ["panic", ["stop"], None], {}),
    ("timeout_seconds", [0, True, "1h"], {}),
    ("steps", [[], None, "a", {"name": "a"}, [step(str(n)) for n in range(501)]], {}),
    ("steps.0", [[None], ["a"], [{7: 8}]], {}),
    ("steps.0", [[["name", "a"]]], {"mode": "sequential"}),
    ("steps.0.index", [[step("a")]], {"mode": "sequential"}),
    ("steps.0.index", [[step("a"), 7]], {"mode": "parallel"}),
    ("steps.0.template", [[{"template": "Missing"}]], {}),
    ("steps.0.step_type", [[step("a", step_type="story")]], {}),
    ("steps.1.name", [[step("a"), step("a")]], {}),
]


def test_a_bad_group_is_told_its_field_and_nothing_is_queued() -> None:
    before, wrong = everything(), []
    for field, values, more in BAD_GROUPS:
        for value in values:
            asked = {"name": "Group", "steps": [step("a")]} | more | {field.partition(".")[0]: value}
            told = complaint(partial(Execution.objects.submit, initiator=SOMEBODY, now=NOW, **asked))
            if told != [field]:
                wrong.append((field, value, told))
    assert wrong == []
    assert everything() == before


class TestTemplates:
    @pytest.fixture(autouse=True)
    def template(self) -> TaskTemplate:
        defined = step("ignored", kwargs={}) | {"max_retries": 7, "pool": "reports", "priority": 3}
        fields = {name: value for name, value in defined.items() if name not in ("index", "name")}
        return TaskTemplate.objects.define(name="Report", initiator=SOMEBODY, now=NOW, **fields)

    def test_jobs_and_groups_take_from_it_what_they_do_not_say_themselves(self) -> None:
        [task] = enqueue({"template": "Report", "priority": 9})
        assert (task.name, task.pool, task.priority) == ("Report", "reports", 9)
        assert task.step["max_retries"] == 7
        steps = [{"template": "Report"}, {"template": "Report", "name": "Second"}]
        Execution.objects.submit("Group", steps, initiator=SOMEBODY, now=NOW, mode="sequential")
        assert run_until_idle() == ["Report", "Report 1", "Second"]

    def test_many_jobs_of_one_are_asked_for_at_once(
        self, django_assert_num_queries: Callable[[int], AbstractContextManager[object]]
    ) -> None:
        ask({"template": "Report"})
        # Read the template, add the jobs; SQLite adds their activities by a statement of its own.
        with django_assert_num_queries(2 if connection.vendor == "postgresql" else 3):
            ask(*[{"template": "Report"}] * 50)


def test_keys_are_in_the_order_of_time() -> None:
    """Up to a millisecond: neighbours in time are neighbours in the index."""
    with time_machine.travel(NOW, tick=False) as clock:
        keys = []
        for _ in range(10):
            keys += ask(step("job"))
            clock.shift(seconds(0.001))
    assert keys == sorted(keys)
    assert {(key.version, key.variant) for key in keys} == {(7, uuid.RFC_4122)}


class TestAllOrNothing:
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("others", [0, 3 * AT_ONCE])
    def test_what_the_queue_refuses_leaves_no_activity(self, others: int) -> None:
        lines = [job_line(step("job"), now=NOW) for _ in range(others)]
        lines.append(job_line(step("bad"), now=NOW) | {"pool": None})
        with pytest.raises(IntegrityError):
            add([Planned(line, SOMEBODY) for line in lines], now=NOW)
        assert not Activity.objects.exists()
        assert not WorkerTask.objects.exists()

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("place", [0, AT_ONCE, AT_ONCE + 7])
    def test_of_many_that_are_queued_while_they_are_checked(self, place: int) -> None:
        """Also in a transaction that goes on: what was refused is not in the way."""
        jobs = [step(f"job {number}") for number in range(AT_ONCE + 8)]
        bad = [*jobs[:place], step("bad") | {"config": {}}, *jobs[place + 1 :]]
        with transaction.atomic():
            with pytest.raises(ValidationError, match="function"):
                ask(*bad)
            keys = ask(*jobs)
        rows = Activity.objects.order_by("pk").values_list("target_name", "task_key")
        assert [*rows] == [(job["name"], key) for job, key in zip(jobs, keys, strict=True)]
        assert WorkerTask.objects.count() == len(jobs)

    @pytest.mark.django_db(transaction=True)
    def test_on_sqlite_nobody_waits_while_many_are_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if connection.vendor == "postgresql":
            pytest.skip("PostgreSQL writes some while others are checked, and keeps nobody waiting")
        locked: list[bool] = []
        check = JobRequest.of.__func__  # type: ignore[attr-defined]

        def noted(cls: type[JobRequest], *args: Any, **options: Any) -> JobRequest:
            locked.append(connection.in_atomic_block)
            return check(cls, *args, **options)  # type: ignore[no-any-return]

        monkeypatch.setattr(JobRequest, "of", classmethod(noted))
        ask(*[step("job")] * (AT_ONCE + 1))
        assert locked == [False] * (AT_ONCE + 1)

    def test_what_was_rolled_back_is_not_in_the_way_of_the_next(self) -> None:
        with suppress(ZeroDivisionError), transaction.atomic():
            ask(step("job"))
            1 / 0  # noqa: B018
        ask(step("next"))
        assert WorkerTask.objects.get().name == Activity.objects.get().target_name == "next"


class TestOrder:
    def test_reordered_they_go_first_in_this_order_without_what_runs(self) -> None:
        runs, _, second, _, last = enqueue(*(step(name) for name in "0abcd"))
        worker = make_worker()
        claim(worker, limit=1)
        keys = [last.key, runs.key, second.key]
        assert WorkerTask.objects.reorder(keys, initiator=SOMEBODY, now=NOW) == 2
        assert fresh(runs).position == 0
        assert [claim(worker, limit=1)[0].name for _ in range(4)] == ["d", "b", "a", "c"]

    def test_the_last_one_to_be_moved_to_the_front_is_first(self) -> None:
        _, b, c = enqueue(*(step(name) for name in "abc"))
        b.move_to_front(initiator=SOMEBODY, now=NOW)
        c.move_to_front(initiator=SOMEBODY, now=NOW + seconds(1))
        worker = make_worker()
        assert [claim(worker, limit=1)[0].name for _ in range(3)] == ["c", "b", "a"]

    def test_across_pools_or_priorities_there_is_no_order(self) -> None:
        a, b = enqueue(step("a"), step("b", pool="other"))
        with pytest.raises(Refused, match="same pool"):
            WorkerTask.objects.reorder([b.key, a.key], initiator=SOMEBODY, now=NOW)

    def test_a_bad_priority_and_who_gave_it_a_good_one(self) -> None:
        [task] = enqueue(step("a"))
        for priority in ("5", True, 1001, None, 2.5):
            with pytest.raises(ValidationError, match="whole number"):
                task.prioritise(priority, initiator=SOMEBODY, now=NOW)  # type: ignore[arg-type]
        task.prioritise(7, initiator=SOMEBODY, now=NOW)
        change = Activity.objects.get(operation="reorder")
        assert (change.target_name, change.initiator_name) == ("a", "ada")

    def test_a_retry_can_be_hastened(self) -> None:
        [task] = enqueue(step("a", max_retries=1))
        worker = make_worker()
        break_down(worker, *claim(worker))
        assert claim(worker, now=NOW + seconds(1)) == []
        assert task.hasten(initiator=SOMEBODY, now=NOW + seconds(1))
        [held] = claim(worker, now=NOW + seconds(1))
        assert held.attempt == 2
        assert task.hasten(initiator=SOMEBODY, now=NOW + seconds(1)) is False


def test_results_that_a_retry_of_an_execution_has_kept_are_there_for_later_steps() -> None:
    use = step("use", 2, "result", kwargs={"value": "{{ steps.make.result }}"})
    steps = [step("make", 0, "result"), step("bad", 1, "fail"), use]
    group = Execution.objects.submit("Group", steps, initiator=SOMEBODY, now=NOW)
    with pytest.raises(Refused, match="still running"):
        group.retry(initiator=SOMEBODY, now=NOW)
    run_until_idle()
    again = fresh(group).retry(initiator=SOMEBODY, now=NOW)
    worker = make_worker()
    end(worker, *claim(worker))
    run_until_idle()
    assert again is not None
    assert Activity.objects.get(parent=again.activity_id, target_name="use").result == 42
    with pytest.raises(Refused, match="run the whole execution again"):
        fresh(again).retry(initiator=SOMEBODY, now=NOW)
