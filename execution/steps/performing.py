"""Run one attempt of one step and turn it into an outcome. Uses no database."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from execution.children.alarms import alarms
from schedules.placeholders import PlaceholderError
from schedules.registry import ConfigError
from text.clean import clean_text

from .context import Context, Sink, Work
from .masking import Mask, active
from .outcome import (
    ERROR_CHARS,
    MOST_ITEMS,
    SPARE_CHARS,
    TRACEBACK_CHARS,
    CannotRun,
    CompletedWithError,
    Later,
    Outcome,
    Skipped,
    StepFailed,
    as_result,
)
from .step_type import StepType, UnknownStepType, get

if TYPE_CHECKING:
    from execution.children.nursery import Nursery

    from .binding import Binding

logger = logging.getLogger(__name__)

ENGINE = Path(__file__).parents[1]
OWN_FILES = tuple(str(ENGINE / name) for name in ("steps", "children"))


def perform(
    work: Work,
    sink: Sink,
    *,
    nursery: Nursery,
    context: Context | None = None,
    binding: Binding | None = None,
    clock: Callable[[], datetime] = timezone.now,
) -> Outcome:
    """Run the attempt in this thread and return its outcome. Never raises."""
    ctx = context or Context(work, sink, binding)
    ctx.nursery, ctx.clock = nursery, clock
    try:
        with _alarm(ctx):
            outcome = conclude(ctx, lambda: _run(ctx)) if ctx.mask is None else _masked(ctx, ctx.mask)
    except BaseException as error:
        return unreported_outcome(ctx, error)
    return _cut(outcome) if outcome.error or outcome.message else outcome


@contextmanager
def _alarm(ctx: Context) -> Iterator[None]:
    if ctx.work.timeout_seconds is None:
        yield
        return
    alarm = alarms.after(ctx.work.timeout_seconds, lambda: ctx.interrupt("timeout"))
    try:
        yield
    finally:
        alarms.cancel(alarm)


def unreported_outcome(ctx: Context, error: BaseException) -> Outcome:
    """Return the outcome for an error in JIM itself, without its message, which may contain secrets."""
    kind = type(error).__name__
    logger.error("step %s of task %s has no outcome of its own: %s", ctx.work.name, ctx.work.key, kind)
    if "executed_at" not in vars(ctx):
        ctx.started()
    if ctx.saw_interrupt:
        return _interrupted(ctx, None)
    return _outcome(
        ctx,
        "failed_with_error",
        error=f"the outcome of the step cannot be determined ({kind})",
        can_retry=True,
    )


def _masked(ctx: Context, mask: Mask) -> Outcome:
    with active(mask):
        outcome = conclude(ctx, lambda: _run(ctx))
    return replace(
        outcome,
        message=mask.text(outcome.message),
        error=mask.text(outcome.error),
        traceback=mask.text(outcome.traceback),
        result=mask.json(outcome.result),
    )


def _cut(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        message=outcome.message[:ERROR_CHARS],
        error=outcome.error[:ERROR_CHARS],
        traceback=outcome.traceback[-TRACEBACK_CHARS:],
    )


def _run(ctx: Context) -> object:
    ctx.check()
    try:
        step_type = get(ctx.work.step_type)
        ctx.config = step_type.clean(ctx.work.config if ctx.work.refs is None else _filled(ctx, step_type))
    except (UnknownStepType, ConfigError, PlaceholderError) as error:
        raise CannotRun(f"cannot run on worker {socket.gethostname()}: {error}") from None
    ctx.await_lease()
    return step_type.run(ctx)


def _filled(ctx: Context, step_type: StepType) -> dict[str, Any]:
    binding = ctx.binding
    if binding is None:
        raise PlaceholderError("the values of the placeholders were not looked up")
    if binding.problem:
        raise StepFailed(binding.problem, can_retry=binding.can_retry)
    return step_type.fill(ctx.work.config, binding.values)


def conclude(ctx: Context, run: Callable[[], object]) -> Outcome:
    """Call `run` and return the outcome for its result or exception."""
    ctx.started()
    try:
        try:
            value = run()
        except SystemExit as leaving:
            # Command-line functions end with SystemExit; only a code other than 0 is a failure.
            if leaving.code not in (None, 0):
                raise
            value = None
        if isinstance(value, Outcome):
            return value
        return _interrupted(ctx, None) if ctx.saw_interrupt else _completed(ctx, as_result(value))
    except BaseException as error:  # any exception of user code ends this attempt, not the worker
        return _interrupted(ctx, error) if ctx.saw_interrupt else _failed(ctx, error)


def _completed(ctx: Context, result: object) -> Outcome:
    total, failed, warned = ctx.items_total, ctx.items_failed, ctx.items_warned
    if total and failed == total:
        error = "the only item failed" if total == 1 else f"all {total} items failed"
        return _outcome(ctx, "failed_with_error", error=error, result=result, can_retry=True)
    if failed * 100 > total * ctx.work.max_failed_percent:
        allowed = f"at most {ctx.work.max_failed_percent} %" if ctx.work.max_failed_percent else "no failures"
        error = f"{failed} of {total} items failed, but the step allows {allowed}"
        return _outcome(ctx, "complete_with_error", error=error, result=result, can_retry=True)
    if failed or warned:
        counts = {"failed": failed, "had a warning": warned}
        message = f"of {total} items, " + " and ".join(f"{n} {what}" for what, n in counts.items() if n)
        return _outcome(ctx, "complete_with_warning", message=message, result=result)
    return _outcome(ctx, "complete", result=result)


def _interrupted(ctx: Context, error: BaseException | None) -> Outcome:
    trace = "" if error is None else _trace(error)
    if ctx.reason == "cancel":
        return _outcome(ctx, "cancelled", message="cancelled", traceback=trace, interrupted="cancel")
    told = {
        "timeout": f"timed out after {ctx.work.timeout_seconds or 0:g} s",
        "drain": "worker stopped",
        "lost": "worker lost its lease",
    }[str(ctx.reason)]
    return _outcome(
        ctx, "failed_with_error", error=told, traceback=trace, interrupted=ctx.reason, can_retry=True
    )


def _failed(ctx: Context, error: BaseException) -> Outcome:
    match error:
        case Later():
            return _outcome(ctx, "pending", message=_spared(str(error)), again_at=error.at)
        case Skipped():
            return _outcome(ctx, "skipped", message=_spared(str(error)))
        case CompletedWithError():
            ending = {"result": error.result, "can_retry": error.can_retry}
            return _outcome(ctx, "complete_with_error", error=_spared(str(error)), **ending)
        case CannotRun():
            told, can_retry = str(error), False
        case StepFailed():
            told, can_retry = str(error), error.can_retry
        case _:
            told, can_retry = words_of(error), True
    return _outcome(
        ctx,
        "failed_with_error",
        error=_spared(told),
        traceback=_trace(error),
        can_retry=can_retry,
    )


def _outcome(ctx: Context, status: str, **rest: Any) -> Outcome:
    return Outcome(
        status=status,
        executed_at=ctx.executed_at,
        finished_at=ctx.clock(),
        items_total=min(ctx.items_total, MOST_ITEMS),
        items_failed=min(ctx.items_failed, MOST_ITEMS),
        **rest,
    )


def words_of(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # the __str__ of an exception may fail
        words = "(its message cannot be shown)"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _trace(error: BaseException) -> str:
    """Return the traceback without JIM's own frames, or an empty string if nothing is left to show."""
    if isinstance(error, CannotRun | StepFailed):
        if error.__cause__ is None:
            return ""
        error = error.__cause__
    told = traceback.TracebackException.from_exception(error)
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(OWN_FILES)]
    return clean_text("".join(told.format()))[-TRACEBACK_CHARS - SPARE_CHARS :] if told.stack else ""


def _spared(text: str) -> str:
    return clean_text(text)[: ERROR_CHARS + SPARE_CHARS]
