"""What schedules may name. The apps that know how it works fill this when Django starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from .models import Schedule


class ConfigError(ValueError):
    """A step's config is wrong; `errors` says what, by field."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(f"{field}: {message}" for field, message in self.errors.items()))


class StepField(Protocol):
    """One setting of a step type, as a form draws it."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def required(self) -> bool: ...
    @property
    def default(self) -> Any: ...
    @property
    def help(self) -> str: ...
    @property
    def choices(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def text_only(self) -> bool: ...


class StepKind(Protocol):
    name: ClassVar[str]
    title: ClassVar[str]
    needs_code_permission: ClassVar[bool]
    # What else it takes to write such a step; empty: nothing.
    permission: ClassVar[str]
    # False: only JIM itself makes such steps.
    is_offered: ClassVar[bool]
    # Whether each attempt that was lost is ended in a transaction of its own.
    is_lost_alone: ClassVar[bool]

    @property
    def fields(self) -> Sequence[StepField]: ...

    def clean(self, config: object) -> dict[str, Any]: ...

    def warnings(self, config: Mapping[str, Any]) -> Mapping[str, str]: ...

    def isolation(self, config: dict[str, Any]) -> Literal["thread", "process"]: ...

    def lost(self, work: Any, *, is_cancelled: bool, now: datetime) -> str | None: ...


class EventSource(Protocol):
    """Whoever knows topics, whose events start schedules."""

    def complaints(self, schedule: Schedule, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """What is wrong with its topics, considering what its steps do."""

    def follow(self, schedule: Schedule, *, now: datetime) -> None:
        """Its topics or its state have changed. Part of the same transaction, its row is locked."""

    def make_room(self, schedule_ids: Collection[int], *, now: datetime) -> None:
        """Some of their occurrences have been settled. The schedules are locked."""

    def events(self, ids: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
        """By id, as placeholders see them: topic, message_id, title and payload."""


step_types: dict[str, StepKind] = {}
# What becomes of the steps after one that failed: names, and what a form says of them.
failure_policies: dict[str, str] = {}
event_sources: list[EventSource] = []


def offered() -> list[StepKind]:
    return [step_types[name] for name in sorted(step_types) if step_types[name].is_offered]


def choices() -> list[tuple[str, str]]:
    return [(kind.name, kind.title) for kind in offered()]
