"""The values of a step's placeholders. Some are stored in the plan; others are looked up later."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any
from uuid import UUID

from activities.models import Activity
from database.statements import among, fetch, loaded
from schedules.models import Secret
from schedules.placeholders import (
    PlaceholderError,
    Reference,
    fill,
    found,
    has_placeholders,
    look_up,
    reference,
)
from schedules.vault import Undecryptable, VaultError

from .masking import MASK

if TYPE_CHECKING:
    from execution.models.attempt import ClaimedTask

# Statuses of attempts that ran to their end.
WITH_RESULT = (
    Activity.Status.COMPLETE,
    Activity.Status.COMPLETE_WITH_WARNING,
    Activity.Status.COMPLETE_WITH_ERROR,
)


@dataclass(frozen=True)
class Binding:
    """The placeholder values of one attempt, by reference text. `problem` says why values are missing."""

    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    problem: str = ""
    can_retry: bool = False
    last_result: Any = field(default=None, repr=False)


class Unbound(Exception):
    """Raised if a placeholder has no value; the message says why."""

    def __init__(self, message: str, *, can_retry: bool = False) -> None:
        super().__init__(message)
        self.can_retry = can_retry


def note(
    lines: Sequence[dict[str, Any]],
    *,
    zone: tzinfo | None,
    has_last: bool = False,
    event: Mapping[str, Any] | None = None,
    now: datetime,
) -> None:
    """Add to each line of a new plan what is needed to fill in its placeholders.

    `zone` is the time zone of the schedule, or None for a single job, which has no placeholders for times.
    `has_last` says whether an earlier execution has left a result. `event` is the event that started the
    plan, if any.
    """
    for line in lines:
        if has_last and (line["step_type"] == "python" or has_placeholders(line["config"])):
            line["has_last"] = True
        if has_placeholders(line["config"]):
            refs = dict.fromkeys(found(line["config"]))
            known = _known(line, zone, now)
            names = {ref.name for ref in refs if ref.kind == "step"}
            line["refs"] = [ref.text for ref in refs]
            line["values"] = {ref.text: known[ref.text] for ref in refs if ref.text in known}
            _note_event(line, [ref for ref in refs if ref.kind == "event"], event)
            line["keys"] = {other["name"]: other["key"] for other in lines if other["name"] in names}


def _note_event(line: dict[str, Any], refs: Sequence[Reference], event: Mapping[str, Any] | None) -> None:
    """Store in the line the values from the event, or why they are missing, as plans can outlive events."""
    for ref in refs:
        try:
            line["values"][ref.text] = _of_event(ref, event)
        except Unbound as error:
            line.setdefault("unbound", {})[ref.text] = str(error)


def _of_event(ref: Reference, event: Mapping[str, Any] | None) -> Any:
    if event is None:
        raise Unbound("this run was not started by an event")
    try:
        return look_up(event[ref.name], ref.path)
    except PlaceholderError as error:
        raise Unbound(f"in the {ref.name} of the event: {error}") from None


class LastResults:
    """A cache of `Execution.last_result`, by execution id. The last result of an execution never changes.

    Results are kept as JSON text, which takes less memory and gives each reader a copy. Long results are not
    cached.
    """

    MOST, LONGEST = 64, 16_384

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, execution_ids: Collection[int]) -> dict[int, str]:
        known = {pk: self._known[pk] for pk in execution_ids if pk in self._known}
        if missing := set(execution_ids) - known.keys():
            known |= _last_results(missing)
            short = [(pk, text) for pk, text in known.items() if len(text) <= self.LONGEST]
            self._known = dict([*self._known.items(), *short][-self.MOST :])
        return known


def bind(tasks: Sequence[ClaimedTask], last_results: LastResults | None = None) -> dict[int, Binding]:
    """Return the bindings of tasks that have placeholders or a last result, by task id.

    The function runs at most three database statements, and raises an exception only if the database is
    unavailable: a problem of one task is stored in its binding.
    """
    wanted = {
        task.pk: _Wanted.of(task)
        for task in tasks
        if task.step.get("refs") is not None or task.step.get("has_last")
    }
    if not wanted:
        return {}
    asking = {t.execution_id for t in tasks if t.execution_id and t.step.get("has_last")}
    last = (last_results or LastResults()).of(asking)
    for task in tasks:
        if task.pk in wanted and task.execution_id in last:
            wanted[task.pk].last_result = loaded(last[task.execution_id])
    results = _results({key for each in wanted.values() for key in each.keys.values()})
    secrets = _secrets({ref.name for each in wanted.values() for ref in each.refs if ref.kind == "secret"})
    return {pk: each.bound(results, secrets) for pk, each in wanted.items()}


@dataclass(frozen=True)
class FilledConfig:
    """A step's config with placeholders filled in, and the reason for each placeholder without a value."""

    config: Any
    missing: Mapping[str, str] = field(default_factory=dict)


def shown(
    line: Mapping[str, Any], *, execution_id: int, attempts: Mapping[UUID, Activity], last_result: Any
) -> FilledConfig:
    """Return the config that the step of this plan line received, or would receive now, with secrets masked.

    `attempts` contains the last attempt of each step of the execution, by the step's key.
    """
    config = line.get("config")
    if line.get("refs") is None:
        return FilledConfig(config)
    try:
        own = attempts.get(UUID(line["key"]))
        wanted = _Wanted.read(line, attempt=own.attempt if own else 1, execution_id=execution_id)
        wanted.last_result = last_result
        ended = {key: _Ended(each.status, each.result) for key, each in attempts.items()}
        values, missing = wanted.shown(ended)
        return FilledConfig(fill(config, values), missing)
    except (AttributeError, KeyError, TypeError, ValueError):
        return FilledConfig(config)  # a damaged line is shown unfilled


@dataclass
class _Wanted:
    """The references of one attempt and the sources of their values. `damage`: why the plan is unreadable."""

    values: dict[str, Any]
    refs: list[Reference] = field(default_factory=list)
    keys: dict[str, UUID] = field(default_factory=dict)
    unbound: dict[str, str] = field(default_factory=dict)
    last_result: Any = None
    damage: str = ""

    @classmethod
    def of(cls, task: ClaimedTask) -> _Wanted:
        return cls.read(task.step, attempt=task.attempt, execution_id=task.execution_id)

    @classmethod
    def read(cls, line: Mapping[str, Any], *, attempt: int, execution_id: int | None) -> _Wanted:
        values = {"attempt": attempt, "execution": execution_id}
        try:
            keys = {name: UUID(key) for name, key in line.get("keys", {}).items()}
            refs = [reference(text) for text in line.get("refs") or []]
            return cls(values | line.get("values", {}), refs, keys, line.get("unbound", {}))
        except (AttributeError, TypeError, ValueError) as error:
            return cls({}, damage=f"the placeholders in the plan cannot be read: {error}")

    def bound(self, results: Mapping[UUID, _Ended], secrets: Mapping[str, str | VaultError]) -> Binding:
        if self.damage:
            return Binding(problem=self.damage)
        if unbound := next((ref.text for ref in self.refs if ref.text in self.unbound), None):
            return Binding(problem=f"{{{{ {unbound} }}}}: {self.unbound[unbound]}")
        values, hidden = dict(self.values), set()
        try:
            for ref in self.refs:
                if ref.kind == "step":
                    values[ref.text] = deepcopy(self._result(ref, results))
                elif ref.kind == "last":
                    values[ref.text] = self._last(ref)
                elif ref.kind == "secret":
                    values[ref.text] = _secret(ref, secrets)
                    hidden.add(values[ref.text])
        except Unbound as error:
            return Binding(problem=f"{{{{ {ref.text} }}}}: {error}", can_retry=error.can_retry)
        return Binding(values, tuple(sorted(hidden)), last_result=self.last_result)

    def shown(self, results: Mapping[UUID, _Ended]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values, with secrets masked, and the reason for each value that is missing.

        The placeholder of a missing value stays as it is.
        """
        values, missing = dict(self.values), {}
        for ref in self.refs:
            try:
                values[ref.text] = self._shown(ref, results)
            except Unbound as error:
                values[ref.text], missing[ref.text] = f"{{{{ {ref.text} }}}}", str(error)
        return values, missing

    def _shown(self, ref: Reference, results: Mapping[UUID, _Ended]) -> Any:
        if ref.text in self.unbound:
            raise Unbound(self.unbound[ref.text])
        match ref.kind:
            case "step":
                return self._result(ref, results)
            case "last":
                return self._last(ref)
            case "secret":
                return MASK
        if ref.text not in self.values:
            raise Unbound("this placeholder has no value in this step")
        return self.values[ref.text]

    def _last(self, ref: Reference) -> Any:
        """Return the referenced part of the last result, or None if no execution has completed yet."""
        if self.last_result is None:
            return None
        try:
            return look_up(self.last_result, ref.path)
        except PlaceholderError as error:
            raise Unbound(str(error)) from None

    def _result(self, ref: Reference, results: Mapping[UUID, _Ended]) -> Any:
        key = self.keys.get(ref.name)
        ended = results.get(key) if key is not None else None
        if ended is None:
            raise Unbound(f"no record of step “{ref.name}” was found")
        if ended.status not in WITH_RESULT:
            raise Unbound(f"step “{ref.name}” {_ending(ended.status)}, so it has no result")
        if ended.result is None:
            raise Unbound(f"step “{ref.name}” returned no result")
        try:
            return look_up(ended.result, ref.path)
        except PlaceholderError as error:
            raise Unbound(str(error)) from None


@dataclass(frozen=True)
class _Ended:
    """How the last attempt of an earlier step ended."""

    status: str
    result: object


def _last_results(execution_ids: Collection[int]) -> dict[int, str]:
    theirs, params = among("id", sorted(execution_ids))
    sql = f"SELECT id, last_result FROM execution_execution WHERE last_result IS NOT NULL AND {theirs}"
    return dict(fetch(sql, params))


def _results(keys: Collection[UUID]) -> dict[UUID, _Ended]:
    if not keys:
        return {}
    rows = Activity.objects.filter(task_key__in=keys).order_by("attempt")
    last = rows.values_list("task_key", "status", "result")
    return {key: _Ended(status, result) for key, status, result in last if key}


def _secrets(names: Collection[str]) -> dict[str, str | VaultError]:
    """Return the values of secrets by name, or the error in place of a value that this host cannot read."""
    if not names:
        return {}
    try:
        return dict(Secret.objects.reveal(names))
    except Undecryptable as error:
        return dict.fromkeys(error.names, error) | _secrets(set(names) - error.names)
    except VaultError as error:
        return dict.fromkeys(names, error)


def _secret(ref: Reference, secrets: Mapping[str, str | VaultError]) -> str:
    value = secrets.get(ref.name)
    if value is None:
        raise Unbound(f"the secret “{ref.name}” no longer exists; define it again, or change the step")
    if isinstance(value, VaultError):
        # Another worker may have the key, or this one later.
        raise Unbound(str(value), can_retry=True)
    return value


def _known(line: Mapping[str, Any], zone: tzinfo | None, now: datetime) -> dict[str, Any]:
    """Return the values that are known when the plan is made, with times in the schedule's time zone."""
    if zone is None:
        return {"idempotency_key": line["key"]}
    nominal = datetime.fromisoformat(line["nominal_at"]).astimezone(zone)
    return {
        "idempotency_key": line["key"],
        "schedule": line["schedule"],
        "nominal_time": nominal.isoformat(timespec="seconds"),
        "nominal_date": nominal.date().isoformat(),
        "started_time": now.astimezone(zone).isoformat(timespec="seconds"),
    }


def _ending(status: str) -> str:
    match status:
        case Activity.Status.SKIPPED:
            return "was skipped"
        case Activity.Status.CANCELLED:
            return "was cancelled"
        case Activity.Status.PENDING | Activity.Status.IN_PROGRESS:
            return "has not ended"
    return "failed"
