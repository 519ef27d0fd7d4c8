"""Parts of pages that poll, as a browser asks for them."""

from __future__ import annotations

import html
import re
from typing import Any

from django.test import Client

HTMX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/"}


def version_in(text: str, part: str) -> str:
    """The version that the part with this id has on a page."""
    tag = re.search(rf'<\w+ id="{part}"[^>]*>', text)
    assert tag is not None, f"{part} is not on the page"
    found = re.search(r'"version": "(\w+)"', html.unescape(tag[0]))
    assert found is not None, f"{part} does not poll"
    return found[1]


def poll(client: Client, url: str, version: str) -> Any:
    return client.get(url, {"version": version}, headers=HTMX)
