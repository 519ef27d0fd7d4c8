from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
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


def test_a_first_visit_transfers_less_than_100_kb_and_nothing_from_elsewhere() -> None:
    for number in range(30):
        make_schedule(name=f"Schedule {number}", spec={"every": ["1h"]})
    client = sign_in()
    answer = client.get("/", headers={"Accept-Encoding": "gzip"})
    text = gzip.decompress(answer.content).decode()
    parts = re.findall(r'(?:src|href)="(/static/[^"?]+)"', text)
    assert len(parts) >= 4
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    sizes = [Path(str(finders.find(part.removeprefix("/static/")))).stat().st_size for part in set(parts)]
    assert len(answer.content) + sum(sizes) < 100_000
