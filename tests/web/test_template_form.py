"""The form of a template: the same fields per step type as steps have, which work without scripts."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from activities.models import Activity
from schedules.models import TaskTemplate
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, make_template
from tests.web.editor_form import Form

pytestmark = pytest.mark.django_db
NEW = "/templates/new"
URL = "https://shop.example/orders"


def edit(template: TaskTemplate) -> str:
    return f"/templates/{template.pk}/edit"


def opened(client: Client, url: str) -> Form:
    answer = client.get(url)
    assert answer.status_code == 200
    return Form(answer.text)


def pressed(client: Client, form: Form, do: str, url: str = NEW, **changes: str | None) -> Form:
    answer = client.post(url, form.sent(do, **changes))
    assert answer.status_code == 200
    return Form(answer.text)


def errors(answer: Any) -> dict[str, str]:
    """What is wrong, by field; with its place on the page."""
    assert answer.status_code == 200
    shown = answer.context["shown"]
    found = {name: " ".join(shown.errors_of(name)) for name in shown._complaints.found}
    for name in found:
        assert f'id="error-{name}"' in answer.text
    return found


def author(*, may_define_code: bool = True) -> Client:
    group = Group.objects.get(name="Author")
    if not may_define_code:
        group.permissions.remove(*group.permissions.filter(codename="define_code"))
    user = User.objects.create_user("an author")
    user.groups.add(group)
    client = Client()
    client.force_login(user)
    return client


def made(client: Client, **changes: str) -> TaskTemplate:
    form = pressed(client, opened(client, NEW), "show", name="Fetch", step__1__runs="type:http")
    answer = client.post(NEW, form.sent("save", step__1__config__url=URL, **changes))
    assert answer.status_code == 302, errors(answer)
    return TaskTemplate.objects.get()


def test_one_is_made_with_the_fields_of_its_type() -> None:
    template = made(author(), description="All orders", step__1__timeout_seconds="1m30s")
    assert (template.name, template.step_type, template.description) == ("Fetch", "http", "All orders")
    assert (template.config["url"], template.timeout_seconds) == (URL, 90)


def test_choosing_a_type_shows_its_fields_and_complains_about_nothing_yet() -> None:
    client = sign_in()
    form = opened(client, NEW)
    assert not any(name.startswith("step-1-config-") for name, _ in form.pairs)
    answer = client.post(NEW, form.sent("show", step__1__runs="type:sql"))
    assert "step-1-config-connection" in dict(Form(answer.text).pairs)
    assert answer.context["shown"].wrong_count == 0


def test_what_was_typed_for_one_type_is_there_again_after_another() -> None:
    client = sign_in()
    form = pressed(client, opened(client, NEW), "show", step__1__runs="type:http")
    form = pressed(client, form, "show", step__1__config__url=URL, step__1__runs="type:wait")
    form = pressed(client, form, "show", step__1__runs="type:http")
    assert form.value("step-1-config-url") == URL


def test_its_form_shows_all_that_is_stored_and_saving_that_changes_nothing() -> None:
    client = sign_in()
    template = made(client, step__1__retry_on="TimeoutError", step__1__config__headers="Accept: text/plain")
    before = everything()
    form = opened(client, edit(template))
    assert form.value("step-1-config-headers") == "Accept: text/plain"
    assert client.post(edit(template), form.sent("save")).status_code == 302
    assert everything() == before
    assert list(Activity.objects.values_list("operation", flat=True)) == ["create"]


def test_one_is_changed_and_with_it_the_steps_that_use_it() -> None:
    client = author()
    template = made(client)
    schedule = make_schedule({"index": 0, "name": "a", "template": "Fetch"})
    form = opened(client, edit(template))
    changes = {"step__1__config__url": f"{URL}/2", "step__1__max_retries": "5"}
    assert (
        client.post(edit(template), form.sent("save", **changes))["Location"] == template.get_absolute_url()
    )
    assert (fresh(template).config["url"], fresh(template).max_retries) == (f"{URL}/2", 5)
    assert schedule.steps.get().config["url"] == f"{URL}/2"
    assert "name" not in dict(form.pairs)


def test_no_button_but_save_stores_anything() -> None:
    client = sign_in()
    template = made(client)
    form, before = opened(client, edit(template)), everything()
    for do in [*form.buttons, "add-step", "remove-step.1", "nonsense", ""]:
        if do != "save":
            answer = client.post(edit(template), form.sent(do, step__1__config__url="x"))
            assert answer.status_code == 200
            assert Form(answer.text).value("step-1-runs") == "type:http"
    assert everything() == before


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"name": ""}, "name", "blank"),
        ({"name": "taken"}, "name", "choose another name"),
        ({"step__1__runs": ""}, "step-1-runs", "Choose what it runs."),
        ({"step__1__config__url": ""}, "step-1-config-url", "required"),
        ({"step__1__config__url": "{{ secrets.NONE }}"}, "step-1-config-url", "no secret"),
        ({"step__1__max_retries": "101"}, "step-1-max_retries", "100"),
        ({"step__1__retry_seconds": "soon"}, "step-1-retry_seconds", "Enter a duration"),
        ({"step__1__pool": ""}, "step-1-pool", "required"),
        ({"step__1__resources": "\n".join(map(str, range(11)))}, "step-1-resources", "too many"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_saved(
    changes: dict[str, str], place: str, words: str
) -> None:
    client = sign_in()
    make_template("Taken")
    form = pressed(client, opened(client, NEW), "show", name="Fetch", step__1__runs="type:http")
    right = {"name": "Fetch", "step__1__config__url": URL}
    found = errors(answer := client.post(NEW, form.sent("save", **(right | changes))))
    assert list(found) == [place]
    assert words in found[place]
    assert "1 field to mend" in answer.text
    assert TaskTemplate.objects.count() == 1


def test_what_is_folded_away_is_open_where_something_is_wrong() -> None:
    client = sign_in()
    form = pressed(client, opened(client, NEW), "show", name="Fetch", step__1__runs="type:http")
    assert '<details id="step-1-failing">' in client.post(NEW, form.sent("save")).text
    wrong = client.post(NEW, form.sent("save", step__1__max_retries="101"))
    assert '<details id="step-1-failing" open>' in wrong.text


def test_settings_are_written_as_json_by_those_who_like_that_better() -> None:
    client = sign_in()
    template = made(client)
    form = pressed(client, opened(client, edit(template)), "json.1", edit(template))
    answer = client.post(edit(template), form.sent("save", step__1__config='{"url": '))
    assert "JSON" in errors(answer)["step-1-config"]
    form = pressed(
        client, Form(answer.text), "json.1", edit(template), step__1__config=f'{{"url": "{URL}/3"}}'
    )
    assert form.value("step-1-config-url") == f"{URL}/3"
    client.post(edit(template), form.sent("save"))
    assert fresh(template).config["url"] == f"{URL}/3"


def test_a_type_that_is_not_installed_any_more_is_shown_as_it_is() -> None:
    client = sign_in()
    template = made(client)
    TaskTemplate.objects.update(step_type="gone")
    form = opened(client, edit(template))
    assert form.value("step-1-runs") == "type:gone"
    assert URL in form.value("step-1-config")
    assert "gone" in errors(client.post(edit(template), form.sent("save")))["step-1-runs"]


def test_code_needs_its_permission() -> None:
    client = author(may_define_code=False)
    form = pressed(client, opened(client, NEW), "show", name="Count", step__1__runs="type:python")
    answer = client.post(NEW, form.sent("save", step__1__config__function="tests.work.noop"))
    assert "schedules.define_code" in errors(answer)["step-1"]
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


def test_a_form_that_does_not_say_what_it_changes_changes_nothing() -> None:
    client = sign_in()
    template = made(client)
    form = opened(client, edit(template))
    answer = client.post(edit(template), form.sent("save", token=None, description="Mine"))
    assert "load the page again" in errors(answer)[""]
    assert fresh(template).description == ""


def test_an_archived_one_says_what_to_do() -> None:
    client = sign_in()
    template = made(client)
    form = opened(client, edit(template))
    fresh(template).archive(initiator=SOMEBODY, now=NOW)
    answer = client.post(edit(template), form.sent("save", token="2", description="Mine"))
    assert "restore it first" in errors(answer)[""]


def test_only_the_form_is_sent_to_a_page_that_asks_for_it() -> None:
    client = sign_in()
    form = opened(client, NEW)
    headers = {"HX-Request": "true", "HX-Target": "editor"}
    answer = client.post(NEW, form.sent("show", step__1__runs="type:http"), headers=headers)
    assert ("<html" in answer.text, answer.text.lstrip().startswith('<form id="editor"')) == (False, True)


def test_whatever_is_sent_is_answered_in_words() -> None:
    client = sign_in()
    for sent in ({}, {"do": "save"}, {"step": "9", "step-9-runs": "template:x", "do": "save"}):
        assert client.post(NEW, sent).status_code == 200
    assert not TaskTemplate.objects.exists()
