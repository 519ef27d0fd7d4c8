"""The context that a running step receives: its work, and methods to report what the step does.

This module uses no database.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, get_args

from django.utils import timezone

from execution.loops.lease import Lease
from text.clean import clean_text

from .masking import Mask, MaskedSink
from .outcome import CompletedWithError, Interrupted, Reason, Skipped, as_result

if TYPE_CHECKING:
    from execution.children.nursery import Nursery

    from .binding import Binding

logger = logging.getLogger(__name__)

ItemOutcome = Literal["ok", "warning", "failed", "skipped"]

# How long to wait before checking again whether the lease has been renewed.
DOUBT_SECONDS = 0.05


@dataclass(frozen=True)
class Work:
    """The description of one attempt, made of JSON values so that it can be sent to a child process.

    `refs` are the references of the placeholders in the config; None if the config has none.
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
    max_failed_percent: int = 100


class Sink(Protocol):
    """A receiver of a step's output, called from several threads. Calls may block, which slows the step."""

    def output(self, stream: str, lines: list[str]) -> None: ...

    def progress(self, done: int, total: int | None, message: str) -> None: ...

    def item(self, name: str, outcome: str, message: str) -> None: ...


class Context:
    """What a step can read and report while it runs, the same in a worker's thread and in a child process."""

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
        # The result of the schedule's last completed execution; None before there is one.
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
        # The lock and queue are safe in a signal handler, which may run during any call of the same thread.
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
        """Return when the attempt first ran, even if it has postponed itself with `Later` since."""
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
            raise ValueError(
                f"the outcome of an item must be ok, warning, failed or skipped, not {outcome!r}"
            )
        with self._lock:
            self.items_total += 1
            self.items_failed += outcome == "failed"
            self.items_warned += outcome == "warning"
        self._sink.item(clean_text(str(name)), outcome, clean_text(str(message)))

    def count(self, total: int, *, failed: int = 0, warned: int = 0) -> None:
        """Count objects as items that are not reported one by one, for example because they are unchanged.

        A step that writes its items itself counts these as well. Of the `total` objects, `failed` failed, and
        `warned` had a warning.
        """
        total, failed, warned = int(total), int(failed), int(warned)
        if min(failed, warned) < 0 or failed + warned > total:
            raise ValueError(
                f"of {total} objects, {failed} cannot have failed and {warned} cannot have had a warning"
            )
        with self._lock:
            self.items_total += total
            self.items_failed += failed
            self.items_warned += warned

    def masked(self, text: str) -> str:
        """Return the text with secrets hidden.

        Call this method before cutting text, because half a secret would not be recognised.
        """
        return text if self.mask is None else self.mask.text(text)

    def masked_fragments(self, text: str) -> str:
        """Return the text with secrets and parts of secrets hidden, as programs may quote parts of values."""
        return text if self.mask is None else self.mask.fragments(text)

    def skip(self, reason: object) -> NoReturn:
        raise Skipped(str(reason))

    def complete_with_error(
        self, message: object, *, result: object = None, can_retry: bool = True
    ) -> NoReturn:
        """End the step now as completed with errors: its result is kept, but it counts as failed."""
        raise CompletedWithError(str(message), as_result(result), can_retry=can_retry)

    @property
    def cancelled(self) -> bool:
        """Return whether the step should stop. Once this has been true, the attempt counts as interrupted."""
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
        self._woken.put(None)  # for other waiting threads
        self.check()

    def interrupt(self, reason: Reason) -> None:
        """Ask the step to stop. Any thread can call this method; only the first reason is kept."""
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
        """Call the callback when the step is interrupted within the block, or at once if it already was.

        The callback must not block.
        """
        with self._lock:
            self._callbacks.append(callback)
            if self.reason is not None:
                self._call(callback)
        try:
            yield
        finally:
            # Under the lock, so that a late interrupt cannot hit what the callback's process does next.
            with self._lock:
                self._callbacks.remove(callback)

    def await_lease(self) -> None:
        """Wait until the worker's lease is certainly valid; raise Interrupted if the step is interrupted.

        Step types call this method right before anything that has an effect, if slow preparation comes first.
        """
        self.check()
        while not self.lease.is_good:
            self.wait(DOUBT_SECONDS)
            self.started()

    def started(self) -> None:
        """Record the time at which preparation is over and the step itself starts."""
        self.executed_at = self.clock()

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("Interrupting step %s of task %s failed", self.work.name, self.work.key)
