"""The outbox: deliveries are added in the same transaction as the events that they announce.

An error here must not undo the event itself. It is therefore only logged, and no delivery is added.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from activities.models import Activity
from activities.signals import Event
from database import clock
from database.statements import AWAY, among
from execution.models import Execution
from schedules.models import Schedule

from .events import ENDINGS, NOTIFIED_CHANGES, OF_ACTIVITY, OF_CHANGE, is_newly_failing
from .models import Delivery, Endpoint, Listener
from .models.delivery import NewDelivery, body_of

TEXT_CHARS = 2_000
RESULT_CHARS = 8_000
ACTIVITY = (
    *("id", "operation", "status", "target_type", "target_id", "target_name", "parent_id", "retry_of_id"),
    *("initiator_type", "initiator_name", "task_key", "attempt", "step_index", "worker_id"),
    *("executed_at", "finished_at", "message", "error", "result", "details", "items_total", "items_failed"),
    "will_retry",
)
EXECUTION = (
    *("id", "schedule_id", "schedule_name", "activity_id", "source", "status", "retry_of_id"),
    *("started_at", "finished_at", "deadline_at", "is_timed_out", "error", "occurrence__nominal_at"),
    *("activity__initiator_type", "activity__initiator_name"),
)
Row = Mapping[str, Any]
logger = logging.getLogger(__name__)


class WebhookEvent(NamedTuple):
    kind: str
    at: datetime
    schedule_id: int | None
    data: dict[str, Any]


def on_activities_finished(
    sender: object, ids: Collection[int], operation: str = Activity.RUN, is_heard: bool = True, **_: object
) -> None:
    if ids and is_heard and (operation == Activity.RUN or operation in NOTIFIED_CHANGES):
        _add_deliveries(ENDINGS, lambda: _events_of_activities(ids))


def on_events(sender: object, events: Sequence[Event], is_heard: bool = True, **_: object) -> None:
    if events and is_heard:
        _add_deliveries({event.kind for event in events}, lambda: _events_of_signals(events))


def _add_deliveries(kinds: set[str], find: Callable[[], Iterable[WebhookEvent]]) -> None:
    """Add deliveries of the events that `find` returns.

    `find` is called only if an endpoint listens to one of `kinds`. Otherwise, this costs a single query.
    """
    listeners = [each for each in Endpoint.objects.listening() if each.kinds & kinds]
    if not listeners:
        return
    try:
        # A savepoint, so that a failed insert does not roll back the rest of the transaction.
        with transaction.atomic():
            deliveries = [delivery for event in find() for delivery in _new_deliveries(event, listeners)]
            if deliveries:
                Delivery.objects.add(deliveries, now=clock.estimate())
    except AWAY:
        raise
    except Exception:
        logger.exception("webhook deliveries could not be added; the events themselves are not affected")


def _new_deliveries(event: WebhookEvent, listeners: Sequence[Listener]) -> Iterator[NewDelivery]:
    """Yield a delivery for each listener that wants the event. An error is logged and not raised."""
    try:
        body = ""
        for listener in listeners:
            if not listener.wants(event.kind, event.schedule_id):
                continue
            if event.kind == "schedule.failing":
                if data := _failing_data(event, listener):
                    yield listener.id, event.kind, body_of(event.kind, event.at, data)
                continue
            body = body or body_of(event.kind, event.at, event.data)
            yield listener.id, event.kind, body
    except Exception:
        logger.exception("a webhook delivery of %s could not be added", event.kind)


def _failing_data(event: WebhookEvent, listener: Listener) -> dict[str, Any] | None:
    """Return the data of `schedule.failing`, or None if the listener's limit was not just reached."""
    outcomes, new = event.data["outcomes"], event.data["new"]
    if not is_newly_failing(outcomes, new, failures=listener.failures, among=listener.among):
        return None
    recent = outcomes[: listener.among]
    return {
        "schedule": event.data["schedule"],
        "failures": recent.count("f"),
        "among": len(recent),
        "last_failure": _shortened(event.data["last_failure"]),
    }


def _events_of_activities(ids: Collection[int]) -> Iterator[WebhookEvent]:
    """Yield the events of ended activities. This takes two queries for any number of activities."""
    follows = Exists(Activity.objects.filter(retry_of=OuterRef("pk")))
    found = _with_ids(Activity.objects.annotate(will_retry=follows), "id", ids)
    rows = list(found.order_by("pk").values(*ACTIVITY))
    roots = {row["parent_id"] or row["id"] for row in rows if row["operation"] == Activity.RUN}
    executions = {row["activity_id"]: row for row in _executions("activity_id", roots)}
    for row in rows:
        if event := _event_of_activity(row, executions):
            yield event


def _event_of_activity(row: Row, executions: Mapping[int, Row]) -> WebhookEvent | None:
    if row["operation"] != Activity.RUN:
        kind = OF_CHANGE.get((row["operation"], row["target_type"]))
        return _event_of_change(kind, row) if kind else None
    if ended := executions.get(row["id"]):
        return _event_of_execution(f"execution.{ended['status']}", ended, row["finished_at"])
    execution = executions.get(row["parent_id"])
    data = {
        "activity": _activity(row),
        "will_retry": row["will_retry"],
        "permanently_failed": OF_ACTIVITY[row["status"]] == "activity.failed" and not row["will_retry"],
        "execution": {"id": execution["id"], "source": execution["source"]} if execution else None,
        "schedule": _schedule(execution),
        "initiator": {"type": row["initiator_type"], "name": row["initiator_name"]},
    }
    schedule_id = execution["schedule_id"] if execution else None
    return WebhookEvent(OF_ACTIVITY[row["status"]], row["finished_at"], schedule_id, data)


def _event_of_change(kind: str, row: Row) -> WebhookEvent:
    """Return the event that reports a paused schedule or a disabled webhook."""
    what, is_schedule = row["target_type"], row["target_type"] == "schedule"
    data: dict[str, Any] = {
        what: {"id": int(row["target_id"]), "name": row["target_name"]},
        "note": _shortened(row["message"]),
        "initiator": {"type": row["initiator_type"], "name": row["initiator_name"]},
    }
    if is_schedule:
        data["until"] = (row["details"] or {}).get("until")
    return WebhookEvent(kind, row["finished_at"], int(row["target_id"]) if is_schedule else None, data)


def _events_of_signals(events: Sequence[Event]) -> Iterator[WebhookEvent]:
    """Yield the webhook events of the events that the signal `noticed` reports, with at most two queries."""
    ids = {event.data["execution_id"] for event in events if "execution_id" in event.data}
    executions = {row["id"]: row for row in _executions("id", ids)}
    names = _names({event.schedule_id for event in events if event.schedule_id is not None})
    for event in events:
        if "execution_id" in event.data:
            if execution := executions.get(event.data["execution_id"]):
                yield _event_of_execution(event.kind, execution, event.at)
        elif event.schedule_id is not None:
            schedule = {"id": event.schedule_id, "name": names.get(event.schedule_id, "")}
            yield WebhookEvent(event.kind, event.at, event.schedule_id, {"schedule": schedule, **event.data})
        elif event.kind == "workflow.stuck":
            yield _event_of_workflow(event)
        else:
            yield WebhookEvent(event.kind, event.at, None, dict(event.data))


def _event_of_workflow(event: Event) -> WebhookEvent:
    found = event.data
    data = {
        "workflow": {"slug": found["workflow"], "title": found["title"]},
        "issue": _shortened(found["issue"]),
        "run": {
            "id": found["run_id"],
            "handler": found["handler"],
            "status": found["status"],
            "phase": found["phase"],
            "error": _shortened(found["error"]),
            "created_at": _time(found["created_at"]),
        },
    }
    return WebhookEvent(event.kind, event.at, None, data)


def _event_of_execution(kind: str, row: Row, at: datetime) -> WebhookEvent:
    data = {
        "execution": {
            "id": row["id"],
            "status": row["status"],
            "source": row["source"],
            "nominal_at": _time(row["occurrence__nominal_at"]),
            "started_at": _time(row["started_at"]),
            "finished_at": _time(row["finished_at"]),
            "deadline_at": _time(row["deadline_at"]),
            "retry_of": row["retry_of_id"],
            "is_timed_out": row["is_timed_out"],
            "error": _shortened(row["error"]),
        },
        "schedule": _schedule(row),
        "initiator": {"type": row["activity__initiator_type"], "name": row["activity__initiator_name"]},
    }
    return WebhookEvent(kind, at, row["schedule_id"], data)


def _executions(column: str, ids: Collection[int]) -> Sequence[Row]:
    return list(_with_ids(Execution.objects.all(), column, ids).values(*EXECUTION)) if ids else ()


def _names(ids: Collection[int]) -> dict[int, str]:
    return dict(_with_ids(Schedule.objects.all(), "id", ids).values_list("pk", "name")) if ids else {}


def _with_ids(rows: QuerySet[Any], column: str, ids: Collection[int]) -> QuerySet[Any]:
    """Keep the rows with these ids. PostgreSQL gets them as an array, because it limits parameters."""
    where, params = among(f"{rows.model._meta.db_table}.{column}", list(ids))
    return rows.extra(where=[where], params=params)  # noqa: S610


def _activity(row: Row) -> dict[str, Any]:
    began, ended = row["executed_at"], row["finished_at"]
    return {
        "id": row["id"],
        "name": row["target_name"],
        "status": row["status"],
        "key": str(row["task_key"]) if row["task_key"] else None,
        "attempt": row["attempt"],
        "retry_of": row["retry_of_id"],
        "step_index": row["step_index"],
        "worker": str(row["worker_id"]) if row["worker_id"] else None,
        "started_at": _time(began),
        "finished_at": _time(ended),
        "seconds": (ended - began).total_seconds() if began and ended else None,
        "message": _shortened(row["message"]),
        "error": _shortened(row["error"]),
        "items_total": row["items_total"],
        "items_failed": row["items_failed"],
        **_result(row["result"]),
    }


def _result(value: Any) -> dict[str, Any]:
    is_long = len(json.dumps(value, ensure_ascii=False)) > RESULT_CHARS
    return {"result": None if is_long else value, "result_is_left_out": is_long}


def _schedule(execution: Row | None) -> dict[str, Any] | None:
    if execution is None or execution["schedule_id"] is None:
        return None
    return {"id": execution["schedule_id"], "name": execution["schedule_name"]}


def _time(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else f"{text[:TEXT_CHARS]}…"
