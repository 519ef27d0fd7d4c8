"""Pages as people and their browsers ask for them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

from django.test import Client
from django.utils.html import strip_tags


def text_of(answer: Any) -> str:
    """What can be read on it, without the frame around it."""
    assert answer.status_code in (200, 286), answer.status_code
    found = re.search(r"<main.*?</main>", answer.text, re.DOTALL)
    return " ".join(unescape(strip_tags((found[0] if found else answer.text).replace("<", " <"))).split())


def markup(answer: Any) -> str:
    """Its tags and texts, without the whitespace of its templates."""
    return re.sub(r"\s*(<[^>]*>)\s*", r"\1", " ".join(answer.text.split())).replace(" >", ">")


def poll(client: Client, url: str, part: str, **given: str) -> Any:
    """As the part of a page does that asks again and again."""
    url = f"{url}{'&' if '?' in url else '?'}{urlencode(given)}"
    return client.get(url, headers={"HX-Request": "true", "HX-Target": part})


def version_of(answer: Any, part: str = "") -> str:
    """What that part, or the first one that polls, would say next time."""
    tag = re.search(rf'<\w+ id="{part}"[^>]*>' if part else r"(?s).+", answer.text)
    assert tag is not None, f"{part} is not on the page"
    found = re.search(r'"version": "(\w+)"', unescape(tag[0]))
    assert found is not None, f"{part} does not poll"
    return found[1]


def ask(kind: str, name: str, *ids: int) -> str:
    """The address of the question whether to do that."""
    return f"/do/{kind}/{name}?{'&'.join(f'id={pk}' for pk in ids)}"


def toasts(client: Client, answer: Any) -> list[str]:
    """What is said on the page that an answer leads to."""
    assert answer.status_code == 302
    shown = client.get(answer["Location"])
    assert shown.status_code == 200
    return [str(message) for message in shown.context["messages"]]
