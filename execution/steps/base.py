"""One attempt of one step: from what the worker knows of it to its outcome. Knows nothing of the database."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Protocol, TypeVar, get_args

from django.utils import timezone

from execution.children.alarms import alarms
from execution.loops.lease import Lease
from execution.steps.fields import Field, shown
from schedules import registry
from schedules.placeholders import PlaceholderError
from schedules.registry import ConfigError
from text.clean import clean_json, clean_text

from .masking import Mask, MaskedSink, active

if TYPE_CHECKING:
    from execution.children.nursery import Nursery

    from .binding import Binding

logger = logging.getLogger(__name__)

Isolation = Literal["thread", "process"]
Reason = Literal["cancel", "timeout", "drain", "lost"]
ItemOutcome = Literal["ok", "warning", "failed", "skipped"]

# How soon to look again whether a lease has been renewed.
DOUBT_SECONDS = 0.05
RESULT_BYTES = 256 * 1024
ERROR_CHARS = 8_000
TRACEBACK_CHARS = 64_000
# Kept beyond these until secrets have been masked: half a one at the end would not be known for one.
SPARE_CHARS = 64_000
ENGINE = Path(__file__).parents[1]
OWN_FILES = tuple(str(ENGINE / name) for name in ("steps", "child.py", "nursery.py"))


@dataclass(frozen=True)
class Work:
    """What the worker knows of one attempt. All of it is JSON, so that it can be sent to a child.

    `refs` is what the placeholders of the config refer to, None if it has none.
    """

    key: str
    attempt: int
    name: str
    step_type: str
    config: dict[str, Any] = field(repr=False)
    timeout_seconds: float | None = None
    execution_id: int | None = None
    schedule_name: str = ""
    nominal_at: str | None = None
    refs: list[str] | None = None
    time_zone: str = "UTC"
    begun_at: str | None = None
    last_result: Any = field(default=None, repr=False)


class Sink(Protocol):
    """Where a running step's words go. Called from several threads; may block, which slows the step down."""

    def output(self, stream: str, lines: list[str]) -> None: ...

    def progress(self, done: int, total: int | None, message: str) -> None: ...

    def item(self, name: str, outcome: str, message: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    status: str
    executed_at: datetime
    finished_at: datetime
    message: str = ""
    error: str = ""
    traceback: str = ""
    result: object = None
    items_total: int = 0
    items_failed: int = 0
    interrupted: Reason | None = None
    can_retry: bool = False
    again_at: datetime | None = None


def perform(
    work: Work,
    sink: Sink,
    *,
    nursery: Nursery,
    context: Context | None = None,
    binding: Binding | None = None,
    clock: Callable[[], datetime] = timezone.now,
) -> Outcome:
    """Runs the attempt in this thread. Never raises: whatever happens is an outcome."""
    ctx = context or Context(work, sink, binding)
    ctx.nursery, ctx.clock = nursery, clock
    try:
        with _alarm(ctx):
            outcome = conclude(ctx, lambda: _run(ctx)) if ctx.mask is None else _masked(ctx, ctx.mask)
    except BaseException as error:
        return unspeakable(ctx, error)
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


def unspeakable(ctx: Context, error: BaseException) -> Outcome:
    """For what went wrong beside the step itself. Its words are not shown: nobody has masked them."""
    kind = type(error).__name__
    logger.error("step %s of task %s has no outcome of its own: %s", ctx.work.name, ctx.work.key, kind)
    if "executed_at" not in vars(ctx):
        ctx.started()
    if ctx.saw_interrupt:
        return _interrupted(ctx, None)
    return _outcome(ctx, "failed_with_error", error=f"its outcome cannot be told ({kind})", can_retry=True)


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
        raise PlaceholderError("nobody has looked up the values of its placeholders")
    if binding.problem:
        raise StepFailed(binding.problem, can_retry=binding.can_retry)
    return step_type.fill(ctx.work.config, binding.values)


def conclude(ctx: Context, run: Callable[[], object]) -> Outcome:
    """The one place where a run becomes an outcome."""
    ctx.started()
    try:
        try:
            value = run()
        except SystemExit as leaving:
            # What a command-line function does at its end; only a code says that it failed.
            if leaving.code not in (None, 0):
                raise
            value = None
        if isinstance(value, Outcome):
            return value
        return _interrupted(ctx, None) if ctx.saw_interrupt else _completed(ctx, as_result(value))
    except BaseException as error:  # whatever user code raises ends this attempt, not the worker
        return _interrupted(ctx, error) if ctx.saw_interrupt else _failed(ctx, error)


def as_result(value: object) -> object:
    """The value as it comes back from JSON; StepFailed if it cannot be stored."""
    if value is None or isinstance(value, bool):
        return value
    try:
        text = json.dumps(clean_json(value), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StepFailed(f"the result cannot be stored as JSON: {error}", can_retry=False) from None
    if (size := len(text.encode())) > RESULT_BYTES:
        raise StepFailed(
            f"the result is {size:,} bytes of JSON, more than the {RESULT_BYTES:,} that are kept; "
            "write it to a file and return where it is",
            can_retry=False,
        )
    stored: object = json.loads(text)
    return stored


def _completed(ctx: Context, result: object) -> Outcome:
    total, failed, warned = ctx.items_total, ctx.items_failed, ctx.items_warned
    if total and failed == total:
        error = "the only item failed" if total == 1 else f"all {total} items failed"
        return _outcome(ctx, "failed_with_error", error=error, result=result, can_retry=True)
    if failed or warned:
        counts = {"failed": failed, "with a warning": warned}
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
        items_total=ctx.items_total,
        items_failed=ctx.items_failed,
        **rest,
    )


def words_of(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # an exception of somebody else's making may be unprintable
        words = "(its message cannot be shown)"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _trace(error: BaseException) -> str:
    """Where user code was."""
    if isinstance(error, CannotRun | StepFailed):
        if error.__cause__ is None:
            return ""
        error = error.__cause__
    told = traceback.TracebackException.from_exception(error)
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(OWN_FILES)]
    return clean_text("".join(told.format()))[-TRACEBACK_CHARS - SPARE_CHARS :] if told.stack else ""


def _spared(text: str) -> str:
    return clean_text(text)[: ERROR_CHARS + SPARE_CHARS]


class CannotRun(Exception):
    """The step cannot run here; the message says why. Never retried."""


class StepFailed(Exception):
    """A failure in words that need no type and no traceback."""

    def __init__(self, message: str, *, can_retry: bool = True) -> None:
        super().__init__(message)
        self.can_retry = can_retry


class Interrupted(BaseException):
    """Raised inside a step that is being cancelled, timed out or drained."""


class Later(BaseException):
    """The attempt goes on at a later time and needs no seat until then: `run` is called again.

    It finds when it first began in `Context.begun_at`.
    """

    def __init__(self, at: datetime, message: str) -> None:
        super().__init__(message)
        self.at = at


class Skipped(BaseException):
    """Raised by `Context.skip`."""


class Context:
    """What a running step gets, the same in a thread of the worker and in a child process."""

    def __init__(
        self,
        work: Work,
        sink: Sink,
        binding: Binding | None = None,
        lease: Lease | None = None,
        *,
        runs_code: bool = True,
    ) -> None:
        self.work = work
        self.lease = lease or Lease()
        # Whether code that the step names may run in this very process.
        self.runs_code = runs_code
        self.config = work.config
        self.binding = binding
        # Of the schedule's last execution that completed; None before there is one.
        self.last_result = work.last_result if binding is None else binding.last_result
        self.mask = Mask.of(binding.secrets) if binding is not None and binding.secrets else None
        self.nursery: Nursery | None = None
        self.clock: Callable[[], datetime] = timezone.now
        self.reason: Reason | None = None
        self.interrupted_at: float | None = None
        self.saw_interrupt = False
        self.items_total = self.items_failed = self.items_warned = 0
        self._sink = sink if self.mask is None else MaskedSink(sink, self.mask)
        self._callbacks: list[Callable[[], object]] = []
        # Both are safe in a signal handler, which may run in the middle of any call of the same thread.
        self._lock = threading.RLock()
        self._woken: SimpleQueue[None] = SimpleQueue()

    @property
    def idempotency_key(self) -> str:
        return self.work.key

    @property
    def attempt(self) -> int:
        return self.work.attempt

    @cached_property
    def nominal_at(self) -> datetime | None:
        return datetime.fromisoformat(self.work.nominal_at) if self.work.nominal_at else None

    @property
    def begun_at(self) -> datetime:
        """When the attempt first ran; before that run, if it put itself off with `Later`."""
        begun = self.work.begun_at
        return self.executed_at if begun is None else datetime.fromisoformat(begun)

    def write(self, text: object) -> None:
        self.output("log", str(text).splitlines())

    def output(self, stream: str, lines: Sequence[str]) -> None:
        self._sink.output(stream, [clean_text(line) for line in lines])

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        self._sink.progress(int(done), None if total is None else int(total), clean_text(str(message)))

    def item(self, name: object, outcome: ItemOutcome = "ok", message: object = "") -> None:
        if outcome not in get_args(ItemOutcome):
            raise ValueError(f"an item's outcome is ok, warning, failed or skipped, not {outcome!r}")
        with self._lock:
            self.items_total += 1
            self.items_failed += outcome == "failed"
            self.items_warned += outcome == "warning"
        self._sink.item(clean_text(str(name)), outcome, clean_text(str(message)))

    def masked(self, text: str) -> str:
        """For a step type that shows only a part of a text: half a secret would not be known for one."""
        return text if self.mask is None else self.mask.text(text)

    def masked_fragments(self, text: str) -> str:
        """For words of others, who may have cut what they quote: hides parts of secrets as well."""
        return text if self.mask is None else self.mask.fragments(text)

    def skip(self, reason: object) -> NoReturn:
        raise Skipped(str(reason))

    @property
    def cancelled(self) -> bool:
        """Whether the step should stop. One that has seen a yes counts as interrupted, however it ends."""
        self.saw_interrupt = self.saw_interrupt or self.reason is not None
        return self.saw_interrupt

    def check(self) -> None:
        if self.cancelled:
            raise Interrupted(self.reason)

    def wait(self, seconds: float) -> None:
        try:
            self._woken.get(timeout=max(seconds, 0))
        except Empty:
            return
        self._woken.put(None)  # for whoever else waits
        self.check()

    def interrupt(self, reason: Reason) -> None:
        """From any thread; the first reason counts."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            self.interrupted_at = time.monotonic()
            self._woken.put(None)
            for callback in self._callbacks:
                self._call(callback)

    @contextmanager
    def on_interrupt(self, callback: Callable[[], object]) -> Iterator[None]:
        """Within the block an interrupt calls back, at once if it came before. It must not block."""
        with self._lock:
            self._callbacks.append(callback)
            if self.reason is not None:
                self._call(callback)
        try:
            yield
        finally:
            # Under the lock: a late interrupt must not hit what the callback's process does next.
            with self._lock:
                self._callbacks.remove(callback)

    def await_lease(self) -> None:
        """Return once the attempt is certainly still ours; raise Interrupted if it is not.

        Step types call it last before what has an effect, if something slow comes before that.
        """
        self.check()
        while not self.lease.is_good:
            self.wait(DOUBT_SECONDS)
            self.started()

    def started(self) -> None:
        """What came before was preparation: the step itself starts now."""
        self.executed_at = self.clock()

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("Interrupting step %s of task %s failed", self.work.name, self.work.key)


class StepType(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]] = ()
    needs_code_permission: ClassVar[bool] = True
    permission: ClassVar[str] = ""
    is_offered: ClassVar[bool] = True
    is_lost_alone: ClassVar[bool] = False

    @abstractmethod
    def run(self, ctx: Context) -> object:
        """Called in a thread of the worker; returns JSON or None, raises on failure."""

    def warnings(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """What may be a mistake, by setting; nothing is refused because of it."""
        return {}

    def isolation(self, config: dict[str, Any]) -> Isolation:
        return "thread"

    def lost(self, work: Work, *, is_cancelled: bool, now: datetime) -> str | None:
        """Decides, instead of the retry policy, what becomes of an attempt whose worker was lost.

        Called in the transaction that ends the attempt; returns the status that it ends with. None: the
        policy decides. One that locks rows says so with `is_lost_alone`.
        """
        return None

    def clean(self, config: object) -> dict[str, Any]:
        """The canonical config; ConfigError if there is none."""
        if not isinstance(config, dict):
            raise ConfigError({"config": f"must be an object of settings, not {shown(config)}"})
        values, errors = {}, {}
        for setting in self.fields:
            try:
                values[setting.name] = setting.clean(config.get(setting.name))
            except ValueError as error:
                errors[setting.name] = str(error)
        for name in config.keys() - values.keys() - errors.keys():
            known = ", ".join(setting.name for setting in self.fields)
            errors[str(name)] = f"is not a setting of {self.name} steps; they have {known}"
        if errors := errors or self.check(values):
            raise ConfigError(errors)
        return values

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        """What is wrong beyond the form of the single fields, by field.

        What still has placeholders (`has_placeholders`) is not judged here: it is checked again once filled.
        """
        return {}

    def fill(self, config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """The config with its placeholders filled, by field; not checked yet."""
        settings = {setting.name: setting for setting in self.fields}
        filled: dict[str, Any] = {}
        for name, value in config.items():
            filled[name] = _fill(settings[name], value, values) if name in settings else value
        return filled


def _fill(setting: Field, value: object, values: Mapping[str, Any]) -> Any:
    """Fill one setting. A plan may have been frozen before the setting refused secrets."""
    try:
        if not setting.secrets:
            setting.refuse_secrets(value)
    except PlaceholderError:
        raise
    except ValueError as error:
        raise ConfigError({setting.name: str(error)}) from None
    return setting.fill(value, values)


class UnknownStepType(KeyError):
    def __str__(self) -> str:
        return str(self.args[0])


S = TypeVar("S", bound=type[StepType])


def register(step_type: S) -> S:
    """Makes the type known under its name. Call it in `AppConfig.ready`."""
    known: object = registry.step_types.setdefault(step_type.name, step_type())
    if type(known) is not step_type:
        raise ValueError(f"two step types are called {step_type.name!r}: {type(known)!r} and {step_type!r}")
    return step_type


def get(name: str) -> StepType:
    try:
        found = registry.step_types[name]
    except KeyError:
        known = ", ".join(kind.name for kind in registry.offered())
        raise UnknownStepType(f"there is no step type {name!r}; known are {known}") from None
    assert isinstance(found, StepType)
    return found
