"""The `ctx` that a handler gets in each phase; a call that belongs to another phase raises PhaseError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, NoReturn

from django.core.exceptions import ValidationError

from execution.steps.context import Context, ItemOutcome

from .definition import Pending
from .errors import PhaseError
from .models import Event, Run
from .models.event import Publication

DEFAULT_PEEK_LIMIT = 1_000


class PhaseContext:
    """The base class of the `ctx` of each phase, with what every phase may use.

    `peek`, `apply` and `publish` raise PhaseError here; the phases that may use them override them.
    """

    phase = ""

    def __init__(self, run: Run, step: Context, *, approved: bool = False) -> None:
        self._run = run
        self._step = step
        # True if a person approved what this phase asked for with PermissionRequired or AuthRequired.
        self.approved, self.note = approved, run.note if approved else ""
        self.state: Any = deepcopy(run.handler.state)

    @property
    def now(self) -> datetime:
        return self._step.clock()

    @property
    def idempotency_key(self) -> str:
        """Return the idempotency key of the mutation, which stays the same across retries."""
        return str(self._run.mutation_key or self._run.key)

    def write(self, text: object) -> None:
        self._step.write(text)

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        self._step.progress(done, total, message)

    def item(self, name: object, outcome: ItemOutcome = "ok", message: object = "") -> None:
        self._step.item(name, outcome, message)

    def check(self) -> None:
        """End the run here if it was cancelled or timed out, or if its worker is stopping."""
        self._step.check()

    def wait(self, seconds: float) -> None:
        self._step.wait(seconds)

    def peek(self, topic: str, *, limit: int | None = None) -> list[Pending]:
        self._refuse("peek", "prepare")

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._refuse("apply", "mutate")

    def publish(self, topic: str, message_id: str, payload: Any = None, *, title: str = "") -> None:
        self._refuse("publish", "produce or next")

    def _refuse(self, verb: str, belongs: str) -> NoReturn:
        raise PhaseError(f"ctx.{verb} cannot be called in {self.phase}; call it in {belongs}")


class PublishingContext(PhaseContext):
    """The context of a phase that can publish events."""

    def __init__(self, run: Run, step: Context, *, approved: bool = False) -> None:
        super().__init__(run, step, approved=approved)
        self.publications: list[Publication] = []

    def publish(self, topic: str, message_id: str, payload: Any = None, *, title: str = "") -> None:
        """Add an event to be published when the run commits."""
        if topic not in self._run.handler.publishes:
            declared = ", ".join(self._run.handler.publishes) or "none"
            raise PhaseError(
                f"{self._run.handler.name} cannot publish to {topic!r}: add the topic to its `publishes`, "
                f"which lists: {declared}"
            )
        try:
            self.publications.append(Publication.of(topic, message_id, payload, title))
        except ValidationError as error:
            raise ValueError(f"event {message_id!r}: {'; '.join(error.messages)}") from error


class ProduceContext(PublishingContext):
    phase = "produce"


class PrepareContext(PhaseContext):
    phase = "prepare"

    def peek(self, topic: str, *, limit: int | None = None) -> list[Pending]:
        """Return at most `limit` pending events, oldest first, of a topic that the handler subscribes to.

        Without a limit, at most 1,000 events are returned; if there are more, the output of the run says so.
        """
        subscribed = self._run.handler.subscriptions.filter(topic__slug=topic).values("topic")
        if not subscribed.exists():
            raise PhaseError(
                f"{self._run.handler.name} cannot peek at {topic!r}: add the topic to its `subscribe`"
            )
        events = Event.objects.pending().filter(topic__in=subscribed).select_related("topic").order_by("seq")
        if limit is not None:
            return [event.as_pending() for event in events[:limit]]
        found = [event.as_pending() for event in events[: DEFAULT_PEEK_LIMIT + 1]]
        if len(found) > DEFAULT_PEEK_LIMIT:
            self.write(
                f"Topic {topic!r} has more than {DEFAULT_PEEK_LIMIT:,} pending events. ctx.peek returned "
                f"the oldest {DEFAULT_PEEK_LIMIT:,}. To get more, pass a limit: ctx.peek({topic!r}, limit=…)."
            )
        return found[:DEFAULT_PEEK_LIMIT]


class MutateContext(PhaseContext):
    phase = "mutate"

    def __init__(
        self, run: Run, step: Context, call: Callable[[Callable[[], Any]], Any], *, approved: bool
    ) -> None:
        super().__init__(run, step, approved=approved)
        self._call = call
        self._is_applied = False

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function that makes the change outside JIM, and return its result, a JSON value.

        The mutation is recorded as in flight before the call. If the run ends before the result is recorded,
        JIM reconciles the mutation instead of repeating it.
        """
        if self._is_applied:
            raise PhaseError(
                "ctx.apply can be called only once per run; publish an event for each further change"
            )
        self._is_applied = True
        return self._call(lambda: function(*args, **kwargs))


class NextContext(PublishingContext):
    phase = "next"


class ReconcileContext(PhaseContext):
    phase = "reconcile"


def reserved_by(run: Run) -> Sequence[Pending]:
    """Return the events that the run has reserved."""
    return [event.as_pending() for event in run.reserved.select_related("topic").order_by("topic", "seq")]
