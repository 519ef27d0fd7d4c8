"""The pages of secrets: who may do what there, and that no value ever leaves them."""

from __future__ import annotations

import html
import logging
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.forms import CharField
from django.test import Client

from activities.models import Activity, ActivityQuerySet
from schedules.models import Secret, Step
from schedules.secret_form import SecretForm
from schedules.vault import Keys
from tests.admin_pages import errors, member, operation, page, sign_in, stored, told
from tests.base import NOW, SOMEBODY, make_schedule, step

pytestmark = pytest.mark.django_db

CANARY = "canary-51d07aa4"


@pytest.fixture(autouse=True)
def key_file(settings: Any, tmp_path: Path) -> Path:
    settings.JIM_DATA_DIR, settings.JIM_SECRETS_KEYS = tmp_path / "data", []
    return tmp_path / "data" / "secrets_keys"


@pytest.fixture
def client() -> Client:
    return sign_in()


def put(name: str = "token", value: str = CANARY, **rest: Any) -> Secret:
    return Secret.objects.put(name, value, initiator=SOMEBODY, now=NOW, **rest)


def value_of(name: str = "token") -> str | None:
    return Secret.objects.reveal([name]).get(name)


def typed(name: str = "token", value: str = CANARY, description: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "description": description}


def save(client: Client, secret: Secret | None = None, /, **fields: str) -> Any:
    url = page("schedules_secret_change", secret.pk) if secret else page("schedules_secret_add")
    return client.post(url, typed(**fields))


class TestSaving:
    def test_a_secret_is_added_and_an_empty_value_keeps_it(self, client: Client) -> None:
        response = save(client, name=" token ", description="Of the mail server")
        assert "was added successfully" in told(client, response)
        secret = Secret.objects.get()
        assert (secret.name, secret.description, value_of()) == ("token", "Of the mail server", CANARY)
        created = Activity.objects.get()
        assert (created.operation, created.initiator_name) == ("create", "superuser")
        response = save(client, secret, name="other", value="", description="For what")
        assert "was changed successfully" in told(client, response)
        assert (Secret.objects.get().description, value_of()) == ("For what", CANARY)
        assert save(client, secret, value="another one").status_code == 302
        assert value_of() == "another one"

    def test_lines_end_as_they_do_elsewhere(self) -> None:
        for sent, kept in {
            "one line\r\n": "one line",
            "one line\n\n": "one line",
            "  spaces  ": "  spaces  ",
            "first\r\nsecond\r\n": "first\nsecond\n",
        }.items():
            form = SecretForm(typed(value=sent))
            assert form.is_valid(), form.errors
            assert form.cleaned_data["value"] == kept

    def test_what_is_refused_is_asked_for_again(self, client: Client) -> None:
        """The other fields still show it."""
        put("taken", "something else")
        for form, field, words in (
            (typed(name="a.b", description="For what"), "name", "lower-case letters, digits, - and _"),
            (typed(name="taken"), "name", "A secret with this name already exists"),
            (typed(value=""), "value", "required"),
            (typed(value="\r\n\r\n\r\n"), "value", "at least 4 characters"),
            (typed(value=f"{CANARY}\0"), "value", "Null characters are not allowed"),
            (typed(description="x" * 1001), "description", "at most 1000 characters"),
        ):
            response = save(client, None, **form)
            assert words in errors(response)[field]
            if field != "value":
                assert errors(response)["value"].startswith("Type the value again")
            shown = response.content.decode()
            assert (form["description"] in shown, form["name"] in shown) == (True, True)
            assert CANARY not in shown
        assert Secret.objects.names() == {"taken"}

    def test_a_name_taken_while_saving_is_a_form_error(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two people, the same moment: the database refuses the second after all checks have passed."""
        put(value="theirs")
        monkeypatch.setattr(Secret, "validate_constraints", lambda self, exclude=None: None)
        assert "just taken by another secret" in errors(save(client))["name"]
        assert value_of() == "theirs"

    def test_a_secret_that_is_gone_meanwhile_is_told(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret, take = put(), Secret._take

        def gone(self: Secret) -> None:
            Secret.objects.all().delete()
            take(self)

        monkeypatch.setattr(Secret, "_take", gone)
        assert "was deleted in the meantime" in errors(save(client, secret, value="new value"))["__all__"]

    def test_a_missing_key_is_told_on_the_form_and_on_the_page(self, client: Client, key_file: Path) -> None:
        secret = put()
        key_file.unlink()
        shown = client.get(page("schedules_secret_change", secret.pk)).content.decode()
        assert "“token” cannot be decrypted on" in shown
        for response in (save(client, secret), save(client, name="second")):
            assert "Nothing can be encrypted" in errors(response)["__all__"]


class TestNoValueLeavesIt:
    def test_not_on_any_page_in_any_message_or_history(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, logger="django"), caplog.at_level(logging.DEBUG):
            save(client)
            secret = Secret.objects.get()
            save(client, secret, value=f"{CANARY}-2", description="x")
            save(client, secret, value="abc")
            for url in (
                page("index"),
                page("schedules_secret_changelist"),
                f"{page('schedules_secret_changelist')}?q=canary",
                page("schedules_secret_add"),
                page("schedules_secret_change", secret.pk),
                page("schedules_secret_history", secret.pk),
                operation("schedules_secret", "delete", secret.pk),
                *(page("activities_activity_change", each.pk) for each in Activity.objects.all()),
            ):
                response = client.get(url, follow=True)
                assert response.status_code == 200
                assert CANARY not in response.content.decode()
                assert secret.token not in response.content.decode()
        assert CANARY not in caplog.text
        assert not LogEntry.objects.exists()
        assert CANARY not in stored()

    def test_its_field_is_empty_and_asks_browsers_to_forget(self, client: Client) -> None:
        shown = client.get(page("schedules_secret_change", put().pk)).content.decode()
        field = shown[shown.index('<textarea name="value"') :].partition("</textarea>")[0]
        assert field.partition(">")[2].strip() == ""
        for attribute in ('autocomplete="off"', 'spellcheck="false"', "concealed"):
            assert attribute in field

    @pytest.mark.parametrize(
        ("where", "name"),
        [(Keys, "encrypt"), (CharField, "to_python"), (Secret, "save"), (ActivityQuerySet, "record_each")],
    )
    @pytest.mark.parametrize("is_new", [True, False])
    def test_not_on_the_page_about_a_bug(
        self,
        client: Client,
        monkeypatch: pytest.MonkeyPatch,
        settings: Any,
        where: Any,
        name: str,
        is_new: bool,
    ) -> None:
        """With JIM_DEBUG=1, it shows the variables of every function that was running, and what was sent."""

        def break_down(self: Any, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("a bug")

        secret = None if is_new else put(value="something else")
        settings.DEBUG, client.raise_request_exception = True, False
        monkeypatch.setattr(where, name, break_down)
        response = save(client, secret)
        assert response.status_code == 500
        shown = html.unescape(response.content.decode())
        assert ("RuntimeError" in shown, "break_down" in shown, CANARY in shown) == (True, True, False)


def test_what_schedules_use_stays_and_they_are_named_the_rest_is_deleted_if_one_insists(
    client: Client,
) -> None:
    used, unused = put("used"), put("unused")
    schedule = make_schedule(step(), name="Nightly")
    Step.objects.update(config={"a": "{{ secrets.used }}"})
    shown = client.get(page("schedules_secret_change", used.pk)).content.decode()
    assert f'href="{page("schedules_schedule_change", schedule.pk)}">Nightly</a>' in shown
    asked = client.get(page("schedules_secret_delete", unused.pk), follow=True)
    assert "Delete the " in asked.content.decode()
    assert Secret.objects.names() == {"used", "unused"}
    response = client.post(operation("schedules_secret", "delete", used.pk, unused.pk))
    assert response["Location"] == page("schedules_secret_changelist")
    answer = told(client, response)
    assert "“used” is used by “Nightly”. Change, close or archive everything that uses the secret" in answer
    assert "“unused” is deleted." in answer
    assert Secret.objects.names() == {"used"}
    assert Activity.objects.get(operation="delete").initiator_name == "superuser"
    history = client.get(f"{page('activities_activity_changelist')}?target_type=secret&operation=delete")
    assert "unused (secret)" in history.content.decode()


@pytest.mark.parametrize(
    ("permissions", "may"),
    [
        (("view_schedule", "change_schedule", "define_code"), set()),
        (("view_secret",), {"see"}),
        (("add_secret",), {"add"}),
        (("change_secret",), {"see", "change"}),
        (("view_secret", "delete_secret"), {"see", "delete"}),
    ],
)
def test_each_permission_allows_its_own(permissions: tuple[str, ...], may: set[str]) -> None:
    secret, client = put(), member(*permissions)
    listed = client.get(page("schedules_secret_changelist"))
    shown = client.get(page("schedules_secret_change", secret.pk))
    assert (listed.status_code, shown.status_code) == ((200, 200) if "see" in may else (403, 403))
    for answer in (listed, shown):
        assert (CANARY in answer.content.decode(), secret.token in answer.content.decode()) == (False, False)
    assert (b"<textarea" in shown.content, b"Used by" in shown.content) == ("change" in may, False)
    did = {
        "add": save(client, name="new").status_code == 302,
        "change": save(client, secret, value="new value").status_code == 302,
        "delete": client.post(operation("schedules_secret", "delete", secret.pk)).status_code == 302,
    }
    assert {name for name, done in did.items() if done} == may - {"see"}
    kept = {"token": "new value" if "change" in may else CANARY} if "delete" not in may else {}
    added = {"new": CANARY} if "add" in may else {}
    assert Secret.objects.reveal(["token", "new"]) == kept | added
