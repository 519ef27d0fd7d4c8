"""What running steps say reaches the database while they run, and only while their worker still runs them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from activities.models import Activity, ActivityItem, OutputLine
from execution.loops import recovery
from execution.loops.recorder import CUT_OFF, StepOutput, write
from execution.models import Worker, WorkerTask
from tests.base import NOW, SOMEBODY, claim, end, everything, make_worker, start, step
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db


@pytest.fixture
def worker() -> Worker:
    return make_worker()


def running(worker: Worker, *, count: int = 1) -> list[StepOutput]:
    """The sinks of so many steps that run on this worker."""
    start(*(step(f"step {number}") for number in range(count)))
    return [StepOutput(task.activity_id, lambda: NOW) for task in claim(worker, limit=count)]


def lines(said: StepOutput) -> list[str]:
    return list(OutputLine.objects.filter(activity=said.activity_id).values_list("text", flat=True))


def test_what_is_said_bit_by_bit_is_kept_in_order_and_once(worker: Worker) -> None:
    """Of progress the last word counts."""
    (said,) = running(worker)
    said.output("stdout", ["one", "two"])
    said.progress(1, 10, "first")
    said.item("cn=ada", "ok", "")
    assert write([said], worker_id=worker.pk) == set()
    said.output("stderr", ["oops"])
    said.progress(3, 10, "second")
    said.progress(7, None, "third")
    said.item("x" * 300, "failed", "no such object")
    for _ in range(2):
        assert write([said], worker_id=worker.pk) == set()
    kept = OutputLine.objects.values_list("number", "stream", "text", "written_at")
    assert list(kept) == [(1, "stdout", "one", NOW), (2, "stdout", "two", NOW), (3, "stderr", "oops", NOW)]
    items = ActivityItem.objects.order_by("pk").values_list("name", "outcome", "message", "created_at")
    assert list(items) == [("cn=ada", "ok", "", NOW), ("x" * 255, "failed", "no such object", NOW)]
    activity = Activity.objects.get(pk=said.activity_id)
    assert (activity.progress_done, activity.progress_total, activity.message) == (7, None, "third")
    assert said.message == "third"


def test_many_steps_may_say_a_great_deal_at_once(worker: Worker) -> None:
    saids, texts = running(worker, count=10), [str(number) for number in range(2_000)]
    for said in saids:
        said.output("stdout", texts)
    assert write(saids, worker_id=worker.pk) == set()
    assert [lines(said) for said in saids] == [texts] * 10


def test_text_that_no_database_takes_is_cleaned(worker: Worker) -> None:
    (said,) = running(worker)
    said.output("stdout", ["a\0b", "\ud800"])
    said.item("n\0", "ok", "\udfff")
    said.progress(1, 2, "m\0")
    assert write([said], worker_id=worker.pk) == set()
    assert lines(said) == ["a\N{REPLACEMENT CHARACTER}b", "\N{REPLACEMENT CHARACTER}"]


class TestTheFence:
    """Zero rows mean that the attempt is somebody else's by now: the worker is told to stop the step."""

    @pytest.mark.parametrize("how", ["another worker", "ended", "recovered", "terminated", "released"])
    def test_nothing_is_added_to_what_is_no_longer_its_own(self, how: str) -> None:
        execution, worker = start(step()), make_worker()
        (task,) = claim(worker)
        said, speaker = StepOutput(task.activity_id, lambda: NOW), worker
        match how:
            case "another worker":
                speaker = make_worker()
            case "ended":
                end(worker, task)
            case "recovered":
                Worker.objects.filter(pk=worker.pk).bury(now=NOW)
                recovery.recover(NOW)
                claim(make_worker())
            case "terminated":
                execution.terminate(initiator=SOMEBODY, now=NOW)
            case "released":
                WorkerTask.objects.release([task], worker_id=worker.pk)
        before = everything()
        said.output("stdout", ["late"])
        assert write([said], worker_id=speaker.pk) == {said.activity_id}
        said.item("late", "ok", "")
        assert write([said], worker_id=speaker.pk) == {said.activity_id}
        said.progress(9, 9, "late")
        assert write([said], worker_id=speaker.pk) == {said.activity_id}
        assert everything() == before

    def test_the_others_are_written_all_the_same(self, worker: Worker) -> None:
        lost, kept = running(worker, count=2)
        Activity.objects.filter(pk=lost.activity_id).update(worker_id=make_worker().pk)
        for said in (lost, kept):
            said.output("stdout", ["hello"])
        assert write([lost, kept], worker_id=worker.pk) == {lost.activity_id}
        assert (lines(lost), lines(kept)) == ([], ["hello"])


def test_after_so_many_lines_or_bytes_one_marker_ends_the_output(worker: Worker, settings: Any) -> None:
    """Items and progress still count."""
    settings.JIM_OUTPUT_LINES = 3
    said, long = running(worker, count=2)
    for number in range(10):
        said.output("stdout", [f"line {number}"])
    said.item("later", "ok", "")
    said.progress(1, 1, "done")
    write([said], worker_id=worker.pk)
    assert lines(said) == ["line 0", "line 1", "line 2", CUT_OFF]
    marker = OutputLine.objects.get(text=CUT_OFF)
    assert (marker.stream, marker.number) == ("log", 4)
    assert ActivityItem.objects.count() == 1
    assert Activity.objects.get(pk=said.activity_id).message == "done"
    settings.JIM_OUTPUT_LINES, settings.JIM_OUTPUT_BYTES = 100, 20
    long.output("stdout", ["é" * 4, "é" * 4, "xy"])
    long.output("stdout", ["never"])
    write([long], worker_id=worker.pk)
    assert lines(long) == ["é" * 4, "é" * 4, CUT_OFF]


class TestTrouble:
    def test_while_the_database_is_away_it_is_kept_and_written_later(self, worker: Worker) -> None:
        (said,) = running(worker)
        said.output("stdout", ["one"])
        said.progress(1, 3, "old")
        trouble = database_that_refuses(
            "1 = 1", table="activities_outputline", event="INSERT", error="trouble"
        )
        with trouble, pytest.raises(OperationalError):
            write([said], worker_id=worker.pk)
        said.output("stdout", ["two"])
        said.progress(2, 3, "new")
        assert write([said], worker_id=worker.pk) == set()
        assert lines(said) == ["one", "two"]
        assert Activity.objects.get(pk=said.activity_id).message == "new"

    def test_what_the_database_refuses_is_dropped_and_costs_the_others_nothing(self, worker: Worker) -> None:
        bad, good = running(worker, count=2)
        bad.output("stdout", ["poison"])
        good.output("stdout", ["hello"])
        with database_that_refuses("NEW.text LIKE '%poison%'", table="activities_outputline", event="INSERT"):
            assert write([bad, good], worker_id=worker.pk) == set()
        assert (lines(bad), lines(good)) == ([], ["hello"])

    def test_progress_too_large_for_the_database_costs_nobody_anything(self, worker: Worker) -> None:
        bad, good = running(worker, count=2)
        bad.progress(10**30, -(10**30), "counting atoms")
        bad.output("stdout", ["hello"])
        good.output("stdout", ["hello"])
        assert write([bad, good], worker_id=worker.pk) == set()
        assert (lines(bad), lines(good)) == (["hello"], ["hello"])
        assert Activity.objects.get(pk=bad.activity_id).message == "counting atoms"
