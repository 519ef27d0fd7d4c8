from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission

from database import clock
from execution.models import WorkerTask
from tests.api.calling import Caller, fields
from tests.base import claim, enqueue, make_template, make_worker, run_until_idle, start, step
from tests.workflows.base import make_topics

pytestmark = pytest.mark.django_db
WAIT: dict[str, Any] = {"step_type": "wait", "config": {"duration": "1s"}}


class TestQueueing:
    def test_a_job_is_queued_and_can_be_followed_by_its_id_for_life(self) -> None:
        api = Caller("Author")
        config = {"function": "tests.work.result", "isolation": "thread"}
        body = {"step_type": "python", "config": config, "name": "Answer"}
        answer = api.post("tasks", body)
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        told = api.get(f"tasks/{answer.json()['id']}").json()
        assert (told["name"], told["is_final"], told["queued"]["pool"]) == ("Answer", False, "default")
        assert "no running worker" in told["wait_reason"]
        run_until_idle(now=clock.now())
        told = api.get(f"tasks/{answer.json()['id']}").json()
        assert (told["state"], told["is_final"], told["result"]) == ("complete", True, 42)
        assert (told["queued"], told["wait_reason"]) == (None, "")

    def test_options_of_a_job_are_kept(self) -> None:
        api, later = Caller("Operator"), (clock.now() + timedelta(hours=1)).isoformat()
        options = {"priority": 7, "position": 3, "pool": "ldap", "available_at": later, "max_retries": 0}
        key = api.post("tasks", WAIT | options).json()["id"]
        queued = api.get(f"tasks/{key}").json()["queued"]
        assert (queued["priority"], queued["position"], queued["pool"]) == (7, 3, "ldap")
        assert "delayed" in queued["wait_reason"]
        assert "delayed" not in api.post(f"tasks/{key}/hasten").json()["wait_reason"]
        assert api.post(f"tasks/{key}/hasten").status_code == 409

    def test_a_job_of_a_template_needs_no_permission_for_its_code_but_its_own_code_does(self) -> None:
        api = Caller("Operator")
        make_template("Export")
        assert api.post("tasks", {"template": "Export"}).status_code == 202
        assert fields(api.post("tasks", {})) == ["step_type"]
        refused = api.post("tasks", {"template": "Export", "config": {"function": "os.system"}})
        assert (refused.status_code, "“Export”" in refused.json()["detail"]) == (403, True)
        assert api.post("tasks", {"step_type": "python", "config": {}}).status_code == 403

    @pytest.mark.parametrize("path", ["tasks", "tasks/batch", "direct"])
    def test_what_only_means_something_among_several_steps_is_refused(self, path: str) -> None:
        """A template may say it for the groups that it is used in."""
        api = Caller("Author")
        odd: dict[str, Any] = {"index": 0, "run_if": "always", "continue_on_failure": True}
        make_template("Export", continue_on_failure=True)
        for name, value in odd.items():
            wrong = api.post(path, wrapped(path, WAIT | {name: value}))
            [told] = wrong.json()["errors"]
            assert (wrong.status_code, told["field"].rpartition(".")[2]) == (400, name)
            assert "POST /api/v1/executions" in told["detail"]
        if path != "direct":
            assert api.post(path, wrapped(path, {"template": "Export"})).status_code == 202

    @pytest.mark.parametrize("path", ["tasks", "tasks/batch", "executions", "direct"])
    def test_a_template_runs_where_it_says_unless_one_may_define_its_code(self, path: str) -> None:
        operator, author = Caller("Operator"), Caller("Author")
        make_template("Export", pool="dmz", resources=["db"])
        make_template("Ping", step_type="wait", config={"duration": "1s"})
        elsewhere: list[dict[str, Any]] = [{"pool": "internal"}, {"resources": []}]
        for changes in elsewhere:
            job = {"template": "Export", **changes}
            assert operator.post(path, wrapped(path, job)).status_code == 403, changes
            if path != "direct":
                assert author.post(path, wrapped(path, job)).status_code == 202
                assert operator.post(path, wrapped(path, job | {"template": "Ping"})).status_code == 202
        if path != "direct":
            as_it_is = {"template": "Export", "pool": "dmz", "resources": ["db"]}
            assert operator.post(path, wrapped(path, as_it_is)).status_code == 202

    @pytest.mark.parametrize(
        "path", ["tasks", "tasks/batch", "executions", "direct", "schedules", "templates"]
    )
    def test_writing_a_step_that_publishes_takes_the_permission_to_publish(self, path: str) -> None:
        make_topics("orders")
        job = {"step_type": "publish", "config": {"topic": "orders", "message_id": "1"}}
        api = Caller("Author")
        group = Group.objects.get(name="Author")
        group.permissions.remove(Permission.objects.get(codename="publish_event"))
        refused = api.post(path, wrapped(path, job))
        assert (refused.status_code, "workflows.publish_event" in refused.json()["detail"]) == (403, True)
        group.permissions.add(Permission.objects.get(codename="publish_event"))
        assert api.post(path, wrapped(path, job)).status_code in (200, 201, 202)

    def test_what_is_wrong_is_told_by_field_and_a_batch_is_queued_as_a_whole_or_not_at_all(self) -> None:
        api = Caller()
        wrong: list[tuple[dict[str, Any], str]] = [
            ({}, "step_type"),
            (WAIT | {"template": "x"}, "step_type"),
            (WAIT | {"step_type": "none"}, "step_type"),
            (WAIT | {"config": {"colour": 1}}, "config.colour"),
            (WAIT | {"priority": 5000}, "priority"),
            ({"template": "none"}, "template"),
        ]
        for body, field in wrong:
            answer = api.post("tasks", body)
            assert (answer.status_code, fields(answer)) == (400, [field])
        assert len(api.post("tasks/batch", {"jobs": [WAIT, WAIT]}).json()["ids"]) == 2
        torn = api.post("tasks/batch", {"jobs": [WAIT, WAIT | {"step_type": "none"}]})
        assert (torn.status_code, WorkerTask.objects.count()) == (400, 2)
        assert fields(torn) == ["jobs.1.step_type"]

    def test_the_same_key_names_the_same_job_and_a_twin_is_skipped(self) -> None:
        api = Caller()
        first = api.post("tasks", WAIT, idempotency_key="a").json()["id"]
        assert api.post("tasks", WAIT, idempotency_key="a").json()["id"] == first
        assert api.post("tasks", WAIT | {"priority": 1}, idempotency_key="a").status_code == 409
        api.post("tasks", WAIT | {"dedup_key": "d"})
        assert api.post("tasks", WAIT | {"dedup_key": "d"}).json()["state"] == "skipped"

    def test_the_key_of_a_request_is_a_header_and_no_field_of_a_job(self) -> None:
        api, job = Caller(), WAIT | {"idempotency_key": "a"}
        single, several = api.post("tasks", job), api.post("tasks/batch", {"jobs": [WAIT, job]})
        assert (fields(single), fields(several)) == (["idempotency_key"], ["jobs.1.idempotency_key"])
        assert all("Idempotency-Key header" in answer.text for answer in (single, several))
        assert not WorkerTask.objects.exists()


class TestTheQueue:
    def test_it_is_listed_with_what_each_task_waits_for(self) -> None:
        api, execution = Caller("Viewer"), start(step("a", 0), step("b", 1, pool="ldap"))
        rows = api.get("tasks").json()["results"]
        assert [(row["name"], row["state"]) for row in rows] == [("a", "queued"), ("b", "waiting")]
        assert all(row["wait_reason"] for row in rows)
        for query, names in (
            ({"pool": "ldap"}, ["b"]),
            ({"status": "queued"}, ["a"]),
            ({"execution": execution.pk}, ["a", "b"]),
            ({"worker": str(uuid.uuid4())}, []),
        ):
            assert [row["name"] for row in api.get("tasks", **query).json()["results"]] == names

    def test_its_page_takes_a_handful_of_queries(self, django_assert_max_num_queries: Any) -> None:
        api = Caller("Viewer")
        for _ in range(10):
            start(step("a"), step("b", 1))
        api.get("tasks")
        with django_assert_max_num_queries(10):
            assert len(api.get("tasks").json()["results"]) == 20

    def test_priority_and_place_can_be_changed_while_it_waits(self) -> None:
        api, (task, other) = Caller("Operator"), enqueue(step("a"), step("b"))
        path = f"tasks/{task.key}"
        assert api.patch(path, {"priority": 5}).status_code == 428
        changed = api.patch(path, {"priority": 5}, if_match=api.get(path)["ETag"])
        assert changed.json()["queued"]["priority"] == 5
        stale = api.patch(path, {"priority": 6}, if_match='"old"')
        assert (stale.status_code, stale["ETag"].strip('"') in changed["ETag"]) == (412, True)
        assert api.post(f"{path}/front").json()["queued"]["position"] < 0
        assert api.post(f"{path}/back").json()["queued"]["position"] > 0
        api.patch(path, {"priority": 0}, if_match="*")
        moved = api.post("tasks/reorder", {"ids": [str(other.key), str(task.key), str(uuid.uuid4())]})
        assert moved.json() == {"moved": 2}
        claim(make_worker())
        refused = api.post(f"{path}/front")
        assert (refused.status_code, "Nothing was changed" in refused.json()["detail"]) == (409, True)


class TestEnding:
    def test_a_job_is_cancelled_and_retried(self) -> None:
        api, (task,) = Caller("Operator"), enqueue(step())
        cancelled = api.post(f"tasks/{task.key}/cancel", {"reason": "no"})
        assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
        assert api.post(f"tasks/{task.key}/cancel").status_code == 409
        retried = api.post(f"tasks/{task.key}/retry")
        assert (retried.status_code, retried.json()["state"]) == (202, "queued")
        assert len(api.get(f"tasks/{task.key}").json()["attempts"]) == 2
        assert api.post(f"tasks/{task.key}/retry").status_code == 409
        for key in (uuid.UUID(int=1), "-" * 36):
            assert api.get(f"tasks/{key}").status_code == api.post(f"tasks/{key}/cancel").status_code == 404

    def test_a_step_of_an_execution_is_left_to_its_execution(self) -> None:
        api, execution = Caller("Operator"), start()
        key = WorkerTask.objects.get().key
        refused = api.post(f"tasks/{key}/cancel")
        assert (refused.status_code, f"execution {execution.pk}" in refused.json()["detail"]) == (409, True)
        assert api.get(f"tasks/{key}").json()["execution"] == execution.pk
        run_until_idle()
        assert api.get(f"tasks/{key}").json()["execution"] == execution.pk


def wrapped(path: str, job: dict[str, Any]) -> dict[str, Any]:
    """One step, as each of these addresses takes it."""
    step = {"name": "one", **job}
    bodies: dict[str, dict[str, Any]] = {
        "tasks/batch": {"jobs": [job]},
        "executions": {"name": "group", "steps": [step]},
        "schedules": {"name": "plan", "spec": {"cron": ["30 2 * * *"]}, "steps": [step]},
        "templates": step,
    }
    return bodies.get(path, job)
