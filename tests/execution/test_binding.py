"""What placeholders become when a step runs: results of earlier steps, secrets, values of the run."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.apps import apps

from activities import clock
from activities.models import Activity
from execution.binding import bind
from execution.invoker import trigger
from execution.masking import MASK
from execution.models import Execution
from execution.steps.base import Context
from schedules.models import Schedule, Secret
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    end,
    enqueue,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)
from tests.loops import work_until_idle

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


def first(result: object, status: str = "complete", **fields: Any) -> dict[str, Any]:
    """A step called fetch that ends so."""
    functions = {
        "complete": "result",
        "complete_with_warning": "items",
        "skipped": "skip",
        "failed_with_error": "fail",
    }
    kwargs = {"complete": {"value": result}, "complete_with_warning": {"ok": 1, "warning": 1}}.get(status, {})
    return step("fetch", 0, functions[status], kwargs=kwargs, continue_on_failure=True, **fields)


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

    def test_a_schedule_whose_spec_is_broken_can_still_be_run_by_hand(self) -> None:
        schedule = make_schedule(use("{{ nominal_time }}", index=0))
        Schedule.objects.filter(pk=schedule.pk).update(spec={"time_zone": "Nowhere"})
        occurrence = trigger(fresh(schedule), initiator=SOMEBODY, now=NOW)
        (line,) = Execution.objects.get(occurrence=occurrence).plan["steps"]
        assert line["values"] == {"nominal_time": "2026-11-16T03:00:00+00:00"}


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
        activity = run(first({"count": 3, "rows": [{"id": "x"}], "nothing": None}), use(text))
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

    def test_a_single_job_gets_its_own(self, token: Secret) -> None:
        job = step("a", 0, "fail", kwargs={"message": "{{ attempt }} {{ idempotency_key }}"})
        (task,) = enqueue(job)
        run_until_idle()
        assert Activity.objects.get(task_key=task.key).error == f"RuntimeError: 1 {task.key}"

    def test_the_last_attempt_counts(self) -> None:
        start(step("fetch", max_retries=1), use("{{ steps.fetch.result }}"))
        worker, later = make_worker(), NOW + seconds(60)
        break_down(worker, *claim(worker), result="first")
        end(worker, *claim(worker, now=later), result="second", now=later)
        (task,) = claim(worker, now=later)
        assert bind([task])[task.pk].values["steps.fetch.result"] == "second"

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
        activity = run(first("{{{{ secrets.token }}"), use("{{ steps.fetch.result }}"))
        assert (activity.status, activity.result) == ("complete", "{{ secrets.token }}")

    def test_one_with_a_warning_has_its_result(self) -> None:
        execution = start(first(None, "complete_with_warning"), use("{{ steps.fetch.result }}"))
        worker = make_worker()
        end(worker, *claim(worker), status="complete_with_warning", result=7)
        (task,) = claim(worker)
        assert bind([task])[task.pk].values == {
            "attempt": 1,
            "execution": execution.pk,
            "steps.fetch.result": 7,
        }


class TestProblems:
    @pytest.mark.parametrize(
        ("result", "text", "words"),
        [
            (None, "{{ steps.fetch.result }}", "{{ steps.fetch.result }}: step “fetch” returned no result"),
            ({"a": 1, "b": 2}, "{{ steps.fetch.result.c }}", "it has no c; there is a, b"),
            ([1], "{{ steps.fetch.result.1 }}", "it has no 1; the list has 1 entries, counted from 0"),
            ("text", "{{ steps.fetch.result.a }}", 'it has no a: there is nothing inside “"text"”'),
        ],
    )
    def test_a_result_that_is_not_there(self, result: object, text: str, words: str) -> None:
        activity = run(first(result), use(text, max_retries=3))
        assert (activity.status, activity.traceback) == ("failed_with_error", "")
        assert words in activity.error
        assert activity.attempt == 1, "it is not retried"

    @pytest.mark.parametrize(
        ("status", "words"), [("skipped", "was skipped"), ("failed_with_error", "failed")]
    )
    def test_a_step_without_a_result(self, status: str, words: str) -> None:
        activity = run(first(None, status), use("{{ steps.fetch.result.a }}"))
        assert activity.error == f"{{{{ steps.fetch.result.a }}}}: step “fetch” {words}, so it has no result"

    def test_a_step_whose_record_is_gone(self) -> None:
        start(first(1), use("{{ steps.fetch.result }}"))
        worker = make_worker()
        end(worker, *claim(worker), result=1)
        Activity.objects.filter(target_name="fetch").delete()
        (task,) = claim(worker)
        assert bind([task])[task.pk].problem.endswith("there is no record of step “fetch”")

    def test_a_secret_that_was_deleted_meanwhile_is_not_retried(self, token: Secret) -> None:
        execution = start(use("{{ secrets.token }}", index=0, max_retries=3))
        Secret.objects.all().delete()
        run_until_idle()
        (activity,) = attempts(execution, "use")
        assert "there is no secret “token” any more; define it again, or change the step" in activity.error

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
        tasks = [step(name, kwargs={"x": "{{ secrets.token }}"}) for name in "ab"]
        start(*tasks)
        (tmp_path / "secrets_keys").write_text("nonsense")
        bindings = bind(claim(make_worker())).values()
        assert {(binding.can_retry, "is not a Fernet key" in binding.problem) for binding in bindings} == {
            (True, True)
        }

    def test_one_bad_one_does_not_trouble_the_others(self, token: Secret, settings: Any) -> None:
        lost = Secret.objects.define("lost", "something", initiator=SOMEBODY, now=NOW)
        Secret.objects.filter(pk=lost.pk).update(token=Fernet(Fernet.generate_key()).encrypt(b"x").decode())
        start(
            use("{{ secrets.token }}", "good", 0),
            use("{{ secrets.lost }}", "lost", 0),
            use("{{ attempt }}", "other", 0),
            use("{{ attempt }}", "damaged", 0),
            step("plain"),
        )
        tasks = {task.name: task for task in claim(make_worker())}
        tasks["damaged"].step["refs"] = ["{{", 7]
        tasks["damaged"].step["keys"] = None
        bindings = bind(list(tasks.values()))
        problems = {name: bindings[task.pk].problem for name, task in tasks.items() if task.pk in bindings}
        assert (problems["good"], problems["other"]) == ("", "")
        assert "“lost” cannot be decrypted" in problems["lost"]
        assert "the placeholders in its plan cannot be read" in problems["damaged"]
        assert set(problems) == {"good", "lost", "other", "damaged"}

    def test_a_damaged_line_is_its_own_problem(self) -> None:
        start(use("{{ attempt }}", index=0))
        (task,) = claim(make_worker())
        line = dict(task.step)
        damages: list[dict[str, Any]] = [{"refs": 7}, {"refs": [None]}, {"keys": ["x"]}]
        for damage in [*damages, {"keys": {"a": "no uuid"}}, {"values": 3}]:
            task.step.update(line | damage)
            assert "cannot be read" in bind([task])[task.pk].problem

    def test_a_setting_that_is_wrong_once_filled_fails_and_is_not_retried(self) -> None:
        wrong = step("use", 1, max_retries=3) | {
            "config": {
                "function": "tests.work.result",
                "args": "{{ steps.fetch.result }}",
                "isolation": "thread",
            }
        }
        activity = run(first({"not": "a list"}), wrong)
        assert "args: must be a list with one entry per value" in activity.error
        assert activity.attempt == 1


class TestStatements:
    @pytest.mark.parametrize("size", [1, 5])
    @pytest.mark.parametrize(
        ("text", "statements"),
        [
            ("plain", 0),
            ("{{ attempt }} {{ nominal_time }}", 0),
            ("{{ steps.a.result }} {{ steps.b.result.x }}", 1),
            ("{{ secrets.token }} {{ secrets.other }}", 1),
            ("{{ steps.a.result }} {{ secrets.token }}", 2),
        ],
    )
    def test_two_at_most_for_a_whole_batch(
        self,
        token: Secret,
        size: int,
        text: str,
        statements: int,
        django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
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
        assert [binding.problem for binding in bindings.values()] == ([""] * size if "{{" in text else [])


@pytest.mark.django_db(transaction=True)
def test_a_secret_is_used_and_nowhere_to_be_found(
    token: Secret,
    tmp_path: Path,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A result is fetched and used, and a secret goes into a thread, a child process and a program."""
    caplog.set_level(logging.DEBUG)
    settings.JIM_EXECUTABLE_FOLDERS = [tmp_path]
    program = tmp_path / "program"
    program.write_text(
        "#!/bin/sh\n"
        """printf "%s ['%s', '%s']\\n" "$TOKEN" "$1" "$2"\n"""
        """printf "'%s'\\n" "$TOKEN" >&2\n"""
        """printf "%s" "$TOKEN" > "$1"\n"""
    )
    program.chmod(0o755)
    execution = start(
        step("fetch", 0, "result", kwargs={"value": {"folder": str(tmp_path), "count": 3}}),
        spend("thread", tmp_path),
        spend("child", tmp_path, isolation="process"),
        step("program", 1)
        | {
            "step_type": "executable",
            "config": {
                "argv": [str(program), "{{ steps.fetch.result.folder }}/program.out", "{{ attempt }}"],
                "env": {"TOKEN": "{{ secrets.token }}", "COUNT": "{{ steps.fetch.result.count }}"},
            },
        },
        use("{{ steps.thread.result }}", "after", 2),
        now=clock.now(),
    )
    work_until_idle()
    assert set(map(tuple, step_statuses(execution).values())) == {("complete",)}
    for name in ("thread", "child", "program"):
        assert (tmp_path / f"{name}.out").read_text() == CANARY
    assert attempts(execution, "after")[0].result == {"token": MASK, "count": 3}
    said = attempts(execution, "child")[0].output.values_list("text", flat=True)
    assert list(said) == [f"printed {MASK}", f"written {MASK}"]
    said = attempts(execution, "program")[0].output.order_by("stream").values_list("text", flat=True)
    assert list(said) == [f"'{MASK}'", f"{MASK} ['{tmp_path}/program.out', '1']"]
    assert "canary" not in stored() + caplog.text + "".join(capfd.readouterr())


def spend(name: str, folder: Path, isolation: str = "thread") -> dict[str, Any]:
    kwargs = {
        "secret": "{{ secrets.token }}",
        "path": f"{{{{ steps.fetch.result.folder }}}}/{name}.out",
        "count": "{{ steps.fetch.result.count }}",
    }
    config = {"function": "tests.execution.test_binding.spend_it", "kwargs": kwargs, "isolation": isolation}
    return step(name, 1) | {"config": config}


def spend_it(secret: str, path: str, count: int, ctx: Context) -> dict[str, Any]:
    Path(path).write_text(secret)
    if ctx.work.config["isolation"] == "process":
        sys.stdout.write(f"printed {secret}\n")
    ctx.write(f"written {secret}")
    ctx.item(secret, "ok", secret)
    ctx.progress(1, 1, f"with {secret}")
    return {"token": secret, "count": count}


def stored() -> str:
    """All that is in any table."""
    return "".join(
        str(list(model._default_manager.values()))
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed
    )
