"""What endpoints can be told of."""

from __future__ import annotations

from activities.models import Activity

KINDS = {
    "activity.completed": "A step or a job completed, with or without a warning.",
    "activity.failed": "One failed or completed with errors: each attempt, also if another one follows.",
    "activity.skipped": "One was skipped: there was nothing to do for it.",
    "activity.cancelled": "One was cancelled, while it ran or before it started.",
    "execution.started": "An execution started.",
    "execution.completed": "An execution completed.",
    "execution.failed": "An execution failed.",
    "execution.cancelled": "An execution was cancelled or terminated.",
    "execution.late": "An execution still runs at its deadline; told once.",
    "schedule.paused": "A schedule was paused, by somebody or by itself.",
    "schedule.overdue": "The time of a schedule has passed and no scheduler saw to it.",
    "schedule.missed": "Times of a schedule came later than its catch-up window allows.",
    "schedule.failing": "A schedule keeps failing, as said below.",
    "workflow.stuck": "A workflow waits for somebody to act; told once for each time.",
    "worker.lost": "A worker died, or fell silent for its whole lease.",
    "endpoint.disabled": "Another endpoint was disabled.",
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
# By operation and target type.
OF_CHANGE = {("pause", "schedule"): "schedule.paused", ("disable", "endpoint"): "endpoint.disabled"}
TOLD_CHANGES = {operation for operation, _ in OF_CHANGE}
# Those that an activity which ends brings about.
ENDINGS = {
    *OF_ACTIVITY.values(),
    *("execution.completed", "execution.failed", "execution.cancelled"),
    *OF_CHANGE.values(),
}


def is_newly_failing(outcomes: str, new: int, *, failures: int, among: int) -> bool:
    """Whether one of the `new` outcomes, the newest first, brought so many failures among the last ones."""

    def is_failing(since: int) -> bool:
        return outcomes[since : since + among].count("f") >= failures

    return any(is_failing(since) and not is_failing(since + 1) for since in range(new))
