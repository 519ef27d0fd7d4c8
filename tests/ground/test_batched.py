"""Several questions in one statement find what each of them finds alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Count, F, Model, QuerySet

from activities.models import Activity
from database.batched import Statement, together
from execution.models import Execution, Worker, WorkerTask
from schedules.models import Schedule
from tests.base import NOW
from tests.installation import installation
from workflows.models import Event, Handler, Run, Topic

pytestmark = pytest.mark.django_db
QUESTIONS: dict[str, Callable[[], QuerySet[Any]]] = {
    "all columns": lambda: Schedule.objects.order_by("-pk"),
    "related rows": lambda: Run.objects.select_related("workflow", "handler", "retry_of").order_by("pk"),
    "related rows that are missing": lambda: Topic.objects.select_related("workflow", "subscription"),
    "columns left out": lambda: Execution.objects.defer("plan").order_by("pk")[:20],
    "keys that are no numbers": lambda: Worker.objects.order_by("pk"),
    "keys of related rows": lambda: WorkerTask.objects.select_related("worker", "execution").order_by("pk"),
    "annotated": lambda: Topic.objects.with_backlog().annotate(by=F("subscription__handler__workflow")),
    "values": lambda: Handler.objects.order_by("pk").values_list("name", "publishes", "next_run_at"),
    "one value": lambda: Worker.objects.order_by("pk").values_list("pools", flat=True),
    "as dictionaries": lambda: Event.objects.order_by("pk").values("payload", "created_at")[:30],
    "counted": lambda: Activity.objects.order_by("status").values("status").annotate(count=Count("pk")),
    "different ones": lambda: Activity.objects.order_by("status").values_list("status", flat=True).distinct(),
    "a page of them": lambda: Activity.objects.order_by("-created_at", "-pk")[10:20],
    "none": lambda: Schedule.objects.filter(pk=0),
    "none, as everybody knows": lambda: Schedule.objects.filter(pk__in=[]),
}


def told(row: Any) -> Any:
    """All that is known of a row, and of the rows that came with it."""
    if not isinstance(row, Model):
        return row
    return _columns(row), {name: of and _columns(of) for name, of in row._state.fields_cache.items()}


def _columns(row: Model) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "_state"}


def test_the_answers_are_those_that_each_question_gets_alone(django_assert_num_queries: Any) -> None:
    installation.create(now=NOW, days=2, owner=User.objects.create_superuser("ada"))
    with django_assert_num_queries(1):
        answers = together(*(question() for question in QUESTIONS.values()))
    for name, answer in zip(QUESTIONS, answers, strict=True):
        alone = [told(row) for row in QUESTIONS[name]()]
        assert [told(row) for row in answer] == alone, name
        assert bool(alone) is not name.startswith("none"), name


def test_a_statement_of_its_own_is_answered_as_well() -> None:
    User.objects.create_user("ada")
    numbers = Statement("SELECT 1, %s UNION ALL SELECT 2, NULL", ["a"], columns=2)
    below = Statement(
        "WITH RECURSIVE n(x) AS (SELECT 3 UNION ALL SELECT x - 1 FROM n WHERE x > 0) SELECT x FROM n", [], 1
    )
    found = together(numbers, User.objects.filter(username="ada"), below)
    assert found == [[[1, "a"], [2, None]], [User.objects.get()], [[3], [2], [1], [0]]]


def test_no_question_takes_no_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert together() == []
        assert together(Schedule.objects.none()) == [[]]
