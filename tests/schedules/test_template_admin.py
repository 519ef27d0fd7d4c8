"""Templates as people see them: their own pages, and the steps of a schedule that refer to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.forms import inlineformset_factory
from django.test import Client
from django.test.utils import CaptureQueriesContext

from schedules.admin import task_template
from schedules.forms.sent import data_of
from schedules.forms.steps import StepForm, StepFormSet
from schedules.forms.tasks import TemplateForm
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
USED = {"index": "0", "name": "work", "runs": "template:Export"}
Steps = inlineformset_factory(Schedule, Step, form=StepForm, formset=StepFormSet)


@pytest.fixture
def client() -> Client:
    return sign_in()


def save(client: Client, template: TaskTemplate | None = None, **fields: str) -> Any:
    if template is None:
        return client.post(page("schedules_tasktemplate_add"), {"name": "New", **TYPED, **fields})
    sent = {name: values[-1] for name, values in data_of(TemplateForm(instance=template)).items() if values}
    return client.post(page("schedules_tasktemplate_change", template.pk), sent | fields)


def rows(schedule: Schedule) -> list[dict[str, str]]:
    """The steps as the page shows them, for a browser to send back."""
    forms = Steps(instance=schedule, prefix="steps").forms
    sent = [data_of(form) for form in forms]
    return [
        {name.removeprefix(f"{form.prefix}-"): values[-1] for name, values in row.items() if values}
        for form, row in zip(forms, sent, strict=True)
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
            ("runs", "", "Choose a step type"),
            ("config-function", "", "Is required"),
            ("max_retries", "101", "less than or equal to 100"),
        ):
            assert words in errors(save(client, None, **{field: text}))[field]
        as_json = {"as_json": "on", "drawn_for": "json:type:python"}
        for text, words in (("{", "Not JSON"), ('{"rows": 1}', "rows: Is not a setting")):
            assert words in errors(save(client, None, **as_json, config=text))["config"]
        assert TaskTemplate.objects.count() == 1

    def test_one_is_edited_with_the_steps_that_use_it(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use(config={"kwargs": {}}), name="Mine")
        before = everything()
        assert save(client, template).status_code == 302
        # What would break a schedule is told, and what was typed stays.
        response = save(client, template, runs="type:http", **{"config-url": "https://shop.example/typed"})
        assert "“Mine”, step “work”: config: kwargs: is not a setting" in errors(response)["__all__"]
        assert "shop.example/typed" in response.content.decode()
        assert errors(save(client, template, version="", max_retries="9"))
        assert everything() == before
        assert save(client, template, max_retries="9").status_code == 302
        assert (schedule.steps.get().max_retries, fresh(template).token) == (9, 2)
        response = save(client, template, description="of an old page")
        assert "This template was changed in the meantime" in errors(response)["__all__"]
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
        assert "keep working" in client.get(url).content.decode()
        assert fresh(template).status == "active"
        client.post(url)
        assert fresh(template).status == "archived"
        assert "is already archived" in told(client, client.post(url))
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
            assert "need the permission schedules.define_code" in errors(response)["__all__"]


class TestAStepOfASchedule:
    def test_refers_to_one_and_needs_nothing_else(self, client: Client) -> None:
        make_template(max_retries=7)
        untouched = rows(Schedule())[0]
        steps = [untouched | USED, untouched | USED | {"name": "plain", "index": "1"}]
        response = save_schedule(client, typed(steps=steps))
        assert response.status_code == 302, complaints(response)
        made, plain = Schedule.objects.get().steps.all()
        assert (made.max_retries, made.written()) == (7, use())
        assert plain.written() == use("plain", 1)

    def test_keeps_what_somebody_changes_on_the_form(self) -> None:
        make_template(max_retries=7, resources=["db"])
        schedule = make_schedule(use(timeout_seconds=60, max_retries=7))
        row = rows(schedule)[0]
        typing = {
            "name": "renamed",
            "priority": "2",
            "resources": "db\r\nlicence",
            "config-kwargs": "value: true",
        }
        changes = {"priority": 2, "resources": ["db", "licence"], "config": {"kwargs": {"value": True}}}
        sent = read(schedule, row | typing)
        assert sent.is_valid(), sent.errors
        # What it says itself, though the template says the same, it goes on to say.
        assert sent.steps == [use("renamed", timeout_seconds=60, max_retries=7, **changes)]
        follows = read(schedule, row | {"drawn_for": ""})
        assert follows.is_valid(), follows.errors
        assert follows.steps == [use()]

    def test_is_told_what_is_wrong(self, client: Client) -> None:
        make_template()
        schedule = make_schedule(use())
        [row], before = rows(schedule), everything()
        for field, text, words in (
            ("max_retries", "many", "whole number"),
            ("name", "", "required"),
            ("index", "-1", "greater than or equal to 0"),
            ("config-kwargs", "no colon", "Must be an object"),
            ("runs", "template:Exprot", "Unknown template “Exprot”; did you mean Export?"),
        ):
            response = save_schedule(client, typed(schedule, steps=[row | {field: text}]), schedule)
            assert words in complaints(response)[f"step {field}"]
        assert everything() == before

    def test_is_shown_as_it_would_be_saved(self, client: Client) -> None:
        make_template()
        schedule = make_schedule(use(max_retries=1), step("plain", 1))
        url = page("schedules_schedule_change", schedule.pk)
        first, second = client.get(url).context["inline_admin_formsets"][0].formset.forms
        assert (first["runs"].value(), first["own"].value()) == ("template:Export", "max_retries")
        assert (first["max_retries"].value(), first["config-function"].value()) == (1, "tests.work.result")
        assert (second["runs"].value(), second["own"].value()) == ("type:python", "")
        viewed = sign_in("viewer").get(url).content.decode()
        assert ("Export" in viewed, "max_retries" in viewed) == (True, True)
        assert first.fields["runs"].widget.choices[-1] == ("Templates", [("template:Export", "Export")])
        before = everything()
        response = save_schedule(client, typed(schedule, steps=rows(schedule)), schedule)
        assert response.status_code == 302, complaints(response)
        assert everything() == before
        # Without its template, it becomes one of its own.
        taken = [row | {"runs": "type:python", "drawn_for": "fields:type:python"} for row in rows(schedule)]
        response = save_schedule(client, typed(schedule, steps=taken), schedule)
        assert response.status_code == 302, complaints(response)
        made = schedule.steps.all()[0]
        assert (made.template, made.overrides, made.max_retries) == (None, {}, 1)

    def test_goes_on_with_one_that_is_archived(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use())
        template.archive(initiator=SOMEBODY, now=NOW)
        [row] = Steps(instance=schedule, prefix="steps").forms
        chosen: Any = row.fields["runs"].widget
        assert chosen.choices[-1] == ("template:Export", "Export (not active)")
        sent = typed(schedule, steps=rows(schedule), description="new")
        response = save_schedule(client, sent, schedule)
        assert response.status_code == 302, complaints(response)
        response = save_schedule(client, typed(steps=rows(schedule)))
        assert "is archived" in complaints(response)["step runs"]

    def test_takes_the_permission_that_what_it_runs_takes(self) -> None:
        make_template()
        make_template("Call", step_type="http", config={"url": "https://shop.example/"})
        client, used = sign_in("author"), rows(Schedule())[0] | USED
        response = save_schedule(client, typed(steps=[used]))
        assert (
            "You may not create or change steps that run code or use a secret: “work”"
            in complaints(response)["steps"]
        )
        assert save_schedule(client, typed(steps=[used | {"runs": "template:Call"}])).status_code == 302
        schedule = make_schedule(use(), name="Code")
        form = typed(schedule, steps=rows(schedule), description="new")
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


def test_the_settings_of_another_type_are_shown_as_soon_as_it_is_chosen(client: Client) -> None:
    make_template()
    sent = rows(Schedule())[0] | {"config-url": "https://shop.example/typed"}
    for runs, name in (
        ("type:http", "config-method"),
        ("template:Export", "config-function"),
        ("type:x", "config"),
    ):
        form = typed(steps=[sent | {"runs": runs}]) | {"prefix": "steps-0"}
        text = client.post(page("schedules_schedule_step_settings"), form).content.decode()
        assert f'name="steps-0-{name}"' in text
        # What was typed for another type is not lost.
        assert "https://shop.example/typed" in text
    answer = client.post(page("schedules_tasktemplate_step_settings"), {"runs": "type:wait", "prefix": ""})
    assert 'name="config-duration"' in answer.content.decode()
    for name in ("schedules_schedule_step_settings", "schedules_tasktemplate_step_settings"):
        assert sign_in("viewer" if "tasktemplate" in name else "operator").post(page(name)).status_code == 403
