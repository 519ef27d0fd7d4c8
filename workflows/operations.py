"""What people may ask of workflows, of runs that are stuck, and of events."""

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
        max_length=1_000, required=False, help_text="Why; it stays with the record of who did it."
    )


class ResultForm(NoteForm):
    result = forms.JSONField(
        required=False, help_text="What the mutation would have returned, as JSON; the next phase gets it."
    )


class RunNow(Operation[Workflow]):
    name, label, permission = "run", "Run now", OPERATE
    question = "All its producers run now, one after the other. Run them?"

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
        return Done(f"“{workflow}” looks for new work: {names}.")


class Pause(Operation[Workflow]):
    name, label, permission, form = "pause", "Pause", OPERATE, NoteForm
    question = "What runs goes on to its end; nothing else starts until somebody resumes it. Pause it?"

    def applies(self, workflow: Workflow) -> bool:
        return workflow.status == Workflow.Status.RUNNING

    def perform(
        self, workflow: Workflow, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not workflow.pause(answers["note"], initiator=initiator, now=now):
            raise Declined(f"“{workflow}” is not running.")
        return Done(f"“{workflow}” is paused.")


class Resume(Operation[Workflow]):
    name, label, permission = "resume", "Resume", OPERATE
    question = "It sees to what has come meanwhile, then goes on as before. Resume it?"

    def applies(self, workflow: Workflow) -> bool:
        return workflow.status == Workflow.Status.PAUSED

    def perform(
        self, workflow: Workflow, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not workflow.resume(initiator=initiator, now=now):
            raise Declined(f"“{workflow}” is not paused.")
        return Done(f"“{workflow}” goes on.")


class OfStuckRun(Operation[Run]):
    """Each lets the workflow go on in another way; the first who answers decides."""

    permission, form = OPERATE, NoteForm
    statuses: Sequence[Status] = ()
    told = ""

    def applies(self, run: Run) -> bool:
        return run.is_stuck and (not self.statuses or run.status in self.statuses)

    def about(self, run: Run) -> str:
        return run.error

    def perform(self, run: Run, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        try:
            self.resolve(run, answers, initiator, now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        return Done(f"“{run.workflow}”: {self.told}.", run.workflow.get_absolute_url())

    @abstractmethod
    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        """May raise Refused."""


class Approve(OfStuckRun):
    name, label, told = "approve", "Approve", "approved, and goes on"
    question = "It goes on where it stopped, with what it had prepared. Approve it?"
    statuses = (Status.PAUSED_APPROVAL,)

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.approve(answers["note"], initiator=by, now=now)


class Reject(OfStuckRun):
    name, label, told = "reject", "Reject", "rejected"
    question = (
        "What it had prepared is left undone and its events are skipped; if it had prepared nothing yet, the "
        "workflow pauses. Reject it?"
    )
    statuses = (Status.PAUSED_APPROVAL,)

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.reject(answers["note"], initiator=by, now=now)


class ItHappened(OfStuckRun):
    name, label, told = "happened", "It happened", "goes on after the mutation"
    form = ResultForm
    question = "The mutation counts as done: it goes on with what follows. Did it happen?"

    def applies(self, run: Run) -> bool:
        return run.is_stuck and run.effect == Run.Effect.IN_FLIGHT

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.reconcile(True, answers["note"], result=answers["result"], initiator=by, now=now)


class ItDidNotHappen(OfStuckRun):
    name, label, told = "did-not-happen", "It did not happen", "starts afresh"
    question = "Its events are released and the work starts afresh. Did it not happen?"

    def applies(self, run: Run) -> bool:
        return run.is_stuck and run.effect == Run.Effect.IN_FLIGHT

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.reconcile(False, answers["note"], initiator=by, now=now)


class SkipRun(OfStuckRun):
    name, label, told = "skip", "Skip", "goes on without it"
    question = "The mutation is left out, and the events it was about are skipped for good. Skip it?"

    def applies(self, run: Run) -> bool:
        return run.is_stuck and run.may_skip

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.skip(answers["note"], initiator=by, now=now)


class RetryRun(OfStuckRun):
    name, label, told = "retry", "Retry now", "tries again"
    question = "Its next attempt begins now, with all tries before it. Retry it?"

    def resolve(self, run: Run, answers: dict[str, Any], by: Initiator, now: datetime) -> None:
        run.retry(answers["note"], initiator=by, now=now)


def first_operation(run: Run) -> OfStuckRun | None:
    """What most people want of a run that is stuck; None where only they know."""
    if not run.is_stuck or run.effect == Run.Effect.IN_FLIGHT:
        return None
    return Approve() if run.status == Status.PAUSED_APPROVAL else RetryRun()


class PublicationForm(forms.Form):
    message_id = forms.CharField(
        max_length=LONGEST_ID,
        help_text="Tells events apart: what has been published with it already is not published again.",
    )
    title = forms.CharField(
        max_length=LONGEST_TITLE, required=False, help_text="What people are shown instead of the id."
    )
    payload = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 6, "class": "code", "spellcheck": "false"}),
        required=False,
        help_text='What the consumer is given, as JSON, such as {"name": "Ada"}.',
    )

    def clean_payload(self) -> Any:
        text = self.cleaned_data["payload"]
        try:
            return strict_json.loads(text) if text else None
        except ValueError as error:
            raise forms.ValidationError(f"{error}.") from None


class Publish(Operation[Topic]):
    name, label, permission, form = "publish", "Publish an event", PUBLISH, PublicationForm
    question = "Whoever consumes the topic is woken. Which event?"

    def perform(self, topic: Topic, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        event = Publication.of(topic.slug, answers["message_id"], answers["payload"], answers["title"])
        done = Topic.objects.publish([event], now=now, by=initiator)
        return Done(published(event, done), topic.get_absolute_url())


class SkipEvent(Operation[Event]):
    name, label, permission, form = "skip", "Skip", OPERATE, NoteForm
    question = "Nobody will consume it. Skip it?"

    def applies(self, event: Event) -> bool:
        return event.status == Event.Status.PENDING

    def perform(self, event: Event, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        if not event.skip(answers["note"], initiator=initiator, now=now):
            raise Declined(f"“{event}” is no longer pending.")
        return Done(f"“{event}” is skipped.")


offer(Workflow, RunNow(), Pause(), Resume())
offer(Run, Approve(), Reject(), ItHappened(), ItDidNotHappen(), SkipRun(), RetryRun())
offer(Topic, Publish())
offer(Event, SkipEvent())
vocabulary.add(
    *("deploy", "stop", "run_now", "approve", "reject", "happened", "did_not_happen", "retry", "skip"),
    targets=lambda: ("workflow", "run", "event"),
)
