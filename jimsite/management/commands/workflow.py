from __future__ import annotations

from collections.abc import Iterator

from jimsite.arguments import called
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused
from text.numbers import whole_number
from workflows.models import Run, Workflow


def workflow_called(text: str) -> Workflow:
    rows, none_yet = Workflow.objects.all(), "“syncworkflows” creates the workflows defined in the code"
    found: Workflow = called(rows, text, by="slug", kind="workflow", none_yet=none_yet)
    return found


def run_called(text: str) -> Run:
    """Find a run by its number, or the unfinished run of a workflow by the slug of the workflow."""
    rows = Run.objects.select_related("workflow", "handler")
    if (number := whole_number(text.strip())) is not None:
        run = rows.filter(pk=number).first()
        words = f"Run {text} was not found. Use “workflows --json” to list the unfinished runs."
    else:
        workflow = workflow_called(text)
        run = rows.open().filter(workflow=workflow).first()
        words = f"“{workflow}” has no unfinished run."
    if run is None:
        raise Refused(words)
    return run


class Command(VerbsCommand):
    help = "Run, pause and resume workflows, and resolve stuck runs. To list workflows, use “workflows”."

    def verbs(self) -> Iterator[Verb]:
        yield from self.operations_of(Workflow, Target("WORKFLOW", "slug of the workflow", workflow_called))
        stuck = Target("RUN", "number of the run, or slug of its workflow", run_called)
        yield from self.operations_of(Run, stuck)
