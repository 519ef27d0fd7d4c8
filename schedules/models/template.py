"""Task templates: step definitions that many schedules use."""

from __future__ import annotations

import json
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator
from django.db import IntegrityError, models, transaction
from django.db.models import Q
from django.db.models.functions import Lower
from django.urls import reverse

from activities.models import Activity
from database.statements import update_each
from operations.field_errors import in_words, invalid
from operations.initiator import Initiator
from schedules import permissions
from schedules.placeholders import hint
from schedules.spec.wording import shown
from text.clean import clean_lines, clean_text

from .refusals import MOST_NAMED, Conflict, Refused, named
from .step import Step, TaskFields, check_plain_text, missing_secrets, plan_errors, unreadable

if TYPE_CHECKING:
    from .schedule import Schedule
    from .schedule_queryset import ScheduleQuerySet

NAME_TAKEN = "A template with this name already exists: choose another name."


class TaskTemplateQuerySet(models.QuerySet["TaskTemplate"]):
    def active(self) -> TaskTemplateQuerySet:
        return self.filter(status=TaskTemplate.Status.ACTIVE)

    def known(self) -> TaskTemplateQuerySet:
        """Keep the active templates and the archived ones that open schedules use; their names are unique."""
        used = Step.objects.exclude(schedule__status="closed").exclude(template=None)
        return self.filter(Q(status=TaskTemplate.Status.ACTIVE) | Q(pk__in=used.values("template")))

    def define(
        self,
        *,
        initiator: Initiator,
        now: datetime,
        may: permissions.May = permissions.anything,
        **fields: Any,
    ) -> TaskTemplate:
        """Create a template; if anything is wrong, raise ValidationError and save nothing."""
        template = TaskTemplate(**fields)
        try:
            with transaction.atomic():
                template.check_definition(tells_secrets=may(permissions.DEFINE_CODE))
                _check_writer({str(template): template.as_step()}, may)
                template.save(force_insert=True)
                details = {"name": template.name} | template.definition()
                Activity.objects.record("create", template, initiator=initiator, now=now, details=details)
        except IntegrityError:
            template.check_definition()  # raises: the name was taken in the meantime
            raise
        return template

    def why_not(self, name: str) -> str:
        """Return why a new step cannot use the template with this name."""
        name = clean_text(name)
        if self.filter(name=name).exclude(status=TaskTemplate.Status.ACTIVE).exists():
            return f"“{name}” is archived: restore it first, or choose another template"
        known = list(self.active().order_by("name").values_list("name", flat=True))
        advice = hint(name, known) if known else "create it first: none exist yet"
        return f"unknown template “{name[:60]}”; {advice}"

    def lock_needed_by(self, steps: Any, *, schedule: Schedule | None = None) -> dict[str, TaskTemplate]:
        """Lock the templates that steps name until the transaction ends, and return them by name.

        Archived templates are included only if `schedule` already uses them. Call this before locking the
        schedule, because edits of templates also lock the template first.
        """
        return self.lock().needed_by(steps, schedule=schedule)

    def needed_by(self, steps: Any, *, schedule: Schedule | None = None) -> dict[str, TaskTemplate]:
        """Return a dict from name to template for the templates that steps name.

        Archived templates are included only if `schedule` already uses them.
        """
        names = names_in(steps)
        if not names:
            return {}
        may = Q(status=TaskTemplate.Status.ACTIVE)
        if schedule is not None and schedule.pk is not None:
            may |= Q(pk__in=Step.objects.filter(schedule=schedule.pk).values("template"))
        return {template.name: template for template in self.filter(may, name__in=names).order_by("pk")}

    def lock(self) -> TaskTemplateQuerySet:
        return self.select_for_update(of=("self",), no_key=True)


class TaskTemplate(TaskFields):
    """A step definition that many schedules can use."""

    class Status(models.TextChoices):
        ACTIVE = "active"
        ARCHIVED = "archived"

    # The fields that a step takes from its template, unless it overrides them.
    STEP = tuple(name for name in Step.FIELDS if name not in ("index", "name", "run_if"))
    EDITABLE = ("description", *STEP)

    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, validators=[MaxLengthValidator(1_000)])
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.ACTIVE, editable=False)
    token = models.PositiveIntegerField(default=1, editable=False)

    objects = TaskTemplateQuerySet.as_manager()

    class Meta:
        verbose_name = "template"
        constraints = [
            models.UniqueConstraint(
                Lower("name"),
                condition=Q(status="active"),
                name="template_name_once",
                violation_error_message=NAME_TAKEN,
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("web:template", args=[self.pk])

    @property
    def is_archived(self) -> bool:
        return self.status == self.Status.ARCHIVED

    def definition(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.EDITABLE}

    def as_step(self) -> dict[str, Any]:
        """Return the data of a step that uses the template without overrides."""
        return self.merged({})

    def resolve(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the step data of the template with overrides; raise Refused if the template is archived."""
        if self.is_archived:
            raise Refused(f"“{self}” is archived: restore it first, or choose another template.")
        return self.merged(overrides)

    def merged(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the step data of the template with these overrides, unchecked.

        This also works for an archived template, because the steps that use it keep working.
        """
        written = {name: value for name, value in overrides.items() if name != "template"}
        if unknown := sorted(str(name) for name in written.keys() - set(Step.FIELDS)):
            raise ValidationError(dict.fromkeys(unknown, "Steps do not have this field: leave it out."))
        if "step_type" in written:
            raise ValidationError(
                {"step_type": f"This field comes from the template “{self}”: leave it out."}
            )
        config = written.get("config", {})
        if not isinstance(config, Mapping):
            raise ValidationError({"config": f"must be an object of settings, not {shown(config)}"})
        place = {"index": 0, "name": self.name, "run_if": Step.RunIf.SUCCESS.value}
        own = {name: getattr(self, name) for name in self.STEP}
        return {**place, **own, **written, "config": {**self.config, **config}}

    def edit(
        self,
        *,
        token: int,
        changes: Mapping[str, Any],
        initiator: Initiator,
        now: datetime,
        may: permissions.May = permissions.anything,
    ) -> bool:
        """Change the template and, in the same transaction, the steps of all open schedules that use it.

        Return False, and save nothing, if nothing differs.
        """
        if unknown := set(changes) - set(self.EDITABLE):
            raise ValidationError(dict.fromkeys(sorted(unknown), "This field cannot be edited."))
        with transaction.atomic():
            self._take(None)
            before, was = self.definition(), self.as_step()
            for name, value in changes.items():
                setattr(self, name, value)
            tells_secrets = may(permissions.DEFINE_CODE)
            self.check_definition(tells_secrets=tells_secrets)
            if same_json(self.definition(), before):
                return False
            if self.is_archived:
                raise Refused(f"“{self}” is archived: restore it first.")
            if token != self.token:
                raise Conflict(self.token, what="template")
            if not same_json(self.as_step(), was):
                changed = self._hand_on(before, initiator=initiator, now=now, tells_secrets=tells_secrets)
                _check_writer({str(self): self.as_step(), **changed}, may)
            self._save_moved()
            details = {"before": before, "after": self.definition()}
            Activity.objects.record("edit", self, initiator=initiator, now=now, details=details)
        return True

    def archive(self, *, initiator: Initiator, now: datetime, token: int | None = None) -> None:
        """Archive the template: steps that already use it keep working, but no other steps can use it."""
        with transaction.atomic():
            self._take(token)
            if self.is_archived:
                raise Refused(f"“{self}” is already archived.")
            self.status = self.Status.ARCHIVED
            self._save_moved()
            Activity.objects.record("archive", self, initiator=initiator, now=now)

    def restore(self, *, initiator: Initiator, now: datetime, token: int | None = None) -> None:
        try:
            with transaction.atomic():
                self._take(token)
                if not self.is_archived:
                    raise Refused(f"“{self}” is not archived.")
                self._refuse_twin()
                self.status = self.Status.ACTIVE
                self._save_moved()
                Activity.objects.record("restore", self, initiator=initiator, now=now)
        except IntegrityError as error:
            raise self._name_taken() from error

    def used_by(self) -> ScheduleQuerySet:
        """Return the open schedules with steps that use the template, sorted by name."""
        from .schedule import Schedule

        users = self.steps.values("schedule")
        return Schedule.objects.open().filter(pk__in=users).order_by(Lower("name"))

    def check_definition(self, *, tells_secrets: bool = True) -> None:
        """Check the template; raise ValidationError with errors by field.

        `tells_secrets` is False for people who may not write steps that use secrets. Secrets are then not
        checked, because the hints in the errors would name other secrets.
        """
        self.full_clean()
        if not self.pk and (taken := self._why_taken()):
            raise ValidationError({"name": taken})
        if wrong := missing_secrets(self) if tells_secrets else []:
            raise invalid(wrong)

    def clean(self) -> None:
        self.name = _normal(self.name)
        self.description = clean_lines(self.description.strip())
        check_plain_text(self.name, "name")
        super().clean()

    def _take(self, token: int | None) -> None:
        """Lock and reload this template; raise Conflict if `token` is outdated."""
        fresh = TaskTemplate.objects.lock().get(pk=self.pk)
        if token is not None and token != fresh.token:
            raise Conflict(fresh.token, what="template")
        self.__dict__.update(
            {field.attname: getattr(fresh, field.attname) for field in self._meta.concrete_fields}
        )

    def _save_moved(self) -> None:
        self.token += 1
        self.save()

    def _why_taken(self) -> str:
        twin = TaskTemplate.objects.known().filter(name__iexact=self.name).first()
        if twin is None:
            return ""
        users = named(list(twin.used_by()))
        still = (
            f"The archived template “{twin}” is still used by {users}: restore it, or choose another name."
        )
        return still if twin.is_archived else NAME_TAKEN

    def _refuse_twin(self) -> None:
        if TaskTemplate.objects.known().exclude(pk=self.pk).filter(name__iexact=self.name).exists():
            raise self._name_taken()

    def _name_taken(self) -> Refused:
        return Refused(
            f"Another template that is active or still in use is now named “{self}”. Before you restore this "
            "one, archive that template and remove it from all schedules."
        )

    def _hand_on(
        self, before: Mapping[str, Any], *, initiator: Initiator, now: datetime, tells_secrets: bool
    ) -> dict[str, Any]:
        """Update all steps that use the template; raise Refused if a schedule's plan would become invalid.

        `before` is the definition from before the edit. Return a dict from label to the data of each changed
        step; a label has the names of the schedule and of the step.
        """
        schedules = list(self.used_by().lock().order_by("pk"))
        plans: dict[int, list[Step]] = defaultdict(list)
        # Read the steps only now that the schedules are locked: they may have been edited before.
        for step in Step.objects.filter(schedule__in=schedules).order_by("schedule", "index", "pk"):
            plans[step.schedule_id].append(step)
        moved = {
            schedule: self._moved_steps(schedule, plans[schedule.pk], tells_secrets=tells_secrets)
            for schedule in schedules
        }
        moved = {schedule: steps for schedule, steps in moved.items() if steps}
        steps = [step for each in moved.values() for step in each]
        update_each(Step, self.STEP, [[s.pk, *(getattr(s, name) for name in self.STEP)] for s in steps])
        update_each(
            self.used_by().model, ("token",), [[schedule.pk, schedule.token + 1] for schedule in moved]
        )
        details = {"before": self._as_recorded(before), "after": self._as_recorded(self.definition())}
        message = f"The template “{self}” was edited."
        Activity.objects.record_each(
            "edit", moved, initiator=initiator, now=now, message=message, details=details
        )
        return {
            f"{schedule}: {step.name}": step.as_json() for schedule, steps in moved.items() for step in steps
        }

    def _moved_steps(self, schedule: Schedule, plan: Sequence[Step], *, tells_secrets: bool) -> list[Step]:
        """Return the steps of a schedule that the edit changes; raise Refused if its plan becomes invalid."""
        after = [self._moved(step) if step.template_id == self.pk else step for step in plan]
        if wrong := plan_errors(after, tells_secrets=tells_secrets):
            known = plan_errors([copy(step) for step in plan], tells_secrets=tells_secrets)
            if fresh := [each for each in wrong if each not in known][:MOST_NAMED]:
                told = " ".join(
                    f"{_label(schedule, after[place])}: {in_words(error.path)}: {error.message}"
                    for place, error in fresh
                )
                raise Refused(f"{told} Adapt the schedule first, then save the template “{self}”.")
        if schedule.topics and (events := schedule.wrong_with_events([step.as_json() for step in after])):
            raise Refused(
                f"“{schedule}”: {' '.join(events)} Adapt the schedule first, then save the template “{self}”."
            )
        pairs = zip(plan, after, strict=True)
        return [new for old, new in pairs if not same_json(old.as_json(), new.as_json())]

    def _moved(self, step: Step) -> Step:
        moved = copy(step)
        for name, value in self.merged(step.written()).items():
            setattr(moved, name, value)
        return moved

    def _as_recorded(self, definition: Mapping[str, Any]) -> dict[str, Any]:
        return {"templates": {self.name: {name: definition[name] for name in self.STEP}}}


def names_in(steps: Any) -> set[str]:
    """Return the names of the templates in step data, even if the data is invalid."""
    names = [item.get("template") for item in _listed(steps) if isinstance(item, Mapping)]
    # Leave out names that cannot be stored: no template has such a name, and databases refuse to search for
    # it.
    return {name for name in names if isinstance(name, str) and clean_text(name) == name}


def _listed(steps: Any) -> Sequence[Any]:
    return steps if isinstance(steps, Sequence) and not isinstance(steps, str) else ()


def as_they_run(
    steps: Sequence[Mapping[str, Any]], templates: Mapping[str, TaskTemplate]
) -> list[dict[str, Any]]:
    """Return complete step data, with the values of templates and defaults; leave out unreadable steps."""
    complete = []
    for data in _listed(steps):
        if unreadable(data):
            continue
        with suppress(ValidationError):
            step = Step.read(data, templates)
            step.errors()  # fills in the defaults of the config
            complete.append(step.as_json())
    return complete


def _check_writer(changed: Mapping[str, Mapping[str, Any]], may: permissions.May) -> None:
    """Raise NotYours if the writer of a template lacks a permission that one of the `changed` steps needs.

    `changed` has the template and the steps that use it, by label. `may` returns whether the writer has a
    permission.
    """
    named = [{**step, "name": label} for label, step in changed.items()]
    for permission, names in permissions.lacking([], named, may).items():
        raise permissions.NotYours(permission, names, field="config")


def _label(schedule: Schedule, step: Step) -> str:
    return f"“{schedule}”, step “{step.name}”"


def same_json(one: object, other: object) -> bool:
    """Return whether two values are equal as JSON; to Python, 1 and True would be equal."""
    return one is other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip())
