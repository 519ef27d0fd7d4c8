"""What a handler may do in each phase. Everything else says which phase it belongs to."""

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

USUALLY_PEEKED = 1_000


class PhaseContext:
    """What every phase has: the time, the handler's state, and a voice."""

    phase = ""

    def __init__(self, run: Run, step: Context, *, approved: bool = False) -> None:
        self._run = run
        self._step = step
        # A person said yes to what this phase had asked for with PermissionRequired or AuthRequired.
        self.approved, self.note = approved, run.note if approved else ""
        self.state: Any = deepcopy(run.handler.state)

    @property
    def now(self) -> datetime:
        return self._step.clock()

    @property
    def idempotency_key(self) -> str:
        """The same for as long as it is about the same mutation."""
        return str(self._run.mutation_key or self._run.key)

    def write(self, text: object) -> None:
        self._step.write(text)

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        self._step.progress(done, total, message)

    def item(self, name: object, outcome: ItemOutcome = "ok", message: object = "") -> None:
        self._step.item(name, outcome, message)

    def check(self) -> None:
        """Ends the run here if it was cancelled, timed out or its worker stops."""
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
        raise PhaseError(f"{self.phase} may not {verb}: that belongs to {belongs}")


class _Publishing(PhaseContext):
    def __init__(self, run: Run, step: Context, *, approved: bool = False) -> None:
        super().__init__(run, step, approved=approved)
        self.publications: list[Publication] = []

    def publish(self, topic: str, message_id: str, payload: Any = None, *, title: str = "") -> None:
        """Published when the run commits, and only then."""
        if topic not in self._run.handler.publishes:
            declared = ", ".join(self._run.handler.publishes) or "none"
            raise PhaseError(
                f"{self._run.handler.name} may not publish to {topic!r}; its publishes: {declared}"
            )
        try:
            self.publications.append(Publication.of(topic, message_id, payload, title))
        except ValidationError as error:
            raise ValueError(f"the event {message_id!r}: {'; '.join(error.messages)}") from error


class ProduceContext(_Publishing):
    phase = "produce"


class PrepareContext(PhaseContext):
    phase = "prepare"

    def peek(self, topic: str, *, limit: int | None = None) -> list[Pending]:
        """Return the oldest pending events of a topic that it subscribes to.

        At most `limit`. Without one at most 1,000, and the output says so if there are more.
        """
        subscribed = self._run.handler.subscriptions.filter(topic__slug=topic).values("topic")
        if not subscribed.exists():
            raise PhaseError(
                f"{self._run.handler.name} may not peek at {topic!r}: it does not subscribe to it"
            )
        events = Event.objects.pending().filter(topic__in=subscribed).select_related("topic").order_by("seq")
        if limit is not None:
            return [event.seen() for event in events[:limit]]
        found = [event.seen() for event in events[: USUALLY_PEEKED + 1]]
        if len(found) > USUALLY_PEEKED:
            self.write(
                f"The topic {topic!r} has more than {USUALLY_PEEKED:,} pending events. ctx.peek returned the "
                f"oldest {USUALLY_PEEKED:,}; to see more of them, pass a limit: ctx.peek({topic!r}, limit=…)."
            )
        return found[:USUALLY_PEEKED]


class MutateContext(PhaseContext):
    phase = "mutate"

    def __init__(
        self, run: Run, step: Context, call: Callable[[Callable[[], Any]], Any], *, approved: bool
    ) -> None:
        super().__init__(run, step, approved=approved)
        self._call = call
        self._is_spent = False

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The one mutation. It is marked in flight before the call: a crash in between is asked about, never
        repeated blindly. Its result has to be JSON."""
        if self._is_spent:
            raise PhaseError("mutate may apply one mutation only; publish events for more")
        self._is_spent = True
        return self._call(lambda: function(*args, **kwargs))


class NextContext(_Publishing):
    phase = "next"


class ReconcileContext(PhaseContext):
    phase = "reconcile"


def reserved_by(run: Run) -> Sequence[Pending]:
    """What it has reserved, as it was when it did."""
    return [event.seen() for event in run.reserved.select_related("topic").order_by("topic", "seq")]
