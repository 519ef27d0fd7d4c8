"""Registries of step types, failure policies and event sources, which other apps fill."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from .models import Schedule


class ConfigError(ValueError):
    """The error for an invalid config of a step; `errors` has messages by field."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(f"{field}: {message}" for field, message in self.errors.items()))


class StepField(Protocol):
    """A setting of a step type, as a form shows it."""

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
    # A further permission for writing such a step, if any.
    permission: ClassVar[str]
    # If False, only JIM itself creates such steps.
    is_offered: ClassVar[bool]
    # Whether each lost attempt is ended in its own transaction.
    is_recovered_individually: ClassVar[bool]

    @property
    def fields(self) -> Sequence[StepField]: ...

    def clean(self, config: object) -> dict[str, Any]: ...

    def warnings(self, config: Mapping[str, Any]) -> Mapping[str, str]: ...

    def isolation(self, config: dict[str, Any]) -> Literal["thread", "process"]: ...

    def resources(self, config: Mapping[str, Any]) -> Collection[str]: ...

    def lost(self, work: Any, *, is_cancelled: bool, now: datetime) -> str | None: ...


class EventSource(Protocol):
    """The interface of an app that has topics whose events start schedules."""

    def complaints(self, schedule: Schedule, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return errors in the topics of a schedule; `steps` are its complete steps."""

    def follow(self, schedule: Schedule, *, now: datetime) -> None:
        """Adapt to the topics and state of a schedule after a change; the caller has locked the schedule."""

    def make_room(self, schedule_ids: Collection[int], *, now: datetime) -> None:
        """Resume adding events to these schedules, because some of their occurrences are no longer pending.

        The caller has locked the schedules.
        """

    def events(self, ids: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
        """Return a dict from event id to id, topic, message_id, title and payload, for placeholders."""


step_types: dict[str, StepKind] = {}
# Failure policies by name, with their labels.
failure_policies: dict[str, str] = {}
event_sources: list[EventSource] = []


def offered() -> list[StepKind]:
    return [step_types[name] for name in sorted(step_types) if step_types[name].is_offered]


def choices() -> list[tuple[str, str]]:
    return [(kind.name, kind.title) for kind in offered()]
