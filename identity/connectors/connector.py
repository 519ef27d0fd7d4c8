"""The base class of connectors, and what they exchange with a run.

A connector gets its settings and the types of objects that the run works on. It yields objects whose values
already have the form of `identity.values`, and never looks into JIM's database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from execution.steps.fields import Field, shown
from identity.shape import FoundType, TypeShape
from identity.values import Attributes
from schedules.registry import ConfigError

Capability = Literal["delta", "export", "auto_confirm"]
Operation = Literal["create", "update", "delete"]
T = TypeVar("T")


class ConnectorError(Exception):
    """The system cannot be read or changed; the message says where, why, and what to do.

    `is_transient`: the same attempt may succeed later without a change by a person.
    """

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class NeedsFullImport(ConnectorError):
    """A delta import is impossible, for example because the watermark is lost."""


@dataclass(frozen=True, slots=True)
class ReadObject:
    """One object as it was read. `place` says where, such as “line 17”."""

    type: str
    external_id: str
    attributes: Attributes
    place: str = ""
    secondary_id: str = ""
    # Only delta imports report deleted objects.
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """An object that cannot be read. An object with this external id still exists, as far as is known.

    If `external_id` is empty, nothing is known about which object this is, so a full import must not conclude
    that any object of this type is gone.
    """

    type: str
    place: str
    error_type: str
    message: str
    external_id: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    objects: Sequence[ReadObject]
    problems: Sequence[Problem] = ()
    # How much of the input has been read, as a fraction from 0 to 1; None if this is unknown.
    part: float | None = None


class Reading(ABC):
    """One pass over the objects of a system."""

    @abstractmethod
    def pages(self) -> Iterator[Page]:
        """Yield all objects; raise ConnectorError if the input is not complete and unchanged to its end."""

    @abstractmethod
    def watermark(self) -> dict[str, Any]:
        """Return a JSON object from which the next delta import continues. Call this after the last page.

        It describes the state of the system before the first page was read.
        """


@dataclass(frozen=True)
class Change:
    """What an export does to one object. `attributes` are new values; None removes a value.

    `held` are the values that the object has now, as far as they are known. `result` is what the object looks
    like afterwards.
    """

    key: int
    operation: Operation
    type: str
    external_id: str
    attributes: Mapping[str, Any]
    held: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, Any]:
        after = {**self.held, **self.attributes}
        return {name: value for name, value in after.items() if value is not None}


@dataclass(frozen=True)
class Result:
    """The outcome of one change. A failure has an `error_type` and a `message`."""

    key: int
    error_type: str = ""
    message: str = ""
    is_transient: bool = False

    @property
    def is_ok(self) -> bool:
        return not self.error_type


class Again(Generic[T]):
    """An iterable that produces its values anew each time it is iterated."""

    def __init__(self, values: Callable[[], Iterator[T]]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[T]:
        return self._values()


@dataclass(frozen=True)
class Export:
    """What an export gets: the changes, and all objects of the system as they will be after the changes.

    Both can be iterated several times, and are read from the database as they are iterated. `run_key` is the
    same when the export is repeated after a crash. `watermark` is the last known state of the system.
    """

    types: Mapping[str, TypeShape]
    changes: Iterable[Change]
    objects: Iterable[ReadObject]
    run_key: str
    watermark: Mapping[str, Any] = field(default_factory=dict)


class Connector(ABC):
    """One kind of connected system. An instance is made for each run, with checked settings."""

    name: ClassVar[str]
    title: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    @property
    @abstractmethod
    def can(self) -> frozenset[Capability]:
        """Return what this system can do, which may depend on its settings."""

    @abstractmethod
    def test(self) -> list[str]:
        """Try to reach the system; return what was found, line by line; raise ConnectorError."""

    @abstractmethod
    def schema(self) -> list[FoundType]:
        """Return the types of objects that the system has, with proposals; raise ConnectorError."""

    @abstractmethod
    def open(
        self,
        types: Mapping[str, TypeShape],
        *,
        page_size: int,
        since: Mapping[str, Any] | None = None,
    ) -> AbstractContextManager[Reading]:
        """Open the system for an import of these types; with `since`, for what changed after a watermark."""

    def export(self, export: Export) -> tuple[Iterable[Result], dict[str, Any]]:
        """Make the changes; return the result of each, and the new watermark of the system.

        The results must be complete when this method returns.
        """
        raise ConnectorError(f"{self.title} systems cannot be exported to")

    @classmethod
    def clean(cls, config: object) -> dict[str, Any]:
        """Return the settings with all values checked and defaults added; raise ConfigError."""
        if not isinstance(config, dict):
            raise ConfigError({"config": f"must be an object of settings, not {shown(config)}"})
        values, errors = {}, {}
        for setting in cls.fields:
            try:
                values[setting.name] = setting.clean(config.get(setting.name))
            except ValueError as error:
                errors[setting.name] = str(error)
        known = {setting.name for setting in cls.fields}
        for name in config.keys() - known:
            listed = ", ".join(setting.name for setting in cls.fields)
            errors[str(name)] = f"is not a setting of {cls.name} systems; known settings: {listed}"
        if errors := errors or cls.check(values):
            raise ConfigError(errors)
        return values

    @classmethod
    def check(cls, values: dict[str, Any]) -> dict[str, str]:
        """Return errors by setting, from checks that go beyond the type of a single setting."""
        return {}


connectors: dict[str, type[Connector]] = {}


def register(connector: type[Connector]) -> type[Connector]:
    """Register the connector under its name. Call this function in `AppConfig.ready`."""
    known = connectors.setdefault(connector.name, connector)
    if known is not connector:
        raise ValueError(f"two connectors are called {connector.name!r}: {known!r} and {connector!r}")
    return connector
