from __future__ import annotations

from collections.abc import Iterator

from jimsite.arguments import called
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused
from text.numbers import whole_number
from workflows.models import Run, Workflow


def workflow_called(text: str) -> Workflow:
    rows, none_yet = Workflow.objects.all(), "“syncworkflows” makes those that the code has"
    found: Workflow = called(rows, text, by="slug", kind="workflow", none_yet=none_yet)
    return found


def run_called(text: str) -> Run:
    """By its number, or the one of a workflow that has not ended: there is at most one."""
    rows = Run.objects.select_related("workflow", "handler")
    if (number := whole_number(text.strip())) is not None:
        run = rows.filter(pk=number).first()
        words = f"There is no run {text}: “workflows --json” names those that have not ended."
    else:
        workflow = workflow_called(text)
        run = rows.open().filter(workflow=workflow).first()
        words = f"No run of “{workflow}” waits for an answer."
    if run is None:
        raise Refused(words)
    return run


class Command(VerbsCommand):
    help = "Run, pause and resume workflows, and answer a run that is stuck. “workflows” lists them."

    def verbs(self) -> Iterator[Verb]:
        yield from self.operations_of(Workflow, Target("WORKFLOW", "its slug", workflow_called))
        stuck = Target("RUN", "the number of the run, or the slug of its workflow", run_called)
        yield from self.operations_of(Run, stuck)
