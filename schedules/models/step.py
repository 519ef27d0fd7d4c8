from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from schedules import registry

if TYPE_CHECKING:
    from .schedule import Schedule

MAX_STEPS = 500


class Step(models.Model):
    """One line of a plan; steps with the same index run side by side."""

    class OnCrash(models.TextChoices):
        RETRY = "retry", "Run it again"
        FAIL = "fail", "Fail: it must not run twice"

    FIELDS = (
        "index",
        "name",
        "step_type",
        "config",
        "continue_on_failure",
        "timeout_seconds",
        "max_retries",
        "retry_seconds",
        "on_crash",
        "pool",
    )

    schedule = models.ForeignKey("schedules.Schedule", models.CASCADE, related_name="steps", db_index=False)
    index = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(1000)])
    name = models.CharField(max_length=200)
    step_type = models.CharField(max_length=40)
    config = models.JSONField(default=dict, blank=True)
    continue_on_failure = models.BooleanField(default=False)
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(604_800)]
    )
    max_retries = models.PositiveIntegerField(default=3, validators=[MaxValueValidator(100)])
    retry_seconds = models.PositiveIntegerField(default=10, validators=[MaxValueValidator(86_400)])
    on_crash = models.CharField(max_length=8, choices=OnCrash.choices, default=OnCrash.RETRY)
    pool = models.CharField(max_length=40, default="default")

    class Meta:
        ordering = ["index", "id"]
        constraints = [models.UniqueConstraint(fields=["schedule", "name"], name="step_name_once")]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_json(cls, schedule: Schedule, data: Mapping[str, Any]) -> Step:
        step = cls(schedule=schedule, **data)
        step.name = step.name.strip()
        step.config = registry.step_types[step.step_type].clean(step.config)
        return step

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FIELDS}

    def clean(self) -> None:
        self.name = unicodedata.normalize("NFC", self.name.strip())
        check_plain_text(self.name, "name")
        check_plain_text(self.pool, "pool")
        kind = registry.step_types.get(self.step_type)
        if kind is None:
            known = ", ".join(sorted(registry.step_types))
            raise ValidationError(
                {"step_type": f"There is no step type “{self.step_type}”; there are: {known}."}
            )
        try:
            self.config = kind.clean(self.config)
        except registry.ConfigError as error:
            raise ValidationError(
                {"config": [f"{field}: {text}" for field, text in error.errors.items()]}
            ) from error


def check_steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every complaint about a list of steps, each beginning with the step it is about."""
    if not steps:
        return ["A schedule needs at least one step."]
    if len(steps) > MAX_STEPS:
        return [f"{len(steps)} steps are too many: at most {MAX_STEPS}."]
    complaints: list[str] = []
    names: set[str] = set()
    for number, data in enumerate(steps, 1):
        unknown = set(data) - set(Step.FIELDS)
        if unknown:
            complaints.append(f"Step {number}: unknown field {', '.join(sorted(unknown))}.")
            continue
        step = Step(**data)
        label = f"Step {number} ({step.name})" if step.name else f"Step {number}"
        try:
            step.clean_fields(exclude=["schedule"])
            step.clean()
        except ValidationError as error:
            complaints += [
                f"{label}: {field}: {text}" for field, texts in error.message_dict.items() for text in texts
            ]
        if step.name.casefold() in names:
            complaints.append(f"{label}: name: another step has this name already.")
        names.add(step.name.casefold())
    return complaints


def check_plain_text(text: str, field: str) -> None:
    """Names are shown, sorted and compared: no control, bidirectional or zero-width characters."""
    if not text:
        raise ValidationError({field: "This must not be blank."})
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\u200d":
            raise ValidationError({field: f"The character U+{ord(character):04X} is not allowed here."})
