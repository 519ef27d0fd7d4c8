"""The form of a template: the same fields per step type as steps have, which work without scripts."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from activities.models import Activity
from schedules.models import TaskTemplate
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, everything, fresh, make_template
from tests.web.editor_form import Form, opened, pressed

pytestmark = pytest.mark.django_db
NEW = "/templates/new"
URL = "https://shop.example/orders"


def edit(template: TaskTemplate) -> str:
    return f"/templates/{template.pk}/edit"


def errors(answer: Any) -> dict[str, str]:
    """What is wrong, by field; with its place on the page."""
    assert answer.status_code == 200
    shown = answer.context["shown"]
    found = {name: " ".join(shown.errors_of(name)) for name in shown.errors}
    for name in found:
        assert f'id="error-{name}"' in answer.text
    return found


def made(client: Client, **changes: str) -> TaskTemplate:
    form = pressed(client, opened(client, NEW), "show", NEW, name="Fetch", runs="type:http")
    answer = client.post(NEW, form.sent("save", config__url=URL, **changes))
    assert answer.status_code == 302, errors(answer)
    return TaskTemplate.objects.get()


def test_one_is_made_with_the_fields_of_its_type_and_saving_it_as_it_is_changes_nothing() -> None:
    client = sign_in()
    typed = {"retry_on": "TimeoutError", "config__headers": "Accept: text/plain"}
    template = made(client, description="All orders", timeout_seconds="1m30s", **typed)
    assert (template.name, template.step_type, template.description) == ("Fetch", "http", "All orders")
    assert (template.config["url"], template.timeout_seconds) == (URL, 90)
    before = everything()
    form = opened(client, edit(template))
    assert "name" not in dict(form.pairs)
    assert form.value("config-headers") == "Accept: text/plain"
    assert client.post(edit(template), form.sent("save")).status_code == 302
    assert everything() == before
    assert list(Activity.objects.values_list("operation", flat=True)) == ["create"]
    answer = client.post(edit(template), form.sent("save", max_retries="5"))
    assert (answer["Location"], fresh(template).max_retries) == (template.get_absolute_url(), 5)


def test_no_button_but_save_stores_anything() -> None:
    client = sign_in()
    template = made(client)
    form, before = opened(client, edit(template)), everything()
    for do in {*form.buttons, "remove-step.1", "nonsense", ""} - {"save"}:
        answer = client.post(edit(template), form.sent(do, config__url="x"))
        assert Form(answer.text).value("runs") == "type:http"
    for sent in ({}, {"do": "save"}, {"runs": "template:x", "do": "save"}):
        assert client.post(NEW, sent).status_code == 200
    assert everything() == before


# Each round is sent at once: by field, what is typed and what is said about it.
MISTAKES: list[dict[str, tuple[str, str]]] = [
    {"name": ("", "required"), "max_retries": ("101", "100"), "retry_seconds": ("x", "Enter a")},
    {"name": ("taken", "choose another name")},
    {"runs": ("", "Choose a step type.")},
    {"config-url": ("{{ secrets.NONE }}", "unknown secret")},
    {"resources": ("\n".join(map(str, range(11))), "too many")},
]


def test_what_is_wrong_is_said_at_its_field_and_nothing_is_saved() -> None:
    client = sign_in()
    make_template("Taken")
    form = pressed(client, opened(client, NEW), "show", NEW, name="Fetch", runs="type:http")
    assert '<details id="template-failing">' in client.post(NEW, form.sent("save")).text
    for mistakes in MISTAKES:
        typed = {"name": "Fetch", "config-url": URL} | {name: each[0] for name, each in mistakes.items()}
        sent = form.sent("save", **{name.replace("-", "__"): value for name, value in typed.items()})
        found = errors(answer := client.post(NEW, sent))
        assert found.keys() == mistakes.keys()
        for name, (_, words) in mistakes.items():
            assert words in found[name]
        # What is folded away is open where something is wrong.
        is_open = '<details id="template-failing" open>' in answer.text
        assert is_open == bool({"max_retries", "resources"} & mistakes.keys())
    assert TaskTemplate.objects.count() == 1


def test_a_type_that_is_not_installed_any_more_is_shown_as_it_is() -> None:
    client = sign_in()
    template = made(client)
    TaskTemplate.objects.update(step_type="gone")
    form = opened(client, edit(template))
    assert form.value("runs") == "type:gone"
    assert URL in form.value("config")
    assert "gone" in errors(client.post(edit(template), form.sent("save")))["runs"]


def test_the_page_names_each_policy() -> None:
    client = sign_in()
    template = make_template("Export", resources=["crm"])
    policies = dict(client.get(template.get_absolute_url()).context["policies"])
    assert policies["Resources"] == "crm"
    assert "None" not in policies


def test_code_needs_its_permission() -> None:
    client = sign_in("nobody")
    may = Permission.objects.filter(codename__in=("view_tasktemplate", "add_tasktemplate"))
    User.objects.get().user_permissions.set(may)
    form = pressed(client, opened(client, NEW), "show", NEW, name="Count", runs="type:python")
    answer = client.post(NEW, form.sent("save", config__function="tests.work.noop"))
    assert "schedules.define_code" in errors(answer)[""]
    assert not TaskTemplate.objects.exists()


def test_two_who_change_the_same_one() -> None:
    client = sign_in()
    template = made(client)
    form = opened(client, edit(template))
    fresh(template).edit(token=1, changes={"priority": 7}, initiator=SOMEBODY, now=NOW)
    answer = client.post(edit(template), form.sent("save", description="Mine"))
    found = [(each.label, each.theirs, each.yours) for each in answer.context["conflict"].differences]
    assert found == [("Description", "", "Mine"), ("Priority", "7", "0")]
    assert (fresh(template).description, "ada" in answer.text) == ("", True)
    assert client.post(edit(template), Form(answer.text).sent("save")).status_code == 302
    assert (fresh(template).description, fresh(template).priority) == ("Mine", 0)


def test_a_form_that_does_not_say_what_it_changes_or_one_of_an_archived_template_changes_nothing() -> None:
    client = sign_in()
    template = made(client)
    form = opened(client, edit(template))
    answer = client.post(edit(template), form.sent("save", version=None, description="Mine"))
    assert "Reload the page" in errors(answer)[""]
    fresh(template).archive(initiator=SOMEBODY, now=NOW)
    answer = client.post(edit(template), form.sent("save", version="2", description="Mine"))
    assert "restore it first" in errors(answer)[""]
    assert fresh(template).description == ""
