from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.db.models.functions import Lower

from activities.models import Activity
from execution.models import WorkerTask
from operations.initiator import Initiator
from schedules.models import Refused
from text.clean import clean_text

from .system import ConnectedSystem


class RunProfile(models.Model):
    """One thing that can be run on a connected system, such as a full import, with its limits."""

    class RunType(models.TextChoices):
        FULL_IMPORT = "full_import"
        DELTA_IMPORT = "delta_import"
        FULL_SYNC = "full_sync", "Full synchronisation"
        DELTA_SYNC = "delta_sync", "Delta synchronisation"
        EXPORT = "export"

    class Items(models.TextChoices):
        CHANGES = "changes", "Changed and failed objects"
        ERRORS = "errors", "Only failed objects"

    system = models.ForeignKey(ConnectedSystem, models.CASCADE, related_name="profiles")
    name = models.CharField(max_length=100)
    run_type = models.CharField(max_length=12, choices=RunType.choices)
    page_size = models.PositiveIntegerField(
        default=1000, validators=[MinValueValidator(1), MaxValueValidator(10_000)]
    )
    limits = models.JSONField(
        default=dict, blank=True, help_text="How much a run may remove: see the documentation of limits."
    )
    items = models.CharField(max_length=7, choices=Items.choices, default=Items.CHANGES)
    finding = models.JSONField(
        null=True, blank=True, help_text="What the last run saw that exceeded a limit."
    )
    approval = models.JSONField(null=True, blank=True, help_text="Who approved which finding, for one run.")

    class Meta:
        default_permissions = ()
        permissions = [
            ("run_profile", "Can write and run steps that run profiles or generate data"),
            ("approve_removal", "Can approve removals, delete identities and retry exports"),
        ]
        constraints = [models.UniqueConstraint("system", Lower("name"), name="run_profile_once")]

    def __str__(self) -> str:
        return f"{self.system}: {self.name}"

    def definition(self) -> dict[str, Any]:
        names = ("name", "run_type", "page_size", "limits", "items")
        return {name: getattr(self, name) for name in names}

    @property
    def step(self) -> dict[str, Any]:
        """Return the step that runs this profile."""
        config = {"system": self.system.name, "profile": self.name}
        return {"name": str(self), "step_type": "run_profile", "config": config}

    def run_now(self, *, initiator: Initiator, now: datetime, key: str | None = None) -> UUID:
        """Queue a run of this profile, and return the job's key. A repeated `key` queues nothing new."""
        request = self.step if key is None else self.step | {"idempotency_key": key}
        [job] = WorkerTask.objects.enqueue([request], initiator=initiator, now=now)
        return job

    def approve(self, digest: str, *, note: str, initiator: Initiator, now: datetime) -> None:
        """Allow one run to remove what the last run found; raise Refused if it has found something else."""
        with transaction.atomic():
            mine = RunProfile.objects.select_for_update(of=("self",), no_key=True).get(pk=self.pk)
            if mine.finding is None or mine.finding["digest"] != digest:
                raise Refused(
                    f"“{self}” has run again since you looked at what it found. Reload the page, look at the "
                    "new finding, and approve that one."
                )
            mine.approval = {
                "digest": digest,
                "by": initiator.name,
                "at": now.isoformat(),
                "note": clean_text(note)[:1000],
            }
            mine.save(update_fields=["approval"])
            Activity.objects.record(
                "approve", mine, initiator=initiator, now=now, message=note, details=mine.finding
            )
        self.refresh_from_db()

    @property
    def is_sync(self) -> bool:
        return self.run_type in (self.RunType.FULL_SYNC, self.RunType.DELTA_SYNC)
