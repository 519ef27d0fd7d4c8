"""The step types of identity management.

`run_profile` imports, synchronises or exports; `generate_data` makes example data; `clear_system` and
`delete_system` remove accounts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from execution.steps.context import Context
from execution.steps.fields import Field, shown
from execution.steps.step_type import StepType
from schedules.placeholders import has_placeholders

from .connectors.connector import connectors
from .generating import Template
from .models import ConnectedSystem, IdentityType, RunProfile
from .models.system import METAVERSE
from .runs.clearing import ClearRun, DeleteSystemRun
from .runs.exporting import ExportRun
from .runs.generating import GenerateIdentitiesRun, GenerateObjectsRun
from .runs.importing import ImportRun
from .runs.run import ProfileRun
from .runs.synchronising import SyncRun
from .values import Kind

RunType = RunProfile.RunType
MOST_DAYS = 100_000
MOST_PEOPLE = 10_000
RUNS: dict[str, type[ProfileRun]] = {
    RunType.FULL_IMPORT: ImportRun,
    RunType.DELTA_IMPORT: ImportRun,
    RunType.FULL_SYNC: SyncRun,
    RunType.DELTA_SYNC: SyncRun,
    RunType.EXPORT: ExportRun,
}


class RunProfileStep(StepType):
    name = "run_profile"
    title = "Run profile of a connected system"
    needs_code_permission = False
    permission = "identity.run_profile"
    fields = (
        Field("system", "Connected system", required=True, fixed=True, help="name of the connected system"),
        Field(
            "profile",
            "Run profile",
            required=True,
            fixed=True,
            help="name of the profile, such as Full import",
        ),
    )

    def resources(self, config: Mapping[str, Any]) -> Collection[str]:
        profile = find_profile(config)
        if profile is None:
            return ()
        return (profile.system.resource, *((METAVERSE,) if profile.is_sync else ()))

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        profile = find_profile(values)
        if profile is not None:
            return connector_errors(profile.system)
        system = ConnectedSystem.objects.named(values["system"])
        if system is None:
            return {"system": unknown_system(values["system"])}
        known = ", ".join(system.profiles.order_by("pk").values_list("name", flat=True)) or "none yet"
        return {
            "profile": f"unknown run profile “{values['profile']}”; the run profiles of “{system}”: {known}"
        }

    def run(self, ctx: Context) -> object:
        profile = find_profile(ctx.config)
        assert profile is not None  # `check` has just found it
        return RUNS[profile.run_type](profile, ctx).run()


class GenerateDataStep(StepType):
    name = "generate_data"
    title = "Generate example data"
    needs_code_permission = False
    permission = "identity.run_profile"
    fields = (
        Field(
            "template",
            "Template",
            kind="mapping",
            required=True,
            help="what the objects look like: see the documentation of example data",
        ),
        Field("identity_type", "Identity type", fixed=True, help="create identities of this type"),
        Field("system", "Connected system", fixed=True, help="or write the objects to this connected system"),
        Field(
            "turnover",
            "Turnover",
            kind="mapping",
            help="with a connected system: let people be hired, leave and move between runs, such as "
            '{"start": "2026-01-01T00:00:00Z", "seconds": 86400, "hires": 2, "leavers": 1, "movers": 3}',
        ),
    )

    def resources(self, config: Mapping[str, Any]) -> Collection[str]:
        system = ConnectedSystem.objects.named(config["system"]) if config["system"] else None
        return (METAVERSE,) if system is None else (system.resource,)

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        errors, template = _target_errors(values), None
        try:
            template = _checked_template(values, is_target_known=not errors)
        except ValueError as error:
            errors["template"] = str(error)
        try:
            _check_turnover(values["turnover"], template)
        except ValueError as error:
            errors["turnover"] = str(error)
        return errors

    def run(self, ctx: Context) -> object:
        config = ctx.config
        template = Template.parse(config["template"])
        if config["identity_type"]:
            kind = IdentityType.objects.named(config["identity_type"])
            assert kind is not None  # `check` has just found it
            return GenerateIdentitiesRun(kind, template, ctx).run()
        system = ConnectedSystem.objects.named(config["system"])
        assert system is not None
        turnover = Turnover.parse(config["turnover"]) if config["turnover"] else None
        at = ctx.nominal_at or ctx.clock()
        objects = template.objects if turnover is None else partial(turnover.population, template, at)
        return GenerateObjectsRun(system, objects, ctx).run()


@dataclass(frozen=True)
class Turnover:
    """How a company changes over time. A period of so many seconds stands for one day."""

    start: datetime
    seconds: float = 86_400
    hires: int = 1
    leavers: int = 1
    movers: int = 1
    moving: str = "department"

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Turnover:
        """Return the turnover that the settings describe; raise ValueError."""
        known = [each.name for each in fields(cls)]
        if unknown := sorted(data.keys() - set(known)):
            raise ValueError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        made = cls(**{**data, "start": _time(data.get("start"))})
        for name, wanted in made._misfits():
            raise ValueError(f"“{name}” must be {wanted}, not {shown(getattr(made, name))}")
        return made

    def _misfits(self) -> Iterator[tuple[str, str]]:
        """Yield the names of settings with wrong values, and what they must be."""
        if type(self.seconds) not in (int, float) or self.seconds < 1:
            yield "seconds", "a number, at least 1"
        for name in ("hires", "leavers", "movers"):
            people = getattr(self, name)
            if type(people) is not int or not 0 <= people <= MOST_PEOPLE:
                yield name, f"a whole number from 0 to {MOST_PEOPLE:,}"
        if type(self.moving) is not str:
            yield "moving", "the name of an attribute"

    def check_moves(self, template: Template) -> None:
        """Raise ValueError if people of this template cannot move."""
        if self.movers:
            replace(self, hires=0, leavers=0, movers=1)._population(replace(template, count=1), day=1)

    def population(self, template: Template, at: datetime) -> Iterator[dict[str, Any]]:
        day = max(0, int((at - self.start).total_seconds() // self.seconds))
        return self._population(template, day=min(day, MOST_DAYS))

    def _population(self, template: Template, *, day: int) -> Iterator[dict[str, Any]]:
        return template.population(
            day,
            hires_per_day=self.hires,
            leavers_per_day=self.leavers,
            movers_per_day=self.movers,
            moving=self.moving,
        )


def _time(value: object) -> datetime:
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(
            f"“start” must be a time, such as 2026-01-01T00:00:00Z, not {shown(value)}"
        ) from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _target_errors(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with where the objects are to go."""
    kind, name = values["identity_type"], values["system"]
    if bool(kind) == bool(name):
        return {"identity_type": "name either an identity type or a connected system"}
    if kind and IdentityType.objects.named(kind) is None:
        return {"identity_type": f"unknown identity type “{kind}”"}
    if kind and values["turnover"]:
        return {"turnover": "needs a connected system: generated identities neither leave nor move"}
    if kind:
        return {}
    system = ConnectedSystem.objects.named(name)
    if system is None:
        return {"system": unknown_system(name)}
    count = len(system.shapes())
    if count != 1:
        return {"system": f"must have one selected type of objects, but has {count}"}
    return connector_errors(system)


def _checked_template(values: Mapping[str, Any], *, is_target_known: bool) -> Template | None:
    """Return the template, or None if it has placeholders; raise ValueError if it cannot be used."""
    if has_placeholders(values["template"]):
        return None
    template = Template.parse(values["template"])
    if is_target_known and values["system"]:
        _check_fits_system(template, values["system"])
    elif is_target_known:
        _check_fits_type(template, values["identity_type"])
    return template


def _check_fits_system(template: Template, name: str) -> None:
    system = ConnectedSystem.objects.named(name)
    assert system is not None
    [shape] = system.shapes().values()
    rule = template.rules.get(shape.external_id)
    if rule is None or not rule.is_id:
        raise ValueError(
            f"attributes: “{shape.external_id}” identifies the objects of “{system}”, so it needs a "
            "sequence, a uuid or a unique pattern"
        )


def _check_fits_type(template: Template, name: str) -> None:
    kind = IdentityType.objects.named(name)
    assert kind is not None
    shapes = kind.shapes
    if not shapes.keys() & template.rules.keys():
        raise ValueError(f"attributes: none of them belongs to “{kind}”, which has: {', '.join(shapes)}")
    for attribute, rule in template.rules.items():
        shape = shapes.get(attribute)
        if shape is not None and shape.kind is Kind.REFERENCE and rule.kind is not Kind.REFERENCE:
            raise ValueError(
                f"attributes.{attribute}: refers to other identities, so it needs “manager” or “references”"
            )


def _check_turnover(turnover: Mapping[str, Any], template: Template | None) -> None:
    """Raise ValueError if the turnover is wrong, or people of the template cannot move."""
    if not turnover or has_placeholders(turnover):
        return
    parsed = Turnover.parse(turnover)
    if template is not None:
        parsed.check_moves(template)


class SystemStep(StepType):
    """A step that works on one connected system as a whole."""

    needs_code_permission = False
    permission = "identity.delete_accounts"
    fields = (
        Field("system", "Connected system", required=True, fixed=True, help="name of the connected system"),
    )

    def resources(self, config: Mapping[str, Any]) -> Collection[str]:
        system = ConnectedSystem.objects.named(config["system"])
        return () if system is None else (system.resource, METAVERSE)

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        if ConnectedSystem.objects.named(values["system"]) is None:
            return {"system": unknown_system(values["system"])}
        return {}

    def run(self, ctx: Context) -> object:
        system = ConnectedSystem.objects.named(ctx.config["system"])
        assert system is not None  # `check` has just found it
        return self.run_type(system, ctx).run()

    run_type: ClassVar[type[ClearRun | DeleteSystemRun]]


class ClearSystemStep(SystemStep):
    name = "clear_system"
    title = "Clear a connected system"
    run_type = ClearRun


class DeleteSystemStep(SystemStep):
    name = "delete_system"
    title = "Delete a connected system"
    run_type = DeleteSystemRun


def find_profile(config: Mapping[str, Any]) -> RunProfile | None:
    profiles = RunProfile.objects.select_related("system")
    return profiles.filter(
        system__name__iexact=config["system"].strip(), name__iexact=config["profile"].strip()
    ).first()


def connector_errors(system: ConnectedSystem) -> dict[str, str]:
    if system.connector in connectors:
        return {}
    known = ", ".join(sorted(connectors))
    return {"system": f"its connector “{system.connector}” is not installed; installed connectors: {known}"}


def unknown_system(name: str) -> str:
    return f"unknown connected system “{name}”"
