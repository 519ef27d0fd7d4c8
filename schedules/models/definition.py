"""The definition of a schedule: when it starts and how it behaves."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, MaxValueValidator, MinValueValidator
from django.db import models

from schedules import registry
from schedules.field_types import StrictlyTyped
from schedules.spec import Spec, SpecError
from schedules.spec.wording import listed
from schedules.spec.zones import zone_of
from text.clean import clean_lines

from .labels import clean_tags, wrong_with_memo, wrong_with_tags, wrong_with_topics
from .occurrence import Overlap
from .step import check_plain_text

MOST_OUTCOMES = 100
YEAR_SECONDS = 31_536_000


class Definition(StrictlyTyped):
    Overlap = Overlap
    DEFINITION = (
        "name",
        "description",
        "tags",
        "memo",
        "spec",
        "topics",
        "overlap",
        "catch_up_seconds",
        "timeout_seconds",
        "deadline_seconds",
        "on_failure",
        "pause_on_failure",
        "failures_to_pause",
        "failures_among",
    )
    EDITABLE = (*DEFINITION, "remaining")

    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, validators=[MaxLengthValidator(1_000)])
    tags = models.JSONField(default=list, blank=True)
    memo = models.JSONField(default=dict, blank=True)
    spec = models.JSONField(default=dict, blank=True)
    topics = models.JSONField(default=list, blank=True, help_text="Each event in these topics starts a run.")
    overlap = models.CharField(max_length=16, choices=Overlap.choices, default=Overlap.SKIP)
    catch_up_seconds = models.PositiveIntegerField(
        "catch-up window (seconds)",
        null=True,
        blank=True,
        default=86_400,
        validators=[MaxValueValidator(10 * YEAR_SECONDS)],
        help_text="A run that is later than this does not start. 0: late runs do not start. Empty: no limit.",
    )
    timeout_seconds = models.PositiveIntegerField(
        "timeout (seconds)",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(YEAR_SECONDS)],
        help_text="An execution that takes longer than this is stopped and counts as failed. "
        "Empty: no limit.",
    )
    deadline_seconds = models.PositiveIntegerField(
        "deadline (seconds)",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(YEAR_SECONDS)],
        help_text="An execution that takes longer than this is shown as late and continues. "
        "Empty: no deadline.",
    )
    on_failure = models.CharField(
        "when a step fails",
        max_length=40,
        default="stop",
        help_text="What happens to the later steps after a step has failed.",
    )
    pause_on_failure = models.BooleanField(
        default=False, help_text="Pause the schedule when too many of its latest executions have failed."
    )
    failures_to_pause = models.PositiveSmallIntegerField(
        "failures", default=1, validators=[MinValueValidator(1), MaxValueValidator(MOST_OUTCOMES)]
    )
    failures_among = models.PositiveSmallIntegerField(
        "among the last", default=1, validators=[MinValueValidator(1), MaxValueValidator(MOST_OUTCOMES)]
    )
    remaining = models.PositiveIntegerField(
        "runs left",
        null=True,
        blank=True,
        help_text="Each scheduled run reduces this number by one. At 0, no more scheduled runs start. "
        "Empty: no limit.",
    )

    # A copy of the shared calendars that the spec names, so that a tick reads only one row for each schedule.
    calendars = models.JSONField(default=dict, blank=True, editable=False)

    class Meta:
        abstract = True

    @property
    def compiled_spec(self) -> Spec:
        return Spec.parse(self.spec, self.calendars)

    @property
    def spec_notes(self) -> tuple[str, ...]:
        """Return notes about parts of the spec with unexpected effects; no notes if the spec is broken."""
        try:
            return self.compiled_spec.notes
        except SpecError:
            return ()

    @property
    def zone(self) -> ZoneInfo:
        """Return the time zone of the spec, or UTC if the spec has no valid time zone."""
        zone = self.spec.get("time_zone", "UTC") if isinstance(self.spec, dict) else "UTC"
        try:
            return zone_of(zone)
        except (SpecError, TypeError):
            return zone_of("UTC")

    @property
    def spec_in_words(self) -> str:
        try:
            return in_words(self.compiled_spec, self.topics)
        except SpecError as error:
            return f"Invalid spec: {error}"

    def clean(self) -> None:
        self.name = unicodedata.normalize("NFC", self.name.strip())
        check_plain_text(self.name, "name")
        self.description = clean_lines(self.description.strip())
        self.tags, self.topics = clean_tags(self.tags), clean_tags(self.topics)
        errors = {
            "tags": wrong_with_tags(self.tags),
            "memo": wrong_with_memo(self.memo),
            "topics": wrong_with_topics(self.topics),
        }
        if self.on_failure not in registry.failure_policies:
            known = ", ".join(registry.failure_policies)
            errors["on_failure"] = f"“{self.on_failure}” is not a failure policy: choose one of {known}."
        if self.failures_to_pause > self.failures_among:
            errors["failures_to_pause"] = (
                f"{self.failures_to_pause} is too high: enter at most {self.failures_among}, the number of "
                "executions that are checked."
            )
        if wrong := {name: text for name, text in errors.items() if text}:
            raise ValidationError(wrong)


def in_words(spec: Spec, topics: Sequence[str]) -> str:
    """Describe in one sentence what starts a schedule: times, events in its topics, or both."""
    if not topics:
        return spec.describe()
    events = f"each event in the topic{'' if len(topics) == 1 else 's'} {listed(topics)}"
    return f"For {events}" if spec.is_manual else f"{spec.describe()}, and for {events}"
