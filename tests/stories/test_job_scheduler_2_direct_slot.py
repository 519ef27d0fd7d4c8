"""Direct API next-slot reservation: [current RUNNING job] → [direct request] → [remaining queue]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity, Ending
from database import clock
from execution.models import Limit, Reservation, WorkerTask
from execution.models.adhoc import job_line
from execution.models.reservation import LOST
from tests.base import NOW, SOMEBODY, claim, end, enqueue, fresh, make_worker, row, seconds, step
from tests.invariants import Mark, read_ledger, violations
from tests.loops import running_worker
from tests.processes import Command
from tests.steps.stage import is_alive
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.mark.django_db
def test_the_diagram_in_its_order() -> None:
    Limit.objects.create(key="pool:default", size=1)
    enqueue(step("Job1"), step("Job2"), step("Job3"))
    dispatcher = make_worker()
    [job1] = claim(dispatcher)  # Job1 is RUNNING

    line = job_line(step("POST /story/generate"), now=NOW)
    reservation = Reservation.objects.reserve(line, holder="web:1", now=NOW)
    assert reservation is not None  # reserve_next_slot() → reservation_id

    assert claim(dispatcher) == []  # queue dispatch PAUSED, not cleared
    assert WorkerTask.objects.queued().count() == 2
    assert not reservation.take(line, initiator=SOMEBODY, now=NOW)  # Job1 still running: no preemption
    assert row(job1).status == "processing"

    end(dispatcher, job1)  # Job1 complete
    assert claim(dispatcher) == []
    assert reservation.take(line, initiator=SOMEBODY, now=NOW)  # slot_ready
    assert claim(dispatcher) == []  # execute_direct(request)
    assert WorkerTask.objects.count() == 2  # this is NOT a job: no job is created

    assert reservation.activity_id is not None
    result = Ending(reservation.activity_id, "complete", NOW + seconds(1), NOW, result="a story")
    assert reservation.finish(result, now=NOW + seconds(1))  # release_next_slot()

    assert [task.name for task in claim(dispatcher)] == ["Job2"]  # queue dispatch RESUMED
    assert Activity.objects.get(target_name="POST /story/generate").result == "a story"


@pytest.mark.django_db(transaction=True)
@pytest.mark.live
class TestWithProcesses:
    @pytest.fixture(autouse=True)
    def stage(self, tmp_path: Path, settings: Any) -> None:
        self.ledger, self.go = tmp_path / "ledger", tmp_path / "go"
        settings.JIM_DATA_DIR = tmp_path
        Limit.objects.create(key="pool:default", size=1)

    def test_the_order_is_running_then_direct_then_queue(self) -> None:
        with running_worker():
            [job1] = self.enqueue("Job1", function="note_until", path=str(self.go))
            wait_until(lambda: self.marks("start"))
            later = self.enqueue("Job2", "Job3")
            with self.client() as client:
                wait_until(Reservation.objects.live().exists)
                self.go.touch()
                assert client.process.wait(PATIENCE_SECONDS) == 0, client.said
                wait_until(lambda: len(self.marks("end")) == 4)
            wait_until(lambda: not WorkerTask.objects.exists())
        request = Activity.objects.get(target_name="direct request")
        assert [mark.event for mark in read_ledger(self.ledger)] == ["start", "end"] * 4
        keys = [mark.key for mark in self.marks("start")]
        assert keys == [job1.key, request.task_key, *(task.key for task in later)]
        assert violations(self.ledger) == []

    @pytest.mark.parametrize("when", [pytest.param("waiting", marks=pytest.mark.long), "running"])
    def test_a_client_that_is_killed_holds_up_the_queue_no_longer_than_its_lease(self, when: str) -> None:
        """No scheduler runs: the worker itself frees the seat."""
        with running_worker(threads=2):
            if when == "waiting":
                self.enqueue("Job1", function="note_until", path=str(self.go))
                wait_until(lambda: self.marks("start"))
            with self.client(function="note_until", path=str(self.go)) as client:
                wait_until(Reservation.objects.live().filter(taken_at__isnull=when == "waiting").exists)
                if when == "running":
                    wait_until(lambda: self.marks("start"))
                [job2] = self.enqueue("Job2")
                client.process.kill()
                client.process.wait()
                if when == "running":
                    wait_until(lambda: not is_alive(self.marks("start")[0].pid))
            if when == "waiting":
                self.go.touch()
                wait_until(lambda: self.marks("end"))
            assert fresh(job2).status == "queued"
            Reservation.objects.update(lease_until=clock.now())
            wait_until(lambda: not WorkerTask.objects.exists())
        assert self.marks("end")[-1].key == job2.key
        lost = Activity.objects.filter(target_name="direct request").values_list("error", flat=True)
        assert list(lost) == ([LOST] if when == "running" else [])
        assert fresh(Reservation.objects.get()).released_at is not None

    def test_a_client_that_is_asked_to_end_leaves_the_seat_free(self) -> None:
        with self.client(function="note_until", path=str(self.go)) as client:
            wait_until(lambda: self.marks("start"))
            assert client.terminate() == 130
            assert client.said.splitlines()[-1] == "CommandError: The step was interrupted."
        assert Activity.objects.get().status == "cancelled"
        assert not Reservation.objects.live().exists()

    def enqueue(self, *names: str, function: str = "note", **kwargs: str) -> list[WorkerTask]:
        kwargs = {"ledger": str(self.ledger)} | kwargs
        return enqueue(*(step(name, 0, function, kwargs=kwargs) for name in names), now=clock.now())

    def client(self, function: str = "note", **kwargs: str) -> Command:
        kwargs = {"ledger": str(self.ledger)} | kwargs
        config = {"function": f"tests.work.{function}", "kwargs": kwargs, "isolation": "thread"}
        return Command("rundirect", "python", json.dumps(config), "--wait", "3600", JIM_LEASE_SECONDS="3600")

    def marks(self, event: str) -> list[Mark]:
        return [mark for mark in read_ledger(self.ledger) if mark.event == event]
