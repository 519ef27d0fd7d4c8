"""The operations on workflows, stuck runs, topics and events, for pages, the admin and commands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms

from activities import vocabulary
from files import strict_json
from operations.initiator import Initiator
from operations.operation import Declined, Done, Operation, offer
from schedules.models import Refused

from .failures import Status
from .models import Event, Run, Topic, Workflow
from .models.event import LONGEST_ID, LONGEST_TITLE, Publication
from .words import published

OPERATE, PUBLISH = "workflows.operate_workflow", "workflows.publish_event"


class NoteForm(forms.Form):
    note = forms.CharField(
        max_length=1_000, required=False, help_text="Your reason, which will be kept in the history."
    )


class ResultForm(NoteForm):
    result = forms.JSONField(
        required=False,
        help_text="The result of the mutation, as JSON. The handler receives the result in the next phase.",
    )


class RunNow(Operation[Workflow]):
    name, label, permission = "run", "Run now", OPERATE
    question = "Run all producers of this workflow now, one after the other?"

    def applies(self, workflow: Workflow) -> bool:
        return workflow.can_run_now

    def perform(
        self, workflow: Workflow, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            producers = workflow.run_now(initiator=initiator, now=now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        names = ", ".join(str(producer) for producer in producers)
        return Done(f"Running the producers of “{workflow}”: {names}.")


class Pause(Operation[Workflow]):
    name, label, permission, form = "pause", "Pause", OPERATE, NoteForm
    question = (
        "Pause this workflow? An active run will continue, but no other run will start until the workflow is "
        "resumed."
    )

    def applies(self, workflow: Workflow) -> bool:
        return workflow.status == Workflow.Status.ACTIVE

    def perform(
        self, workflow: Workflow, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not workflow.pause(answers["note"], initiator=initiator, now=now):
            raise Declined(f"“{workflow}” is not active, so it cannot be paused.")
        return Done(f"“{workflow}” is paused.")


class Resume(Operation[Workflow]):
    name, label, permission = "resume", "Resume", OPERATE
    question = (
        "Resume this workflow? Events that were published while the workflow was paused will be consumed "
        "first."
    )

    def applies(self, workflow: Workflow) -> bool:
        return workflow.status == Workflow.Status.PAUSED

    def perform(
        self, workflow: Workflow, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not workflow.resume(initiator=initiator, now=now):
            raise Declined(f"“{workflow}” is not paused.")
        return Done(f"“{workflow}” is resumed.")


class ResolveRun(Operation[Run]):
    """An operation that resolves a stuck run, so that its workflow can continue. A run is resolved once."""

    permission, form = OPERATE, NoteForm
    statuses: Sequence[Status] = ()
    outcome = ""

    def applies(self, run: Run) -> bool:
        return run.is_stuck and (not self.statuses or run.status in self.statuses)

    def about(self, run: Run) -> str:
        return run.error

    def perform(self, run: Run, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        try:
            self.resolve(run, answers, initiator, now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        return Done(f"“{run.workflow}”: {self.outcome}.", run.workflow.get_absolute_url())

    @abstractmethod
    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        """Resolve the run, or raise Refused."""


class Approve(ResolveRun):
    name, label, outcome = "approve", "Approve", "run approved"
    question = "Approve this run? The run will continue where it paused and use what it has prepared."
    statuses = (Status.PAUSED_APPROVAL,)

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.approve(answers["note"], initiator=by, now=now)


class Reject(ResolveRun):
    name, label, outcome = "reject", "Reject", "run rejected"
    question = (
        "Reject this run? Its mutation will not be made, and the events that the run reserved will be "
        "skipped permanently. If no events were reserved, or the mutation was already made or skipped, the "
        "workflow will be paused instead."
    )
    statuses = (Status.PAUSED_APPROVAL,)

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.reject(answers["note"], initiator=by, now=now)


class MarkApplied(ResolveRun):
    name, label, outcome = "happened", "Mark as applied", "the run continues after the mutation"
    form = ResultForm
    question = "Mark the mutation as applied? The run will continue after the mutation."

    def applies(self, run: Run) -> bool:
        return run.is_stuck and run.effect == Run.Effect.IN_FLIGHT

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.reconcile(True, answers["note"], result=answers["result"], initiator=by, now=now)


class MarkNotApplied(ResolveRun):
    name, label, outcome = "did-not-happen", "Mark as not applied", "the work starts over"
    question = (
        "Mark the mutation as not applied? The events of the run will be pending again, and the work will "
        "start over."
    )

    def applies(self, run: Run) -> bool:
        return run.is_stuck and run.effect == Run.Effect.IN_FLIGHT

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.reconcile(False, answers["note"], initiator=by, now=now)


class SkipRun(ResolveRun):
    name, label, outcome = "skip", "Skip", "mutation skipped"
    question = "Skip the mutation of this run? The events that the run reserved will be skipped as well."

    def applies(self, run: Run) -> bool:
        return run.is_stuck and run.may_skip

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.skip(answers["note"], initiator=by, now=now)


class RetryRun(ResolveRun):
    name, label, outcome = "retry", "Retry now", "retry started"
    question = "Retry this run now? The counts of its failures will be reset to zero."

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.retry(answers["note"], initiator=by, now=now)


def first_operation(run: Run) -> ResolveRun | None:
    """Return the operation to recommend for a stuck run.

    Return None for other runs, and if the operation depends on whether the mutation happened.
    """
    if not run.is_stuck or run.effect == Run.Effect.IN_FLIGHT:
        return None
    return Approve() if run.status == Status.PAUSED_APPROVAL else RetryRun()


class PublicationForm(forms.Form):
    message_id = forms.CharField(
        max_length=LONGEST_ID,
        help_text="Identifies the event in its topic. Publishing the same id again does not add an event.",
    )
    title = forms.CharField(
        max_length=LONGEST_TITLE, required=False, help_text="A title to show instead of the message id."
    )
    payload = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 6, "class": "code", "spellcheck": "false"}),
        required=False,
        help_text='The data of the event as JSON, such as {"name": "Ada"}.',
    )

    def clean_payload(self) -> Any:
        text = self.cleaned_data["payload"]
        try:
            return strict_json.loads(text) if text else None
        except ValueError as error:
            raise forms.ValidationError(f"{error}.") from None


class Publish(Operation[Topic]):
    name, label, permission, form = "publish", "Publish an event", PUBLISH, PublicationForm
    question = (
        "Publish an event to this topic? The topic's consumer, and the schedules that start from this topic, "
        "will run."
    )

    def perform(self, topic: Topic, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        event = Publication.of(topic.slug, answers["message_id"], answers["payload"], answers["title"])
        done = Topic.objects.publish([event], now=now, by=initiator)
        return Done(published(event, done), topic.get_absolute_url())


class SkipEvent(Operation[Event]):
    name, label, permission, form = "skip", "Skip", OPERATE, NoteForm
    question = "Skip this event? It will not be consumed."

    def applies(self, event: Event) -> bool:
        return event.status == Event.Status.PENDING

    def perform(self, event: Event, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        if not event.skip(answers["note"], initiator=initiator, now=now):
            raise Declined(f"“{event}” is no longer pending, so it cannot be skipped.")
        return Done(f"“{event}” is skipped.")


offer(Workflow, RunNow(), Pause(), Resume())
offer(Run, Approve(), Reject(), MarkApplied(), MarkNotApplied(), SkipRun(), RetryRun())
offer(Topic, Publish())
offer(Event, SkipEvent())
vocabulary.add(
    *("deploy", "stop", "run_now", "approve", "reject", "happened", "did_not_happen", "retry", "skip"),
    targets=lambda: ("workflow", "run", "event"),
)
