"""Templates as people see them: their own pages, and the steps of a schedule that refer to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.forms import inlineformset_factory
from django.test import Client
from django.test.utils import CaptureQueriesContext

from schedules.admin import task_template
from schedules.forms import StepForm, StepFormSet
from schedules.models import Schedule, Step, TaskTemplate
from tests.admin_pages import (
    PYTHON,
    complaints,
    errors,
    member,
    operation,
    page,
    sign_in,
    told,
    typed,
)
from tests.admin_pages import save as save_schedule
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, make_template, step

pytestmark = pytest.mark.django_db

TYPED = {name: value for name, value in PYTHON.items() if name not in ("index", "run_if", "name")}
USED = {"index": "0", "name": "work", "from_template": "Export", "instead": "{}"}
Steps = inlineformset_factory(Schedule, Step, form=StepForm, formset=StepFormSet)


@pytest.fixture
def client() -> Client:
    return sign_in()


def save(client: Client, template: TaskTemplate | None = None, **fields: str) -> Any:
    if template is None:
        return client.post(page("schedules_tasktemplate_add"), {"name": "New", **TYPED, **fields})
    shown = {"config": json.dumps(template.config), "version": str(template.token)}
    return client.post(page("schedules_tasktemplate_change", template.pk), TYPED | shown | fields)


def rows(schedule: Schedule) -> list[dict[str, str]]:
    """The steps as the page shows them, for a browser to send back."""
    forms = Steps(instance=schedule, prefix="steps").forms
    values = [
        {name: each.fields[name].prepare_value(each[name].value()) for name in each.fields} for each in forms
    ]
    return [
        {name: str(value) for name, value in row.items() if value is not None and value is not False}
        for row in values
    ]


def read(schedule: Schedule, *steps: dict[str, str]) -> Any:
    """The steps of the form as they were sent."""
    return Steps(data=typed(schedule, steps=steps), instance=schedule, prefix="steps")


def use(name: str = "work", index: int = 0, /, **fields: Any) -> dict[str, Any]:
    return {"name": name, "index": index, "template": "Export"} | fields


class TestItsPages:
    def test_one_is_defined(self, client: Client) -> None:
        fields = {"retry_on": "503\r\n504", "resources": "db", "priority": "5", "timeout_seconds": "60"}
        response = save(client, None, name=" Nightly ", description="Does it.", **fields)
        assert "was added successfully" in told(client, response)
        template = TaskTemplate.objects.get()
        assert (template.name, template.description, template.priority) == ("Nightly", "Does it.", 5)
        assert (template.retry_on, template.resources) == (["503", "504"], ["db"])
        assert (template.timeout_seconds, template.config["function"]) == (60, "tests.work.noop")
        assert "name already" in errors(save(client, None, name="NIGHTLY"))["name"]
        for field, text, words in (
            ("name", "a\x07b", "U+0007 is not allowed"),
            ("step_type", "", "required"),
            ("config", "{", "Not JSON"),
            ("config", '{"rows": 1}', "rows: is not a setting"),
            ("max_retries", "101", "less than or equal to 100"),
        ):
            assert words in errors(save(client, None, **{field: text}))[field]
        assert TaskTemplate.objects.count() == 1

    def test_one_is_edited_with_the_steps_that_use_it(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use(config={"kwargs": {}}), name="Mine")
        before = everything()
        assert save(client, template).status_code == 302
        # What would break a schedule is told, and what was typed stays.
        response = save(client, template, step_type="http", config='{"url": "https://shop.example/typed"}')
        assert "“Mine”, step “work”: config: kwargs: is not a setting" in errors(response)["__all__"]
        assert "shop.example/typed" in response.content.decode()
        assert errors(save(client, template, version="", max_retries="9"))
        assert everything() == before
        assert save(client, template, max_retries="9").status_code == 302
        assert (schedule.steps.get().max_retries, fresh(template).token) == (9, 2)
        response = save(client, template, description="of an old page")
        assert "Somebody else changed this template meanwhile" in errors(response)["__all__"]
        assert fresh(template).description == ""

    def test_it_says_who_uses_it_to_those_who_may_see_schedules(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(task_template, "USERS_SHOWN", 2)
        url = page("schedules_tasktemplate_change", make_template().pk)
        for number in range(3):
            make_schedule(use(config={"kwargs": {"value": 7}}), name=f"User {number}")
        make_schedule(use()).close(initiator=SOMEBODY, now=NOW)
        text = client.get(url).content.decode()
        assert "config: {&quot;kwargs&quot;: {&quot;value&quot;: 7}}" in text
        assert ("User 1</a>" in text, "User 2" in text, "and more" in text) == (True, False, True)
        assert "User 1" not in member("view_tasktemplate").get(url).content.decode()
        text = client.get(page("schedules_tasktemplate_changelist")).content.decode()
        assert '<td class="field-users">3 schedules</td>' in text

    def test_archive_and_restore_ask_first(self, client: Client) -> None:
        template = make_template()
        url = operation("schedules_tasktemplate", "archive", template.pk)
        assert "go on" in client.get(url).content.decode()
        assert fresh(template).status == "active"
        client.post(url)
        assert fresh(template).status == "archived"
        assert "is archived already" in told(client, client.post(url))
        assert save(client, fresh(template), description="new").status_code == 403
        client.post(operation("schedules_tasktemplate", "restore", template.pk))
        assert fresh(template).status == "active"


@pytest.mark.parametrize(
    ("permissions", "expected"),
    [
        ((), [403, 403, 403]),
        (("add_tasktemplate", "define_code"), [302, 403, 403]),
        (("change_tasktemplate", "define_code"), [403, 302, 302]),
        (("add_tasktemplate", "change_tasktemplate"), [200, 200, 302]),
    ],
)
def test_who_may_define_edit_and_archive(permissions: tuple[str, ...], expected: list[int]) -> None:
    """With 200, the form says what is missing."""
    template, client = make_template(), member("view_tasktemplate", *permissions)
    calls: list[Callable[[], Any]] = [
        lambda: save(client),
        lambda: save(client, template, max_retries="9"),
        lambda: client.post(operation("schedules_tasktemplate", "archive", template.pk)),
    ]
    for call, status in zip(calls, expected, strict=True):
        before, response = everything(), call()
        assert (response.status_code, everything() != before) == (status, status == 302)
        if status == 200:
            assert "needs the permission schedules.define_code" in errors(response)["config"]


class TestAStepOfASchedule:
    def test_refers_to_one_and_needs_nothing_else(self, client: Client) -> None:
        make_template(max_retries=7)
        overrides = '{"config": {"kwargs": {"value": 2}}, "timeout_seconds": 60}'
        untouched = rows(Schedule())[0] | {"step_type": ""}
        steps = [USED | {"instead": overrides}, untouched | USED | {"name": "plain", "index": "1"}]
        response = save_schedule(client, typed(steps=steps))
        assert response.status_code == 302, complaints(response)
        made, plain = Schedule.objects.get().steps.all()
        assert (made.max_retries, made.timeout_seconds, made.config["kwargs"]) == (7, 60, {"value": 2})
        assert made.written() == use(config={"kwargs": {"value": 2}}, timeout_seconds=60)
        assert plain.written() == use("plain", 1)

    def test_keeps_what_somebody_changes_on_the_form(self) -> None:
        make_template(max_retries=7, resources=["db"])
        schedule = make_schedule(use(timeout_seconds=60))
        row = rows(schedule)[0]
        config = json.dumps(json.loads(row["config"]) | {"kwargs": {"value": True}})
        typing = {"name": "renamed", "max_retries": "2", "resources": "db\r\nlicence", "config": config}
        changes = {"max_retries": 2, "resources": ["db", "licence"], "config": {"kwargs": {"value": True}}}
        sent = read(schedule, row | typing)
        assert sent.is_valid(), sent.errors
        assert sent.steps == [use("renamed", timeout_seconds=60, **changes)]
        follows = read(schedule, row | {"instead": "{}"})
        assert follows.is_valid(), follows.errors
        assert follows.steps == [use()]

    def test_is_told_what_is_wrong(self, client: Client) -> None:
        make_template()
        schedule = make_schedule(use())
        [row], before = rows(schedule), everything()
        for field, text, words in (
            ("max_retries", "many", "whole number"),
            ("config", "{", "Not JSON"),
            ("name", "", "required"),
            ("index", "-1", "greater than or equal to 0"),
            ("instead", "{", "Not JSON"),
            ("instead", "[]", "An object is expected"),
            ("instead", '{"name": "x"}', "name: has a field of its own here"),
        ):
            assert words in " ".join(read(schedule, row | {field: text}).errors[0][field])
        for field, text, words in (
            ("step_type", "http", "It comes from the template “Export”: leave it out"),
            ("from_template", "Exprot", "there is no template “Exprot”; did you mean Export?"),
        ):
            response = save_schedule(client, typed(schedule, steps=[row | {field: text}]), schedule)
            assert words in complaints(response)[f"step {field}"]
        assert everything() == before

    @pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"config": 5}'])
    def test_takes_no_harm_from_a_page_that_says_wrongly_what_it_showed(self, text: str) -> None:
        make_template()
        sent = read(Schedule(), USED | {"as_shown": text, "config": "{}"})
        assert sent.is_valid(), sent.errors
        assert sent.steps[0]["template"] == "Export"

    def test_is_shown_as_it_would_be_saved(self, client: Client) -> None:
        make_template()
        schedule = make_schedule(use(max_retries=1), step("plain", 1))
        url = page("schedules_schedule_change", schedule.pk)
        first, second = client.get(url).context["inline_admin_formsets"][0].formset.forms
        assert first["from_template"].value() == "Export"
        assert json.loads(first["instead"].value()) == {"max_retries": 1}
        assert (first["max_retries"].value(), first["step_type"].value()) == (1, "python")
        assert (second["from_template"].value(), second["instead"].value()) == ("", "{}")
        viewed = sign_in("viewer").get(url).content.decode()
        assert ("Export" in viewed, "max_retries" in viewed) == (True, True)
        assert first.fields["from_template"].choices == [("", "none"), ("Export", "Export")]
        before = everything()
        response = save_schedule(client, typed(schedule, steps=rows(schedule)), schedule)
        assert response.status_code == 302, complaints(response)
        assert everything() == before
        # Without its template, it becomes one of its own.
        taken = [row | {"from_template": ""} for row in rows(schedule)]
        response = save_schedule(client, typed(schedule, steps=taken), schedule)
        assert response.status_code == 302, complaints(response)
        made = schedule.steps.all()[0]
        assert (made.template, made.overrides, made.max_retries) == (None, {}, 1)

    def test_goes_on_with_one_that_is_archived(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use())
        template.archive(initiator=SOMEBODY, now=NOW)
        [row] = Steps(instance=schedule, prefix="steps").forms
        chosen: Any = row.fields["from_template"]
        assert chosen.choices == [("", "none"), ("Export", "Export (not active)")]
        response = save_schedule(client, typed(schedule, steps=[USED], description="new"), schedule)
        assert response.status_code == 302, complaints(response)
        assert "is archived" in complaints(save_schedule(client, typed(steps=[USED])))["step from_template"]

    def test_takes_the_permission_that_what_it_runs_takes(self) -> None:
        make_template()
        make_template("Call", step_type="http", config={"url": "https://shop.example/"})
        client = sign_in("author")
        response = save_schedule(client, typed(steps=[USED]))
        assert (
            "You may not write steps that run code or use a secret: “work”" in complaints(response)["steps"]
        )
        assert save_schedule(client, typed(steps=[USED | {"from_template": "Call"}])).status_code == 302
        schedule = make_schedule(use(), name="Code")
        form = typed(schedule, steps=[USED], description="new")
        assert save_schedule(client, form, schedule).status_code == 302

    def test_a_page_with_many_steps_reads_the_templates_once(self, client: Client) -> None:
        make_template()
        counts = []
        for number in (1, 4):
            schedule = make_schedule(*(use(f"s{each}") for each in range(number)))
            with CaptureQueriesContext(connection) as captured:
                client.get(page("schedules_schedule_change", schedule.pk))
            counts.append(len(captured))
        assert counts[1] <= counts[0]
