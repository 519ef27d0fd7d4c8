from __future__ import annotations

from typing import Any

import pytest

from execution.models import Execution, WorkerTask
from tests.api.calling import Caller, fields
from tests.base import NOW, SOMEBODY, break_down, claim, fresh, make_worker, run_until_idle, start, step

pytestmark = pytest.mark.django_db


def sleep(name: str = "rest", **fields: Any) -> dict[str, Any]:
    """A step that an operator may write: it runs no code."""
    return {"name": name, "step_type": "wait", "config": {"duration": "1s"}} | fields


class TestReading:
    def test_the_list_shows_the_newest_first_and_can_be_narrowed(self) -> None:
        api, first, second = Caller("Viewer"), start(), start()
        first.cancel(initiator=SOMEBODY, now=NOW)
        assert [row["id"] for row in api.get("executions").json()["results"]] == [second.pk, first.pk]
        for query, expected in (
            ({"state": "in_progress"}, [second.pk]),
            ({"state": "cancelled"}, [first.pk]),
            ({"state": "late"}, []),
            ({"schedule": first.schedule_id}, [first.pk]),
            ({"source": "auto"}, []),
            ({"source": "manual", "limit": 1}, [second.pk]),
            ({"started_after": "2026-11-16T04:00:00Z"}, []),
        ):
            assert [row["id"] for row in api.get("executions", **query).json()["results"]] == expected, query

    def test_one_comes_with_its_plan_its_attempts_and_what_each_step_waits_for(self) -> None:
        api = Caller("Viewer")
        execution = start(step("load", 0, max_retries=1), step("report", 1))
        worker = make_worker()
        break_down(worker, *claim(worker))
        told = api.get(f"executions/{execution.pk}").json()
        assert told["is_partial"] is False
        load, report = told["steps"]
        assert told["progress"] == {"steps": 2, "ended": 0}
        assert [attempt["status"] for attempt in load["attempts"]] == ["failed_with_error", "pending"]
        assert (load["state"], report["state"]) == ("queued", "waiting")
        assert "group 1 of 2 is queued" in report["wait_reason"]

    def test_the_number_of_queries_does_not_grow_with_the_rows(
        self, django_assert_max_num_queries: Any
    ) -> None:
        api = Caller("Viewer")
        for _ in range(5):
            execution = start(*(step(f"s{number}", number) for number in range(5)))
        api.get("executions")
        with django_assert_max_num_queries(4):
            api.get("executions")
        with django_assert_max_num_queries(10):
            api.get(f"executions/{execution.pk}")


class TestVerbs:
    def test_cancelling_can_be_watched_and_what_has_ended_is_refused(self) -> None:
        api, execution = Caller("Operator", scopes=["run"]), start()
        assert api.post(f"executions/{execution.pk}/retry").status_code == 409
        answer = api.post(f"executions/{execution.pk}/cancel", {"reason": "too early"})
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
        assert answer["Location"].endswith(f"/api/v1/executions/{execution.pk}")
        assert fresh(execution).cancel_reason == "too early"
        for verb in ("cancel", "terminate"):
            assert api.post(f"executions/{execution.pk}/{verb}").status_code == 409

    def test_what_failed_runs_again_unless_another_run_of_its_schedule_blocks_it(self) -> None:
        api, execution = Caller("Operator"), start(step("good"), step("bad", 1, "fail"), overlap="skip")
        run_until_idle()
        again, answer = (api.post(f"executions/{execution.pk}/retry", idempotency_key="k") for _ in range(2))
        assert again.json() == answer.json()
        running = Execution.objects.get(retry_of=execution).pk
        assert (answer.status_code, answer.json()["id"]) == (202, running)
        assert list(WorkerTask.objects.values_list("name", flat=True)) == ["bad"]
        [partly] = api.get("executions", state="partial").json()["results"]
        assert (partly["id"], partly["is_partial"]) == (execution.pk, True)
        blocked = api.post(f"executions/{execution.pk}/retry")
        assert (blocked.status_code, blocked.json()["blocked_by"]) == (409, running)
        waits = api.post(f"executions/{execution.pk}/retry", {"overlap": "buffer_all"})
        assert (waits.status_code, waits.json()["id"]) == (202, None)
        assert f"retry_of={execution.pk}" in waits["Location"]


class TestGroups:
    def test_a_group_of_jobs_starts_without_a_schedule(self) -> None:
        api = Caller("Operator", scopes=["run"])
        body = {"name": "Tonight", "mode": "sequential", "steps": [sleep("a"), sleep("b")]}
        answer = api.post("executions", body, idempotency_key="k")
        assert answer.status_code == 202, answer.json()
        assert api.post("executions", body, idempotency_key="k").json() == answer.json()
        wrong = api.post("executions", {"name": "x", "steps": [{"step_type": "none"}], "on_failure": "?"})
        assert (wrong.status_code, sorted(fields(wrong))) == (400, ["on_failure", "steps.0.step_type"])
        told = api.get(f"executions/{answer.json()['id']}").json()
        assert (told["name"], told["schedule"]) == ("Tonight", None)
        assert [each["state"] for each in told["steps"]] == ["queued", "waiting"]
        assert told["initiator"]["type"] == "token"

    def test_steps_that_run_code_need_the_permission_and_are_named(self) -> None:
        refused = Caller("Operator").post("executions", {"name": "x", "steps": [step("load")]})
        assert (refused.status_code, "“load”" in refused.json()["detail"]) == (403, True)
        narrow = Caller("Author", scopes=["run"]).post("executions", {"name": "x", "steps": [step("load")]})
        assert (narrow.status_code, "scopes" in narrow.json()["detail"]) == (403, True)
        assert Caller("Author").post("executions", {"name": "x", "steps": [step()]}).status_code == 202
