"""Secrets: their values go in, and never come out."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings

from activities.models import Activity
from api.models import KeyedAnswer
from schedules.models import Secret
from tests.api.calling import Caller, fields
from tests.base import make_schedule

pytestmark = pytest.mark.django_db
VALUE = " correct-horse-battery \n"
SECRET: dict[str, Any] = {"name": "smtp", "value": VALUE, "description": "Outgoing mail"}


def test_one_is_made_set_anew_and_deleted_and_its_value_is_never_told() -> None:
    api = Caller()
    made = api.post("secrets", SECRET)
    assert (made.status_code, made.json()["name"], made["Location"][-5:]) == (201, "smtp", "/smtp")
    assert Secret.objects.reveal(["smtp"]) == {"smtp": VALUE}
    tag = api.get("secrets/smtp")["ETag"]
    assert api.patch("secrets/smtp", {"value": "another one"}).status_code == 428
    assert api.patch("secrets/smtp", {"value": "another one"}, if_match=tag).status_code == 200
    assert api.patch("secrets/smtp", {"value": "the last one"}, if_match=tag).status_code == 412
    assert Secret.objects.reveal(["smtp"]) == {"smtp": "another one"}
    described = api.patch("secrets/smtp", {"description": "Mail"}, if_match="*").json()
    [listed] = api.get("secrets", name="sm").json()["results"]
    assert (described["description"], listed["description"]) == ("Mail", "Mail")
    assert Secret.objects.reveal(["smtp"]) == {"smtp": "another one"}
    assert {"value", "token"}.isdisjoint(listed.keys() | described.keys())
    assert list(Activity.objects.order_by("pk").values_list("operation", flat=True)[1:]) == [
        "create",
        *["edit"] * 2,
    ]
    assert api.delete("secrets/smtp", if_match="*").status_code == 204
    assert api.get("secrets/smtp").status_code == 404


def test_one_that_a_schedule_uses_stays() -> None:
    api = Caller()
    api.post("secrets", SECRET)
    config = {"url": "https://mail.example", "headers": {"Token": "{{ secrets.smtp }}"}}
    schedule = make_schedule({"index": 0, "name": "send", "step_type": "http", "config": config})
    assert api.get("secrets/smtp").json()["used_by"] == [{"id": schedule.pk, "name": schedule.name}]
    refused = api.delete("secrets/smtp", if_match="*")
    assert (refused.status_code, schedule.name in refused.json()["detail"]) == (409, True)


def test_what_is_wrong_is_told_by_field_without_the_value() -> None:
    api = Caller()
    api.post("secrets", SECRET)
    odd: list[tuple[str, Any]] = [("name", "SMTP"), ("name", "smtp"), ("value", "abc"), ("value", "")]
    odd += [
        ("value", 918273645),
        ("value", ["918273645"]),
        ("value", "x" * 70_000),
        ("description", "x" * 1_001),
    ]
    for field, value in odd:
        wrong = api.post("secrets", SECRET | {"name": "other"} | {field: value})
        assert (wrong.status_code, fields(wrong)) == (400, [field]), value
        assert field != "value" or "918273645" not in wrong.text
    assert fields(api.patch("secrets/smtp", {"value": "", "name": "x"}, if_match="*")) == ["value", "name"]


def test_nothing_that_is_kept_with_a_key_helps_to_guess_the_value(settings: LazySettings) -> None:
    """The digest of a body is keyed: whoever copies the database cannot try values until one fits."""
    api, digests = Caller(), set()
    for key in ("one", "two"):
        settings.SECRET_KEY = key * 20
        assert api.post("secrets", SECRET, idempotency_key=key).status_code == 201
        kept = KeyedAnswer.objects.get(key=key)
        assert VALUE.strip() not in str(kept.body)
        digests.add(kept.request_digest)
        Secret.objects.all().delete()
    assert len(digests) == 2


def test_without_keys_to_encrypt_with_it_says_what_is_missing(settings: LazySettings) -> None:
    settings.JIM_SECRETS_KEYS = None
    refused = Caller().post("secrets", SECRET)
    assert (refused.status_code, "does not have the encryption" in refused.json()["detail"]) == (409, True)
