"""Templates as people see them: their own pages, and the steps of a schedule that refer to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.forms import inlineformset_factory
from django.test import Client
from django.test.utils import CaptureQueriesContext

from schedules.admin import task_template
from schedules.forms import StepForm, StepFormSet
from schedules.models import Schedule, Step, TaskTemplate
from tests.admin_pages import PYTHON, complaints, form_of, operation, page, sign_in, told, typed
from tests.admin_pages import save as save_schedule
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, make_template, step

pytestmark = pytest.mark.django_db

CONFIG = '{"function": "tests.work.noop", "isolation": "thread"}'
TYPED = {name: value for name, value in PYTHON.items() if name not in ("index", "run_if", "name")}
USED = {"index": "0", "name": "work", "from_template": "Export", "instead": "{}"}


@pytest.fixture
def client() -> Client:
    return sign_in()


def save(client: Client, template: TaskTemplate | None = None, **fields: str) -> Any:
    if template is None:
        return client.post(page("schedules_tasktemplate_add"), {"name": "New", **TYPED, **fields})
    shown = {"config": json.dumps(template.config), "version": str(template.token)}
    return client.post(page("schedules_tasktemplate_change", template.pk), TYPED | shown | fields)


def errors(response: Any) -> dict[str, str]:
    assert response.status_code == 200
    return {name: " ".join(texts) for name, texts in response.context["adminform"].form.errors.items()}


def shown(client: Client, template: TaskTemplate) -> str:
    return str(client.get(page("schedules_tasktemplate_change", template.pk)).content.decode())


Steps = inlineformset_factory(Schedule, Step, form=StepForm, formset=StepFormSet)


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
        fields: dict[str, Any] = {
            "retry_on": "503\r\n504",
            "resources": "db",
            "priority": "5",
            "timeout_seconds": "60",
        }
        response = save(client, None, name=" Nightly ", description="Does it.", **fields)
        assert "was added successfully" in told(client, response)
        template = TaskTemplate.objects.get()
        assert (template.name, template.description, template.priority) == ("Nightly", "Does it.", 5)
        assert (template.retry_on, template.resources, template.timeout_seconds) == (
            ["503", "504"],
            ["db"],
            60,
        )
        assert template.config["function"] == "tests.work.noop"
        again = errors(save(client, None, name="NIGHTLY"))
        assert "There is a template with this name already" in again["name"]
        assert TaskTemplate.objects.count() == 1

    def test_one_is_edited_with_the_steps_that_use_it(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use())
        before = everything()
        assert save(client, template).status_code == 302
        assert everything() == before
        assert save(client, template, max_retries="9").status_code == 302
        assert (schedule.steps.get().max_retries, fresh(template).token) == (9, 2)

    def test_two_editors_do_not_overwrite_each_other(self, client: Client) -> None:
        template = make_template()
        fresh(template).edit(token=1, changes={"description": "theirs"}, initiator=SOMEBODY, now=NOW)
        response = save(client, template, description="mine")
        assert "Somebody else changed this template meanwhile" in errors(response)["__all__"]
        assert fresh(template).description == "theirs"

    def test_what_would_break_a_schedule_is_told_and_what_was_typed_stays(self, client: Client) -> None:
        template = make_template()
        make_schedule(use(config={"kwargs": {}}), name="Mine")
        before = everything()
        config = '{"url": "https://shop.example/typed"}'
        response = save(client, template, step_type="http", config=config)
        assert "“Mine”, step “work”: config: kwargs: is not a setting" in errors(response)["__all__"]
        assert "shop.example/typed" in response.content.decode()
        assert everything() == before

    def test_it_says_who_uses_it_and_what_they_say_themselves(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(task_template, "USERS_SHOWN", 2)
        template = make_template()
        assert "No open schedule uses it." in shown(client, template)
        make_schedule(use("a", config={"kwargs": {"value": 7}}), name="Nightly")
        for number in range(3):
            make_schedule(use(), name=f"User {number}")
        text = shown(client, template)
        assert "Nightly</a>" in text
        assert "config: {&quot;kwargs&quot;: {&quot;value&quot;: 7}}" in text
        assert ("User 0" in text, "User 1" in text, "and more" in text) == (True, False, True)

    def test_who_may_not_see_schedules_is_not_told_their_names(self) -> None:
        template = make_template()
        make_schedule(use(), name="Hidden")
        assert "Hidden" not in shown(keeper_of("viewer"), template)

    def test_the_list_says_how_many_use_each(self, client: Client) -> None:
        make_template("Unused")
        make_template()
        make_schedule(use("a"), use("b"))
        make_schedule(use()).close(initiator=SOMEBODY, now=NOW)
        text = client.get(page("schedules_tasktemplate_changelist")).content.decode()
        assert '<td class="field-users">1 schedule</td>' in text
        assert '<td class="field-users">no schedule</td>' in text

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

    def test_the_list_needs_as_many_queries_for_many_as_for_few(self, client: Client) -> None:
        counts = []
        for names in ("a", "bcdef"):
            for name in names:
                make_template(name)
            with CaptureQueriesContext(connection) as captured:
                client.get(page("schedules_tasktemplate_changelist"))
            counts.append(len(captured))
        assert counts[1] == counts[0] <= 6

    def test_names_are_text(self, client: Client) -> None:
        evil = "<img src=x onerror=alert(1)>"
        template = make_template(evil, description=evil)
        schedule = make_schedule(use(template=evil, retry_on=[evil]), name=evil)
        pages = (
            page("schedules_tasktemplate_change", template.pk),
            page("schedules_schedule_change", schedule.pk),
        )
        for viewer in (client, sign_in("viewer")):
            for url in pages:
                assert "<img src=x" not in viewer.get(url).content.decode(), url
        text = client.get(page("schedules_tasktemplate_changelist")).content.decode()
        assert "<img src=x" not in text


# (what, the fields as typed, the field that complains, what it says)
BAD: list[tuple[str, dict[str, str], str, str]] = [
    ("control character in the name", {"name": "a\x07b"}, "name", "U+0007 is not allowed"),
    ("no type", {"step_type": ""}, "step_type", "required"),
    ("unknown type", {"step_type": "cobol"}, "step_type", "There is no step type “cobol”"),
    ("no JSON", {"config": "{"}, "config", "Not JSON"),
    ("depth 100,000", {"config": "[" * 100_000}, "config", "Nested too deeply"),
    ("a list", {"config": "[]"}, "config", "must be an object"),
    ("unknown setting", {"config": '{"rows": 1}'}, "config", "rows: is not a setting"),
    ("NUL in JSON", {"config": CONFIG[:-1] + ', "args": ["\\u0000"]}'}, "config", "args: contains NUL"),
    ("factor NaN", {"retry_factor": "nan"}, "retry_factor", "Enter a number"),
    ("101 retries", {"max_retries": "101"}, "max_retries", "less than or equal to 100"),
]


@pytest.mark.parametrize(("fields", "field", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_template_is_told_at_its_field(fields: dict[str, str], field: str, words: str) -> None:
    make_template()
    assert words in " ".join(form_of(TaskTemplate, {"name": "New", **TYPED, **fields}).errors[field])


ROLES: dict[str, tuple[str, ...]] = {
    "viewer": ("view_tasktemplate",),
    "adder": ("view_tasktemplate", "add_tasktemplate", "define_code"),
    "keeper": ("view_tasktemplate", "change_tasktemplate", "define_code"),
    "no coder": ("view_tasktemplate", "add_tasktemplate", "change_tasktemplate"),
}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", set()),
        ("adder", {"define"}),
        ("keeper", {"edit", "ask to archive", "archive"}),
        ("no coder", {"ask to archive", "archive"}),
    ],
)
def test_who_may_do_what(role: str, allowed: set[str]) -> None:
    template, client, wrong = make_template(), keeper_of(role), []
    archive = operation("schedules_tasktemplate", "archive", template.pk)
    pages: dict[str, Callable[[], Any]] = {
        "define": lambda: save(client),
        "edit": lambda: save(client, template, max_retries="9"),
        "ask to archive": lambda: client.get(archive),
        "archive": lambda: client.post(archive),
    }
    for what, call in pages.items():
        before, done = everything(), call()
        if role == "no coder" and what in ("define", "edit"):
            assert "needs the permission schedules.define_code" in errors(done)["config"]
        elif done.status_code != ((200 if "ask" in what else 302) if what in allowed else 403):
            wrong.append((what, done.status_code))
        if (everything() != before) is not (what in allowed and "ask" not in what):
            wrong.append((what, "changes"))
    assert wrong == []


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

    @pytest.mark.parametrize(
        ("typing", "field", "words"),
        [
            ({"max_retries": "many"}, "max_retries", "whole number"),
            ({"config": "{"}, "config", "Not JSON"),
            ({"name": ""}, "name", "required"),
            ({"index": "-1"}, "index", "greater than or equal to 0"),
            ({"instead": "{"}, "instead", "Not JSON"),
            ({"instead": "[]"}, "instead", "An object is expected"),
            ({"instead": '{"name": "x"}'}, "instead", "name: has a field of its own here"),
        ],
    )
    def test_is_told_what_is_wrong_at_its_field(self, typing: dict[str, str], field: str, words: str) -> None:
        make_template()
        schedule = make_schedule(use())
        assert words in " ".join(read(schedule, rows(schedule)[0] | typing).errors[0][field])

    @pytest.mark.parametrize(
        ("typing", "words"),
        [
            ({"step_type": "http"}, "It comes from the template “Export”: leave it out"),
            ({"from_template": "Exprot"}, "there is no template “Exprot”; did you mean Export?"),
        ],
    )
    def test_is_told_what_the_model_says(self, client: Client, typing: dict[str, str], words: str) -> None:
        make_template()
        schedule = make_schedule(use())
        before = everything()
        row = rows(schedule)[0] | typing
        assert words in complaints(save_schedule(client, typed(schedule, steps=[row]), schedule))["steps"]
        assert everything() == before

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000, '{"config": 5}'])
    def test_takes_no_harm_from_a_page_that_says_wrongly_what_it_showed(self, text: str) -> None:
        make_template()
        sent = read(Schedule(), USED | {"as_shown": text, "config": "{}"})
        assert sent.is_valid(), sent.errors
        assert sent.steps[0]["template"] == "Export"

    def test_is_shown_as_it_would_be_saved(self, client: Client) -> None:
        make_template()
        schedule = make_schedule(use(max_retries=1), step("plain", 1))
        shown = client.get(page("schedules_schedule_change", schedule.pk)).context
        first, second = shown["inline_admin_formsets"][0].formset.forms
        assert first["from_template"].value() == "Export"
        assert json.loads(first["instead"].value()) == {"max_retries": 1}
        assert (first["max_retries"].value(), first["step_type"].value()) == (1, "python")
        assert (second["from_template"].value(), second["instead"].value()) == ("", "{}")
        assert first.fields["from_template"].choices == [("", "none"), ("Export", "Export")]
        steps = [
            USED | {"instead": '{"max_retries": 1}'},
            PYTHON
            | {"name": "plain", "index": "1", "config": json.dumps(step()["config"]), "max_retries": "0"},
        ]
        before = everything()
        assert save_schedule(client, typed(schedule, steps=steps), schedule).status_code == 302
        assert everything() == before

    def test_becomes_one_of_its_own_when_the_template_is_taken_away(self, client: Client) -> None:
        make_template(max_retries=7)
        schedule = make_schedule(use())
        row = rows(schedule)[0] | {"from_template": ""}
        response = save_schedule(client, typed(schedule, steps=[row]), schedule)
        assert response.status_code == 302, complaints(response)
        made = schedule.steps.get()
        assert (made.template, made.overrides, made.max_retries) == (None, {}, 7)

    def test_goes_on_with_one_that_is_archived(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use())
        template.archive(initiator=SOMEBODY, now=NOW)
        [row] = Steps(instance=schedule, prefix="steps").forms
        chosen: Any = row.fields["from_template"]
        assert chosen.choices == [("", "none"), ("Export", "Export (not active)")]
        response = save_schedule(client, typed(schedule, steps=[USED], description="new"), schedule)
        assert response.status_code == 302, complaints(response)
        assert "is archived" in complaints(save_schedule(client, typed(steps=[USED])))["steps"]

    def test_takes_the_permission_that_what_it_runs_takes(self) -> None:
        make_template()
        make_template("Call", step_type="http", config={"url": "https://shop.example/"})
        client = sign_in("author")
        response = save_schedule(client, typed(steps=[USED]))
        assert "You may not write steps that run code: “work”" in complaints(response)["steps"]
        assert save_schedule(client, typed(steps=[USED | {"from_template": "Call"}])).status_code == 302
        schedule = make_schedule(use(), name="Code")
        form = typed(schedule, steps=[USED], description="new")
        assert save_schedule(client, form, schedule).status_code == 302

    def test_is_shown_to_those_who_may_only_look(self) -> None:
        make_template()
        schedule = make_schedule(use(max_retries=1))
        text = sign_in("viewer").get(page("schedules_schedule_change", schedule.pk)).content.decode()
        assert "Export" in text
        assert "max_retries" in text

    def test_a_page_with_many_steps_reads_the_templates_once(self, client: Client) -> None:
        make_template()

        def queries(schedule: Schedule) -> int:
            with CaptureQueriesContext(connection) as captured:
                client.get(page("schedules_schedule_change", schedule.pk))
            return len(captured)

        few = queries(make_schedule(use()))
        assert queries(make_schedule(*(use(f"s{number}") for number in range(4)))) <= few


def keeper_of(role: str) -> Client:
    client = sign_in("nobody")
    user = User.objects.get(username="nobody")
    for codename in ROLES[role]:
        user.user_permissions.add(Permission.objects.get(codename=codename))
    return client
