"""The runs of one workflow, read in the order of their index.

A range says which, not an equation: for that PostgreSQL would rather read all runs by their ids, and a
workflow that has stood still for a week is far down there.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL

from database.statements import fetch
from execution.queue.limited import found_in
from workflows.models import Run
from workflows.models.run import LARGE

TABLE = Run._meta.db_table
NEWEST = f"SELECT id FROM {TABLE} WHERE workflow_id >= %s AND workflow_id <= %s ORDER BY workflow_id, id DESC"
CHAIN = f"""
    WITH RECURSIVE
    before(id, retry_of_id, steps) AS (
        SELECT id, retry_of_id, 0 FROM {TABLE} WHERE id = %s
        UNION ALL SELECT r.id, r.retry_of_id, steps + 1 FROM before b
        JOIN {TABLE} r ON r.id = b.retry_of_id WHERE steps < %s
    ),
    later(id, steps) AS (
        SELECT id, 0 FROM {TABLE} WHERE id = %s
        UNION ALL SELECT r.id, steps + 1 FROM later l JOIN {TABLE} r ON r.retry_of_id = l.id WHERE steps < %s
    )
    SELECT id FROM before UNION SELECT id FROM later
"""


def runs_of(workflow: int) -> QuerySet[Run]:
    """To be ordered by the workflow first."""
    return Run.objects.filter(workflow__gte=workflow, workflow__lte=workflow).defer(*LARGE)


def newest_of(workflows: Sequence[int], *, count: int) -> QuerySet[Run]:
    """So many of each, the newest first."""
    each = [f"SELECT * FROM ({NEWEST} LIMIT {count:d}) AS s{number}" for number in range(len(workflows))]
    if not each:
        return Run.objects.none()
    these, params = found_in(" UNION ALL ".join(each)), [pk for pk in workflows for _ in range(2)]
    is_one = RawSQL(f"{TABLE}.id {these}", params, output_field=BooleanField())  # noqa: S611 no text from outside
    return Run.objects.filter(is_one).defer(*LARGE).order_by("-pk")


def chain_of(run: int, *, most: int) -> list[Run]:
    """All attempts at the same work, the first one first."""
    ids = fetch(CHAIN, [run, most, run, most])
    return list(Run.objects.filter(pk__in=[pk for (pk,) in ids]).defer(*LARGE).order_by("pk"))
