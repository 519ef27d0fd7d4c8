"""Decide how an execution continues after a group of steps has ended. Pure logic, no database access."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from activities.models import Activity
from schedules.registry import failure_policies

logger = logging.getLogger(__name__)

Line = Mapping[str, Any]
Rest = Literal["run", "cancelled", "skipped"]

FAILED = Activity.FAILURES
SUCCEEDED = ("complete", "complete_with_warning")
VERBS = {"cancelled": "was cancelled", "complete_with_error": "completed with errors"}
UNFINISHED = ("pending", "in_progress")
LONGEST_REASON = 4_000
NOTHING_FAILED = "Not run: this step runs only after a failure, and no earlier step failed."
SOMETHING_FAILED = "Not run: an earlier step failed."
VANISHED = "This step has no outcome, because its task is missing from the queue."


@dataclass(frozen=True)
class Last:
    """The last attempt of one step."""

    status: str
    error: str


class GroupFailurePolicy(Protocol):
    """A policy that decides what happens to the remaining steps after a group in which a step failed."""

    def rest(self, group: Sequence[Line], last: Mapping[int | None, Last]) -> Rest: ...


@dataclass(frozen=True)
class Always:
    """A policy that makes the same decision after every failure."""

    verdict: Rest

    def rest(self, group: Sequence[Line], last: Mapping[int | None, Last]) -> Rest:
        return self.verdict


policies: dict[str, GroupFailurePolicy] = {}


def register(name: str, policy: GroupFailurePolicy, *, title: str) -> None:
    """Register a failure policy under the name by which schedules and groups choose it in `on_failure`."""
    policies[name], failure_policies[name] = policy, title


def register_own() -> None:
    register("stop", Always("cancelled"), title="Stop: later steps are cancelled")
    register("continue", Always("run"), title="Continue: later steps still run")
    register("skip", Always("skipped"), title="Skip: later steps are skipped")


@dataclass(frozen=True)
class Following:
    """How an execution continues after a group has ended.

    `index` is the index of the next group to run; None if the execution ends. `closed` contains the status
    and the message of each plan line that does not run, by the number of the line.
    """

    index: int | None
    error: str
    on_failure: str
    closed: dict[int, tuple[str, str]] = field(default_factory=dict)


def following(
    plan: Sequence[Line],
    *,
    index: int,
    last: Mapping[int | None, Last],
    error: str,
    on_failure: str,
) -> Following:
    """Decide how an execution continues after the group `index` has ended.

    `last` contains the last attempt of each step in the group. `error` says why earlier groups failed, and is
    empty if none failed.
    """
    group = [line for line in plan if line["index"] == index]
    reason = stopping_reason(group, last)
    told = "\n".join(filter(None, (error, reason)))[:LONGEST_REASON]
    later = [line for line in plan if line["index"] > index and not line.get("reused")]
    if not told and not any(line.get("run_if", "success") != "success" for line in later):
        return Following(min((line["index"] for line in later), default=None), "", on_failure)
    if reason:
        on_failure = _verdict(on_failure, group, last)
    policy = policies.get(on_failure)
    rest = policy.verdict if told and isinstance(policy, Always) else "run"
    unmet = {line["line"]: ending for line in later if (ending := _unmet(line, told, rest))}
    running = [line["index"] for line in later if line["line"] not in unmet]
    to = min(running, default=None)
    passed = [line["line"] for line in later if to is None or line["index"] <= to]
    closed = {line["line"]: ("cancelled", VANISHED) for line in group if _is_open(line, last)}
    return Following(to, told, on_failure, closed | {line: unmet[line] for line in passed if line in unmet})


def _verdict(name: str, group: Sequence[Line], last: Mapping[int | None, Last]) -> str:
    """Ask the failure policy `name` about a failed group; return the name of the policy to use from now on.

    If the policy cancels or skips the remaining steps, the result is “stop” or “skip”, so that the policy is
    not asked again about later groups.
    """
    try:
        verdict = policies[name].rest(group, last)
        return {"run": name, "cancelled": "stop", "skipped": "skip"}[verdict]
    except Exception:
        logger.exception("the failure policy %r failed; the remaining steps are cancelled", name)
        return "stop"


def _is_open(line: Line, last: Mapping[int | None, Last]) -> bool:
    return line["line"] in last and last[line["line"]].status in UNFINISHED


def _unmet(line: Line, failed: str, rest: Rest) -> tuple[str, str] | None:
    """Return the status and the message of a step that does not run; None if the step runs.

    `failed` says why earlier groups failed, and is empty if none failed. `rest` is what the failure policy
    does with the remaining steps.
    """
    match line.get("run_if", "success"):
        case "always":
            return None
        case "failure":
            return None if failed else ("skipped", NOTHING_FAILED)
    return (rest, SOMETHING_FAILED) if failed and rest != "run" else None


def clean_up(plan: Sequence[Line], *, is_failure: bool) -> list[int]:
    """Return the numbers of the plan lines that still run after a cancel, or after a timeout (`is_failure`).

    These are the clean-up steps and, after a timeout, also the steps that run after a failure. The steps of
    the first group have nothing to clean up, so they are cancelled like any other step.
    """
    kept = ("always", "failure") if is_failure else ("always",)
    first = min((line["index"] for line in plan), default=0)
    return [line["line"] for line in plan if line["index"] > first and line.get("run_if") in kept]


def stopping_reason(group: Sequence[Line], last: Mapping[int | None, Last]) -> str:
    """Return why this group makes the execution fail; an empty string if it does not.

    `group` contains all steps of the plan with the same index. The failure of a step with
    `continue_on_failure` does not count. A step without a finished attempt always counts as a failure,
    because its task has disappeared.
    """
    reasons = []
    for step in group:
        ended = last.get(step["line"])
        if ended is None or ended.status in UNFINISHED:
            reasons.append(
                f"Step “{step['name']}” has no outcome, because its task is missing from the queue."
            )
        elif ended.status in FAILED and not step["continue_on_failure"]:
            reasons.append(f"Step “{step['name']}” {_said(ended)}")
    return " ".join(reasons)


def _said(ended: Last) -> str:
    first_line = ended.error.strip().partition("\n")[0][:300]
    verb = VERBS.get(ended.status, "failed")
    return f"{verb}: {first_line}" if first_line else f"{verb}."


def reusable(plan: Sequence[Line], succeeded: Collection[int]) -> set[int]:
    """Return the numbers of those plan lines among `succeeded` that a retry does not run again.

    Steps that always run, or that run only after a failure, are not reused.
    """
    return {
        line["line"]
        for line in plan
        if line["line"] in succeeded and line.get("run_if", "success") == "success"
    }
