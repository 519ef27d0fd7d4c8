"""Check and freeze work without a schedule before it is queued: single jobs, and groups of jobs."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.queue.concurrency import limit_keys
from execution.steps.binding import note
from operations.field_errors import FieldError, invalid
from operations.initiator import Initiator
from schedules import permissions
from schedules.models import Refused, Step, TaskTemplate
from schedules.models.definition import YEAR_SECONDS
from schedules.models.step import check_plain_text, check_steps, config_invalid
from schedules.models.template import as_they_run, names_in, same_json
from schedules.registry import ConfigError, failure_policies, step_types
from schedules.spec.wording import shown

from .planned import Planned, new_key

Mode = Literal["sequential", "parallel", "steps"]
# The keys by which a request can match a job that exists already.
KEYS = frozenset({"idempotency_key", "dedup_key"})
# What a job request can contain besides the fields of its step.
OPTIONS = KEYS | {"position", "available_at"}
# Fields about a step's place among other steps. In a single job, they have no meaning, but its template can
# still set them.
OF_GROUPS = ("index", "run_if", "continue_on_failure")
ALONE = (
    "This field has no effect, because a job is a single step. Leave the field out, or queue a group of "
    "steps instead: POST /api/v1/executions, or Execution.objects.submit in Python."
)
# Where a step runs, and which limits it counts towards.
PLACE = ("pool", "resources")
FARTHEST_POSITION = 1_000_000_000
LONGEST_KEY = 200
LONGEST_DELAY = timedelta(days=3_650)
REPEATS = uuid.UUID("6a1c9d0e-52c4-4a5c-9a55-3d1a3c1f4f0b")


class JobRequest(NamedTuple):
    """A checked request for a single job, with the plan line that the job will run."""

    line: dict[str, Any]
    initiator: Initiator
    position: int = 0
    later_at: datetime | None = None
    dedup_key: str = ""
    idempotency_key: str = ""

    @classmethod
    def each(
        cls, requests: Sequence[Mapping[str, Any]], *, initiator: Initiator, now: datetime
    ) -> Iterator[JobRequest]:
        templates = TaskTemplate.objects.needed_by(requests) if names_in(requests) else {}
        return (cls.of(request, templates, initiator=initiator, now=now) for request in requests)

    @classmethod
    def of(
        cls,
        request: Mapping[str, Any],
        templates: Mapping[str, TaskTemplate],
        *,
        initiator: Initiator,
        now: datetime,
    ) -> JobRequest:
        if not isinstance(request, Mapping):
            raise ValidationError({"step": f"expected fields and values, found {shown(request)}"})
        step = request
        if not OPTIONS.isdisjoint(request):
            step = {name: request[name] for name in request if name not in OPTIONS}
        if "template" in step:
            step = _of_template(step, templates)
        if OPTIONS.isdisjoint(request):
            return cls(job_line(step, now=now), initiator)
        position, later_at = _position(request), _later(request, now)
        key, dedup_key = _text(request, "idempotency_key"), _text(request, "dedup_key")
        line = job_line(step, now=now, key=_named(key, initiator) if key else None)
        if key:
            line["request"] = _fingerprint(request)
        if dedup_key:
            line["dedup_key"] = dedup_key
        return cls(line, initiator, position, later_at, dedup_key, key)

    @property
    def key(self) -> uuid.UUID:
        return uuid.UUID(self.line["key"])

    @property
    def planned(self) -> Planned:
        return Planned(
            self.line,
            self.initiator,
            position=self.position,
            dedup_key=self.dedup_key,
            later_at=self.later_at,
        )

    def skipped(self, twin: uuid.UUID, now: datetime) -> Activity:
        """Build the activity of a job that is not queued because of `twin`.

        The twin is a job with the same deduplication key that has not ended.
        """
        why = f"Not queued: job {twin}, with the same deduplication key (“{self.dedup_key}”), has not ended."
        details = {"twin": str(twin), "request": self.line.get("request")}
        return self.planned.ended(Activity.Status.SKIPPED, why, now=now, details=details)


def named(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the request in which a job without a name is named after its step type.

    A job without a step type is made from a template, and gets the name of the template.
    """
    return {"name": request["step_type"], **request} if "step_type" in request else dict(request)


def first_wrong(
    requests: Sequence[Mapping[str, Any]], *, initiator: Initiator, now: datetime
) -> tuple[int, ValidationError] | None:
    """Return the index of the first job that cannot be queued, and the error; None if all can be queued."""
    for number, request in enumerate(requests):
        try:
            list(JobRequest.each([request], initiator=initiator, now=now))
        except ValidationError as error:
            return number, error
    return None


def names_keys(requests: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether any of these requests has an idempotency key or a deduplication key."""
    return any(isinstance(request, Mapping) and not KEYS.isdisjoint(request) for request in requests)


def job_line(step: Mapping[str, Any], *, now: datetime, key: uuid.UUID | None = None) -> dict[str, Any]:
    """Check the step of a job, and return it as a plan line with all values filled in."""
    # The types are included because 1 and True are equal in Python.
    frame = tuple((name, type(value), value) for name, value in step.items() if name != "config")
    try:
        checked = _checked(frame)
    except TypeError:  # a value is not hashable; the check says what is wrong with it
        checked = _checked.__wrapped__(frame)
    kind = step_types[checked["step_type"]]
    try:
        config = kind.clean(step.get("config", {}))
    except ConfigError as error:
        raise config_invalid(error) from error
    line = checked | {
        "config": config,
        "line": 0,
        "key": str(key or new_key()),
        "isolation": kind.isolation(config),
        "schedule": "",
        "nominal_at": None,
    }
    line["limit_keys"] = _limit_keys(line)
    note([line], zone=None, now=now)
    if "refs" in line:
        Step(**(dict(step) | {"config": config})).check_alone()
    return line


@lru_cache(maxsize=256)
def _checked(frame: tuple[tuple[str, type, Any], ...]) -> dict[str, Any]:
    """Check all fields of a step except its config, and return them.

    `frame` contains the name, type and value of each field. Results are cached, because thousands of similar
    jobs can be queued.
    """
    data = {name: value for name, _, value in frame}
    if unknown := sorted(set(data) - set(Step.FIELDS)):
        raise ValidationError(dict.fromkeys(unknown, "A job has no field with this name."))
    step = Step(**data)
    step.clean_fields(exclude=["schedule", "config"])
    step.clean_frame()
    usual = Step()
    if unused := [name for name in OF_GROUPS if getattr(step, name) != getattr(usual, name)]:
        raise ValidationError(dict.fromkeys(unused, ALONE))
    return step.as_json()


def _limit_keys(line: Mapping[str, Any]) -> str:
    try:
        return limit_keys(line)
    except Refused as error:
        raise ValidationError(
            {"resources": f"The limits of this step cannot be determined: {error}"}
        ) from error


def check_own_steps(requests: Sequence[Any], may: permissions.May) -> None:
    """Raise NotYours if a request has a step that the caller lacks the permission to write.

    `may` says which permissions the caller has. Steps that use a template unchanged need no permission.
    """
    if may is not permissions.anything:
        permissions.check_writer(_own_steps(requests), may)


def _own_steps(requests: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the steps that the caller has written, leaving out those that use a template unchanged."""
    own = [each for each in requests if isinstance(each, Mapping) and _says_more(each)]
    templates = TaskTemplate.objects.needed_by(own)
    written = [
        {name: request[name] for name in ("name", "template", "step_type", "config") if name in request}
        for request in own
        if not _says_the_same(request, templates)
    ]
    # A step whose type does not exist is refused later, for that reason.
    known = [step for step in written if "template" in step or _has_type(step)]
    return as_they_run(known, templates)


def _says_more(request: Mapping[str, Any]) -> bool:
    """Return whether a request uses no template, or sets a config, pool or resources besides the template."""
    return "template" not in request or not {"config", *PLACE}.isdisjoint(request)


def _says_the_same(request: Mapping[str, Any], templates: Mapping[str, TaskTemplate]) -> bool:
    """Return whether a request sets no config, and the pool and resources only as its template does."""
    template = templates.get(str(request.get("template")))
    if template is None or "config" in request:
        return False
    return all(same_json(request[name], getattr(template, name)) for name in PLACE if name in request)


def _has_type(step: Mapping[str, Any]) -> bool:
    kind = step.get("step_type")
    return isinstance(kind, str) and kind in step_types


def checked_group(
    name: str,
    steps: Sequence[Mapping[str, Any]],
    *,
    mode: str,
    on_failure: str,
    timeout_seconds: int | None,
) -> list[Step]:
    """Check a group of jobs, and return its steps with their indexes; report all errors at once, by field."""
    wrong: dict[str, str] = {}
    if not isinstance(name, str) or not 0 < len(name.strip()) <= 200:
        wrong["name"] = "A group needs a name of at most 200 characters."
    if mode not in get_args(Mode):
        wrong["mode"] = f"“{mode}” is not a valid mode. Use one of: {', '.join(get_args(Mode))}."
    if not isinstance(on_failure, str) or on_failure not in failure_policies:
        known = ", ".join(sorted(failure_policies))
        wrong["on_failure"] = f"“{on_failure}” is not a failure policy. Use one of: {known}."
    if not _is_timeout(timeout_seconds):
        wrong["timeout_seconds"] = f"Must be a whole number of seconds from 1 to {YEAR_SECONDS:,} (one year)."
    data: Any = steps
    if isinstance(data, Sequence) and not isinstance(data, str):
        data = [_step(step, number, mode) for number, step in enumerate(data)]
    templates = TaskTemplate.objects.needed_by(data) if isinstance(data, list) else {}
    if data == []:
        wrong["steps"] = "A group needs at least one step."
    errors = [FieldError((field,), message) for field, message in wrong.items()]
    errors += [error.inside("steps") for error in check_steps(data, templates)] if data != [] else []
    if errors:
        raise invalid(errors)
    check_plain_text(name.strip(), "name")
    return [Step.from_json(None, step, templates) for step in data]


def _step(step: Any, number: int, mode: str) -> Any:
    if not isinstance(step, Mapping):
        return step  # unchanged; the check reports it
    kind = step.get("template") or step.get("step_type", "step")
    data = {"name": f"{kind} {number + 1}", **step}
    if mode not in ("sequential", "parallel"):
        return data
    if "index" in step:
        raise ValidationError(
            {
                f"steps.{number}.index": "Only the mode “steps” allows an index. Leave the index out, or use "
                "that mode."
            }
        )
    return data | {"index": number if mode == "sequential" else 0}


def complete(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the step of a single job, filled in from its template if it names one."""
    return _of_template(step, TaskTemplate.objects.needed_by([step])) if "template" in step else step


def _of_template(step: Mapping[str, Any], templates: Mapping[str, TaskTemplate]) -> dict[str, Any]:
    name = step["template"]
    if not isinstance(name, str) or name not in templates:
        raise ValidationError({"template": f"{TaskTemplate.objects.why_not(str(name))}."})
    resolved = templates[name].resolve(step)
    return {field: resolved[field] for field in resolved if field in step or field not in OF_GROUPS}


def _is_timeout(seconds: object) -> bool:
    if isinstance(seconds, int) and not isinstance(seconds, bool):
        return 1 <= seconds <= YEAR_SECONDS
    return seconds is None


def _text(request: Mapping[str, Any], name: str) -> str:
    text = request.get(name) or ""
    if not isinstance(text, str) or len(text) > LONGEST_KEY:
        raise ValidationError({name: f"Must be a string of at most {LONGEST_KEY} characters."})
    if text:
        check_plain_text(text, name)
    return text


def _position(request: Mapping[str, Any]) -> int:
    position = request.get("position") or 0
    if not isinstance(position, int) or isinstance(position, bool) or abs(position) > FARTHEST_POSITION:
        most = f"{FARTHEST_POSITION:,}"
        raise ValidationError({"position": f"Must be a whole number from -{most} to {most}."})
    return position


def _later(request: Mapping[str, Any], now: datetime) -> datetime | None:
    at = request.get("available_at")
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ValidationError({"available_at": "Must be a time with a time zone."})
    if at > now + LONGEST_DELAY:
        raise ValidationError({"available_at": "The time can be at most ten years in the future."})
    return at if at > now else None


def _named(key: str, initiator: Initiator) -> uuid.UUID:
    """Derive a job's key from its initiator and idempotency key, so that a repeated request finds the job."""
    return uuid.uuid5(REPEATS, f"{initiator.type}\n{initiator.id}\n{key}")


def _fingerprint(request: Mapping[str, Any]) -> str:
    # In JSON, all names are strings, so they can be sorted.
    stored = json.loads(json.dumps(dict(request), default=str))
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
