"""What placeholders become when a step runs: results of earlier steps, secrets, values of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import connection
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from execution.loops.manual_runs import trigger
from execution.models import Execution
from execution.steps.binding import FilledConfig, bind, shown
from schedules.models import Secret
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    end,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)

pytestmark = pytest.mark.django_db
CANARY = "canary-9f3b/7c21"


@pytest.fixture(autouse=True)
def own_keys(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR, settings.JIM_SECRETS_KEYS = tmp_path, []


@pytest.fixture
def token() -> Secret:
    return Secret.objects.define("token", CANARY, initiator=SOMEBODY, now=NOW)


def use(text: object, name: str = "use", index: int = 1, **fields: Any) -> dict[str, Any]:
    """A step whose result is its argument."""
    return step(name, index, "result", kwargs={"value": text}, **fields)


def fetch(result: object, function: str = "result") -> dict[str, Any]:
    """A step that others take something from."""
    kwargs = {"value": result} if function == "result" else {}
    return step("fetch", 0, function, kwargs=kwargs, continue_on_failure=True)


def run(*steps: dict[str, Any], **fields: Any) -> Activity:
    """The attempt of the last of these steps, all run."""
    execution = start(*steps, **fields)
    run_until_idle()
    return attempts(execution, steps[-1]["name"])[-1]


class TestPlan:
    def test_a_line_without_placeholders_has_nothing_of_them(self) -> None:
        (line,) = start(step("a")).plan["steps"]
        assert not {"refs", "values", "keys"} & set(line)
        (task,) = claim(make_worker())
        assert (task.work.refs, bind([task])) == (None, {})

    def test_it_keeps_references_and_never_values_of_steps_or_secrets(self, token: Secret) -> None:
        execution = start(step("fetch"), use("{{ steps.fetch.result }} {{ secrets.token }} {{ attempt }}"))
        fetch, line = execution.plan["steps"]
        assert line["refs"] == ["steps.fetch.result", "secrets.token", "attempt"]
        assert (line["keys"], line["values"]) == ({"fetch": fetch["key"]}, {})
        assert line["config"]["kwargs"]["value"].startswith("{{ steps.fetch.result }}")
        assert "refs" not in fetch
        assert CANARY not in json.dumps(execution.plan)

    def test_times_are_on_the_clock_of_the_schedule(self) -> None:
        text = "{{ nominal_time }} {{ nominal_date }} {{ started_time }} {{ schedule }}"
        schedule = make_schedule(
            use(text, index=0), name="Nightly", spec={"time_zone": "Pacific/Auckland", "every": ["1h"]}
        )
        occurrence = trigger(schedule, initiator=SOMEBODY, now=NOW + seconds(0.5))
        (line,) = Execution.objects.get(occurrence=occurrence).plan["steps"]
        assert line["values"] == {
            "nominal_time": "2026-11-16T16:00:00+13:00",
            "nominal_date": "2026-11-16",
            "started_time": "2026-11-16T16:00:00+13:00",
            "schedule": "Nightly",
        }


class TestValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("{{ steps.fetch.result }}", {"count": 3, "rows": [{"id": "x"}], "nothing": None}),
            ("{{ steps.fetch.result.count }}", 3),
            ("{{ steps.fetch.result.rows.0.id }}!", "x!"),
            ("{{ steps.fetch.result.nothing }}", None),
            ("{{ attempt }}", 1),
            ("{{{{ attempt }}", "{{ attempt }}"),
        ],
    )
    def test_what_a_step_gets(self, text: str, value: object) -> None:
        activity = run(fetch({"count": 3, "rows": [{"id": "x"}], "nothing": None}), use(text))
        assert (activity.status, activity.result) == ("complete", value)

    def test_the_execution_the_key_and_the_attempt(self) -> None:
        text = "{{ execution }} {{ idempotency_key }} {{ attempt }}"
        execution = start(step("a", 0, "fail", kwargs={"message": text}, max_retries=1, retry_seconds=0))
        run_until_idle()
        run_until_idle(now=NOW + seconds(60))
        (line,) = execution.plan["steps"]
        assert [activity.error for activity in attempts(execution, "a")] == [
            f"RuntimeError: {execution.pk} {line['key']} {number}" for number in (1, 2)
        ]

    def test_the_last_attempt_counts(self) -> None:
        start(step("fetch", max_retries=1), use("{{ steps.fetch.result }}"))
        worker, later = make_worker(), NOW + seconds(60)
        break_down(worker, *claim(worker), result="first")
        status = "complete_with_warning"
        end(worker, *claim(worker, now=later), status=status, result="second", now=later)
        (task,) = claim(worker, now=later)
        values = {"attempt": 1, "execution": task.execution_id, "steps.fetch.result": "second"}
        assert bind([task])[task.pk].values == values

    def test_one_that_completed_with_errors_has_a_result(self) -> None:
        start(fetch(1), use("{{ steps.fetch.result }}"))
        worker = make_worker()
        end(worker, *claim(worker), status="complete_with_error", result="most of it")
        (task,) = claim(worker)
        assert bind([task])[task.pk].values["steps.fetch.result"] == "most of it"

    def test_only_the_same_execution_counts(self) -> None:
        schedule = make_schedule(step("fetch"), use("{{ steps.fetch.result }}"), overlap="allow_all")
        worker = make_worker()
        for _ in range(3):
            trigger(schedule, initiator=SOMEBODY, now=NOW)
        for number, task in enumerate(claim(worker)):
            end(worker, task, result=number)
        tasks = claim(worker)
        assert sorted(binding.values["steps.fetch.result"] for binding in bind(tasks).values()) == [0, 1, 2]

    def test_a_result_is_data_and_never_a_placeholder(self, token: Secret) -> None:
        activity = run(fetch("{{{{ secrets.token }}"), use("{{ steps.fetch.result }}"))
        assert (activity.status, activity.result) == ("complete", "{{ secrets.token }}")


class TestShown:
    """The input of a step for people: like the step's own, without secrets, and as far as it is known."""

    def look(self, execution: Execution) -> FilledConfig:
        line = execution.plan["steps"][-1]
        rows = Activity.objects.filter(parent=execution.activity_id).order_by("attempt")
        attempts = {each.task_key: each for each in rows if each.task_key}
        return shown(line, execution_id=execution.pk, attempts=attempts, last_result=None)

    def value(self, execution: Execution) -> object:
        return self.look(execution).config["kwargs"]["value"]

    def test_it_is_what_the_step_got(self) -> None:
        text = "{{ steps.fetch.result.rows }} rows, {{ attempt }}, {{ execution }}, {{ nominal_date }}, {{{{"
        execution = start(fetch({"rows": 17}), use(text))
        run_until_idle()
        got = attempts(execution, "use")[-1].result
        assert self.value(execution) == got == f"17 rows, 1, {execution.pk}, 2026-11-16, {{{{"
        assert self.look(execution).missing == {}

    def test_secrets_are_masked_and_never_looked_up(self, token: Secret) -> None:
        execution = start(fetch(1), use({"whole": "{{ secrets.token }}", "part": "Bearer {{secrets.token}}"}))
        with CaptureQueriesContext(connection) as queries:
            assert self.value(execution) == {"whole": "•••", "part": "Bearer •••"}
        assert not any("secret" in query["sql"] for query in queries.captured_queries)

    @pytest.mark.parametrize(
        ("reference", "why"),
        [
            ("steps.fetch.result", "has not ended"),
            ("last_result.x", ""),  # the first run has none, and gets nothing
        ],
    )
    def test_what_has_no_value_stays_as_it_is_and_says_why(self, reference: str, why: str) -> None:
        execution = start(fetch(1), use(f"a {{{{ {reference} }}}} b"))
        assert self.value(execution) == (f"a {{{{ {reference} }}}} b" if why else "a  b")
        assert why in self.look(execution).missing.get(reference, "")
        assert bool(why) == bool(self.look(execution).missing)

    def test_a_line_without_placeholders_or_damaged_is_shown_as_it_is(self) -> None:
        for line in ({"config": {"a": "b"}}, {"config": {"a": "{{ x"}, "refs": [], "keys": {"a": "no key"}}):
            assert shown(line, execution_id=1, attempts={}, last_result=None).config == line["config"]


class TestProblems:
    @pytest.mark.parametrize(
        ("before", "path", "words"),
        [
            (fetch(None), "", "{{ steps.fetch.result }}: step “fetch” returned no result"),
            (fetch({"a": 1, "b": 2}), ".c", "c does not exist; available: a, b"),
            (fetch([1]), ".1", "1 does not exist; the list has a length of 1, and its first index is 0"),
            (fetch("text"), ".a", 'a does not exist: “"text"” contains no values'),
            (fetch(None, "skip"), ".a", "step “fetch” was skipped, so it has no result"),
            (fetch(None, "fail"), ".a", "step “fetch” failed, so it has no result"),
        ],
    )
    def test_a_result_that_is_not_there(self, before: dict[str, Any], path: str, words: str) -> None:
        activity = run(before, use(f"{{{{ steps.fetch.result{path} }}}}", max_retries=3))
        assert (activity.status, activity.traceback) == ("failed_with_error", "")
        assert words in activity.error
        assert activity.attempt == 1, "it is not retried"

    def test_a_step_whose_record_is_gone(self) -> None:
        start(fetch(1), use("{{ steps.fetch.result }}"))
        worker = make_worker()
        end(worker, *claim(worker), result=1)
        Activity.objects.filter(target_name="fetch").delete()
        (task,) = claim(worker)
        assert bind([task])[task.pk].problem.endswith("no record of step “fetch” was found")

    def test_a_secret_that_was_deleted_meanwhile_is_not_retried(self, token: Secret) -> None:
        execution = start(use("{{ secrets.token }}", index=0, max_retries=3))
        Secret.objects.all().delete()
        run_until_idle()
        (activity,) = attempts(execution, "use")
        assert "the secret “token” no longer exists; define it again, or change the step" in activity.error

    def test_a_secret_that_no_key_fits_is_retried(self, token: Secret, settings: Any) -> None:
        execution = start(use("{{ secrets.token }}", index=0, max_retries=3))
        settings.JIM_SECRETS_KEYS = [Fernet.generate_key().decode()]
        run_until_idle()
        activity, retry = attempts(execution, "use")
        assert (activity.status, retry.status) == ("failed_with_error", "pending")
        assert "“token” cannot be decrypted" in activity.error
        settings.JIM_SECRETS_KEYS = []
        run_until_idle(now=NOW + seconds(60))
        assert step_statuses(execution)["use"] == ["failed_with_error", "complete"]

    def test_keys_that_cannot_be_read(self, token: Secret, tmp_path: Path) -> None:
        start(use("{{ secrets.token }}", index=0))
        (tmp_path / "secrets_keys").write_text("nonsense")
        (binding,) = bind(claim(make_worker())).values()
        assert (binding.can_retry, "is not a Fernet key" in binding.problem) == (True, True)

    def test_one_bad_one_does_not_trouble_the_others(self, token: Secret) -> None:
        lost = Secret.objects.define("lost", "something", initiator=SOMEBODY, now=NOW)
        Secret.objects.filter(pk=lost.pk).update(token=Fernet(Fernet.generate_key()).encrypt(b"x").decode())
        damaged = use("{{ attempt }}", "damaged", 0)
        start(
            use("{{ secrets.token }}", "good", 0),
            use("{{ secrets.lost }}", "lost", 0),
            damaged,
            step("plain"),
        )
        tasks = {task.name: task for task in claim(make_worker())}
        tasks["damaged"].step["refs"] = ["{{", 7]
        bindings = bind(list(tasks.values()))
        problems = {name: bindings[task.pk].problem for name, task in tasks.items() if task.pk in bindings}
        assert problems.pop("good") == ""
        assert "“lost” cannot be decrypted" in problems.pop("lost")
        assert "the placeholders in the plan cannot be read" in problems.pop("damaged")
        assert problems == {}

    def test_a_damaged_line_is_its_own_problem(self) -> None:
        start(use("{{ attempt }}", index=0))
        (task,) = claim(make_worker())
        line = dict(task.step)
        damages: list[dict[str, Any]] = [{"refs": 7}, {"refs": [None]}, {"keys": ["x"]}]
        for damage in [*damages, {"keys": {"a": "no uuid"}}, {"values": 3}]:
            task.step.update(line | damage)
            assert "cannot be read" in bind([task])[task.pk].problem


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("{{ attempt }} {{ nominal_time }}", 0),
        ("{{ steps.a.result }} {{ steps.b.result.x }}", 1),
        ("{{ secrets.token }} {{ secrets.other }}", 1),
        ("{{ steps.a.result }} {{ secrets.token }}", 2),
    ],
)
def test_two_statements_at_most_look_up_a_whole_batch(
    token: Secret, size: int, text: str, statements: int, django_assert_num_queries: Any
) -> None:
    Secret.objects.define("other", "another", initiator=SOMEBODY, now=NOW)
    for _ in range(size):
        start(step("a"), step("b"), use(text))
    worker = make_worker()
    end(worker, *claim(worker, limit=1_000), result={"x": 1})
    tasks = claim(worker, limit=1_000)
    assert len(tasks) == size
    with django_assert_num_queries(statements):
        bindings = bind(tasks)
    assert [binding.problem for binding in bindings.values()] == [""] * size
