"""Activity: pending → in progress → one of six endings, and never again anything else."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction

from activities.models import Activity, ActivityItem, Ending, OutputLine
from operations.initiator import Initiator
from schedules.models import Schedule
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, seconds

pytestmark = pytest.mark.django_db
ME, SOMEBODY_ELSE = uuid.uuid4(), uuid.uuid4()
ENDINGS = sorted({*Activity.Status.values} - {"pending", "in_progress"})


def make(status: str = "pending", **fields: Any) -> Activity:
    return Activity.objects.create(
        status=status,
        target_type="python",
        target_name="work",
        initiator_type="system",
        initiator_name="test",
        created_at=NOW,
        **fields,
    )


def running() -> Activity:
    activity = make()
    Activity.objects.begin([activity.pk], worker_id=ME, now=NOW)
    return activity


def finished(status: str) -> Activity:
    activity = running()
    Activity.objects.finish([Ending(activity.pk, status, NOW, NOW)])
    return activity


def test_one_begins_once_and_goes_back_if_it_never_started() -> None:
    activity = make()
    assert Activity.objects.begin([activity.pk], worker_id=ME, now=NOW + seconds(1)) == 1
    begun = fresh(activity)
    assert (begun.status, begun.worker_id, begun.executed_at) == ("in_progress", ME, NOW + seconds(1))
    assert begun.duration is None
    before = everything()
    assert Activity.objects.begin([activity.pk], worker_id=SOMEBODY_ELSE, now=NOW) == 0
    assert everything() == before
    assert Activity.objects.unbegin([activity.pk]) == 1
    back = fresh(activity)
    assert (back.status, back.worker_id, back.executed_at) == ("pending", None, None)


class TestFinish:
    @pytest.mark.parametrize("before", ["pending", "in_progress"])
    def test_an_open_one_takes_any_ending(self, before: str) -> None:
        endings = [
            Ending(make(before).pk, status, NOW + seconds(9), NOW, "m", "e", "t", {"r": [1, None]}, 5, 2)
            for status in ENDINGS
        ]
        assert Activity.objects.finish(endings) == {ending.activity_id for ending in endings}
        for ending in endings:
            activity = Activity.objects.get(pk=ending.activity_id)
            assert activity.is_final
            assert (activity.status, activity.finished_at) == (ending.status, NOW + seconds(9))
            assert (activity.executed_at, activity.duration) == (NOW, seconds(9))
            assert (activity.message, activity.error, activity.traceback) == ("m", "e", "t")
            assert (activity.result, activity.items_total, activity.items_failed) == ({"r": [1, None]}, 5, 2)

    def test_one_that_is_finished_never_changes(self) -> None:
        keys = [finished(status).pk for status in ENDINGS]
        before = everything()
        for status in ENDINGS:
            late = [Ending(key, status, NOW + seconds(99), None, "late") for key in keys]
            assert Activity.objects.finish(late) == set()
        assert Activity.objects.all().close(status="cancelled", message="late", now=NOW) == 0
        assert Activity.objects.begin(keys, worker_id=ME, now=NOW) == Activity.objects.unbegin(keys) == 0
        assert Activity.objects.tell_progress([(key, 1, 2, "late") for key in keys], worker_id=ME) == set()
        columns = ("number", "stream", "text", "written_at")
        rows = [(key, 1, "stdout", "late", NOW) for key in keys]
        assert OutputLine.objects.append(columns, rows, worker_id=ME) == set()
        items = [(key, "late", "ok", "", NOW) for key in keys]
        fields = ("name", "outcome", "message", "created_at")
        assert ActivityItem.objects.append(fields, items, worker_id=ME) == set()
        assert everything() == before

    def test_any_json_comes_back_as_it_was(self) -> None:
        plain = [None, 0, "", False, 1.5, "null", 2**70, "%s %d"]
        results: list[Any] = [*plain, [], {}, {"a": {"b": [1, "ü", None, True]}}]
        keys = [running().pk for _ in results]
        Activity.objects.finish(
            [Ending(key, "complete", NOW, result=result) for key, result in zip(keys, results, strict=True)]
        )
        told = dict(Activity.objects.values_list("pk", "result"))
        assert [(told[key], type(told[key])) for key in keys] == [(each, type(each)) for each in results]

    def test_text_is_cleaned_of_what_no_database_takes(self) -> None:
        activity = running()
        Activity.objects.finish(
            [Ending(activity.pk, "failed_with_error", NOW, None, "m\0", "e\ud800", "t\0", {"k\0": "v\0"})]
        )
        activity = fresh(activity)
        assert (activity.message, activity.error, activity.traceback) == ("m�", "e�", "t�")
        assert activity.result == {"k�": "v�"}


class TestHoldAttempt:
    @pytest.mark.parametrize("status", Activity.Status.values)
    def test_only_a_running_attempt_is_held(self, status: str) -> None:
        key = uuid.uuid4()
        make("failed_with_error", task_key=key, attempt=1)
        second = make(status, task_key=key, attempt=2)
        with transaction.atomic():
            held = [Activity.objects.hold_attempt(key, attempt) for attempt in (1, 2, 3)]
            assert held == [None, second.pk if status == "in_progress" else None, None]

    def test_another_task_is_another_attempt(self) -> None:
        make("in_progress", task_key=uuid.uuid4())
        with transaction.atomic():
            assert Activity.objects.hold_attempt(uuid.uuid4(), 1) is None


@pytest.mark.parametrize(
    ("status", "began"), [("pending", None), ("in_progress", NOW + seconds(1))], ids=["waiting", "running"]
)
@pytest.mark.parametrize("late", [-2, 2])
def test_all_open_ones_of_a_set_are_closed_no_earlier_than_they_came(
    status: str, began: Any, late: int
) -> None:
    """Whoever waited to close them read the clock before that."""
    activity, over = make(status, executed_at=began), finished("complete")
    now = NOW + seconds(late)
    assert Activity.objects.all().close(status="cancelled", message="no more", now=now) == 1
    closed = fresh(activity)
    assert (closed.status, closed.message) == ("cancelled", "no more")
    assert closed.finished_at == max(began or NOW, now)
    assert fresh(over).status == "complete"


def test_progress_is_told_only_by_the_worker_that_runs_it() -> None:
    mine, pending = running(), make()
    told = [(mine.pk, 3, 10, "third"), (pending.pk, 1, 2, "")]
    assert Activity.objects.tell_progress(told, worker_id=ME) == {mine.pk}
    assert (fresh(mine).progress_done, fresh(mine).progress_total) == (3, 10)
    before = everything()
    assert Activity.objects.tell_progress([(mine.pk, 9, 10, "x")], worker_id=SOMEBODY_ELSE) == set()
    assert everything() == before


class TestAttempts:
    def test_a_task_has_one_activity_per_attempt(self) -> None:
        key = uuid.uuid4()
        make(task_key=key, attempt=1)
        with pytest.raises(IntegrityError):
            make(task_key=key, attempt=1)

    def test_the_chain_is_all_attempts_in_order(self) -> None:
        key = uuid.uuid4()
        second, first = make(task_key=key, attempt=2), make(task_key=key, attempt=1)
        make(task_key=uuid.uuid4())
        assert first.chain() == second.chain() == [first, second]
        change = make(operation="edit")
        assert change.chain() == [change]

    def test_which_endings_are_failures(self) -> None:
        failures = {"complete_with_error", "failed_with_error", "cancelled"}
        assert {status for status in ENDINGS if fresh(finished(status)).failed} == failures


class TestRecord:
    """An administrative change is finished as soon as it is made."""

    def test_it_says_what_was_done_to_what_by_whom(self) -> None:
        schedule, _ = make_schedule(name="Nightly"), make()
        said = {"note": "a\0"}
        Activity.objects.record(
            "pause", schedule, initiator=SOMEBODY, now=NOW, message="audit\0", details=said
        )
        _, record = Activity.objects.administrative().order_by("pk")
        assert (record.operation, record.status) == ("pause", "complete")
        target = record.target_type, record.target_id, record.target_name
        assert target == ("schedule", str(schedule.pk), "Nightly")
        assert (record.initiator_type, record.initiator_id, record.initiator_name) == ("user", "7", "ada")
        assert (record.created_at, record.executed_at, record.finished_at) == (NOW, NOW, NOW)
        assert (record.message, record.details) == ("audit�", {"note": "a�"})


def test_an_initiator_is_kept_as_text_so_that_it_outlives_the_user_key_or_schedule() -> None:
    user, schedule = get_user_model().objects.create_user("ada"), make_schedule(name="Nightly")
    assert Initiator.user(user) == Initiator("user", str(user.pk), "ada")
    assert Initiator.schedule(schedule) == Initiator("schedule", str(schedule.pk), "Nightly")
    assert Initiator.system("recovery") == Initiator("system", "", "recovery")


def test_old_records_go_in_batches_and_only_administrative_ones() -> None:
    for _ in range(3):
        make("complete", operation="edit", finished_at=NOW - timedelta(days=2))
    kept = make("complete", operation="edit", finished_at=NOW)
    run = make("complete", finished_at=NOW - timedelta(days=2))
    before = NOW - timedelta(days=1)
    assert Activity.objects.prune_administrative(before=before, limit=2) == 2
    assert Activity.objects.prune_administrative(before=before, limit=2) == 1
    assert set(Activity.objects.all()) == {kept, run}
    assert not Schedule.objects.exists()
