"""Templates as people see them: their own pages, and the steps of a schedule that refer to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from schedules.admin import task_template
from schedules.models import Schedule, TaskTemplate
from tests.admin_pages import PYTHON, complaints, operation, page, sign_in, told, typed
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


def rows(client: Client, schedule: Schedule | None = None) -> list[dict[str, str]]:
    """The steps as the page shows them, for a browser to send back."""
    url = page("schedules_schedule_change", schedule.pk) if schedule else page("schedules_schedule_add")
    forms = client.get(url).context["inline_admin_formsets"][0].formset.forms
    values = [
        {name: each.fields[name].prepare_value(each[name].value()) for name in each.fields} for each in forms
    ]
    return [
        {name: str(value) for name, value in row.items() if value is not None and value is not False}
        for row in values
    ]


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

    def test_one_is_edited_with_the_steps_that_use_it(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use())
        assert save(client, template, max_retries="9").status_code == 302
        assert (schedule.steps.get().max_retries, fresh(template).token) == (9, 2)

    def test_one_that_is_saved_as_it_was_is_not_edited(self, client: Client) -> None:
        template = make_template()
        make_schedule(use())
        before = everything()
        assert save(client, template).status_code == 302
        assert everything() == before

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
        template = make_template()
        assert "No open schedule uses it." in shown(client, template)
        make_schedule(use("a", config={"kwargs": {"value": 7}}), name="Nightly")
        text = shown(client, template)
        assert "Nightly</a>" in text
        assert "config: {&quot;kwargs&quot;: {&quot;value&quot;: 7}}" in text
        monkeypatch.setattr(task_template, "USERS_SHOWN", 2)
        for number in range(3):
            make_schedule(use(), name=f"User {number}")
        text = shown(client, template)
        assert "User 0" in text
        assert "User 1" not in text
        assert "and more" in text

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
        assert "is archived" in told(client, client.post(url))
        assert "is archived already" in told(client, client.post(url))
        assert "restore" in shown(client, template)
        assert save(client, fresh(template), description="new").status_code == 403
        restore = operation("schedules_tasktemplate", "restore", template.pk)
        assert "is active again" in told(client, client.post(restore))

    def test_its_history_is_its_activities(self, client: Client) -> None:
        response = client.get(page("schedules_tasktemplate_history", make_template().pk))
        assert "Export" in client.get(response["Location"]).content.decode()

    def test_the_list_needs_as_many_queries_for_many_as_for_few(self, client: Client) -> None:
        def queries() -> int:
            with CaptureQueriesContext(connection) as captured:
                client.get(page("schedules_tasktemplate_changelist"))
            return len(captured)

        make_template()
        few = queries()
        for number in range(10):
            make_template(f"another {number}")
        assert queries() == few <= 6

    def test_names_are_text(self, client: Client) -> None:
        evil = "<img src=x onerror=alert(1)>"
        template = make_template(evil, description=evil)
        schedule = make_schedule(use(template=evil, retry_on=[evil]), name=evil)
        for viewer in (client, sign_in("viewer")):
            for url in (
                page("schedules_tasktemplate_changelist"),
                page("schedules_tasktemplate_change", template.pk),
                page("schedules_schedule_change", schedule.pk),
                page("schedules_schedule_revisions", schedule.pk),
            ):
                assert "<img src=x" not in viewer.get(url).content.decode(), url


# (what, the fields as typed, the field that complains, what it says)
BAD: list[tuple[str, dict[str, str], str, str]] = [
    ("no name", {"name": ""}, "name", "required"),
    ("a taken name", {"name": "EXPORT"}, "name", "There is a template with this name already"),
    ("NUL in the name", {"name": "a\0b"}, "name", "Null characters are not allowed"),
    ("control character in the name", {"name": "a\x07b"}, "name", "U+0007 is not allowed"),
    ("no type", {"step_type": ""}, "step_type", "required"),
    ("unknown type", {"step_type": "cobol"}, "step_type", "There is no step type “cobol”"),
    ("no JSON", {"config": "{"}, "config", "Not JSON"),
    ("depth 100,000", {"config": "[" * 100_000}, "config", "Nested too deeply"),
    ("a list", {"config": "[]"}, "config", "must be an object"),
    ("unknown setting", {"config": '{"rows": 1}'}, "config", "rows: is not a setting"),
    ("NUL in JSON", {"config": CONFIG[:-1] + ', "args": ["\\u0000"]}'}, "config", "args: contains NUL"),
    ("a word as timeout", {"timeout_seconds": "soon"}, "timeout_seconds", "whole number"),
    ("factor NaN", {"retry_factor": "nan"}, "retry_factor", "Enter a number"),
    ("101 retries", {"max_retries": "101"}, "max_retries", "less than or equal to 100"),
    ("no pool", {"pool": ""}, "pool", "required"),
]


@pytest.mark.parametrize(("fields", "field", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_template_is_told_at_its_field(
    client: Client, fields: dict[str, str], field: str, words: str
) -> None:
    make_template()
    before = everything()
    assert words in errors(save(client, None, **fields))[field]
    assert everything() == before


ROLES: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "viewer": ("view_tasktemplate",),
    "adder": ("view_tasktemplate", "add_tasktemplate", "define_code"),
    "keeper": ("view_tasktemplate", "change_tasktemplate", "define_code"),
    "no coder": ("view_tasktemplate", "add_tasktemplate", "change_tasktemplate"),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("what", "allowed"),
    [
        ("list", {"viewer", "adder", "keeper", "no coder"}),
        ("page", {"viewer", "adder", "keeper", "no coder"}),
        ("form", {"adder", "no coder"}),
        ("define", {"adder"}),
        ("edit", {"keeper"}),
        ("ask to archive", {"keeper", "no coder"}),
        ("archive", {"keeper", "no coder"}),
    ],
)
def test_who_may_do_what(role: str, what: str, allowed: set[str]) -> None:
    template, client = make_template(), keeper_of(role)
    before = everything()
    archive = operation("schedules_tasktemplate", "archive", template.pk)
    pages: dict[str, Callable[[], Any]] = {
        "list": lambda: client.get(page("schedules_tasktemplate_changelist")),
        "page": lambda: client.get(page("schedules_tasktemplate_change", template.pk)),
        "form": lambda: client.get(page("schedules_tasktemplate_add")),
        "define": lambda: save(client),
        "edit": lambda: save(client, template, max_retries="9"),
        "ask to archive": lambda: client.get(archive),
        "archive": lambda: client.post(archive),
    }
    done = pages[what]()
    changes = what in ("define", "edit", "archive")
    if role == "no coder" and what in ("define", "edit"):
        assert "needs the permission schedules.define_code" in errors(done)["config"]
    else:
        assert done.status_code == ((302 if changes else 200) if role in allowed else 403)
    assert (everything() == before) is not (changes and role in allowed)


class TestAStepOfASchedule:
    def test_refers_to_one(self, client: Client) -> None:
        make_template(max_retries=7)
        overrides = '{"config": {"kwargs": {"value": 2}}, "timeout_seconds": 60}'
        response = save_schedule(client, typed(steps=[USED | {"instead": overrides}]))
        assert response.status_code == 302, complaints(response)
        [made] = Schedule.objects.get().steps.all()
        assert (made.max_retries, made.timeout_seconds, made.config["kwargs"]) == (7, 60, {"value": 2})
        assert made.written() == use(config={"kwargs": {"value": 2}}, timeout_seconds=60)

    def test_needs_nothing_else(self, client: Client) -> None:
        make_template()
        untouched = rows(client)[0] | {"step_type": ""}
        response = save_schedule(client, typed(steps=[untouched | USED]))
        assert response.status_code == 302, complaints(response)
        assert Schedule.objects.get().steps.get().written() == use()

    def test_keeps_what_somebody_changes_on_the_form(self, client: Client) -> None:
        make_template(max_retries=7, resources=["db"])
        schedule = make_schedule(use(timeout_seconds=60))
        config = json.dumps(json.loads(rows(client, schedule)[0]["config"]) | {"kwargs": {"value": True}})
        typing = {"name": "renamed", "max_retries": "2", "resources": "db\r\nlicence", "config": config}
        response = save_schedule(
            client, typed(schedule, steps=[rows(client, schedule)[0] | typing]), schedule
        )
        assert response.status_code == 302, complaints(response)
        assert schedule.steps.get().written() == use(
            "renamed",
            timeout_seconds=60,
            max_retries=2,
            resources=["db", "licence"],
            config={"kwargs": {"value": True}},
        )

    def test_follows_the_template_again_where_nothing_is_written(self, client: Client) -> None:
        make_template(max_retries=7)
        schedule = make_schedule(use(max_retries=1))
        row = rows(client, schedule)[0] | {"instead": "{}"}
        assert save_schedule(client, typed(schedule, steps=[row]), schedule).status_code == 302
        assert schedule.steps.get().max_retries == 7

    @pytest.mark.parametrize(
        ("typing", "field", "words"),
        [
            ({"max_retries": "many"}, "step max_retries", "whole number"),
            ({"config": "{"}, "step config", "Not JSON"),
            ({"config": "[]"}, "steps", "config: must be an object of settings, not a list"),
            ({"config": "null"}, "steps", "config: must be an object of settings, not null"),
            ({"step_type": "http"}, "steps", "It comes from the template “Export”: leave it out"),
            ({"pool": "a\u200bb"}, "steps", "U+200B is not allowed"),
        ],
    )
    def test_is_told_what_is_wrong_with_what_somebody_changes(
        self, client: Client, typing: dict[str, str], field: str, words: str
    ) -> None:
        make_template()
        schedule = make_schedule(use())
        row = rows(client, schedule)[0] | typing
        assert words in complaints(save_schedule(client, typed(schedule, steps=[row]), schedule))[field]

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000, '{"config": 5}'])
    def test_takes_no_harm_from_a_page_that_says_wrongly_what_it_showed(
        self, client: Client, text: str
    ) -> None:
        make_template()
        row = USED | {"as_shown": text, "config": "{}"}
        response = save_schedule(client, typed(steps=[row]))
        assert response.status_code == 302, complaints(response)

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
        row = rows(client, schedule)[0] | {"from_template": ""}
        response = save_schedule(client, typed(schedule, steps=[row]), schedule)
        assert response.status_code == 302, complaints(response)
        made = schedule.steps.get()
        assert (made.template, made.overrides, made.max_retries) == (None, {}, 7)

    def test_goes_on_with_one_that_is_archived(self, client: Client) -> None:
        template = make_template()
        schedule = make_schedule(use())
        template.archive(initiator=SOMEBODY, now=NOW)
        shown = client.get(page("schedules_schedule_change", schedule.pk)).context
        [row] = shown["inline_admin_formsets"][0].formset.forms
        assert row.fields["from_template"].choices == [("", "none"), ("Export", "Export (not active)")]
        response = save_schedule(client, typed(schedule, steps=[USED], description="new"), schedule)
        assert response.status_code == 302, complaints(response)
        assert "is archived" in complaints(save_schedule(client, typed(steps=[USED])))["steps"]

    @pytest.mark.parametrize(
        ("fields", "field", "words"),
        [
            ({"name": ""}, "step name", "required"),
            ({"index": "-1"}, "step index", "greater than or equal to 0"),
            ({"instead": "{"}, "step instead", "Not JSON"),
            ({"instead": "[]"}, "step instead", "An object is expected"),
            ({"instead": '{"name": "x"}'}, "step instead", "name: has a field of its own here"),
            ({"instead": '{"rows": 1}'}, "steps", "Step 1: unknown field rows."),
            ({"instead": '{"max_retries": true}'}, "steps", "a whole number expected, found true"),
            ({"instead": '{"config": {"rows": 1}}'}, "steps", "rows: is not a setting of python steps"),
            ({"instead": '{"step_type": "http"}'}, "steps", "It comes from the template “Export”"),
            ({"from_template": "Exprot"}, "steps", "there is no template “Exprot”; did you mean Export?"),
        ],
    )
    def test_is_told_what_is_wrong(
        self, client: Client, fields: dict[str, str], field: str, words: str
    ) -> None:
        make_template()
        before = everything()
        response = save_schedule(client, typed(steps=[USED | fields]))
        assert response.status_code == 200
        assert words in complaints(response)[field]
        assert everything() == before

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
        assert queries(make_schedule(*(use(f"s{number}") for number in range(10)))) <= few


def keeper_of(role: str) -> Client:
    client = sign_in("nobody")
    user = User.objects.get(username="nobody")
    for codename in ROLES[role]:
        user.user_permissions.add(Permission.objects.get(codename=codename))
    return client
