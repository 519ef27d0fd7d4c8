"""Any run becomes an outcome. Seen in threads of the worker; children use the same code."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from execution.children.nursery import Nursery
from execution.steps import step_type
from execution.steps.context import Context, Work
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from execution.steps.step_type import StepType
from schedules import registry
from tests.steps.stage import FUNCTIONS, Recorder, Running, function, work
from tests.waiting import PATIENCE_SECONDS, wait_until


def in_thread(nursery: Nursery, name: str, *args: object) -> Outcome:
    return perform(function(name, *args, isolation="thread"), Recorder(), nursery=nursery)


def test_a_run_that_returns_is_complete_with_its_clean_result_and_times_of_the_workers_clock(
    nursery: Nursery,
) -> None:
    given, now = function("give_unclean", isolation="thread"), datetime(2030, 1, 1, tzinfo=UTC)
    outcome = perform(given, Recorder(), nursery=nursery, clock=lambda: now)
    assert (outcome.status, outcome.error, outcome.interrupted) == ("complete", "", None)
    assert outcome.result == {"a\ufffd": ["\ufffd", {"b": "ok"}]}
    assert (outcome.executed_at, outcome.finished_at) == (now, now)


def test_a_step_can_skip_itself_and_leave_like_a_program(nursery: Nursery) -> None:
    outcome = in_thread(nursery, "tests.work.skip")
    assert (outcome.status, outcome.message, outcome.can_retry) == ("skipped", "nothing to do today", False)
    codes = {None: "complete", 0: "complete", 3: "failed_with_error"}
    assert {code: in_thread(nursery, "leave", code).status for code in codes} == codes


@pytest.mark.parametrize(
    ("outcomes", "status", "failed", "words"),
    [
        ([], "complete", 0, ""),
        (["skipped"], "complete", 0, ""),
        (["ok", "warning"], "complete_with_warning", 0, "of 2 items, 1 had a warning"),
        (["failed", "warning"], "complete_with_warning", 1, "of 2 items, 1 failed and 1 had a warning"),
        (["failed", "skipped"], "complete_with_warning", 1, "of 2 items, 1 failed"),
        (["failed", "failed"], "failed_with_error", 2, "all 2 items failed"),
        (["failed"], "failed_with_error", 1, "the only item failed"),
    ],
)
def test_items_decide_the_status(
    nursery: Nursery, outcomes: list[str], status: str, failed: int, words: str
) -> None:
    outcome = in_thread(nursery, "report", outcomes)
    assert outcome.status == status
    assert (outcome.items_total, outcome.items_failed) == (len(outcomes), failed)
    assert outcome.message + outcome.error == words
    assert outcome.result == "reported"
    assert outcome.can_retry is (status == "failed_with_error")


@pytest.mark.parametrize(
    ("allowed", "outcomes", "status", "words"),
    [
        (100, ["failed", "ok"], "complete_with_warning", "of 2 items, 1 failed"),
        (50, ["failed", "ok"], "complete_with_warning", "of 2 items, 1 failed"),
        (
            49,
            ["failed", "ok"],
            "complete_with_error",
            "1 of 2 items failed, but the step allows at most 49 %",
        ),
        (
            0,
            ["failed", *["ok"] * 9],
            "complete_with_error",
            "1 of 10 items failed, but the step allows no failures",
        ),
        (0, ["warning", "ok"], "complete_with_warning", "of 2 items, 1 had a warning"),
        (0, ["failed", "failed"], "failed_with_error", "all 2 items failed"),
    ],
)
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_more_failed_items_than_the_step_allows_are_a_failure(
    nursery: Nursery, isolation: str, allowed: int, outcomes: list[str], status: str, words: str
) -> None:
    given = replace(function("report", outcomes, isolation=isolation), max_failed_percent=allowed)
    outcome = perform(given, Recorder(), nursery=nursery)
    assert (outcome.status, outcome.message + outcome.error) == (status, words)
    assert (outcome.result, outcome.can_retry) == ("reported", status != "complete_with_warning")


@pytest.mark.parametrize(
    ("counted", "outcomes", "status", "failed", "words"),
    [
        ({"total": 0}, [], "complete", 0, ""),
        ({"total": 5}, [], "complete", 0, ""),
        ({"total": 99_999}, ["failed"], "complete_with_warning", 1, "of 100000 items, 1 failed"),
        ({"total": 9, "warned": 2}, ["ok"], "complete_with_warning", 0, "of 10 items, 2 had a warning"),
        (
            {"total": 9, "failed": 4, "warned": 1},
            ["failed"],
            "complete_with_warning",
            5,
            "of 10 items, 5 failed and 1 had a warning",
        ),
        (
            {"total": 9, "failed": 5},
            ["failed"],
            "complete_with_error",
            6,
            "6 of 10 items failed, but the step allows at most 50 %",
        ),
        ({"total": 3, "failed": 3}, ["failed"], "failed_with_error", 4, "all 4 items failed"),
    ],
)
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_objects_that_are_only_counted_are_judged_like_items(
    nursery: Nursery,
    isolation: str,
    counted: dict[str, int],
    outcomes: list[str],
    status: str,
    failed: int,
    words: str,
) -> None:
    config = {"function": f"{FUNCTIONS}.count", "kwargs": counted | {"outcomes": outcomes}}
    given = work("python", config | {"isolation": isolation}, max_failed_percent=50)
    outcome = perform(given, sink := Recorder(), nursery=nursery)
    assert (outcome.status, outcome.message + outcome.error) == (status, words)
    assert (outcome.items_total, outcome.items_failed) == (counted["total"] + len(outcomes), failed)
    assert len(sink.items) == len(outcomes)


@pytest.mark.parametrize(
    ("total", "parts"), [(-1, {}), (1, {"failed": 2}), (1, {"failed": 1, "warned": 1}), (1, {"failed": -1})]
)
def test_counts_that_cannot_be_are_refused(nursery: Nursery, total: int, parts: dict[str, int]) -> None:
    config = {"function": f"{FUNCTIONS}.count", "kwargs": parts | {"outcomes": [], "total": total}}
    outcome = perform(work("python", config | {"isolation": "thread"}), Recorder(), nursery=nursery)
    assert (outcome.status, outcome.items_total) == ("failed_with_error", 0)
    assert f"ValueError: of {total} objects" in outcome.error


def test_several_threads_may_count_and_no_number_is_too_large_to_be_stored(nursery: Nursery) -> None:
    outcome = in_thread(nursery, "count_and_report_at_once", 8, 500)
    assert (outcome.items_total, outcome.items_failed) == (8 * 500 * 4, 8 * 500)
    outcome = in_thread(nursery, "count", ["ok"], 10**12)
    assert (outcome.status, outcome.items_total) == ("complete", 2**31 - 1)


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize(
    ("named", "result", "can_retry"),
    [({}, None, True), ({"result": {"rows": 3}, "can_retry": False}, {"rows": 3}, False)],
    ids=["plain", "with a result"],
)
def test_a_function_can_say_that_it_completed_with_errors(
    nursery: Nursery, isolation: str, named: dict[str, object], result: object, can_retry: bool
) -> None:
    config = {"function": f"{FUNCTIONS}.complete_badly", "args": ["a file is missing"], "kwargs": named}
    outcome = perform(work("python", config | {"isolation": isolation}), Recorder(), nursery=nursery)
    assert (outcome.status, outcome.error) == ("complete_with_error", "a file is missing")
    assert (outcome.result, outcome.can_retry, outcome.items_total) == (result, can_retry, 1)
    assert (outcome.message, outcome.traceback) == ("", "")


def test_an_exception_counts_more_than_items(nursery: Nursery) -> None:
    outcome = in_thread(nursery, "report_and_fail")
    assert (outcome.status, outcome.error) == ("failed_with_error", "ValueError: and then this")
    assert (outcome.items_total, outcome.items_failed) == (2, 1)
    assert "not 'good'" in in_thread(nursery, "report", ["good"]).error, "an outcome that there is not"


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("tests.work.fail", ["boom"], "RuntimeError: boom"),
        ("fail_uncleanly", [], "ValueError: NUL \ufffd and half \ufffd"),
        ("fail_unprintably", [], "UnprintableError: (its message cannot be shown)"),
        ("recurse", [], "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_whatever_is_raised_fails_the_attempt_and_its_traceback_shows_user_code_only(
    nursery: Nursery, name: str, args: list[object], error: str
) -> None:
    outcome = in_thread(nursery, name, *args)
    assert (outcome.status, outcome.error, outcome.can_retry) == ("failed_with_error", error, True)
    assert '.py", line' in outcome.traceback
    assert "execution/" not in outcome.traceback


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("give_unstorable", ["object"], "the result cannot be stored as JSON: Object of type object is not"),
        ("give_unstorable", ["nan"], "the result cannot be stored as JSON: Out of range float values"),
        ("give_unstorable", ["digits"], "the result cannot be stored as JSON: Exceeds the limit"),
        ("give_unstorable", ["huge"], "the result is 300,002 bytes of JSON, but at most 262,144"),
        ("give_nested", [100_000], "the result cannot be stored as JSON: nested too deeply"),
    ],
)
def test_a_result_that_cannot_be_kept_fails_and_is_not_repeated(
    nursery: Nursery, name: str, args: list[object], error: str
) -> None:
    outcome = in_thread(nursery, name, *args)
    assert outcome.error.startswith(error)
    assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)


@pytest.mark.parametrize(
    ("step_type", "config", "words"),
    [
        ("nonsense", {}, "unknown step type 'nonsense'; known step types: clear_system, delete_system, "),
        ("python", {"function": "no-path"}, "cannot run on worker {}: function: must be a dotted path"),
        ("python", [], "cannot run on worker {}: config: must be an object of settings"),
        (
            "python",
            "nowhere.at.all",
            "cannot import 'nowhere.at.all' on this worker: No module named 'nowher",
        ),
        ("python", "tests.steps.functions.missing", "has no attribute 'missing'"),
        ("python", "tests.steps.broken.function", "this module never loads"),
        ("python", "tests.steps.functions.NOT_A_FUNCTION", "it is int, not a function"),
    ],
)
def test_what_cannot_run_here_says_so_and_is_never_retried(
    nursery: Nursery, step_type: str, config: Any, words: str
) -> None:
    config = {"function": config, "isolation": "thread"} if isinstance(config, str) else config
    outcome = perform(work(step_type, config), Recorder(), nursery=nursery)
    assert words.format(socket.gethostname()) in outcome.error
    assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)


@pytest.mark.parametrize(
    ("name", "reason", "status", "words", "can_retry"),
    [
        ("wait", "cancel", "cancelled", "cancelled", False),
        ("wait", "timeout", "failed_with_error", "timed out after 3600 s", True),
        ("wait", "drain", "failed_with_error", "worker stopped", True),
        ("watch", "lost", "failed_with_error", "worker lost its lease", True),
    ],
)
def test_an_interrupted_step_ends_by_its_reason(
    nursery: Nursery, name: str, reason: str, status: str, words: str, can_retry: bool
) -> None:
    running = Running(nursery, function(name, isolation="thread", timeout=3600))
    wait_until(lambda: running.sink.said)
    running.interrupt(reason)
    running.interrupt("cancel" if reason != "cancel" else "drain")  # the first reason counts
    outcome = running.outcome
    assert (outcome.status, outcome.message + outcome.error) == (status, words)
    assert (outcome.interrupted, outcome.can_retry) == (reason, can_retry)
    assert ("ctx.wait(seconds)" in outcome.traceback) is (name == "wait")


def test_an_interrupt_before_the_start_keeps_the_step_from_running_and_a_timeout_is_one(
    nursery: Nursery,
) -> None:
    given, sink = function("wait", isolation="thread", timeout=0.5), Recorder()
    context = Context(given, sink)
    context.interrupt("cancel")
    assert perform(given, sink, nursery=nursery, context=context).status == "cancelled"
    assert sink.said == []
    outcome = perform(given, sink, nursery=nursery)
    assert (outcome.error, outcome.interrupted) == ("timed out after 0.5 s", "timeout")


def test_a_step_that_never_saw_the_interrupt_keeps_its_true_outcome(nursery: Nursery, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    running = Running(nursery, function("overlook", str(flag), isolation="thread"))
    wait_until(lambda: running.sink.said)
    running.interrupt("cancel")
    flag.touch()
    assert (running.outcome.status, running.outcome.result) == ("complete", "all done")
    assert running.outcome.interrupted is None


def test_what_a_step_says_is_cleaned(nursery: Nursery) -> None:
    sink = Recorder()
    perform(function("say_uncleanly", isolation="thread"), sink, nursery=nursery)
    assert sink.said == [("log", "half \ufffd a pair, \ufffd")]
    assert sink.items == [("na\ufffdme", "ok", "\ufffd")]
    assert sink.progressed == [(1, 1, "\ufffd")]


class Deaf(StepType):
    """Calls out, and is interrupted by what it registered."""

    name = "deaf"
    title = "Deaf"

    def run(self, ctx: Context) -> object:
        called = threading.Event()
        ctx.write("running")
        with ctx.on_interrupt(self.fail), ctx.on_interrupt(called.set):
            called.wait(PATIENCE_SECONDS)
        ctx.check()
        return None

    def fail(self) -> None:
        raise OSError("already closed")


@pytest.fixture
def deaf() -> Any:
    step_type.register(Deaf)
    yield step_type.get("deaf")
    del registry.step_types["deaf"]


@pytest.mark.usefixtures("deaf")
def test_a_step_type_of_another_app_is_interrupted_by_its_own_callbacks(
    nursery: Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, logger="execution"):
        running = Running(nursery, work("deaf", {}))
        wait_until(lambda: running.sink.said)
        running.interrupt("cancel")
        assert running.outcome.status == "cancelled"


def test_callbacks_are_called_at_once_when_the_interrupt_came_first_and_never_after_their_block() -> None:
    context = Context(Work(key="k", attempt=1, name="n", step_type="python", config={}), Recorder())
    calls: list[str] = []
    with context.on_interrupt(lambda: calls.append("ended block")):
        pass
    context.interrupt("cancel")
    with context.on_interrupt(lambda: calls.append("late block")):
        assert calls == ["late block"]


def test_two_types_cannot_share_a_name(deaf: StepType) -> None:
    other = type("Other", (Deaf,), {})
    with pytest.raises(ValueError, match="two step types are called 'deaf'"):
        step_type.register(other)
    step_type.register(Deaf)
    assert step_type.get("deaf") is deaf
