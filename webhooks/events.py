"""The events that webhooks can receive."""

from __future__ import annotations

from activities.models import Activity

KINDS = {
    "activity.completed": "A step or job completed, with or without warnings.",
    "activity.failed": "An attempt of a step or job failed or completed with errors. A retry might follow.",
    "activity.skipped": "A step or job was skipped.",
    "activity.cancelled": "A step or job was cancelled before it started or while it was running.",
    "execution.started": "An execution started.",
    "execution.completed": "An execution completed.",
    "execution.failed": "An execution failed.",
    "execution.cancelled": "An execution was cancelled or terminated.",
    "execution.late": "An execution is still running after its deadline. Sent once per execution.",
    "schedule.paused": "A schedule was paused, manually or automatically.",
    "schedule.overdue": "A scheduled run is overdue, because no scheduler has processed it.",
    "schedule.missed": "Runs of a schedule were missed: they were later than the catch-up window allows.",
    "schedule.failing": "Too many recent executions of a schedule failed. Each webhook sets its own limit.",
    "workflow.stuck": "A workflow is stuck and needs attention. Sent once each time a workflow gets stuck.",
    "worker.lost": "A worker died or stopped sending heartbeats.",
    "endpoint.disabled": "Another webhook was disabled, manually or automatically.",
}
TEST = "endpoint.test"

OF_ACTIVITY = {
    Activity.Status.COMPLETE: "activity.completed",
    Activity.Status.COMPLETE_WITH_WARNING: "activity.completed",
    Activity.Status.COMPLETE_WITH_ERROR: "activity.failed",
    Activity.Status.FAILED_WITH_ERROR: "activity.failed",
    Activity.Status.CANCELLED: "activity.cancelled",
    Activity.Status.SKIPPED: "activity.skipped",
}
# Events of changes, by operation and target type.
OF_CHANGE = {("pause", "schedule"): "schedule.paused", ("disable", "endpoint"): "endpoint.disabled"}
NOTIFIED_CHANGES = {operation for operation, _ in OF_CHANGE}
# Events that the end of an activity can cause.
ENDINGS = {
    *OF_ACTIVITY.values(),
    *("execution.completed", "execution.failed", "execution.cancelled"),
    *OF_CHANGE.values(),
}


def is_newly_failing(outcomes: str, new: int, *, failures: int, among: int) -> bool:
    """Return whether one of the `new` latest outcomes reached the limit of failures.

    The limit is `failures` failures among the last `among` outcomes. `outcomes` has one letter for each
    execution, newest first; “f” is a failure.
    """

    def is_failing(since: int) -> bool:
        return outcomes[since : since + among].count("f") >= failures

    return any(is_failing(since) and not is_failing(since + 1) for since in range(new))
