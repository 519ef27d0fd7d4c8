"""Steps of schedules, and the checks of a list of steps."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from database.statements import among, read
from operations.field_errors import FieldError, Path, field_errors, invalid
from schedules import registry
from schedules.field_types import StrictlyTyped
from schedules.placeholders import Reference, found, has_placeholders, hint
from schedules.spec.wording import shown

if TYPE_CHECKING:
    from .schedule import Schedule
    from .template import TaskTemplate

MAX_STEPS = 500
MOST_WORDS = 10
LONGEST_WORD = 80
LONGEST_TOGETHER = 300
# Placeholder values of a job without a schedule.
VALUES_OF_ANY_JOB = ("attempt", "idempotency_key")


class TaskFields(StrictlyTyped):
    """The fields that steps and task templates share: what runs, and how it runs."""

    class OnCrash(models.TextChoices):
        RETRY = "retry", "Run the step again"
        FAIL = "fail", "Fail: the step must not run twice"

    step_type = models.CharField(max_length=40)
    config = models.JSONField(default=dict, blank=True)
    continue_on_failure = models.BooleanField(default=False)
    max_failed_percent = models.PositiveIntegerField(
        "failed items allowed (%)",
        default=100,
        validators=[MaxValueValidator(100)],
        help_text="If more than this percentage of the items fail, the step completes with errors, "
        "which counts as a failure.",
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(604_800)]
    )
    max_retries = models.PositiveIntegerField(default=3, validators=[MaxValueValidator(100)])
    retry_seconds = models.PositiveIntegerField(default=10, validators=[MaxValueValidator(86_400)])
    retry_factor = models.FloatField(
        default=2.0,
        validators=[MinValueValidator(1), MaxValueValidator(10)],
        help_text="The delay is multiplied by this factor for each further retry.",
    )
    retry_cap_seconds = models.PositiveIntegerField(
        default=600,
        validators=[MaxValueValidator(604_800)],
        help_text="The delay does not grow beyond this value. If the first delay is longer, all retries use "
        "the first delay.",
    )
    retry_jitter = models.PositiveIntegerField(
        "retry jitter (%)",
        default=0,
        validators=[MaxValueValidator(100)],
        help_text="Each delay is increased at random by up to this percentage.",
    )
    retry_on = models.JSONField(
        default=list,
        blank=True,
        help_text="Retry only errors that contain one of these texts, such as the name of an exception. "
        "Empty: all errors.",
    )
    on_crash = models.CharField(max_length=8, choices=OnCrash.choices, default=OnCrash.RETRY)
    pool = models.CharField(max_length=40, default="default")
    priority = models.IntegerField(
        default=0,
        validators=[MinValueValidator(-1000), MaxValueValidator(1000)],
        help_text="In a pool, tasks with a higher priority start first.",
    )
    resources = models.JSONField(
        default=list,
        blank=True,
        help_text="What the task uses, such as “connected-system:7”. A limit can set how many tasks may use "
        "the same resource at once.",
    )

    class Meta:
        abstract = True

    def clean(self) -> None:
        self.clean_frame()
        self.clean_config()

    def clean_config(self) -> None:
        """Let the step type check the config and fill in the defaults."""
        try:
            self.config = registry.step_types[self.step_type].clean(self.config)
        except registry.ConfigError as error:
            raise config_invalid(error) from error

    def clean_frame(self) -> None:
        """Check all fields except the config."""
        self.retry_factor = float(self.retry_factor)  # stored as a float; files may say 3
        check_plain_text(self.pool, "pool")
        if self.pool != self.pool.strip():
            # Forms remove these spaces, so saving the step in a form would move it to another pool.
            raise ValidationError({"pool": f"“{self.pool}” begins or ends with a space: remove the space."})
        check_words(self.retry_on, "retry_on")
        check_words(self.resources, "resources")
        check_counted([self.pool], "pool")
        check_counted(self.resources, "resources")
        known = ", ".join(kind.name for kind in registry.offered())
        if self.step_type not in known.split(", "):
            raise ValidationError(
                {"step_type": f"Unknown step type “{self.step_type}”: choose one of {known}."}
            )

    def references(self) -> list[tuple[str, Reference]]:
        """Return the references in the placeholders of the config, as pairs (config field, reference)."""
        if not isinstance(self.config, dict) or not has_placeholders(self.config):
            return []
        return [(field, ref) for field, value in self.config.items() for ref in dict.fromkeys(found(value))]


class Step(TaskFields):
    """A step of a schedule; steps with the same index run side by side."""

    class RunIf(models.TextChoices):
        SUCCESS = "success", "No earlier step failed"
        FAILURE = "failure", "An earlier step failed"
        ALWAYS = "always", "Always"

    FIELDS = (
        "index",
        "name",
        "step_type",
        "config",
        "run_if",
        "continue_on_failure",
        "max_failed_percent",
        "timeout_seconds",
        "max_retries",
        "retry_seconds",
        "retry_factor",
        "retry_cap_seconds",
        "retry_jitter",
        "retry_on",
        "on_crash",
        "pool",
        "priority",
        "resources",
    )

    schedule = models.ForeignKey("schedules.Schedule", models.CASCADE, related_name="steps", db_index=False)
    index = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(1000)])
    name = models.CharField(max_length=200)
    run_if = models.CharField(max_length=8, choices=RunIf.choices, default=RunIf.SUCCESS)
    template = models.ForeignKey(
        "schedules.TaskTemplate",
        models.PROTECT,
        null=True,
        blank=True,
        related_name="steps",
        editable=False,
        db_index=False,
    )
    # If the step uses a template: the fields that the step itself sets. The other columns hold the values
    # merged with those of the template.
    overrides = models.JSONField(default=dict, blank=True, editable=False)

    class Meta:
        ordering = ["index", "id"]
        constraints = [models.UniqueConstraint(fields=["schedule", "name"], name="step_name_once")]
        indexes = [
            models.Index(
                fields=["template"], name="step_of_template", condition=models.Q(template__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_json(
        cls,
        schedule: Schedule | None,
        data: Mapping[str, Any],
        templates: Mapping[str, TaskTemplate] | None = None,
    ) -> Step:
        step = cls.read(data, templates or {})
        if schedule is not None:
            step.schedule = schedule
        step.name = unicodedata.normalize("NFC", step.name.strip())
        step.config = registry.step_types[step.step_type].clean(step.config)
        return step

    @classmethod
    def read(cls, data: Mapping[str, Any], templates: Mapping[str, TaskTemplate]) -> Step:
        """Return an unchecked step for the data; raise ValidationError if its template cannot be applied."""
        name = data.get("template")
        if name is None:
            return cls(**{field: value for field, value in data.items() if field != "template"})
        if not isinstance(name, str):
            raise ValidationError({"template": f"enter the name of a template, not {shown(name)}"})
        if name not in templates:
            raise ValidationError({"template": _why_no_template(name)})
        overrides = {field: value for field, value in data.items() if field not in ("index", "name")}
        return cls(**templates[name].merged(data), template=templates[name], overrides=overrides)

    @classmethod
    def lines_of(cls, schedule_ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
        """Return a dict from schedule id to the complete steps of the schedule, in order."""
        lines: dict[int, list[dict[str, Any]]] = defaultdict(list)
        theirs, params = among("schedule_id", schedule_ids)
        fields = ("schedule", *cls.FIELDS)
        for schedule_id, *values in read(cls, fields, f'WHERE {theirs} ORDER BY "index", id', params):
            lines[schedule_id].append(dict(zip(cls.FIELDS, values, strict=True)))
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return all fields of the step, including those that come from its template."""
        return {name: getattr(self, name) for name in self.FIELDS}

    def written(self) -> dict[str, Any]:
        """Return the step as it was written, without the values of its template."""
        if self.template_id is None:
            return self.as_json()
        return {"index": self.index, "name": self.name, **self.overrides}

    def clean_frame(self) -> None:
        self.name = unicodedata.normalize("NFC", self.name.strip())
        check_plain_text(self.name, "name")
        super().clean_frame()

    def errors(self) -> list[FieldError]:
        """Fill in the defaults of the config, and return the errors that concern this step alone."""
        check_fields = partial(self.clean_fields, exclude=["schedule", "template"])
        found = _errors_of(check_fields) or _errors_of(self.clean_frame)
        wrong = {error.path[0] for error in found if error.path}
        if not wrong.isdisjoint(("step_type", "config")) or self.step_type not in registry.step_types:
            return found
        return [*found, *_errors_of(self.clean_config)]

    def check_alone(self) -> None:
        """Raise ValidationError if a placeholder, such as a step's result, has no value in a single job."""
        if errors := list(_reference_errors([self], is_plan=False)):
            raise invalid(error for _, error in errors)


def _errors_of(check: Callable[[], None]) -> list[FieldError]:
    try:
        check()
    except ValidationError as error:
        return field_errors(error)
    return []


def made_of(steps: Sequence[Mapping[str, Any]], templates: Mapping[str, TaskTemplate]) -> list[Step]:
    """Return unsaved, complete steps for step data that was checked before."""
    return [Step.from_json(None, data, templates) for data in steps]


def config_invalid(error: registry.ConfigError) -> ValidationError:
    return invalid(FieldError(_config_path(name), text) for name, text in error.errors.items())


def _config_path(name: str) -> Path:
    """Return the error path of a setting; the name `config` stands for the config as a whole."""
    return ("config",) if name == "config" else ("config", name)


def check_steps(
    steps: Any, templates: Mapping[str, TaskTemplate] | None = None, *, tells_secrets: bool = True
) -> list[FieldError]:
    """Return every error in a list of steps; paths begin with the position of the step, counted from 0.

    `tells_secrets` is False for people who may not write steps that use secrets. Secrets are then not
    checked, because the hints in the errors would name other secrets.
    """
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        return [FieldError((), f"Expected a list of steps, found {shown(steps)}.")]
    if not steps:
        return [FieldError((), "A schedule needs at least one step.", "required")]
    if len(steps) > MAX_STEPS:
        return [FieldError((), f"{len(steps):,} steps are too many: at most {MAX_STEPS} are allowed.")]
    errors: list[FieldError] = []
    plan: dict[int, Step] = {}
    for place, data in enumerate(steps):
        if wrong := unreadable(data):
            errors.append(wrong.inside(place))
            continue
        try:
            plan[place] = Step.read(data, templates or {})
        except ValidationError as error:
            errors += [each.inside(place) for each in field_errors(error)]
    places = list(plan)
    return [
        *errors,
        *(
            error.inside(places[n])
            for n, error in plan_errors(list(plan.values()), tells_secrets=tells_secrets)
        ),
    ]


def unheard_events(
    steps: Sequence[Mapping[str, Any]], templates: Mapping[str, TaskTemplate]
) -> list[FieldError]:
    """Return an error for each event placeholder in the steps of a schedule that has no topics."""
    plan = [Step.read(data, templates) for data in steps]
    why = "events do not start this schedule: add a topic to the schedule"
    return [
        FieldError((place, "config", field), f"{{{{ {ref.text} }}}}: {why}")
        for place, step in enumerate(plan)
        for field, ref in step.references()
        if ref.kind == "event"
    ]


def plan_errors(plan: Sequence[Step], *, tells_secrets: bool = True) -> list[tuple[int, FieldError]]:
    """Return all errors of the steps in a plan, each with the position of its step."""
    alone = [(place, error) for place, step in enumerate(plan) for error in step.errors()]
    return [*alone, *_errors_together(plan), *_reference_errors(plan, tells_secrets=tells_secrets)]


def unreadable(data: object) -> FieldError | None:
    """Return why step data cannot be read at all, or None if it can."""
    if not isinstance(data, Mapping):
        return FieldError((), f"expected fields and values, found {shown(data)}.")
    if unknown := sorted(str(name) for name in data.keys() - {*Step.FIELDS, "template"}):
        return FieldError((), f"unknown field {', '.join(unknown)}.", "unknown_field")
    for field in ("name", "step_type"):
        if not isinstance(value := data.get(field, ""), str):
            return FieldError((field,), f"expected text in quotes, found {shown(value)}")
    return None


def _errors_together(plan: Sequence[Step]) -> Iterator[tuple[int, FieldError]]:
    """Yield the errors that arise only from the combination of steps, each with the position of its step."""
    names: set[str] = set()
    first = min((step.index for step in plan if isinstance(step.index, int)), default=0)
    for place, step in enumerate(plan):
        if step.name.casefold() in names:
            yield place, FieldError(("name",), "another step already has this name.", "unique")
        names.add(step.name.casefold())
        if step.run_if == Step.RunIf.FAILURE and step.index == first:
            wrong = (
                "no step runs before this one: move it to a later group (a higher index), or run "
                "it on success or always."
            )
            yield place, FieldError(("run_if",), wrong)


def _reference_errors(
    steps: Sequence[Step], *, is_plan: bool = True, tells_secrets: bool = True
) -> Iterator[tuple[int, FieldError]]:
    """Yield an error for each placeholder without a value at run time, with the position of its step.

    `is_plan` is False for a single job.
    """
    wanted = [
        (place, step, field, ref)
        for place, step in enumerate(steps)
        for field, ref in step.references()
        if tells_secrets or ref.kind != "secret"
    ]
    plan = {step.name: step for step in steps} if is_plan else {}
    secrets = _secret_names(ref for *_, ref in wanted)
    for place, step, field, ref in wanted:
        if why := _why_no_value(ref, step, plan, secrets):
            yield place, FieldError(("config", field), f"{{{{ {ref.text} }}}}: {why}")


def missing_secrets(task: TaskFields) -> list[FieldError]:
    """Return an error for each placeholder that names a secret that does not exist."""
    wanted = [(field, ref) for field, ref in task.references() if ref.kind == "secret"]
    known = _secret_names(ref for _, ref in wanted)
    return [
        FieldError(("config", field), f"{{{{ {ref.text} }}}}: {_no_secret(ref.name, known)}")
        for field, ref in wanted
        if ref.name not in known
    ]


def _no_secret(name: str, known: Collection[str]) -> str:
    return f"unknown secret “{name}”; {hint(name, known, 'define it first')}"


def _why_no_value(ref: Reference, step: Step, plan: Mapping[str, Step], secrets: Collection[str]) -> str:
    match ref.kind:
        case "step" if plan:
            return _why_no_result(ref.name, step, plan)
        case "step":
            return "a single job has no earlier steps"
        case "event" if not plan:
            return "events do not start a single job"
        case "secret" if ref.name not in secrets:
            return _no_secret(ref.name, secrets)
        case "value" | "last" if not plan and ref.name not in VALUES_OF_ANY_JOB:
            return f"a single job has only the values {' and '.join(VALUES_OF_ANY_JOB)}"
    return ""


def _why_no_result(name: str, step: Step, plan: Mapping[str, Step]) -> str:
    if name == step.name:
        return "a step cannot use its own result"
    if name not in plan:
        return f"unknown step “{name}”; {hint(name, plan)}"
    own: object = step.index
    other: object = plan[name].index
    if not (isinstance(own, int) and isinstance(other, int)):
        return ""  # reported separately
    earlier = f"move “{name}” to an earlier group (a lower index)"
    if other == own:
        return f"“{name}” is in the same group, so both steps run side by side; {earlier}"
    return f"“{name}” runs later: {earlier}" if other > own else ""


def _secret_names(refs: Iterable[Reference]) -> Collection[str]:
    from .secret import Secret  # a circular import otherwise

    return Secret.objects.names() if any(ref.kind == "secret" for ref in refs) else ()


def _why_no_template(name: str) -> str:
    from .template import TaskTemplate  # a circular import otherwise

    return TaskTemplate.objects.why_not(name)


def check_words(words: Any, field: str) -> None:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValidationError({field: 'Enter a list of strings, such as ["one", "another"].'})
    if len(words) > MOST_WORDS:
        raise ValidationError(
            {field: f"{len(words)} entries are too many: at most {MOST_WORDS} are allowed."}
        )
    for word in words:
        check_plain_text(word, field)
        if len(word) > LONGEST_WORD:
            complaint = f"“{word[:LONGEST_WORD]}…” is too long: use at most {LONGEST_WORD} characters."
            raise ValidationError({field: complaint})
        if word != word.strip():
            raise ValidationError({field: f"“{word}” must not begin or end with a space."})


def check_counted(names: Sequence[str], field: str) -> None:
    """Check names by which limits count tasks.

    Raise ValidationError if a name has characters that cannot be printed, or if all names together are too
    long.
    """
    for name in names:
        if odd := [character for character in name if not character.isprintable()]:
            raise ValidationError(
                {field: f"The character U+{ord(odd[0]):04X} is not allowed here: remove it."}
            )
    if (length := sum(map(len, names))) > LONGEST_TOGETHER:
        complaint = f"All entries together have {length} characters: at most {LONGEST_TOGETHER} are allowed."
        raise ValidationError({field: complaint})


def check_plain_text(text: str, field: str) -> None:
    """Raise ValidationError if a text is blank or has control, bidirectional or zero-width characters."""
    if not text:
        raise ValidationError({field: "This must not be blank."})
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\u200d":
            raise ValidationError(
                {field: f"The character U+{ord(character):04X} is not allowed here: remove it."}
            )
