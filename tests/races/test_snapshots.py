"""PostgreSQL only: a statement sees the rows as they were when it began, and locks them as they are."""

from __future__ import annotations

import pytest
from django.db import connection

from execution.models import Worker
from execution.models.attempt import ClaimedTask
from tests.base import break_down, claim, end, enqueue, make_worker, row, step
from tests.invariants import violations
from tests.races.meeting import queue_up

pytestmark = pytest.mark.django_db(transaction=True)

WAIT = "pg_advisory_xact_lock(1)"


def test_a_retry_that_comes_back_in_the_middle_of_a_claim_is_claimed_and_begins() -> None:
    """Its activity is younger than all that the claim's statement sees."""
    enqueue(step("steady"), step("retried", max_retries=1, retry_seconds=0))
    slow, quick = make_worker(), make_worker()

    def claim_and_fail() -> set[int]:
        steady, retried = claim(quick)
        end(quick, steady)
        return break_down(quick, retried)

    claimed, failed = queue_up(lambda: claim_slowly(slow), claim_and_fail, behind=hold_up)
    (retried,) = claimed
    assert ({retried.pk}, retried.attempt) == (failed, 2)
    activity = row(retried).activity
    assert (activity.attempt, activity.status, activity.worker_id) == (2, "in_progress", slow.pk)
    end(slow, retried)
    assert violations() == []


def claim_slowly(worker: Worker) -> list[ClaimedTask]:
    """Its statement has begun, and waits where it looks whether the worker is alive.

    What is temporary hides the table from this connection alone, and goes with it.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY VIEW execution_worker AS "
            f"SELECT * FROM public.execution_worker WHERE {WAIT} IS NOT NULL"
        )
    return claim(worker)


def hold_up() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {WAIT}")
