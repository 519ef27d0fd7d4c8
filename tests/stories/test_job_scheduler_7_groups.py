"""Job groups: what becomes of the jobs after one that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from execution import failure
from execution.failure import Rest
from execution.models import Execution
from schedules.registry import failure_policies
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    fresh,
    make_worker,
    queue,
    run_until_idle,
    step,
    step_statuses,
)

pytestmark = pytest.mark.django_db
JOBS = [step("Job1"), step("Job2", 0, "fail"), step("Job3")]


def submit(*jobs: dict[str, Any], **options: Any) -> Execution:
    plain = [{name: value for name, value in job.items() if name != "index"} for job in jobs]
    return Execution.objects.submit("Group", plain, initiator=SOMEBODY, now=NOW, **options)


@contextmanager
def policy(name: str, policy: failure.GroupFailurePolicy) -> Iterator[None]:
    """One that somebody has added."""
    failure.register(name, policy, title="Somebody's own")
    try:
        yield
    finally:
        del failure.policies[name], failure_policies[name]


def outcome(on_failure: str) -> tuple[dict[str, list[str]], Execution]:
    group = submit(*JOBS, mode="sequential", on_failure=on_failure)
    run_until_idle()
    return step_statuses(group), fresh(group)


@pytest.mark.parametrize(
    ("on_failure", "last"), [("stop", "cancelled"), ("continue", "complete"), ("skip", "skipped")]
)
def test_option_a_stop_immediately_b_continue_all_and_c_by_name(on_failure: str, last: str) -> None:
    jobs, group = outcome(on_failure)
    assert jobs == {"Job1": ["complete"], "Job2": ["failed_with_error"], "Job3": [last]}
    assert (group.status, group.error) == ("failed", "Step “Job2” failed: RuntimeError: it broke")
    assert queue(group) == {}
    assert group.is_partial
    assert list(Execution.objects.partial()) == [group]


class TestOptionCConfigurable:
    def test_by_a_policy_of_ones_own(self) -> None:
        """An injected policy decides from what failed."""

        class OnlyIfItSaysSo:
            def rest(self, group: Any, last: Any) -> Rest:
                return "run" if all("harmless" in each.error for each in last.values()) else "cancelled"

        harmless = step("a", 0, "fail", kwargs={"message": "harmless"})
        with policy("if harmless", OnlyIfItSaysSo()):
            group = submit(
                harmless,
                step("b"),
                step("c", 0, "fail"),
                step("d"),
                mode="sequential",
                on_failure="if harmless",
            )
            run_until_idle()
        assert {name: statuses for name, [statuses] in step_statuses(group).items()} == {
            "a": "failed_with_error",
            "b": "complete",
            "c": "failed_with_error",
            "d": "cancelled",
        }

    def test_a_policy_that_has_decided_against_the_rest_stays_with_it(self) -> None:
        class OnlyOnce:
            answers: Iterator[Rest] = iter(["skipped"])

            def rest(self, group: Any, last: Any) -> Rest:
                return next(self.answers)

        steps = [step("a", 0, "fail"), step("b", 1), step("clean up", 1, run_if="always"), step("c", 2)]
        with policy("once", OnlyOnce()):
            group = Execution.objects.submit("Group", steps, initiator=SOMEBODY, now=NOW, on_failure="once")
            assert run_until_idle() == ["a", "clean up"]
        assert step_statuses(group)["c"] == ["skipped"]

    def test_a_policy_that_breaks_stops_its_group_and_nothing_else(self) -> None:
        class Broken:
            def rest(self, group: Any, last: Any) -> Rest:
                raise RuntimeError("no idea")

        with policy("broken", Broken()):
            group = submit(step("a", 0, "fail"), step("b"), mode="sequential", on_failure="broken")
            run_until_idle()
        assert step_statuses(group)["b"] == ["cancelled"]
        assert fresh(group).status == "failed"


def test_a_group_of_which_nothing_succeeded_is_not_partial() -> None:
    group = submit(step("Job1", 0, "fail"), step("Job2"), mode="sequential")
    run_until_idle()
    assert fresh(group).is_partial is False
    assert not Execution.objects.partial().exists()


@pytest.mark.parametrize(("mode", "second"), [("sequential", "waiting"), ("parallel", "queued")])
def test_one_after_the_other_or_side_by_side(mode: str, second: str) -> None:
    group = submit(step("a"), step("b"), mode=mode)
    assert queue(group) == {"a": "queued", "b": second}
    assert run_until_idle() == ["a", "b"]


def test_a_retry_runs_clean_up_once_more_and_the_alert_only_if_it_fails_again() -> None:
    """Clean-up and alerts; what else runs if something failed: in the tests of conditions."""
    clean_up, alert = step("clean up", 2, run_if="always"), step("alert", 3, run_if="failure")
    steps = [step("before"), step("work", 1, "fail"), clean_up, alert]
    group = Execution.objects.submit("Group", steps, initiator=SOMEBODY, now=NOW)
    assert run_until_idle() == ["before", "work", "clean up", "alert"]
    again = fresh(group).retry(initiator=SOMEBODY, now=NOW)
    assert again is not None
    assert run_until_idle() == ["work", "clean up", "alert"]
    fresh(again).retry(initiator=SOMEBODY, now=NOW)
    worker = make_worker()
    end(worker, *claim(worker))
    assert run_until_idle() == ["clean up"]
