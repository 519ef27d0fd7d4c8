"""Schedules as files, over HTTP: what the commands write and read, as YAML or JSON."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from activities.models import Activity
from files.yaml_lines import read
from schedules.models import Schedule, SharedCalendar, TaskTemplate
from tests.api.calling import Caller, fields
from tests.base import NOW, SOMEBODY, everything, make_schedule, make_template, step

pytestmark = pytest.mark.django_db
WAIT: dict[str, Any] = {"name": "rest", "step_type": "wait", "config": {"duration": "1s"}}
YAML = "application/yaml"


def file(*schedules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "schedules": list(schedules), **more}


def schedule(name: str = "Mine", **changes: Any) -> dict[str, Any]:
    return {"name": name, "spec": {"every": ["1h"]}, "steps": [WAIT], **changes}


def send(api: Caller, text: str, query: str = "", **headers: str) -> Any:
    path = f"/api/v1/schedules/import{query}"
    return api.client.post(path, text, content_type=YAML, headers=headers)


def post_json(api: Caller, text: str, query: str = "") -> Any:
    return api.post(f"schedules/import{query}", text)


def export(api: Caller, accept: str, **query: Any) -> Any:
    return api.client.get("/api/v1/schedules/export", query, headers={"Accept": accept})


def test_what_is_exported_is_what_the_command_writes_in_yaml_or_json() -> None:
    api = Caller("Viewer")
    SharedCalendar.objects.define("Off", [{"holidays": "GB"}], initiator=SOMEBODY, now=NOW)
    make_template("Export")
    use = {"index": 0, "name": "export", "template": "Export"}
    make_schedule(use, name="Nightly 🦉", spec={"exclude": [{"calendar": "Off"}], "cron": ["0 2 * * *"]})
    make_schedule(name="Other", tags=["hr"])
    for names, query in ((["nightly 🦉", "Other"], {"name": ["nightly 🦉", "Other"]}), ([], {})):
        out = StringIO()
        call_command("exportschedules", *names, stdout=out)
        answer = export(api, YAML, **query)
        assert (answer.status_code, answer["Content-Type"]) == (200, "application/yaml; charset=utf-8")
        assert answer.content.decode() == out.getvalue()
        assert export(api, "application/json", **query).json() == read(out.getvalue()).plain()
    [only] = export(api, "*/*", tag="hr").json()["schedules"]
    assert only["name"] == "Other"
    for field in ("name", "tag"):
        for accept in (YAML, "application/json"):
            wrong = export(api, accept, **{field: "nope"})
            assert (wrong.status_code, wrong["Content-Type"]) == (400, "application/problem+json")
            assert fields(wrong) == [field]


def test_a_file_has_no_templates_and_calendars_that_its_reader_may_not_see() -> None:
    api = Caller("Viewer")
    make_schedule(name="Plain")
    make_template("Export")
    group = api.user.groups.get()
    group.permissions.remove(*group.permissions.filter(codename="view_tasktemplate"))
    refused = export(api, "application/json")
    assert (refused.status_code, "schedules.view_tasktemplate" in refused.json()["detail"]) == (403, True)
    assert export(api, "application/json", name="Plain").status_code == 200


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_was_exported_is_imported_and_then_nothing_differs(form: str) -> None:
    author = Caller("Author", scopes=["define"])
    make_template("Export")
    make_schedule({"index": 0, "name": "export", "template": "Export"}, name="Nightly 🦉", tags=["a"])
    whole = export(author, YAML if form == "yaml" else "application/json").content.decode()
    Schedule.objects.all().delete()
    TaskTemplate.objects.all().delete()

    def put(query: str = "") -> Any:
        post = send if form == "yaml" else post_json
        return post(author, whole, query)

    before = everything()
    rehearsed = put("?dry_run=true")
    assert (rehearsed.status_code, everything()) == (200, before)
    done = put("?paused=true")
    assert done.json() == rehearsed.json() | {"dry_run": False}
    assert [(change["kind"], change["is_new"]) for change in done.json()["changes"]] == [
        ("template", True),
        ("schedule", True),
    ]
    assert Schedule.objects.get().is_paused
    made = Activity.objects.filter(operation="create", target_type__in=["schedule", "tasktemplate"])
    assert {each.initiator_type for each in made.order_by("-pk")[:2]} == {"token"}
    assert put().json() == {"dry_run": False, "changes": [], "unchanged": 2, "others": 0}


def test_a_change_is_told_in_lines_and_a_key_makes_it_count_once() -> None:
    api = Caller("Author")
    api.post("schedules/import", file(schedule()))
    changed = file(schedule(spec={"every": ["2h"]}))
    first = api.post("schedules/import", changed, idempotency_key="k")
    [change] = first.json()["changes"]
    assert (change["name"], change["is_new"]) == ("Mine", False)
    assert [line.strip() for line in change["lines"]] == ["spec.every[0]:", "- 1h", "+ 2h"]
    again = api.post("schedules/import", changed, idempotency_key="k")
    assert (again.json(), again["Idempotent-Replayed"]) == (first.json(), "true")
    assert api.post("schedules/import?paused=true", changed, idempotency_key="k").status_code == 409


WRONG: list[tuple[Any, list[str]]] = [
    ({}, [""]),
    ({"version": 2}, ["version"]),
    (file(colour="red"), ["colour"]),
    (file(7), ["schedules.0"]),  # type: ignore[arg-type]
    (file(schedule(), schedule("mine")), ["schedules.1.name"]),
    (file(schedule(overlapp="skip")), ["schedules.0.overlapp"]),
    (file(schedule("a"), schedule("b", spec={"cron": ["61 * * * *"]})), ["schedules.1.spec.cron"]),
    (file(schedule(steps=[WAIT | {"config": {}}])), ["schedules.0.steps.0.config.duration"]),
    (file(schedule(steps=[])), ["schedules.0.steps"]),
    (file(schedule(tags="x", memo=[])), ["schedules.0.tags", "schedules.0.memo"]),
]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_is_wrong_is_told_by_path_and_nothing_is_imported(form: str) -> None:
    api, before, wrong = Caller("Author"), everything(), []
    for body, paths in WRONG:
        # JSON is YAML too, which the reader of YAML gives a line.
        text = json.dumps(body, indent=1)
        answer = send(api, text) if form == "yaml" else post_json(api, text)
        if (answer.status_code, fields(answer)) != (400, paths):
            wrong.append((body, answer.json()))
        if form == "yaml":
            assert answer.json()["errors"][0]["detail"].startswith("line ")
    assert wrong == []
    unstorable = post_json(api, json.dumps(file(schedule(description="a\0b"))))
    assert fields(unstorable) == ["schedules.0.description"]
    for text in ("version: 1\n\tschedules: []", "a: &b 1", "\xff\xfe", ""):
        assert send(api, text).status_code == 400
    assert api.client.post("/api/v1/schedules/import", "x", content_type="text/plain").status_code == 415
    for query in ("?dry_run=1", "?dry_run=", "?dry=true", "?paused=true&paused=true"):
        assert send(api, "version: 1", query).status_code == 400
    assert everything() == before


def test_each_entry_takes_the_permission_that_its_page_takes() -> None:
    """Within the scopes of the token; the whole import is refused, and says what is missing."""
    author, narrow = Caller("Author"), Caller("Author", scopes=["run"])
    assert narrow.post("schedules/import", file(schedule())).status_code == 403
    assert Caller("Operator").post("schedules/import", file(schedule())).status_code == 403
    group = author.user.groups.get()
    group.permissions.remove(*group.permissions.filter(codename__in=["define_code", "add_sharedcalendar"]))
    code = {name: step()[name] for name in ("name", "step_type", "config")}
    for body, missing in (
        (file(schedule(steps=[code])), "schedules.define_code"),
        (file(templates=[{**code, "name": "Load"}]), "define"),
        (file(calendars=[{"name": "Off", "excluded": [{"holidays": "GB"}]}]), "schedules.add_sharedcalendar"),
    ):
        for query in ("", "?dry_run=true"):
            refused = author.post(f"schedules/import{query}", body)
            assert (refused.status_code, missing in refused.json()["detail"]) == (403, True)
    assert author.post("schedules/import", file(schedule())).status_code == 200
