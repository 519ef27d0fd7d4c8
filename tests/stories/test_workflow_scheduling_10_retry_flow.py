"""Retry flow: transient failures, errors in logic, failures after the mutation, and what people decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.models import Activity
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, fresh, seconds
from tests.timeline import minutes
from tests.workflows.base import defined, deploy_all, deployed, events, publish, work
from tests.workflows.scripted import Script, chain, last
from workflows import AuthRequired, Indeterminate, Mutation, PermissionRequired, Transient
from workflows.definition import applied, failed, retry
from workflows.models import Handler, Run

pytestmark = pytest.mark.django_db


def test_a_transient_failure() -> None:
    """Run A pauses, Run B starts fresh after the backoff, and succeeds."""
    with deployed(Script(prepare=[Transient("rate limit")]).workflow()):
        publish("mail", "a")
        work()
        assert chain() == [("preparing", "paused:transient")]
        assert work(now=NOW + seconds(9.999)) == []
        assert work(now=NOW + seconds(10)) == ["Sort", "Sort"]
        first, second, _ = Run.objects.order_by("pk")
        assert second.retry_of == first
        assert [(run.phase, run.status) for run in second.chain()] == [
            ("preparing", "paused:transient"),
            ("committed", "committed"),
        ]


def test_a_logic_error_starts_afresh_with_new_code_and_not_with_the_same() -> None:
    script = Script(prepare=[ValueError("bad input")])
    with deployed(script.workflow(version="1")):
        publish("mail", "a")
        work()
        assert chain() == [("preparing", "failed:logic")]
    with deployed(script.workflow(version="1"), now=minutes(1)):
        assert work(now=minutes(24 * 60)) == []
    with deployed(script.workflow(version="2"), now=minutes(24 * 60)):
        assert work(now=minutes(24 * 60)) == ["Sort", "Sort"]
        first, second, _ = Run.objects.order_by("pk")
        assert (second.retry_of, second.phase, second.status) == (first, "committed", "committed")
        assert (first.code_version, second.code_version) == ("1", "2")


fixed: list[int] = []
answers: list[Any] = []


def fix(run: Run) -> bool:
    """An installation's own, as `JIM_WORKFLOW_FIXER` names it."""
    fixed.append(run.pk)
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return bool(answer)


class TestTheAutoFixHook:
    @pytest.fixture(autouse=True)
    def fixer(self, settings: Any) -> None:
        settings.JIM_WORKFLOW_FIXER = f"{__name__}.fix"
        fixed.clear()
        answers.clear()

    def test_it_is_asked_and_the_next_attempt_begins_at_once(self) -> None:
        answers.append(True)
        with deployed(Script(prepare=[ValueError("bad input")]).workflow()):
            publish("mail", "a")
            work()
            first, second, _ = Run.objects.order_by("pk")
            assert fixed == [first.pk]
            assert (second.retry_of, second.status, second.fixes) == (first, "committed", 1)

    def test_code_that_it_deploys_has_its_turn_in_a_worker_that_was_started_anew(self) -> None:
        """Its answer is no: this worker cannot use what it deployed, the next attempt says so and waits."""
        answers.append(False)
        old, new = (
            Script(prepare=[ValueError("bad input")] * 2).workflow(version="1"),
            Script().workflow(version="2"),
        )
        with deployed(old):
            publish("mail", "a")
            work()
        with defined(new):
            deploy_all()
        with defined(old):
            work()
        assert chain() == [("preparing", "failed:logic"), ("preparing", "paused:transient")]
        assert last().error == (
            "ValueError: bad input. This worker runs version 1 of Sort, but version 2 is deployed. "
            "Restart the workers so that they use the deployed code."
        )
        with defined(new):
            work(now=NOW + seconds(10))
        assert (fixed, last().fixes, events("mail")) == (
            [Run.objects.earliest("pk").pk],
            0,
            {"a": "consumed"},
        )

    def test_its_budget_is_three_in_a_chain(self) -> None:
        answers.extend([True] * 9)
        with deployed(Script(prepare=[ValueError("bad input")] * 9).workflow()):
            publish("mail", "a")
            work()
            assert len(fixed) == 3
            assert chain() == [("preparing", "failed:logic")] * 4
            assert last().due_at is None

    @pytest.mark.parametrize("answer", [False, RuntimeError("no idea")], ids=["no", "error"])
    def test_without_a_fix_it_waits(self, answer: Any) -> None:
        answers.append(answer)
        with deployed(Script(prepare=[ValueError("bad input")]).workflow()):
            publish("mail", "a")
            work()
            assert chain() == [("preparing", "failed:logic")]
            assert (last().due_at, last().fixes) == (None, 0)


def test_a_failure_after_the_mutation_was_applied() -> None:
    """Run B copies the results of Run A, and its `next` gets the same inputs."""
    script = Script(next=[ValueError("bad input")])
    with deployed(script.workflow(version="1")):
        publish("mail", "a")
        work()
        assert chain() == [("emitting", "failed:logic")]
    with deployed(script.workflow(version="2"), now=minutes(1)):
        work(now=minutes(1))
        assert script.told[:2] == [Mutation("applied", {"row": 1})] * 2
        assert len(script.keys) == 1
        assert events("rows") == {"a": "pending"}


class TestReconciliation:
    """That it happened, and that it did not: in the rules about phases."""

    def unsure(self, *verdicts: Any) -> Script:
        return Script(apply=[Indeterminate("no answer")], verdicts=list(verdicts))

    def test_it_is_asked_at_once_then_after_10_20_40_and_80_seconds_then_a_person_may_ask_again(self) -> None:
        script = self.unsure(*[retry] * 5, applied({"row": 7}))
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            at, waits = NOW, []
            while (due := last().due_at) is not None:
                waits.append((due - at).total_seconds())
                at = due
                work(now=at)
            assert (waits, len(script.asked)) == ([10, 20, 40, 80], 5)
            assert last().status == "paused:reconciliation"
            assert work(now=minutes(24 * 60)) == []
            last().retry("again", initiator=SOMEBODY, now=at)
            work(now=at)
            assert (len(script.keys), len(script.asked)) == (1, 6), "it was not repeated"
            done = Run.objects.order_by("-pk")[1]
            assert (done.status, done.mutation_result) == ("committed", {"row": 7})
            assert events("mail") == {"a": "consumed"}

    @pytest.mark.parametrize("answer", [OSError("away"), "applied"], ids=["error", "text"])
    def test_an_answer_that_is_none_is_a_retry(self, answer: Any) -> None:
        script = self.unsure(answer, applied())
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            assert (last().status, last().reconciled) == ("paused:reconciliation", 1)
            work(now=NOW + seconds(10))
            assert events("mail") == {"a": "consumed"}

    def test_each_mutation_is_asked_about_from_the_start(self) -> None:
        script = Script(
            apply=[Indeterminate("no answer"), Indeterminate("no answer")],
            verdicts=[retry, retry, retry, retry, failed, retry, applied()],
        )
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            while (due := last().due_at) is not None:
                work(now=due)
            assert script.verdicts == []
            assert events("mail") == {"a": "consumed"}


class TestWhatAPersonSaysOfIt:
    @pytest.fixture
    def script(self) -> Iterator[Script]:
        script = Script(apply=[Indeterminate("no answer")])
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            assert (last().status, last().due_at) == ("paused:reconciliation", None)
            yield script

    def test_it_happened(self, script: Script) -> None:
        run = last()
        run.reconcile(True, "seen in the sheet", result={"row": 3}, initiator=SOMEBODY, now=NOW)
        activity = Activity.objects.get(operation="happened")
        assert (activity.initiator_name, activity.message) == ("ada", "seen in the sheet")
        assert fresh(run).note == "seen in the sheet"
        work()
        assert script.told[0] == Mutation("applied", {"row": 3})
        assert len(script.keys) == 1
        assert events("mail") == {"a": "consumed"}

    def test_it_did_not(self, script: Script) -> None:
        last().reconcile(False, "not there", initiator=SOMEBODY, now=NOW)
        work()
        assert len(set(script.keys)) == 2
        assert events("mail") == {"a": "consumed"}

    def test_skip(self, script: Script) -> None:
        last().skip("not needed", initiator=SOMEBODY, now=NOW)
        work()
        assert script.told[0] == Mutation("skipped")
        assert (len(script.keys), events("mail")) == (1, {"a": "skipped"})
        assert Handler.objects.get().state == {"done": 1}

    @pytest.mark.usefixtures("script")
    def test_the_first_who_answers_decides(self) -> None:
        second = last()
        last().reconcile(True, "", initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match="was already resolved"):
            second.reconcile(False, "", initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match="was already resolved"):
            second.skip("", initiator=SOMEBODY, now=NOW)

    def test_nobody_can_say_so_of_a_mutation_that_is_known(self) -> None:
        with deployed(Script(next=[ValueError("bad input")]).workflow()):
            publish("mail", "a")
            work()
            with pytest.raises(Refused, match="no mutation whose outcome is unknown"):
                last().reconcile(False, "", initiator=SOMEBODY, now=NOW)
            with pytest.raises(Refused, match="its mutation was already applied"):
                last().skip("", initiator=SOMEBODY, now=NOW)


class TestApproval:
    """What goes on after a yes: in tests/workflows/test_approval.py."""

    def test_rejected_its_events_are_skipped_and_next_is_told(self) -> None:
        script = Script(mutate=[PermissionRequired("may not write")])
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            last().reject("never", initiator=SOMEBODY, now=NOW)
            work()
            assert (script.told[0], script.keys) == (Mutation("skipped"), [])
            assert events("mail") == {"a": "skipped"}

    def test_rejected_with_nothing_prepared_the_workflow_pauses(self) -> None:
        with deployed(Script(prepare=[AuthRequired("sign in again")]).workflow()) as workflow:
            publish("mail", "a")
            work()
            last().reject("never", initiator=SOMEBODY, now=NOW)
            assert (fresh(workflow).status, fresh(workflow).note) == ("paused", "Rejected: never")
            assert last().status == "paused:approval"

    @pytest.mark.parametrize("place", ["prepare", "mutate"])
    def test_what_was_approved_with_a_note_can_be_neither_rejected_nor_approved(self, place: str) -> None:
        with deployed(Script(**{place: [AuthRequired("sign in again")]}).workflow()) as workflow:
            publish("mail", "a")
            work()
            late = last()
            last().approve("for this once", initiator=SOMEBODY, now=NOW)
            assert fresh(late).note == Activity.objects.get(operation="approve").message == "for this once"
            work()
            for answer in (late.reject, late.approve):
                with pytest.raises(Refused, match="was already resolved"):
                    answer("never", initiator=SOMEBODY, now=NOW)
            assert fresh(workflow).status == "active"
            assert not Activity.objects.filter(operation="reject").exists()


def test_whatever_is_stuck_can_be_retried_at_once_by_a_person() -> None:
    kinds = (Transient, AuthRequired, ValueError, Indeterminate)
    with deployed(Script(prepare=[kind("?") for kind in kinds]).workflow()):
        publish("mail", "a")
        work()
        for kind in kinds:
            assert last().error_type == kind.__name__
            last().retry("again", initiator=SOMEBODY, now=NOW)
            work()
        assert events("mail") == {"a": "consumed"}
