"""The events that webhooks can receive."""

from __future__ import annotations

from activities.models import Activity

KINDS = {
    "activity.completed": "A step or a job completed, with or without warnings.",
    "activity.failed": "An attempt of a step or a job failed or completed with errors. A retry might follow.",
    "activity.skipped": "A step or a job was skipped.",
    "activity.cancelled": "A step or a job was cancelled, while it ran or before it started.",
    "execution.started": "An execution started.",
    "execution.completed": "An execution completed.",
    "execution.failed": "An execution failed.",
    "execution.cancelled": "An execution was cancelled or terminated.",
    "execution.late": "An execution is still running at its deadline. Sent once per execution.",
    "schedule.paused": "A schedule was paused, manually or automatically.",
    "schedule.overdue": "A scheduled time has passed, but no scheduler has processed it.",
    "schedule.missed": "Runs of a schedule were missed: they were due before its catch-up window began.",
    "schedule.failing": "A schedule keeps failing, as configured below.",
    "workflow.stuck": "A workflow needs attention. Sent once each time a workflow gets stuck.",
    "worker.lost": "A worker died or stopped sending heartbeats.",
    "endpoint.disabled": "Another webhook was disabled.",
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
    """Return whether one of the `new` outcomes made the number of recent failures reach `failures`.

    `outcomes` starts with the newest one. Failures are counted among `among` consecutive outcomes.
    """

    def is_failing(since: int) -> bool:
        return outcomes[since : since + among].count("f") >= failures

    return any(is_failing(since) and not is_failing(since + 1) for since in range(new))
