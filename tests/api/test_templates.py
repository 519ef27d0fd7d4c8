from __future__ import annotations

from typing import Any

import pytest

from execution.models import WorkerTask
from schedules.models import TaskTemplate
from tests.api.calling import Caller, fields
from tests.api.test_schedules import stranger
from tests.base import make_schedule, make_template, run_until_idle

pytestmark = pytest.mark.django_db
CALL: dict[str, Any] = {"name": "Call", "step_type": "http", "config": {"url": "https://example.com"}}
CODE: dict[str, Any] = {"name": "Code", "step_type": "python", "config": {"function": "os.getcwd"}}


def test_a_template_is_made_read_and_changed() -> None:
    api = Caller("Author")
    made = api.post("templates", CALL | {"max_retries": 9})
    assert made.status_code == 201, made.json()
    url = f"templates/{made.json()['id']}"
    read = api.get(url)
    assert (read.json(), read["ETag"]) == (made.json(), made["ETag"])
    sent = api.put(url, read.json(), if_match=read["ETag"])
    assert (sent.status_code, sent["ETag"]) == (200, read["ETag"])
    changed = api.patch(url, {"priority": 5}, if_match=read["ETag"])
    assert (changed.json()["priority"], changed.json()["max_retries"]) == (5, 9)
    replaced = api.put(url, CALL, if_match=changed["ETag"])
    assert (replaced.json()["priority"], replaced.json()["max_retries"]) == (0, 3)
    assert api.patch(url, {"priority": 5}, if_match=read["ETag"]).status_code == 412
    assert api.delete(url).status_code == 405
    for field, value in (
        ("step_type", "magic"),
        ("config.url", {}),
        ("config", "x"),
        ("max_retries", "3"),
        ("name", None),
    ):
        response = api.post("templates", CALL | {"name": "Other", field: value})
        assert (response.status_code, fields(response)) == (400, [field])


def test_steps_of_it_change_with_it_and_it_is_archived_and_restored() -> None:
    api, template = Caller("Author"), make_template()
    url = f"templates/{template.pk}"
    schedule = make_schedule({"name": "work", "index": 0, "template": "Export"})
    assert api.get(url).json()["used_by"] == [{"id": schedule.pk, "name": schedule.name}]
    assert api.patch(url, {"max_retries": 9}, if_match="*").status_code == 200
    assert schedule.steps.get().max_retries == 9
    assert api.post(f"{url}/archive").json()["status"] == "archived"
    assert api.post(f"{url}/archive").status_code == 409
    assert api.patch(url, {"priority": 1}, if_match="*").status_code == 409
    assert api.post(f"{url}/run").status_code == 409
    assert api.get("templates", status="active").json()["results"] == []
    assert api.post(f"{url}/restore", {}, if_match='"1"').status_code == 412
    assert api.post(f"{url}/restore").json()["status"] == "active"


def test_a_single_job_of_it_is_queued_once_for_each_key() -> None:
    api, template = Caller("Operator"), make_template()
    first = api.post(f"templates/{template.pk}/run", {}, idempotency_key="a")
    assert first.status_code == 202, first.json()
    again = api.post(f"templates/{template.pk}/run", {}, idempotency_key="a")
    assert again.json() == first.json()
    assert str(WorkerTask.objects.get().key) == first.json()["id"]
    assert api.client.get(first["Location"]).status_code == 200
    assert run_until_idle() == ["Export"]


def test_code_needs_a_permission_of_its_own() -> None:
    api = stranger(*(f"schedules.{verb}_tasktemplate" for verb in ("add", "change", "view")))
    assert api.post("templates", CALL).status_code == 201
    refused = api.post("templates", CODE)
    assert (refused.status_code, "“Code”" in refused.json()["detail"]) == (403, True)
    pk = make_template().pk
    assert api.patch(f"templates/{pk}", {"config": CODE["config"]}, if_match="*").status_code == 403
    assert TaskTemplate.objects.get(pk=pk).token == 1


def test_a_list_of_templates(django_assert_num_queries: Any) -> None:
    for number in range(3):
        make_template(f"Template {number}")
    api = Caller("Viewer")
    with django_assert_num_queries(5):
        assert len(api.get("templates").json()["results"]) == 3
    assert len(api.get("templates", search="e 1", step_type="python").json()["results"]) == 1
    assert api.get("templates", step_type="sql").json()["results"] == []
