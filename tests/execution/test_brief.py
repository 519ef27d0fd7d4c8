"""Lines of plans are stored without what nearly all of them say, and nobody else notices."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from database.statements import fetch
from execution.models import Execution, execution_queryset
from execution.models.brief import UNSAID, brief, brief_plan, whole, whole_plan
from tests.base import attempts, break_down, claim, enqueue, fresh, make_worker, start, step

LINE: dict[str, Any] = {"key": "k", "index": 0, "line": 0, "name": "a", "config": {}, "step_type": "python"}


def stored(column: str, table: str) -> Any:
    [(text,)] = fetch(f"SELECT {column} FROM {table}", [])
    return json.loads(text) if isinstance(text, str) else text


class TestALine:
    def test_it_says_only_what_is_special(self) -> None:
        special = {"max_retries": 0, "continue_on_failure": True, "retry_on": ["Timeout"]}
        assert brief(LINE | UNSAID) == LINE
        assert brief(LINE | UNSAID | special) == LINE | special

    def test_what_it_does_not_say_comes_back(self) -> None:
        before = LINE | UNSAID
        assert whole(before) == before
        for said in (before, *(before | {name: ["other"]} for name in UNSAID)):
            assert whole(brief(said)) == said

    def test_damage_stays_what_it_is(self) -> None:
        lines: list[Any] = [None, [], "text", 3, {}, {"name": "without a key", "pool": "default"}]
        plans: list[Any] = [None, [], "text", {}, {"steps": 3}, {"steps": [None, {}]}]
        assert [whole(each) for each in lines] == [brief(each) for each in lines] == lines
        assert [whole_plan(each) for each in plans] == [brief_plan(each) for each in plans] == plans


@pytest.mark.django_db
class TestStored:
    def test_a_job(self) -> None:
        (task,) = enqueue(step("job", max_retries=1))
        line = stored("step", "execution_workertask")
        assert not line.keys() & UNSAID.keys() - {"max_retries"}
        assert (line["max_retries"], line["name"]) == (1, "job")
        assert fresh(task).step == UNSAID | line
        fresh(task).save()
        assert stored("step", "execution_workertask") == line
        (held,) = claim(make_worker())
        assert held.step == fresh(task).step

    def test_retries_go_by_what_is_not_said_and_by_nothing_in_a_line_that_cannot_be_read(self) -> None:
        execution, worker = start(step("a", max_retries=3), step("damaged", max_retries=3)), make_worker()
        cast = "::jsonb" if connection.vendor == "postgresql" else ""
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE execution_workertask SET step = '{{}}'{cast} WHERE name = 'damaged'")
        assert "max_retries" not in stored("step", "execution_workertask WHERE name = 'a'")
        break_down(worker, *claim(worker))
        assert [len(attempts(execution, name)) for name in ("a", "damaged")] == [2, 1]

    def test_an_execution(self) -> None:
        execution = start(step("a", continue_on_failure=True), step("b", 1))
        first, second = stored("plan", "execution_execution")["steps"]
        assert first["continue_on_failure"] is True
        assert "continue_on_failure" not in second
        fresh(execution).save()
        assert stored("plan", "execution_execution")["steps"] == [first, second]
        assert [line["continue_on_failure"] for line in fresh(execution).plan["steps"]] == [True, False]
        (held,) = Execution.objects.lock_and_read([execution.pk])
        assert held.plan == fresh(execution).plan

    @pytest.mark.parametrize(("length", "remembered"), [(10, 1), (100_000, 0)])
    def test_a_plan_is_read_once_unless_it_is_long(self, length: int, remembered: int) -> None:
        execution_queryset.kept_plan.cache_clear()
        started = start(step("a", kwargs={"value": "x" * length}), step("b", 1))
        for _ in range(2):
            (held,) = Execution.objects.lock_and_read([started.pk])
            assert held.plan == fresh(started).plan
        assert execution_queryset.kept_plan.cache_info().currsize == remembered
