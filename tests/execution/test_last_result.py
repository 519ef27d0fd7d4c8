"""What the last execution that completed returned is handed to the next one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from activities.models import Activity
from execution.binding import bind
from execution.invoker import invoke, trigger
from execution.models import Execution
from execution.steps.base import Context
from schedules.models import Schedule
from tests.base import NOW, SOMEBODY, claim, fresh, make_schedule, make_worker, run_until_idle, seconds, step

pytestmark = pytest.mark.django_db


def run(schedule: Schedule, at: float = 0) -> Any:
    """One execution to its end; the result of its last step."""
    now = NOW + seconds(at)
    occurrence = trigger(schedule, initiator=SOMEBODY, now=now)
    run_until_idle(now=now)
    invoke(now)
    execution = Execution.objects.get(occurrence=occurrence)
    last = Activity.objects.filter(parent=execution.activity_id).order_by("-step_index").first()
    return last and last.result


def test_a_function_counts_on_from_where_the_last_one_was() -> None:
    schedule = make_schedule(counting())
    assert [run(schedule, at) for at in range(3)] == [{"count": 1}, {"count": 2}, {"count": 3}]
    assert fresh(schedule).last_result == {"count": 3}


def test_it_reaches_a_child_process() -> None:
    schedule = make_schedule(counting(isolation="process"))
    assert [run(schedule, at) for at in range(2)] == [{"count": 1}, {"count": 2}]


def test_a_failure_leaves_it_and_says_so_beside_it() -> None:
    schedule = make_schedule(counting())
    run(schedule)
    schedule.edit(
        token=schedule.token, changes={}, steps=[step("work", 0, "fail")], initiator=SOMEBODY, now=NOW
    )
    run(schedule, 1)
    after = fresh(schedule)
    assert after.last_result == {"count": 1}
    assert "work" in after.last_failure
    schedule.edit(token=after.token, changes={}, steps=[counting()], initiator=SOMEBODY, now=NOW)
    assert run(schedule, 2) == {"count": 2}
    assert fresh(schedule).last_failure == ""


def test_where_several_steps_are_last_their_results_have_names() -> None:
    schedule = make_schedule(
        step("first", 0, "result", kwargs={"value": 0}),
        step("a", 1, "result", kwargs={"value": 1}),
        step("b", 1, "result", kwargs={"value": [2]}),
        step("silent", 1),
    )
    run(schedule)
    assert fresh(schedule).last_result == {"a": 1, "b": [2]}


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("{{ last_result }}", None, {"count": 7}),
        ("{{ last_result.count }}", None, 7),
        ("from {{ last_result.count }} on", "from  on", "from 7 on"),
    ],
)
def test_placeholders_stand_for_it(text: str, first: Any, second: Any) -> None:
    schedule = make_schedule(
        step("told", 0, "result", kwargs={"value": text}),
        step("count", 1, "result", kwargs={"value": {"count": 7}}),
    )
    told = []
    for at in range(2):
        run(schedule, at)
        told.append(Activity.objects.filter(target_name="told").order_by("-pk")[0].result)
    assert told == [first, second]


def test_a_path_that_leads_nowhere_fails_the_step_in_words() -> None:
    schedule = make_schedule(step("work", 0, "result", kwargs={"value": "{{ last_result.nothing }}"}))
    Schedule.objects.filter(pk=schedule.pk).update(last_result={"count": 1})
    run(schedule)
    assert "it has no nothing; there is count" in Activity.objects.get(target_name="work").error


def test_it_is_frozen_when_the_execution_starts() -> None:
    schedule = make_schedule(counting())
    Schedule.objects.filter(pk=schedule.pk).update(last_result={"count": 5})
    trigger(schedule, initiator=SOMEBODY, now=NOW)
    Schedule.objects.filter(pk=schedule.pk).update(last_result={"count": 50})
    run_until_idle()
    assert Activity.objects.get(target_name="work").result == {"count": 6}


def test_looking_it_up_takes_one_statement_for_many_and_none_where_there_is_none(
    django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
) -> None:
    for number in range(4):
        schedule = make_schedule(counting())
        Schedule.objects.filter(pk=schedule.pk).update(last_result={"count": number} if number else None)
        trigger(schedule, initiator=SOMEBODY, now=NOW)
    tasks = claim(make_worker())
    with django_assert_num_queries(1):
        bindings = bind(tasks)
    assert sorted(binding.last_result["count"] for binding in bindings.values()) == [1, 2, 3]


def counting(**fields: Any) -> dict[str, Any]:
    config = {"function": f"{__name__}.count", "isolation": fields.pop("isolation", "thread")}
    return step("work", config=config, **fields)


def count(ctx: Context) -> dict[str, int]:
    before = ctx.last_result or {"count": 0}
    return {"count": before["count"] + 1}
