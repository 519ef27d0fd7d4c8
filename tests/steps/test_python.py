"""Python steps in real child processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from execution.children import nursery as nursery_module
from execution.children.nursery import Nursery
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from tests.conftest import subprocess_env
from tests.fleet import state
from tests.steps.stage import Recorder, Running, function, group_of, is_alive, work
from tests.waiting import wait_until

pytestmark = pytest.mark.live


def run(nursery: Nursery, name: str, *args: object) -> Outcome:
    return perform(function(name, *args), Recorder(), nursery=nursery)


def test_arguments_arrive_in_another_process_and_results_return(nursery: Nursery) -> None:
    assert run(nursery, "pid").result not in (None, os.getpid())
    config = {"function": "tests.steps.functions.add", "args": [1, 2], "kwargs": {"c": 4}}
    assert perform(work("python", config), Recorder(), nursery=nursery).result == 7
    text = "ü" * 100_000
    assert run(nursery, "give_later", text).result == text, "an async function is awaited"


def test_the_context_knows_its_attempt(nursery: Nursery) -> None:
    config, nominal = {"function": "tests.steps.functions.know"}, "2026-03-01T02:00:00+00:00"
    given = work("python", config, schedule_name="Nightly", nominal_at=nominal)
    assert perform(given, Recorder(), nursery=nursery).result == [given.key, 1, nominal, "Nightly"]


def test_everything_that_is_said_is_heard_in_order(nursery: Nursery) -> None:
    sink = Recorder()
    assert perform(function("speak"), sink, nursery=nursery).status == "complete"
    odd = ["from C", "bad \ufffd byte", "nul \ufffd byte", "half \\ud800 a pair"]
    assert sink.lines("stdout") == ["printed", "from a program", *odd, "no end of line"]
    assert sink.lines("stderr")[0] == "complained"
    assert any("logged" in line for line in sink.lines("stderr"))
    assert sink.lines("log") == ["written", "in two lines"]
    assert sink.progressed == [(1, 2, "half way"), (2, None, "")]


def test_items_come_from_many_threads(nursery: Nursery) -> None:
    sink = Recorder()
    outcome = perform(function("say_from_threads", 8, 100), sink, nursery=nursery)
    assert (outcome.status, outcome.items_total, len(sink.items)) == ("complete", 800, 800)


@pytest.mark.parametrize(
    ("name", "args", "status", "words", "can_retry"),
    [
        ("tests.work.fail", ["boom"], "failed_with_error", "RuntimeError: boom", True),
        ("tests.work.skip", [], "skipped", "nothing to do today", False),
        ("tests.steps.broken.f", [], "failed_with_error", "cannot import 'tests.steps.broken.f' on", False),
    ],
)
def test_a_child_tells_how_it_ended_and_lives_on(
    nursery: Nursery, name: str, args: list[object], status: str, words: str, can_retry: bool
) -> None:
    before = run(nursery, "pid").result
    outcome = run(nursery, name, *args)
    assert (outcome.status, outcome.can_retry) == (status, can_retry)
    assert (outcome.message + outcome.error).startswith(words)
    assert run(nursery, "pid").result == before


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "the child process died (exit code 3)"),
        ("kill", "the child process died (signal 9)"),
        ("mute", "the child process died (signal 9)"),
    ],
)
def test_a_child_that_dies_fails_its_step_and_is_replaced(nursery: Nursery, how: str, words: str) -> None:
    before = run(nursery, "pid").result
    sink = Recorder()
    outcome = perform(function("die", how), sink, nursery=nursery)
    assert (outcome.status, outcome.error, outcome.can_retry) == ("failed_with_error", words, True)
    assert outcome.traceback == ""
    assert sink.lines("stdout") == ["last words"]
    assert run(nursery, "pid").result != before


def test_children_are_used_again_until_they_are_old(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery_module, "TASKS_PER_CHILD", 3)
    perform(function("die", "exit"), Recorder(), nursery=nursery)
    pids = [run(nursery, "pid").result for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_idle_children_retire(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery_module, "IDLE_SECONDS", 0.05)
    with Nursery() as short_lived:
        pid = run(short_lived, "pid").result
        assert isinstance(pid, int)
        wait_until(lambda: not is_alive(pid))
        assert run(short_lived, "pid").status == "complete"


@pytest.mark.usefixtures("patience")
def test_a_child_is_tidied_up_between_functions(nursery: Nursery) -> None:
    spoiled = run(nursery, "spoil").result
    sink = Recorder()
    result = perform(function("where"), sink, nursery=nursery).result
    assert result == {"pid": spoiled, "cwd": str(Path.cwd())}
    assert sink.lines("stdout") == ["still heard"]
    running = Running(nursery, function("sleep"))
    wait_until(lambda: running.sink.said)
    running.interrupt("cancel")
    assert (running.outcome.status, running.sink.lines("stdout")) == ("cancelled", ["cleaned up"])


LEFT_BEHIND = (
    *("a thread", "a thread that threading does not know"),
    *("a variable", "a changed variable", "an alarm"),
)


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_a_function_leaves_behind_does_not_reach_the_next_one(nursery: Nursery, what: str) -> None:
    before = run(nursery, "leave_behind", what).result
    sink = Recorder()
    result = perform(function("look_around"), sink, nursery=nursery).result
    assert isinstance(before, int)
    assert isinstance(result, dict)
    assert result["pid"] != before
    assert "hunter2" not in str((result, sink.said))
    wait_until(lambda: not is_alive(before))


def test_threads_that_have_ended_do_no_harm(nursery: Nursery) -> None:
    before = run(nursery, "work_in_threads").result
    assert [run(nursery, "work_in_threads").result for _ in range(20)] == [before] * 20


@pytest.fixture
def connected(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    """Its children use the database of the test."""
    for name, value in subprocess_env().items():
        monkeypatch.setenv(name, value)
    with Nursery() as nursery:
        yield nursery


def test_functions_use_the_orm_on_connections_of_their_own(connected: Nursery) -> None:
    first, second = run(connected, "use_database"), run(connected, "use_database")
    assert first.result == second.result
    assert isinstance(first.result, list)
    assert first.result[1:] == [42, True]
    # A child that leaves a transaction open is not used again.
    assert run(connected, "leave_transaction_open").result == first.result[0]
    assert run(connected, "pid").result != first.result[0]


@pytest.mark.usefixtures("patience")
def test_an_interrupt_raises_in_the_function_so_that_it_can_clean_up_and_replaces_the_child(
    nursery: Nursery,
) -> None:
    before = run(nursery, "pid").result
    assert isinstance(before, int)
    running = Running(nursery, function("sleep"))
    # What it says, it says before it sleeps.
    wait_until(lambda: running.sink.lines("log") and state(before) == "S")
    running.interrupt("lost")
    outcome = running.outcome
    assert (outcome.error, outcome.interrupted) == ("worker lost its lease", "lost")
    assert "time.sleep(seconds)" in outcome.traceback
    assert running.sink.lines("stdout") == ["cleaned up"]
    assert run(nursery, "pid").result != before


def test_a_function_that_asks_and_stops_is_interrupted(nursery: Nursery) -> None:
    running = Running(nursery, function("watch"))
    wait_until(lambda: running.sink.said)
    running.interrupt("cancel")
    assert running.outcome.status == "cancelled"


def test_a_function_that_ignores_its_interrupt_is_killed(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(nursery_module, "alarms", SimpleNamespace(after=lambda *alarm: alarms.append(alarm)))
    running = Running(nursery, function("ignore_everything"))
    wait_until(running.sink.pids)
    running.interrupt("cancel")
    wait_until(lambda: running.sink.lines("log")[1:] == ["ignored"])
    ((seconds, kill),) = alarms
    assert seconds == 0.2
    kill()
    assert running.outcome.status == "cancelled"
    assert running.sink.lines("log")[1:] == ["ignored"]
    assert not is_alive(running.sink.pids()["child"])


@pytest.mark.usefixtures("patience")
def test_an_interrupt_in_the_middle_of_a_message_leaves_no_half_of_it(nursery: Nursery) -> None:
    for _ in range(3):
        running = Running(nursery, function("talk_until_stopped"))
        wait_until(lambda running=running: len(running.sink.said) > 20)  # type: ignore[misc]
        running.interrupt("cancel")
        assert running.outcome.status == "cancelled"
        assert "functions.py" in running.outcome.traceback, "the child was killed instead"


def test_cancelling_ends_all_processes_of_the_step(nursery: Nursery) -> None:
    running = Running(nursery, function("have_offspring"))
    wait_until(lambda: len(running.sink.pids()) == 3)
    pids = running.sink.pids()
    running.interrupt("cancel")
    assert running.outcome.status == "cancelled"
    wait_until(lambda: not any(is_alive(pid) for pid in pids.values()))
    wait_until(lambda: not group_of(pids["self"]))


def test_a_signal_from_somebody_else_is_not_a_reason_to_stop(nursery: Nursery) -> None:
    assert run(nursery, "take_signal_of_a_stranger").result == "unmoved"
