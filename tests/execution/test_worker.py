"""`manage.py runworker` and its loop, with real steps in threads, child processes and programs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from activities.models import Activity
from database import clock
from database.statements import fetch
from execution.loops import runs, seats
from execution.loops.running import prepare_connections
from execution.loops.worker import WorkerLoop
from execution.models import Execution, Limit, Worker, WorkerTask
from tests.away import DatabaseAway, outage
from tests.base import SOMEBODY, attempts, fresh, queue, start, step, step_statuses
from tests.invariants import violations
from tests.loops import has_looked, running, running_worker, work_until_idle
from tests.processes import Command, worker
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.live]


@pytest.fixture(autouse=True)
def own_folders(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR = tmp_path / "data"
    settings.JIM_EXECUTABLE_FOLDERS = [tmp_path]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"JIM_EXECUTABLE_FOLDERS": str(tmp_path)}


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A step that runs this shell script."""

    def make(script: str, **fields: Any) -> dict[str, Any]:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        config = {"argv": [str(path)], "cwd": str(tmp_path)}
        return step("program") | {"step_type": "executable", "config": config} | fields

    return make


def begin(*steps: dict[str, Any], **fields: Any) -> Execution:
    return start(*steps, now=clock.now(), **fields)


def is_waiting(name: str) -> bool:
    """Whether the step itself runs, and has said so."""
    return Activity.objects.filter(target_name=name, status="in_progress", message="waiting").exists()


def said(execution: Execution, name: str) -> list[str]:
    (activity,) = attempts(execution, name)
    return list(activity.output.values_list("text", flat=True))


def cancel(execution: Execution) -> None:
    assert execution.cancel(initiator=SOMEBODY, now=clock.now())


def is_alive(pid: int) -> bool:
    """Zombies have ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids(path: Path) -> list[int]:
    wait_until(lambda: path.exists() and path.read_text().split())
    return [int(pid) for pid in path.read_text().split()]


class TestUntilIdle:
    def test_it_waits_for_the_database_serves_its_pools_and_ends_when_nothing_is_ready(
        self, tmp_path: Path
    ) -> None:
        steps = step("thread", pool="ldap"), step("process", 1, pool="hr", isolation="process")
        execution, other = begin(*steps, step("last", 2, pool="hr")), begin(step("other"))
        arguments = "--until-idle", "--threads", "2", "--processes", "1", "--pools", "ldap, hr"
        with DatabaseAway(tmp_path) as away, Command("runworker", *arguments, **away.env) as running:
            wait_until(lambda: "waiting for the database" in running.said)
            away.come_back()
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert fresh(execution).status == Execution.Status.COMPLETED
        assert queue(other) == {"other": "queued"}
        assert (Worker.objects.get().status, Worker.objects.get().pools) == ("gone", ["ldap", "hr"])

    def test_it_does_not_wait_for_a_retry_that_is_not_due(self) -> None:
        execution = begin(step("a", 0, "fail", max_retries=1, retry_seconds=600))
        work_until_idle()
        assert queue(execution) == {"a": "queued"}


class TestSeats:
    @pytest.mark.parametrize("meanwhile", ["noop", "wait_for_ever"])
    def test_what_is_queued_right_after_its_own_write_is_soon_seen(
        self, settings: Any, meanwhile: str
    ) -> None:
        """Idle or not; it would poll only once an hour."""
        settings.JIM_GRACE_SECONDS, settings.JIM_POLL_SECONDS = 0, 3600
        execution = begin(step("first", 0, meanwhile))
        with running_worker(threads=2):
            wait_until(lambda: not WorkerTask.objects.queued().exists())
            for number in range(200):
                WorkerTask.objects.enqueue([step(f"job {number}")], initiator=SOMEBODY, now=clock.now())
            wait_until(lambda: not WorkerTask.objects.filter(execution=None).exists())
            execution.cancel(initiator=SOMEBODY, now=clock.now())

    def test_what_was_claimed_ahead_of_a_seat_goes_back_when_the_seat_is_not_free_soon(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runs, "QUICK_SECONDS", 3600)
        quick = [step(f"quick {number}") for number in range(40)]
        late = [step(f"late {number}") for number in range(5)]
        execution = begin(*quick, step("long", 0, "wait_for_ever"), *late)
        with running_worker(threads=1):
            wait_until(lambda: is_waiting("long"))
            left = {"long": "processing"} | {waiting["name"]: "queued" for waiting in late}
            wait_until(lambda: queue(execution) == left and step_statuses(execution)["late 0"] == ["pending"])
            cancel(execution)


class TestLimits:
    """Nobody polls here: what is not told does not happen."""

    @pytest.fixture(autouse=True)
    def rare_looks(self, settings: Any) -> None:
        settings.JIM_POLL_SECONDS = 3600

    def limit(self, size: int) -> Limit:
        return Limit.objects.define("global", size, initiator=SOMEBODY, now=clock.now())

    def test_what_another_worker_ends_makes_room_at_once(self, tmp_path: Path) -> None:
        self.limit(1)
        file = tmp_path / "go"
        first = begin(step("one", 0, "wait_for_file", kwargs={"path": str(file)}, pool="a"))
        with (
            running(WorkerLoop(processes=1, threads=1, pools=["a"])),
            running(WorkerLoop(processes=1, threads=1, pools=["b"])),
        ):
            wait_until(lambda: queue(first) == {"one": "processing"})
            second = begin(step("two", pool="b"))
            assert queue(second) == {"two": "queued"}
            file.touch()
            wait_until(lambda: fresh(second).status == Execution.Status.COMPLETED)

    def test_a_larger_limit_and_none_at_all_start_what_waits(self) -> None:
        limit = self.limit(0)
        first, second = begin(step("one")), begin(step("two"))
        with running_worker() as loop:
            wait_until(lambda: has_looked(loop))
            assert queue(first) == {"one": "queued"}
            limit.edit(changes={"size": 1}, initiator=SOMEBODY, now=clock.now())
            wait_until(lambda: fresh(second).status == Execution.Status.COMPLETED)
            limit.edit(changes={"size": 0}, initiator=SOMEBODY, now=clock.now())
            third = begin(step("three"))
            limit.remove(initiator=SOMEBODY, now=clock.now())
            wait_until(lambda: fresh(third).status == Execution.Status.COMPLETED)

    def test_until_idle_works_through_what_a_limit_lets_through_one_by_one(self) -> None:
        self.limit(1)
        execution = begin(*(step(f"{number}", isolation="thread") for number in range(20)))
        work_until_idle()
        assert fresh(execution).status == Execution.Status.COMPLETED
        assert violations() == []


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_a_step_says_is_in_the_database_while_it_still_runs(isolation: str, tmp_path: Path) -> None:
    file = tmp_path / "go"
    execution = begin(step("talk", 0, "chatter", kwargs={"path": str(file)}, isolation=isolation))
    with running_worker():
        wait_until(lambda: "written" in said(execution, "talk"))
        wait_until(lambda: attempts(execution, "talk")[0].progress_done == 1)
        (activity,) = attempts(execution, "talk")
        lines = {("log", "written")} | ({("stdout", "printed")} if isolation == "process" else set())
        wait_until(lambda: set(activity.output.values_list("stream", "text")) == lines)
        assert activity.status == Activity.Status.IN_PROGRESS
        assert (activity.progress_done, activity.progress_total) == (1, 2)
        assert activity.message == "halfway"
        wait_until(lambda: list(activity.items.values_list("name", "message")) == [("first", "done")])
        file.touch()
        wait_until(lambda: fresh(execution).status == Execution.Status.COMPLETED)
    activity = fresh(activity)
    assert activity.result == {"key": str(activity.task_key)}
    assert activity.items_total == 1


def test_a_thread_that_does_not_listen_makes_the_worker_replace_itself(
    tmp_path: Path, env: dict[str, str]
) -> None:
    execution = begin(step("deaf", 0, "ignore_everything", kwargs={"path": str(tmp_path / "never")}))
    with worker(JIM_GRACE_SECONDS="0.5", **env) as running:
        wait_until(lambda: is_waiting("deaf"))
        cancel(execution)
        wait_until(lambda: fresh(execution).status == Execution.Status.CANCELLED)
        wait_until(lambda: Worker.objects.count() == 2)
        following = begin(step("next"))
        wait_until(lambda: fresh(following).status == Execution.Status.COMPLETED)
        assert "does not stop although it was asked to" in running.said
        assert {row.pid for row in Worker.objects.all()} == {running.process.pid}
        assert running.terminate() == 0


def test_the_worker_ends_a_step_that_was_terminated_and_writes_nothing(
    program: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    execution = begin(program("sleep 1000 & echo $$ $! > pids; wait"))
    with running_worker():
        family = pids(tmp_path / "pids")
        execution.terminate(initiator=SOMEBODY, now=clock.now())
        ended = attempts(execution, "program")[0]
        assert ended.status == Activity.Status.CANCELLED
        wait_until(lambda: not any(map(is_alive, family)))
    assert attempts(execution, "program") == [ended]
    assert fresh(ended).finished_at == ended.finished_at
    assert fresh(ended).message == "Terminated."


class TestDrain:
    """SIGTERM: no more claims; what runs may end within the grace period."""

    def test_a_running_step_ends_in_peace(self, tmp_path: Path) -> None:
        file = tmp_path / "go"
        execution = begin(step("work", 0, "wait_for_file", kwargs={"path": str(file)}), step("next", 1))
        with worker("--threads", "1", JIM_GRACE_SECONDS="3600") as running:
            wait_until(lambda: is_waiting("work"))
            running.process.send_signal(signal.SIGTERM)
            begin(step("too late"))
            wait_until(lambda: "no more tasks are taken" in running.said)
            file.touch()
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert step_statuses(execution) == {"work": ["complete"], "next": ["pending"]}
        assert WorkerTask.objects.get(name="too late").status == "queued"
        assert Worker.objects.get().status == Worker.Status.GONE

    def test_after_the_grace_period_it_is_queued_again_and_counts_to_no_budget(
        self, program: Callable[..., dict[str, Any]], tmp_path: Path, env: dict[str, str]
    ) -> None:
        """Programs are ended with their children."""
        steps = step("thread", 0, "wait_for_ever"), step("process", 0, "wait_for_ever", isolation="process")
        execution = begin(*steps, program("sleep 1000 & echo $$ $! > pids; wait"))
        with worker(JIM_GRACE_SECONDS="0.2", JIM_KILL_SECONDS="3600", **env) as running:
            family = pids(tmp_path / "pids")
            wait_until(lambda: is_waiting("thread") and is_waiting("process"))
            assert running.terminate() == 0
            wait_until(lambda: not any(map(is_alive, family)))
        for task in WorkerTask.objects.all():
            stopped, following = attempts(execution, task.name)
            assert (stopped.status, stopped.error) == ("failed_with_error", "worker stopped")
            assert (following.status, following.retry_of) == ("pending", stopped)
            assert (task.status, task.attempt, task.failures, task.crashes) == ("queued", 2, 0, 0)
            assert not task.is_delayed
        assert WorkerTask.objects.count() == 3

    def test_a_second_signal_does_not_wait_and_queues_no_cancelled_step_again(self, tmp_path: Path) -> None:
        deaf = begin(step("deaf", 0, "ignore_everything", kwargs={"path": str(tmp_path / "never")}))
        begin(step("work", 0, "wait_for_ever"))
        with worker(JIM_GRACE_SECONDS="3600", JIM_KILL_SECONDS="0") as running:
            wait_until(lambda: is_waiting("deaf") and is_waiting("work"))
            running.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "no more tasks are taken" in running.said)
            cancel(deaf)
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert fresh(deaf).status == Execution.Status.CANCELLED
        assert step_statuses(deaf) == {"deaf": ["cancelled"]}
        assert list(WorkerTask.objects.values_list("name", "status")) == [("work", "queued")]


def test_a_buried_worker_ends_its_steps_registers_anew_and_goes_on() -> None:
    execution = begin(step("work", 0, "wait_for_ever"))
    with running_worker() as loop:
        wait_until(lambda: is_waiting("work"))
        buried = Worker.objects.get()
        Worker.objects.filter(pk=buried.pk).bury(now=clock.now())
        WorkerTask.objects.recover(now=clock.now())
        loop.registration.beat_once()
        wait_until(lambda: Worker.objects.alive().exclude(pk=buried.pk).exists())
        wait_until(lambda: is_waiting("work"))
        cancel(execution)
        wait_until(lambda: fresh(execution).status == Execution.Status.CANCELLED)
    lost, again = attempts(execution)
    assert (lost.status, lost.error, lost.worker_id) == ("failed_with_error", "worker lost", buried.pk)
    assert (again.status, again.worker_id) == ("cancelled", Worker.objects.get(status="gone").pk)


def test_what_ended_while_the_database_was_away_is_recorded_later(tmp_path: Path) -> None:
    go, gone = tmp_path / "go", tmp_path / "gone"
    execution = begin(step("work", 0, "wait_for_file", kwargs={"path": str(go), "then": str(gone)}))
    with worker() as running:
        wait_until(lambda: is_waiting("work"))
        with outage():
            go.touch()
            wait_until(gone.exists)
        wait_until(lambda: fresh(execution).status == Execution.Status.COMPLETED)
        assert running.terminate() == 0
    (activity,) = attempts(execution)
    assert activity.result == "the file is there"


@pytest.mark.parametrize("culprit", ["perform", "close_old_connections"])
def test_a_seat_that_meets_the_unforeseen_reports_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    real, failures = getattr(seats, culprit), [MemoryError()]

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(seats, culprit, fail_once)
    execution = begin(step("first", 0, continue_on_failure=True), step("second", 1))
    work_until_idle(threads=1)
    first = "failed_with_error" if culprit == "perform" else "complete"
    assert step_statuses(execution) == {"first": [first], "second": ["complete"]}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no planner to talk to")
def test_a_loop_plans_by_indexes_and_compiles_nothing() -> None:
    def settings_of_a_loop() -> dict[str, str]:
        prepare_connections()
        try:
            query = "SELECT name, setting FROM pg_settings WHERE name LIKE 'enable%%' OR name = 'jit'"
            return dict(fetch(query, []))
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        settings = threads.submit(settings_of_a_loop).result()
    assert {settings[name] for name in ("enable_seqscan", "enable_bitmapscan", "jit")} == {"off"}
    assert settings["enable_indexscan"] == "on"
