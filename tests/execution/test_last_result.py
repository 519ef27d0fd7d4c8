"""What the last execution that completed returned is handed to the next one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from activities.models import Activity
from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
from execution.models import Execution
from execution.steps.binding import LastResults, bind
from execution.steps.context import Context
from schedules.models import Schedule
from tests.base import NOW, SOMEBODY, claim, end, fresh, make_schedule, make_worker, run_until_idle, step

pytestmark = pytest.mark.django_db


def run(schedule: Schedule) -> Any:
    """One execution to its end; the result of its last step."""
    occurrence = trigger(schedule, initiator=SOMEBODY, now=NOW)
    run_until_idle()
    invoke(NOW)
    execution = Execution.objects.get(occurrence=occurrence)
    last = Activity.objects.filter(parent=execution.activity_id).order_by("-step_index").first()
    return last and last.result


def test_a_function_counts_on_from_where_the_last_one_was() -> None:
    schedule = make_schedule(counting())
    assert [run(schedule) for _ in range(3)] == [{"count": 1}, {"count": 2}, {"count": 3}]
    assert fresh(schedule).last_result == {"count": 3}


def test_it_reaches_a_child_process() -> None:
    schedule = make_schedule(counting(isolation="process"))
    Schedule.objects.filter(pk=schedule.pk).update(last_result={"count": 1})
    assert run(schedule) == {"count": 2}


def test_a_last_step_that_completed_with_errors_counts_if_its_failure_does_not() -> None:
    schedule = make_schedule(step("most", continue_on_failure=True))
    trigger(schedule, initiator=SOMEBODY, now=NOW)
    worker = make_worker()
    end(worker, *claim(worker), status="complete_with_error", result={"rows": 7})
    invoke(NOW)
    assert (fresh(schedule).last_outcome, fresh(schedule).last_result) == ("completed", {"rows": 7})


def test_where_several_steps_are_last_their_results_have_names() -> None:
    schedule = make_schedule(
        step("first", 0, "result", kwargs={"value": 0}),
        step("a", 1, "result", kwargs={"value": 1}),
        step("b", 1, "result", kwargs={"value": [2]}),
        step("silent", 1),
    )
    run(schedule)
    assert fresh(schedule).last_result == {"a": 1, "b": [2]}


def test_placeholders_stand_for_it() -> None:
    text = ["{{ last_result }}", "{{ last_result.count }}", "from {{ last_result.count }} on"]
    schedule = make_schedule(
        step("told", 0, "result", kwargs={"value": text}),
        step("count", 1, "result", kwargs={"value": {"count": 7}}),
    )
    for _ in range(2):
        run(schedule)
    told = Activity.objects.filter(target_name="told").order_by("pk").values_list("result", flat=True)
    assert list(told) == [[None, None, "from  on"], [{"count": 7}, 7, "from 7 on"]]


def test_a_path_that_leads_nowhere_fails_the_step() -> None:
    schedule = make_schedule(step("work", 0, "result", kwargs={"value": "{{ last_result.nothing }}"}))
    Schedule.objects.filter(pk=schedule.pk).update(last_result={"count": 1})
    run(schedule)
    assert "nothing does not exist; available: count" in Activity.objects.get(target_name="work").error


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


def test_the_later_steps_of_an_execution_need_not_ask_again(
    django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
) -> None:
    schedule = make_schedule(counting(), counting(index=1, name="again"))
    Schedule.objects.filter(pk=schedule.pk).update(last_result={"count": 5})
    trigger(schedule, initiator=SOMEBODY, now=NOW)
    worker, last_results = make_worker(), LastResults()
    for statements in (1, 0):
        (task,) = claim(worker)
        with django_assert_num_queries(statements):
            assert bind([task], last_results)[task.pk].last_result == {"count": 5}
        end(worker, task)


def test_what_one_step_makes_of_it_no_other_one_sees() -> None:
    """Whether it has it of its own accord or as an argument, and side by side or one after the other."""
    given = {"args": ["{{ last_result.rows }}"]}
    schedule = make_schedule(
        *(growing(name=name, index=index) for name, index in (("a", 0), ("b", 0), ("c", 1))),
        *(growing(name=name, index=index, **given) for name, index in (("d", 0), ("e", 0), ("f", 1))),
    )
    Schedule.objects.filter(pk=schedule.pk).update(last_result={"rows": [1]})
    trigger(schedule, initiator=SOMEBODY, now=NOW)
    worker, last_results = make_worker(), LastResults()
    for names in ("abde", "cf"):
        tasks = claim(worker)
        assert {task.name for task in tasks} == set(names)
        for binding in bind(tasks, last_results).values():
            assert binding.last_result == {"rows": [1]}
            for rows in (binding.last_result["rows"], binding.values.get("last_result.rows", [])):
                rows.append(2)
        end(worker, *tasks)


def test_what_one_step_makes_of_a_result_its_neighbour_does_not_see() -> None:
    users = [growing(name=name, index=1, args=["{{ steps.fetch.result }}"]) for name in "ab"]
    trigger(make_schedule(step("fetch"), *users), initiator=SOMEBODY, now=NOW)
    worker = make_worker()
    end(worker, *claim(worker), result=[1])
    bindings = bind(claim(worker))
    assert len(bindings) == 2
    for binding in bindings.values():
        assert binding.values["steps.fetch.result"] == [1]
        binding.values["steps.fetch.result"].append(2)


@pytest.mark.parametrize(("length", "remembered"), [(16_000, 2), (17_000, 0)])
def test_few_of_them_are_remembered_and_no_long_ones(
    monkeypatch: pytest.MonkeyPatch, length: int, remembered: int
) -> None:
    monkeypatch.setattr(LastResults, "MOST", 2)
    schedules = [make_schedule(counting()) for _ in range(4)]
    Schedule.objects.update(last_result="x" * length)
    for schedule in schedules:
        trigger(schedule, initiator=SOMEBODY, now=NOW)
    last_results, ids = LastResults(), sorted(Execution.objects.values_list("pk", flat=True))
    for some in (ids[:3], ids):
        found = last_results.of(some)
        assert {pk: json.loads(text) for pk, text in found.items()} == dict.fromkeys(some, "x" * length)
    assert len(last_results._known) == remembered


def counting(**fields: Any) -> dict[str, Any]:
    config = {"function": f"{__name__}.count", "isolation": fields.pop("isolation", "thread")}
    return step("work", config=config) | fields


def count(ctx: Context) -> dict[str, int]:
    before = ctx.last_result or {"count": 0}
    return {"count": before["count"] + 1}


def growing(*, name: str, index: int, args: list[Any] | None = None) -> dict[str, Any]:
    config = {"function": "tests.work.noop", "isolation": "thread", "args": args or []}
    return step(name, index, config=config)
