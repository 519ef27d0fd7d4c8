"""What schedules may name. The apps that know how it works fill this when Django starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol


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

    @property
    def fields(self) -> Sequence[StepField]: ...

    def clean(self, config: object) -> dict[str, Any]: ...

    def isolation(self, config: dict[str, Any]) -> Literal["thread", "process"]: ...


step_types: dict[str, StepKind] = {}
# What becomes of the steps after one that failed: names, and what a form says of them.
failure_policies: dict[str, str] = {}


def choices() -> list[tuple[str, str]]:
    return [(name, step_types[name].title) for name in sorted(step_types)]
