from __future__ import annotations

import pytest
from django.test import Client

from tests.admin_pages import sign_in
from tests.base import make_schedule

pytestmark = pytest.mark.django_db


def test_strangers_are_asked_to_sign_in() -> None:
    assert Client().get("/limits")["Location"] == "/login?next=/limits"
    assert Client().get("/login").status_code == 200


def test_those_who_may_not_see_a_page_are_told_so() -> None:
    answer = sign_in("nobody").get("/limits")
    assert (answer.status_code, "execution.view_limit" in answer.text) == (403, True)


def test_pages_that_do_not_exist_say_so() -> None:
    assert sign_in().get("/nowhere").status_code == 404
    assert sign_in("viewer").get("/api/v1/nowhere")["Content-Type"] == "application/problem+json"


def test_limits_are_listed() -> None:
    assert "Nothing is limited" in sign_in().get("/limits").text
    make_schedule()
