"""A step that runs in the calling process, as soon as the next seat of its pool is free."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connections

import execution.loops.lease
from activities.models import Activity
from database import clock
from execution import direct
from execution.children.nursery import Nursery
from execution.loops.lease import uptime
from execution.models import Limit, Reservation, WorkerTask
from execution.models.adhoc import job_line
from execution.models.job import Job
from execution.models.reservation import LOST, ReservationQuerySet
from schedules.models import Secret
from tests.base import SOMEBODY, claim, enqueue, make_worker, seconds, step
from tests.invariants import violations
from tests.refusing import database_that_refuses
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: Any, wait: float = PATIENCE_SECONDS, **fields: Any) -> direct.DirectResult:
    return direct.run(step(*args, **fields), initiator=SOMEBODY, timeout_seconds=wait)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[direct.DirectResult]]]:
    """Another thread of the same process makes the request."""
    with ThreadPoolExecutor() as pool:

        def ask(*args: Any, **fields: Any) -> Future[direct.DirectResult]:
            def call() -> direct.DirectResult:
                try:
                    return run(*args, **fields)
                finally:
                    connections.close_all()

            return pool.submit(call)

        yield ask


@pytest.fixture
def many_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four a second, though the lease is long: the last one is always old enough for the next."""
    always = property(lambda keeper: uptime() - 10, lambda keeper, at: None)
    monkeypatch.setattr(direct.SeatKeeper, "_beaten", always, raising=False)


@pytest.fixture
def one_seat() -> None:
    Limit.objects.create(key="pool:default", size=1)


def is_live(*, taken: bool | None = None) -> bool:
    rows = Reservation.objects.live()
    return (rows if taken is None else rows.filter(taken_at__isnull=not taken)).exists()


class TestOutcome:
    def test_the_caller_hears_it_and_an_activity_records_it(self) -> None:
        answer = run("now", 0, "result", kwargs={"value": {"a": 1}})
        told = answer.outcome.status, answer.outcome.result, answer.has_failed
        assert told == ("complete", {"a": 1}, False)
        activity = Activity.objects.get()
        assert (activity.pk, activity.status, activity.result) == (answer.activity_id, "complete", {"a": 1})
        assert (activity.target_name, activity.initiator_name) == ("now", "ada")
        assert not WorkerTask.objects.exists()
        assert not is_live()
        assert violations() == []

    def test_a_failure_is_an_answer_and_is_repeated_only_by_somebody_as_a_job(self) -> None:
        answer = run("now", 0, "fail", max_retries=3)
        assert (answer.has_failed, answer.outcome.error) == (True, "RuntimeError: it broke")
        activity = Activity.objects.get()
        found = activity.status, activity.attempt, activity.permanently_failed
        assert found == ("failed_with_error", 1, True)
        assert not is_live()
        assert activity.task_key is not None
        job = Job.find(activity.task_key)
        assert job is not None
        assert job.retry(initiator=SOMEBODY, now=clock.now()).attempt == 2

    @pytest.mark.parametrize("isolation", ["thread", "process"])
    def test_output_items_and_progress_are_recorded(self, isolation: str) -> None:
        answer = run("now", 0, "talk", isolation=isolation)
        activity = Activity.objects.get(pk=answer.activity_id)
        assert [line.text for line in activity.output.all()] == ["line 0", "line 1", "line 2"]
        assert activity.items.count() == activity.items_total == 3
        assert (activity.progress_done, activity.message) == (3, "talking")

    def test_secrets_are_filled_in_and_masked(self, settings: Any) -> None:
        Secret.objects.put("pin", "s3cret-s3cret", initiator=SOMEBODY, now=clock.now())
        answer = run("now", 0, "result", kwargs={"value": "{{ secrets.pin }}"})
        assert answer.outcome.status == "complete"
        assert "s3cret" not in str(answer.outcome.result)

    def test_a_step_that_puts_itself_off_waits_in_its_seat(self) -> None:
        began = time.monotonic()
        waiting = {"name": "pause", "step_type": "wait", "config": {"duration": "1s"}}
        answer = direct.run(waiting, initiator=SOMEBODY)
        assert answer.outcome.status == "complete"
        assert time.monotonic() - began >= 1

    def test_what_the_database_refuses_is_a_failure(self) -> None:
        with database_that_refuses("NEW.status = 'complete'", table="activities_activity"):
            run("now")
        activity = Activity.objects.get()
        assert activity.status == "failed_with_error"
        assert "refused the outcome" in activity.error
        assert not is_live()

    def test_a_step_that_cannot_be_is_refused_before_anything_happens(self) -> None:
        for wrong in ({"step_type": "nope"}, {"config": {"function": "x y"}}, {"pool": ""}):
            with pytest.raises(ValidationError) as caught:
                direct.run(step() | wrong, initiator=SOMEBODY)
            assert [path.partition(".")[0] for path in caught.value.message_dict] == list(wrong)
        assert not Reservation.objects.exists()
        assert not Activity.objects.exists()


class TestCode:
    """It belongs to whoever asks, and the process that runs it to everybody who looks at the pages."""

    @pytest.mark.parametrize("isolation", ["thread", "process"])
    def test_a_function_runs_in_a_child_that_holds_no_keys(
        self, isolation: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Secret.objects.put("pin", "s3cret-s3cret", initiator=SOMEBODY, now=clock.now())
        files = [Path(settings.JIM_DATA_DIR, name).read_text() for name in ("secret_key", "secrets_keys")]
        for name in direct.WITHHELD:
            monkeypatch.setenv(name, files[0])
        direct._nursery.cache_clear()
        answer = run("now", 0, "keys", isolation=isolation)
        found: Any = answer.outcome.result
        assert found["pid"] != os.getpid()
        assert found["secrets"] == found["databases"] == []
        held = json.dumps(found)
        assert not [key for key in (settings.SECRET_KEY, *files[1].split()) if key in held]
        again: Any = run("now", 0, "keys", isolation=isolation).outcome.result
        assert again["pid"] == found["pid"]

    def test_the_end_of_its_process_is_an_outcome(self) -> None:
        answer = run("now", 0, "die")
        assert answer.outcome.error == "the child process died (exit code 3)"
        assert run().outcome.status == "complete"


class TestWaiting:
    def test_without_a_seat_in_time_it_says_what_runs(self, one_seat: None) -> None:
        enqueue(step("the long one"), now=clock.now())
        claim(make_worker(clock.now()), now=clock.now())
        with pytest.raises(
            direct.TimedOut, match=r"pool “default” .* within 0.1 s; still running: “the long one”"
        ):
            run(wait=0.1)
        assert not is_live()
        assert not Activity.objects.filter(target_name="work").exists()

    def test_a_second_one_that_cannot_wait_is_told_to_come_back(
        self, one_seat: None, elsewhere: Any, tmp_path: Path, settings: Any
    ) -> None:
        settings.JIM_LEASE_SECONDS = 60
        first = elsewhere("first", 0, "wait_for_file", kwargs={"path": str(tmp_path / "go")})
        wait_until(lambda: is_live(taken=True))
        with pytest.raises(
            direct.Busy, match="another direct request has been running in pool “default”"
        ) as caught:
            run(wait=0)
        assert caught.value.retry_after == 5
        (tmp_path / "go").touch()
        first.result()

    def test_a_queued_task_that_goes_first_is_told_too(self, one_seat: None) -> None:
        now = clock.now()
        before = Reservation.objects.reserve(job_line(step(), now=now), holder="here:1", now=now)
        assert before is not None
        enqueue(step("queued"), now=now)
        before.release(now)
        with pytest.raises(direct.Busy, match="a queued task in pool “default” must start before"):
            run(wait=0.05)

    @pytest.mark.parametrize("taken", [False, True])
    def test_a_dead_one_is_waited_for_no_longer_than_its_lease(self, settings: Any, taken: bool) -> None:
        settings.JIM_POLL_SECONDS = 0.1
        line, now = job_line(step("dead"), now=clock.now()), clock.now()
        dead = Reservation.objects.reserve(line, holder="gone:1", now=now)
        assert dead is not None
        assert not taken or dead.take(line, initiator=SOMEBODY, now=now)
        until = now + seconds(1)
        Reservation.objects.update(lease_until=until)
        answer = run()
        assert answer.outcome.status == "complete"
        assert answer.outcome.executed_at >= until
        assert [a.error for a in Activity.objects.filter(target_name="dead")] == [LOST] * taken


class TestLost:
    def test_it_beats_as_long_as_it_runs(self, many_beats: None, elsewhere: Any, tmp_path: Path) -> None:
        going = elsewhere("now", 0, "wait_for_file", kwargs={"path": str(tmp_path / "go")})
        wait_until(lambda: is_live(taken=True))
        first = Reservation.objects.get().lease_until
        wait_until(lambda: Reservation.objects.get().lease_until > first + seconds(1))
        assert Reservation.objects.expire(first + seconds(1)) == 0
        (tmp_path / "go").touch()
        assert going.result().outcome.status == "complete"

    def test_who_lost_its_seat_stops_and_its_outcome_is_refused(
        self, many_beats: None, elsewhere: Any
    ) -> None:
        going = elsewhere("now", 0, "wait_for_ever")
        wait_until(Activity.objects.filter(message="waiting").exists)
        assert Reservation.objects.get().lapse(clock.now() + seconds(3600))
        with pytest.raises(direct.Lost, match="while the step was running"):
            going.result(PATIENCE_SECONDS)
        activity = Activity.objects.get()
        assert (activity.status, activity.error) == ("failed_with_error", LOST)

    def test_who_loses_its_seat_between_the_check_and_the_start_does_not_start(
        self, many_beats: None, elsewhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupted = threading.Event()
        interrupt, run_python = direct.SeatKeeper.interrupt, Nursery.run_python

        def note(keeper: direct.SeatKeeper, reason: Any) -> None:
            interrupt(keeper, reason)
            interrupted.set()

        def stall(nursery: Nursery, ctx: Any) -> object:
            assert Reservation.objects.get().lapse(clock.now() + seconds(3600))
            assert interrupted.wait(PATIENCE_SECONDS)
            return run_python(nursery, ctx)

        monkeypatch.setattr(direct.SeatKeeper, "interrupt", note)
        monkeypatch.setattr(Nursery, "run_python", stall)
        made = {"path": str(tmp_path), "then": str(tmp_path / "begun")}
        with pytest.raises(direct.Lost):
            elsewhere("now", 0, "wait_for_file", kwargs=made).result(PATIENCE_SECONDS)
        assert not (tmp_path / "begun").exists()

    def test_its_lease_counts_from_before_it_was_asked_for(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So a request that was stalled meanwhile starts only after its next beat."""
        late, beats = [0.0], []
        for module in (execution.loops.lease, direct):
            monkeypatch.setattr(module, "uptime", lambda: uptime() + late[0])
        reserve, beat = ReservationQuerySet.reserve, Reservation.beat

        def stalled(self: ReservationQuerySet, *arguments: Any, **named: Any) -> Reservation | None:
            reserved = reserve(self, *arguments, **named)
            late[0] = settings.JIM_LEASE_SECONDS * 11 / 12
            return reserved

        def noted(self: Reservation, now: Any) -> bool:
            beats.append(now)
            return beat(self, now)

        monkeypatch.setattr(ReservationQuerySet, "reserve", stalled)
        monkeypatch.setattr(Reservation, "beat", noted)
        assert run("now", 0, "result").outcome.status == "complete"
        assert beats

    def test_an_outcome_that_comes_too_late_changes_nothing(self, elsewhere: Any, tmp_path: Path) -> None:
        going = elsewhere("now", 0, "ignore_everything", kwargs={"path": str(tmp_path / "go")})
        wait_until(Activity.objects.filter(message="waiting").exists)
        Reservation.objects.get().release(clock.now(), why="released by ada")
        (tmp_path / "go").touch()
        with pytest.raises(direct.Lost):
            going.result(PATIENCE_SECONDS)
        activity = Activity.objects.get()
        assert (activity.status, activity.message) == ("cancelled", "released by ada")

    def test_a_place_that_was_given_up_is_not_waited_in(
        self, one_seat: None, many_beats: None, elsewhere: Any
    ) -> None:
        Limit.objects.update(size=0)
        going = elsewhere("now")
        wait_until(is_live)
        Reservation.objects.get().release(clock.now())
        with pytest.raises(direct.Lost, match="before the step could start"):
            going.result(PATIENCE_SECONDS)


class TestInterrupted:
    """Whoever leaves, leaves the seat free."""

    @pytest.fixture
    def strays(self) -> Iterator[list[int]]:
        """The signals that no request has heeded. They would end the whole run of the tests otherwise."""
        strays: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, frame: strays.append(number))
        yield strays
        signal.signal(signal.SIGINT, before)

    @pytest.mark.parametrize(
        ("function", "presses"),
        [("wait_for_ever", ["waiting"]), ("be_deaf", ["waiting", "still waiting"])],
    )
    def test_ctrl_c_stops_the_step_and_a_second_one_a_deaf_step(
        self, function: str, presses: list[str], strays: list[int], settings: Any
    ) -> None:
        settings.JIM_KILL_SECONDS = 3600
        own = signal.getsignal(signal.SIGINT)

        def press() -> None:
            for message in presses:
                wait_until(Activity.objects.filter(message=message).exists)
                os.kill(os.getpid(), signal.SIGINT)
            connections.close_all()

        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            run("now", 0, function)
        presser.join()
        activity = Activity.objects.get()
        assert (activity.status, activity.message) == ("cancelled", "cancelled")
        assert not is_live()
        assert signal.getsignal(signal.SIGINT) is own
        assert strays == []

    def test_ctrl_c_while_it_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Limit.objects.create(key="global", size=0)

        def sees_room(self: Reservation) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(Reservation, "sees_room", sees_room)
        with pytest.raises(KeyboardInterrupt):
            run()
        assert not is_live()
        assert not Activity.objects.exists()


class TestCommand:
    CONFIG = '{"function": "tests.work.result", "isolation": "thread"}'
    BROKEN = '{"function": "tests.work.fail", "isolation": "thread"}'

    def test_it_prints_the_outcome(self) -> None:
        out = StringIO()
        call_command("rundirect", "python", self.CONFIG, "--name", "by hand", stdout=out)
        activity = Activity.objects.get(target_name="by hand")
        assert out.getvalue().splitlines() == [f"complete (activity {activity.pk})", "42"]

    @pytest.mark.parametrize(
        ("config", "more", "code", "words"),
        [
            (BROKEN, [], 1, "failed with error: RuntimeError"),
            ('{"function": "tests.work.wait_for_ever"}', ["--timeout", "1"], 1, "timed out after 1 s"),
            ('{"function": "tests.work.noop", "nope": 1}', [], 2, "nope"),
            (CONFIG, ["--pool", "full", "--wait", "0"], 3, "no seat in pool “full” became free within 0 s"),
        ],
    )
    def test_its_exit_code_tells_how_it_ended(
        self, config: str, more: list[str], code: int, words: str
    ) -> None:
        Limit.objects.create(key="pool:full", size=0)
        with pytest.raises(CommandError, match=words) as caught:
            call_command("rundirect", "python", config, *more)
        assert caught.value.returncode == code
