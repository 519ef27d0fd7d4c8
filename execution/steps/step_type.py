"""The base class of step types, and their registration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeVar

from schedules import registry
from schedules.placeholders import PlaceholderError
from schedules.registry import ConfigError

from .context import Context, Work
from .fields import Field, shown

Isolation = Literal["thread", "process"]


class StepType(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]] = ()
    needs_code_permission: ClassVar[bool] = True
    permission: ClassVar[str] = ""
    is_offered: ClassVar[bool] = True
    is_recovered_individually: ClassVar[bool] = False

    @abstractmethod
    def run(self, ctx: Context) -> object:
        """Run the step in this thread and return its result, a JSON value or None; raise if it fails."""

    def warnings(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return warnings about possible mistakes, by setting; a warning does not prevent saving."""
        return {}

    def isolation(self, config: dict[str, Any]) -> Isolation:
        return "thread"

    def resources(self, config: Mapping[str, Any]) -> Collection[str]:
        """Return the resources that such a step holds while it runs, in addition to those of its author.

        This method is called each time a step is queued, and may query the database. Placeholders in the
        config have not been filled in yet.
        """
        return ()

    def lost(self, work: Work, *, is_cancelled: bool, now: datetime) -> str | None:
        """Return the final status of an attempt whose worker was lost; None if the retry policy decides.

        This method is called in the transaction that ends the attempt. A step type that locks rows here must
        set `is_recovered_individually`.
        """
        return None

    def clean(self, config: object) -> dict[str, Any]:
        """Return the config with all settings checked and defaults added; raise ConfigError for errors."""
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
            errors[str(name)] = f"is not a setting of {self.name} steps; known settings: {known}"
        if errors := errors or self.check(values):
            raise ConfigError(errors)
        return values

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        """Return errors by setting, from checks that go beyond the type of a single setting.

        Do not check values with placeholders (see `has_placeholders`): this method is called again after the
        placeholders have been filled in.
        """
        return {}

    def fill(self, config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config with placeholders filled in. The caller must check the result with `clean`."""
        settings = {setting.name: setting for setting in self.fields}
        filled: dict[str, Any] = {}
        for name, value in config.items():
            filled[name] = _fill(settings[name], value, values) if name in settings else value
        return filled


def _fill(setting: Field, value: object, values: Mapping[str, Any]) -> Any:
    """Return the value of one setting with its placeholders filled in.

    Whether the setting may contain secrets is checked again, because the plan may be older than this rule.
    """
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
    """Register the step type under its name and return it. Call this function in `AppConfig.ready`."""
    known: object = registry.step_types.setdefault(step_type.name, step_type())
    if type(known) is not step_type:
        raise ValueError(f"two step types are called {step_type.name!r}: {type(known)!r} and {step_type!r}")
    return step_type


def get(name: str) -> StepType:
    try:
        found = registry.step_types[name]
    except KeyError:
        known = ", ".join(kind.name for kind in registry.offered())
        raise UnknownStepType(f"unknown step type {name!r}; known step types: {known}") from None
    assert isinstance(found, StepType)
    return found
