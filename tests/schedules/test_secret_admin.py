"""The pages of secrets: who may do what there, and that no value ever leaves them."""

from __future__ import annotations

import html
import logging
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.forms import CharField
from django.test import Client

from activities.models import Activity, ActivityQuerySet
from schedules.models import Secret, Step
from schedules.secret_form import SecretForm
from schedules.vault import Keys
from tests.admin_pages import operation, page, sign_in, told
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


def add(client: Client, form: dict[str, str]) -> Any:
    return client.post(page("schedules_secret_add"), form)


def change(client: Client, secret: Secret, form: dict[str, str]) -> Any:
    return client.post(page("schedules_secret_change", secret.pk), form)


def complaints(response: Any) -> dict[str, str]:
    assert response.status_code == 200
    return {name: " ".join(texts) for name, texts in response.context["adminform"].form.errors.items()}


def member(*permissions: str) -> Client:
    user = User.objects.create_user("member", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


class TestSaving:
    def test_a_secret_is_added(self, client: Client) -> None:
        response = add(client, typed(" smtp_password ", description="Of the mail server"))
        assert "was added successfully" in told(client, response)
        secret = Secret.objects.get()
        assert (secret.name, secret.description, value_of("smtp_password")) == (
            "smtp_password",
            "Of the mail server",
            CANARY,
        )
        created = Activity.objects.get()
        assert (created.operation, created.initiator_name) == ("create", "superuser")

    def test_an_empty_value_keeps_the_one_that_is_stored_and_its_name_stays(self, client: Client) -> None:
        secret = put()
        response = change(client, secret, typed(name="other", value="", description="For what"))
        assert "was changed successfully" in told(client, response)
        assert (Secret.objects.get().description, value_of()) == ("For what", CANARY)
        assert Activity.objects.get(operation="edit").message == "new description"
        assert change(client, secret, typed(value="another one")).status_code == 302
        assert value_of() == "another one"

    @pytest.mark.parametrize(
        ("sent", "kept"),
        [
            ("one line\r\n", "one line"),
            ("one line\n\n", "one line"),
            ("  spaces  ", "  spaces  "),
            ("first\r\nsecond\r\n", "first\nsecond\n"),
            ("first\nsecond", "first\nsecond"),
        ],
    )
    def test_lines_end_as_they_do_elsewhere(self, sent: str, kept: str) -> None:
        form = SecretForm(typed(value=sent))
        assert form.is_valid(), form.errors
        assert form.cleaned_data["value"] == kept

    @pytest.mark.parametrize(
        ("form", "field", "words"),
        [
            (typed(name=""), "name", "required"),
            (typed(name="a.b"), "name", "lower-case letters, digits, - and _"),
            (typed(name="x" * 65), "name", "at most 64 characters"),
            (typed(name="taken"), "name", "There is a secret with this name already"),
            (typed(name="a\0"), "name", "Null characters are not allowed"),
            (typed(value=""), "value", "required"),
            (typed(value="\r\n\r\n\r\n"), "value", "at least 4 characters"),
            (typed(value="x" * 65_537), "value", "65,537 bytes long"),
            (typed(value=f"{CANARY}\0"), "value", "Null characters are not allowed"),
            (typed(description="x" * 1001), "description", "at most 1000 characters"),
        ],
    )
    def test_what_is_refused(self, form: dict[str, str], field: str, words: str) -> None:
        put("taken", "something else")
        refused = SecretForm(form)
        assert words in str(refused.errors[field])
        assert CANARY not in refused.as_p()

    def test_what_was_typed_is_asked_for_again(self, client: Client) -> None:
        """The other fields still show it."""
        response = add(client, typed(name="Upper", description="For what"))
        assert complaints(response)["value"].startswith("Please type it again")
        shown = response.content.decode()
        assert "For what" in shown
        assert "Upper" in shown
        assert CANARY not in shown
        assert not Secret.objects.exists()

    def test_a_name_taken_while_saving_is_a_form_error(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two people, the same moment: the database refuses the second after all checks have passed."""
        put(value="theirs")
        monkeypatch.setattr(Secret, "validate_constraints", lambda self, exclude=None: None)
        assert "took this name" in complaints(add(client, typed()))["name"]
        assert value_of() == "theirs"

    def test_a_secret_that_is_gone_meanwhile_is_told(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret, take = put(), Secret._take

        def gone(self: Secret) -> None:
            Secret.objects.all().delete()
            take(self)

        monkeypatch.setattr(Secret, "_take", gone)
        assert (
            "was deleted meanwhile" in complaints(change(client, secret, typed(value="new value")))["__all__"]
        )

    def test_a_missing_key_is_told_on_the_form_and_on_the_page(self, client: Client, key_file: Path) -> None:
        secret = put()
        key_file.unlink()
        shown = client.get(page("schedules_secret_change", secret.pk)).content.decode()
        assert "“token” cannot be decrypted on" in shown
        assert "nothing can be encrypted" in complaints(change(client, secret, typed()))["__all__"]
        assert "nothing can be encrypted" in complaints(add(client, typed("second")))["__all__"]


class TestNoValueLeavesIt:
    def test_not_on_any_page_in_any_message_or_history(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, logger="django"), caplog.at_level(logging.DEBUG):
            add(client, typed())
            secret = Secret.objects.get()
            change(client, secret, typed(value=f"{CANARY}-2", description="x"))
            change(client, secret, typed(value="abc"))
            pages = [
                page("index"),
                page("schedules_secret_changelist"),
                f"{page('schedules_secret_changelist')}?q=canary",
                page("schedules_secret_add"),
                page("schedules_secret_change", secret.pk),
                page("schedules_secret_history", secret.pk),
                operation("schedules_secret", "delete", secret.pk),
                page("activities_activity_changelist"),
                *(
                    page("activities_activity_change", pk)
                    for pk in Activity.objects.values_list("pk", flat=True)
                ),
            ]
            for url in pages:
                response = client.get(url, follow=True)
                assert response.status_code == 200
                assert CANARY not in response.content.decode()
                assert secret.token not in response.content.decode()
        assert CANARY not in caplog.text
        assert not LogEntry.objects.exists()
        assert CANARY not in dump()

    def test_its_field_is_empty_and_asks_browsers_to_forget(self, client: Client) -> None:
        shown = client.get(page("schedules_secret_change", put().pk)).content.decode()
        field = shown[shown.index('<textarea name="value"') :].partition("</textarea>")[0]
        assert field.partition(">")[2].strip() == ""
        for attribute in ('autocomplete="off"', 'spellcheck="false"', "concealed"):
            assert attribute in field
        assert "Leave it empty to keep the one that is stored." in shown

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
        response = change(client, secret, typed()) if secret else add(client, typed())
        assert response.status_code == 500
        shown = html.unescape(response.content.decode())
        assert "RuntimeError" in shown
        assert "break_down" in shown
        assert CANARY not in shown


class TestDeleting:
    def test_it_asks_first(self, client: Client) -> None:
        secret = put()
        asked = client.get(page("schedules_secret_delete", secret.pk), follow=True)
        assert "gone for good" in asked.content.decode()
        assert Secret.objects.exists()
        response = client.post(operation("schedules_secret", "delete", secret.pk))
        assert told(client, response) == "“token” is deleted."
        assert response["Location"] == page("schedules_secret_changelist")
        assert not Secret.objects.exists()
        assert Activity.objects.get(operation="delete").initiator_name == "superuser"

    def test_what_schedules_use_stays_and_they_are_named(self, client: Client) -> None:
        used, unused = put("used"), put("unused")
        schedule = make_schedule(step(), name="Nightly")
        Step.objects.update(config={"a": "{{ secrets.used }}"})
        shown = client.get(page("schedules_secret_change", used.pk)).content.decode()
        assert f'href="{page("schedules_schedule_change", schedule.pk)}">Nightly</a>' in shown
        answer = told(client, client.post(operation("schedules_secret", "delete", used.pk, unused.pk)))
        assert "“used” is used by “Nightly”: change or close what uses it first." in answer
        assert "“unused” is deleted." in answer
        assert Secret.objects.names() == {"used"}

    def test_its_history_stays(self, client: Client) -> None:
        put().remove(initiator=SOMEBODY, now=NOW)
        shown = client.get(f"{page('activities_activity_changelist')}?target_type=secret&operation=delete")
        assert "token (secret)" in shown.content.decode()


ALL = ("view_secret", "add_secret", "change_secret", "delete_secret")


class TestPermissions:
    @pytest.mark.parametrize(
        ("permissions", "may"),
        [
            ((), set()),
            (("view_schedule", "change_schedule", "define_code"), set()),
            (("view_secret",), {"see"}),
            (("add_secret",), {"add"}),
            (("change_secret",), {"see", "change"}),
            (("view_secret", "delete_secret"), {"see", "delete"}),
            (ALL, {"see", "add", "change", "delete"}),
        ],
    )
    def test_each_allows_its_own(self, permissions: tuple[str, ...], may: set[str]) -> None:
        secret, client = put(), member(*permissions)
        listed = client.get(page("schedules_secret_changelist"))
        shown = client.get(page("schedules_secret_change", secret.pk))
        assert (listed.status_code, shown.status_code) == ((200, 200) if "see" in may else (403, 403))
        did = {
            "add": add(client, typed("new")).status_code == 302,
            "change": change(client, secret, typed(value="new value")).status_code == 302,
            "delete": client.post(operation("schedules_secret", "delete", secret.pk)).status_code == 302,
        }
        assert {name for name, done in did.items() if done} == may - {"see"}
        expected = {"token"} - ({"token"} if "delete" in may else set()) | (
            {"new"} if "add" in may else set()
        )
        assert Secret.objects.names() == expected
        if "delete" not in may:
            assert value_of() == ("new value" if "change" in may else CANARY)

    def test_a_viewer_sees_names_and_no_field_for_a_value(self) -> None:
        secret, client = put(description="Of the mail server"), member("view_secret")
        assert "token" in client.get(page("schedules_secret_changelist")).content.decode()
        shown = client.get(page("schedules_secret_change", secret.pk)).content.decode()
        assert "Of the mail server" in shown
        for absent in ("<textarea", "Save", "Delete", "Used by", CANARY, secret.token):
            assert absent not in shown


def dump() -> str:
    """All that the database holds of all its tables."""
    with connection.cursor() as cursor:
        rows = []
        for table in connection.introspection.table_names():
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            rows += cursor.fetchall()
    return repr(rows)
