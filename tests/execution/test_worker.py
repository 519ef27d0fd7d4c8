"""`manage.py runworker` and its loop, with real steps in threads, child processes and programs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities import clock
from activities.models import Activity
from execution import seats
from execution import worker as loop_of_a_worker
from execution.alarms import alarms
from execution.invoker import Overlapping, trigger
from execution.models import Execution, Limit, Worker, WorkerTask
from execution.recorder import CUT_OFF
from execution.worker import WorkerLoop
from tests.away import DatabaseAway, outage
from tests.base import SOMEBODY, attempts, fresh, make_schedule, queue, start, step, step_statuses
from tests.invariants import violations
from tests.loops import has_looked, running, running_worker, work_until_idle
from tests.processes import Command, worker
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.serial]


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
    def test_it_works_until_nothing_is_ready_and_ends(self) -> None:
        execution = begin(step("thread"), step("process", 1, isolation="process"), step("last", 2))
        with worker("--until-idle", "--threads", "2", "--processes", "1") as running:
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert fresh(execution).status == Execution.Status.COMPLETED
        assert Worker.objects.get().status == Worker.Status.GONE

    def test_with_nothing_to_do_it_ends_at_once(self) -> None:
        with worker("--until-idle") as running:
            assert running.process.wait(PATIENCE_SECONDS) == 0

    def test_it_does_not_wait_for_a_retry_that_is_not_due(self) -> None:
        execution = begin(step("a", 0, "fail", max_retries=1, retry_seconds=600))
        work_until_idle()
        assert queue(execution) == {"a": "queued"}

    def test_it_serves_only_the_pools_it_is_told(self) -> None:
        begin(step("ldap", pool="ldap"), step("hr", pool="hr"), step("other"))
        with worker("--until-idle", "--pools", "ldap, hr") as running:
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert list(WorkerTask.objects.values_list("name", flat=True)) == ["other"]
        assert Worker.objects.get().pools == ["ldap", "hr"]


class TestSeats:
    def test_no_more_steps_run_than_there_are_seats(self, settings: Any) -> None:
        settings.JIM_GRACE_SECONDS = 0
        execution = begin(step("one", 0, "wait_for_ever"), step("two", 0, "wait_for_ever"))
        with running_worker(threads=1):
            wait_until(lambda: is_waiting("one"))
            assert queue(execution) == {"one": "processing", "two": "queued"}
            cancel(execution)

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
        monkeypatch.setattr(loop_of_a_worker, "QUICK_SECONDS", 3600)
        quick = [step(f"quick {number}") for number in range(40)]
        late = [step(f"late {number}") for number in range(5)]
        execution = begin(*quick, step("long", 0, "wait_for_ever"), *late)
        with running_worker(threads=1):
            wait_until(lambda: is_waiting("long"))
            left = {"long": "processing"} | {waiting["name"]: "queued" for waiting in late}
            wait_until(lambda: queue(execution) == left and step_statuses(execution)["late 0"] == ["pending"])
            cancel(execution)

    def test_a_seat_that_is_free_again_is_filled(self, tmp_path: Path) -> None:
        file = tmp_path / "go"
        execution = begin(
            step("one", 0, "wait_for_file", kwargs={"path": str(file)}), step("two", 0), step("three", 0)
        )
        with running_worker(threads=2):
            wait_until(lambda: queue(execution) == {"one": "processing"})
            file.touch()
            wait_until(lambda: fresh(execution).status == Execution.Status.COMPLETED)


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

    def test_until_idle_does_not_wait_for_what_a_limit_holds_back(self) -> None:
        self.limit(0)
        execution = begin(step("held"))
        work_until_idle()
        assert queue(execution) == {"held": "queued"}

    def test_until_idle_works_through_what_a_limit_lets_through_one_by_one(self) -> None:
        self.limit(1)
        execution = begin(*(step(f"{number}", isolation="thread") for number in range(20)))
        work_until_idle()
        assert fresh(execution).status == Execution.Status.COMPLETED
        assert violations() == []


class TestWhatAStepSays:
    @pytest.mark.parametrize("isolation", ["thread", "process"])
    def test_it_is_in_the_database_while_the_step_still_runs(self, isolation: str, tmp_path: Path) -> None:
        file = tmp_path / "go"
        execution = begin(step("talk", 0, "chatter", kwargs={"path": str(file)}, isolation=isolation))
        with running_worker():
            wait_until(lambda: "written" in said(execution, "talk"))
            wait_until(lambda: attempts(execution, "talk")[0].progress_done == 1)
            (activity,) = attempts(execution, "talk")
            assert activity.status == Activity.Status.IN_PROGRESS
            assert (activity.progress_done, activity.progress_total) == (1, 2)
            assert activity.message == "halfway"
            wait_until(lambda: list(activity.items.values_list("name", "message")) == [("first", "done")])
            file.touch()
            wait_until(lambda: fresh(execution).status == Execution.Status.COMPLETED)
        activity = fresh(activity)
        assert activity.result == {"key": str(activity.task_key)}
        assert activity.items_total == 1

    def test_what_a_child_process_prints_is_its_output(self, tmp_path: Path) -> None:
        file = tmp_path / "go"
        file.touch()
        execution = begin(step("talk", 0, "chatter", kwargs={"path": str(file)}, isolation="process"))
        work_until_idle()
        (activity,) = attempts(execution, "talk")
        assert set(activity.output.values_list("stream", "text")) == {
            ("stdout", "printed"),
            ("log", "written"),
        }

    def test_lines_of_a_program_appear_while_it_runs(
        self, program: Callable[..., dict[str, Any]], tmp_path: Path
    ) -> None:
        execution = begin(
            program("echo one; echo two >&2; while [ ! -e go ]; do sleep 0.05; done; echo three")
        )
        with running_worker():
            wait_until(lambda: sorted(said(execution, "program")) == ["one", "two"])
            assert fresh(execution).status == Execution.Status.IN_PROGRESS
            (tmp_path / "go").touch()
            wait_until(lambda: fresh(execution).status == Execution.Status.COMPLETED)
        (activity,) = attempts(execution, "program")
        assert set(activity.output.values_list("stream", "text")) == {
            ("stdout", "one"),
            ("stderr", "two"),
            ("stdout", "three"),
        }
        assert activity.result == {"exit_code": 0}

    def test_too_much_of_it_is_cut_off_with_a_marker(
        self, program: Callable[..., dict[str, Any]], settings: Any
    ) -> None:
        settings.JIM_OUTPUT_LINES = 5
        execution = begin(program("for n in 1 2 3 4 5 6 7 8 9; do echo $n; done"))
        work_until_idle()
        assert said(execution, "program") == ["1", "2", "3", "4", "5", CUT_OFF]
        assert fresh(execution).status == Execution.Status.COMPLETED


class TestCancellation:
    """Children included."""

    def test_of_a_program(self, program: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
        execution = begin(program("sleep 1000 & echo $$ $! > pids; wait"))
        with running_worker():
            family = pids(tmp_path / "pids")
            self.cancel_and_wait(execution)
            wait_until(lambda: not any(map(is_alive, family)))

    def test_of_a_program_that_ignores_the_request(
        self, program: Callable[..., dict[str, Any]], tmp_path: Path
    ) -> None:
        execution = begin(program("trap '' TERM; echo $$ > pids; while :; do sleep 1000; done"))
        with running_worker():
            family = pids(tmp_path / "pids")
            self.cancel_and_wait(execution)
            wait_until(lambda: not any(map(is_alive, family)))

    def test_of_a_python_process(self, tmp_path: Path) -> None:
        file = tmp_path / "pids"
        execution = begin(step("p", 0, "have_children", kwargs={"path": str(file)}, isolation="process"))
        with running_worker():
            family = pids(file)
            wait_until(lambda: is_waiting("p"))
            self.cancel_and_wait(execution)
            wait_until(lambda: not any(map(is_alive, family)))

    def test_of_a_thread_that_listens(self) -> None:
        execution = begin(step("t", 0, "wait_for_ever"))
        with running_worker():
            wait_until(lambda: is_waiting("t"))
            self.cancel_and_wait(execution)

    def test_a_thread_that_does_not_listen_makes_the_worker_replace_itself(
        self, tmp_path: Path, env: dict[str, str]
    ) -> None:
        execution = begin(step("deaf", 0, "ignore_everything", kwargs={"path": str(tmp_path / "never")}))
        with worker(JIM_GRACE_SECONDS="0.5", **env) as running:
            wait_until(lambda: is_waiting("deaf"))
            cancel(execution)
            wait_until(lambda: fresh(execution).status == Execution.Status.CANCELLED)
            wait_until(lambda: Worker.objects.count() == 2)
            following = begin(step("next"))
            wait_until(lambda: fresh(following).status == Execution.Status.COMPLETED)
            assert "ignores its interruption" in running.said
            assert {row.pid for row in Worker.objects.all()} == {running.process.pid}
            assert running.terminate() == 0

    def test_the_schedule_may_run_again_as_soon_as_it_has_ended_and_not_before(
        self, tmp_path: Path, settings: Any
    ) -> None:
        settings.JIM_GRACE_SECONDS = 3600
        file = tmp_path / "go"
        deaf = step("deaf", 0, "ignore_everything", kwargs={"path": str(file)})
        schedule = make_schedule(deaf, now=clock.now())
        trigger(schedule, initiator=SOMEBODY, now=clock.now())
        first = Execution.objects.get()
        with running_worker():
            wait_until(lambda: is_waiting("deaf"))
            cancel(first)
            with pytest.raises(Overlapping):
                trigger(schedule, initiator=SOMEBODY, now=clock.now())
            file.touch()
            wait_until(lambda: fresh(first).status == Execution.Status.CANCELLED)
            trigger(schedule, initiator=SOMEBODY, now=clock.now())
            assert schedule.executions.count() == 2

    def cancel_and_wait(self, execution: Execution) -> None:
        cancel(execution)
        wait_until(lambda: fresh(execution).status == Execution.Status.CANCELLED)
        assert set(map(tuple, step_statuses(execution).values())) == {("cancelled",)}


class TestTerminate:
    def test_the_worker_ends_the_step_and_writes_nothing(
        self, program: Callable[..., dict[str, Any]], tmp_path: Path
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


class TestTimeout:
    def test_a_step_that_takes_too_long_is_ended_with_its_children(
        self, program: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its time is over when it has children, however long it takes to have them."""
        file, after = tmp_path / "pids", alarms.after
        monkeypatch.setattr(alarms, "after", lambda wait, ring: after(wait, lambda: pids(file) and ring()))
        execution = begin(program("sleep 1000 & echo $$ $! > pids; wait", timeout_seconds=1))
        work_until_idle()
        (activity,) = attempts(execution, "program")
        assert (activity.status, activity.error) == ("failed_with_error", "timed out after 1 s")
        wait_until(lambda: not any(map(is_alive, pids(file))))


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

    @pytest.mark.parametrize("isolation", ["thread", "process"])
    def test_after_the_grace_period_it_is_queued_again_and_counts_to_no_budget(self, isolation: str) -> None:
        execution = begin(step("work", 0, "wait_for_ever", isolation=isolation))
        with worker(JIM_GRACE_SECONDS="0.2", JIM_KILL_SECONDS="3600") as running:
            wait_until(lambda: is_waiting("work"))
            assert running.terminate() == 0
        stopped, following = attempts(execution)
        assert (stopped.status, stopped.error) == ("failed_with_error", "worker stopped")
        assert (following.status, following.retry_of) == ("pending", stopped)
        task = WorkerTask.objects.get()
        assert (task.status, task.attempt, task.failures, task.crashes) == ("queued", 2, 0, 0)
        assert not task.is_delayed

    def test_programs_are_ended_with_their_children(
        self, program: Callable[..., dict[str, Any]], tmp_path: Path, env: dict[str, str]
    ) -> None:
        execution = begin(program("sleep 1000 & echo $$ $! > pids; wait"))
        with worker(JIM_GRACE_SECONDS="0", JIM_KILL_SECONDS="3600", **env) as running:
            family = pids(tmp_path / "pids")
            assert running.terminate() == 0
            wait_until(lambda: not any(map(is_alive, family)))
        assert attempts(execution, "program")[0].error == "worker stopped"

    def test_a_second_signal_does_not_wait_for_the_steps(self) -> None:
        begin(step("work", 0, "wait_for_ever"))
        with worker(JIM_GRACE_SECONDS="3600") as running:
            wait_until(lambda: is_waiting("work"))
            running.process.send_signal(signal.SIGTERM)
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert WorkerTask.objects.get().status == "queued"

    def test_a_cancelled_step_is_not_queued_again(self, tmp_path: Path) -> None:
        execution = begin(step("deaf", 0, "ignore_everything", kwargs={"path": str(tmp_path / "never")}))
        with worker(JIM_GRACE_SECONDS="3600", JIM_KILL_SECONDS="0") as running:
            wait_until(lambda: is_waiting("deaf"))
            running.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "no more tasks are taken" in running.said)
            cancel(execution)
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert step_statuses(execution) == {"deaf": ["cancelled"]}


class TestDeath:
    def test_programs_die_with_a_killed_worker(
        self, program: Callable[..., dict[str, Any]], tmp_path: Path, env: dict[str, str]
    ) -> None:
        begin(program("sleep 1000 & echo $$ $! > pids; wait"))
        with worker(**env) as running:
            family = pids(tmp_path / "pids")
            running.process.kill()
            running.process.wait()
            wait_until(lambda: not any(map(is_alive, family)))

    def test_a_buried_worker_ends_its_steps_registers_anew_and_goes_on(self) -> None:
        execution = begin(step("work", 0, "wait_for_ever"))
        with running_worker() as loop:
            wait_until(lambda: is_waiting("work"))
            buried = Worker.objects.get()
            Worker.objects.filter(pk=buried.pk).bury(now=clock.now())
            WorkerTask.objects.recover(now=clock.now())
            loop._beat_once()
            wait_until(lambda: Worker.objects.alive().exclude(pk=buried.pk).exists())
            wait_until(lambda: is_waiting("work"))
            cancel(execution)
            wait_until(lambda: fresh(execution).status == Execution.Status.CANCELLED)
        lost, again = attempts(execution)
        assert (lost.status, lost.error, lost.worker_id) == ("failed_with_error", "worker lost", buried.pk)
        assert (again.status, again.worker_id) == ("cancelled", Worker.objects.get(status="gone").pk)


class TestTheDatabaseIsAway:
    def test_it_is_waited_for_at_the_start(self, tmp_path: Path) -> None:
        execution = begin(step("a"))
        with DatabaseAway(tmp_path) as away, Command("runworker", "--until-idle", **away.env) as running:
            wait_until(lambda: "waiting for the database" in running.said)
            away.come_back()
            assert running.process.wait(PATIENCE_SECONDS) == 0
        assert fresh(execution).status == Execution.Status.COMPLETED

    def test_what_ended_meanwhile_is_recorded_later(self, tmp_path: Path) -> None:
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
