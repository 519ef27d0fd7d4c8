from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders

from tests.admin_pages import sign_in
from tests.base import make_schedule

pytestmark = pytest.mark.django_db


def test_a_first_visit_transfers_less_than_100_kb_and_nothing_from_elsewhere() -> None:
    for number in range(10):
        make_schedule(name=f"Schedule {number}", spec={"every": ["1h"]})
    client = sign_in()
    answer = client.get("/", headers={"Accept-Encoding": "gzip"})
    text = gzip.decompress(answer.content).decode()
    parts = re.findall(r'(?:src|href)="(/static/[^"?]+)"', text)
    assert len(parts) >= 4
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    sizes = [Path(str(finders.find(part.removeprefix("/static/")))).stat().st_size for part in set(parts)]
    assert len(answer.content) + sum(sizes) < 100_000


@pytest.mark.parametrize(
    ("query", "goal"),
    [("", "/"), ("?next=/queue", "/queue"), ("?next=/login", "/"), ("?next=https://elsewhere.example/", "/")],
)
def test_whoever_is_signed_in_is_not_asked_to_sign_in(query: str, goal: str) -> None:
    answer = sign_in().get(f"/login{query}", follow=True)
    assert (answer.status_code, answer.request["PATH_INFO"]) == (200, goal)
