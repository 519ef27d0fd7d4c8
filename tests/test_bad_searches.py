"""What is typed into a search box or a filter is text and nothing else, wherever there is one."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client

from tests.addresses import described, routes, visitor
from tests.api.calling import Caller
from tests.base import everything, make_schedule
from tests.commands import told
from tests.test_looking import furnish, others

pytestmark = pytest.mark.django_db

MARK, NOTHING = "quince", "zzzzzzzz"
LIVE = "<img src=x onerror=alert(1)>"
# Something may be called so, and is then found by it.
NAMES = ["*)(uid=*", "%", "%_\\%", "\\", "' OR 1=1 --", '"', LIVE]
CALLED = f"{MARK} {' '.join(NAMES)}"
# Nothing is called so; the first ones are one of each kind: a wildcard, markup and quotes, what is no text.
STRANGE = ["qu%ce", f"{LIVE}' OR '1'='1' --", "a\0b\ud800"]
ALL_STRANGE = [
    *STRANGE,
    *("qu_nce", "qu*ce", "qu.*ce", "*)(uid=**", "%%%%", "\\\\", "' OR 2=2 --", '""', "{{ secrets.x }}"),
    *("a\0b", "\ud800", "x" * 10_240, "x " * 5_120, "%" * 60_000),
]
THOROUGHLY = pytest.param(NAMES, ALL_STRANGE, marks=pytest.mark.long, id="one by one")
TEXTS = pytest.mark.parametrize(
    ("names", "strange"), [pytest.param([" ".join(NAMES)], STRANGE, id="one of each kind"), THOROUGHLY]
)
# By what is typed there, a thing is found that is called exactly so.
EXACT = {"pool", "memo", "target_id"}
WHOLE = "/admin/workflows/event/"


class Box(NamedTuple):
    """One place to type, or to choose, what a list is narrowed down to."""

    path: str
    name: str
    is_text: bool
    # How often the mark is on the page when nothing is typed.
    marks: int

    def __str__(self) -> str:
        return f"{self.path}?{self.name}="

    @property
    def is_exact(self) -> bool:
        return self.name in EXACT or self.path == WHOLE


class Controls(HTMLParser):
    """The names of what can be typed or chosen in those forms of a page that only look."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, bool] = {}
        self.is_looking = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self.is_looking = (given.get("method") or "get").lower() == "get"
        elif self.is_looking and tag in ("input", "select", "textarea") and given.get("name"):
            is_text = tag == "input" and (given.get("type") or "text") in ("text", "search")
            self.found[str(given["name"])] = is_text

    def handle_endtag(self, tag: str) -> None:
        self.is_looking = self.is_looking and tag != "form"


def boxes(client: Client, examples: dict[str, Any]) -> list[Box]:
    """Questions before an operation narrow nothing down."""
    found = []
    for route in routes():
        if not route.fixed and not route.name.startswith("api:"):
            path = route.path(examples)
            answer = client.get(path)
            is_page = answer.headers.get("Content-Type", "").startswith("text/html")
            if answer.status_code == 200 and is_page and b"<form" in answer.content:
                page = answer.content.decode()
                controls = Controls(page).found.items()
                found += [Box(path, name, is_text, page.count(MARK)) for name, is_text in controls]
    return found


def shown(client: Client, box: Box, text: str) -> tuple[int, int]:
    """How it is answered, and how often the mark is on the page."""
    answer = client.get(f"{box.path}?{query(box.name, text)}")
    content = answer.content.decode()
    assert LIVE not in content, f"{box} shows markup"
    return answer.status_code, content.count(MARK)


def query(name: str, text: str) -> str:
    return urlencode({name: text.encode("utf-8", "surrogatepass")})


@TEXTS
def test_a_box_finds_what_contains_the_text_and_nothing_else(
    names: list[str], strange: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    examples = furnish(CALLED)
    before, wrong = everything() | others(), []
    found = boxes(client, examples)
    for box in [box for box in found if box.is_text]:
        code, nothing = shown(client, box, NOTHING)
        if code != 200:
            wrong.append(f"{box}: {code}")
        got = {text[:20]: shown(client, box, text) for text in strange}
        wrong += [f"{box}{text!r}: {told}" for text, told in got.items() if told != (code, nothing)]
        if box.marks > nothing and not box.is_exact:
            wrong += [f"{box}{text}" for text in names if shown(client, box, text)[1] <= nothing]
    for box in [box for box in found if not box.is_text]:
        codes = {text[:9]: shown(client, box, text)[0] for text in ("\0", "9" * 40)}
        wrong += [f"{box}{text!r}: {code}" for text, code in codes.items() if code >= 500]
    assert wrong == []
    assert everything() | others() == before
    they_are_all_there({(box.path, box.name) for box in found if box.is_text})


def they_are_all_there(found: set[tuple[str, str]]) -> None:
    searched = [model for model, admin in site._registry.items() if admin.search_fields]
    assert len({path for path, _ in found if path.startswith("/admin/")}) == len(searched)
    listed = ("schedules", "executions", "activities", "calendars", "templates", "topics/mail")
    assert found >= {(f"/{name}", "q") for name in listed}


def filters() -> list[tuple[str, str]]:
    """Those of the API that take any text."""
    found = []
    for path, of in described().items():
        for each in of.get("get", {}).get("parameters", []):
            kind = each["schema"].get("items", each["schema"])
            is_text = kind.get("type") == "string" and not kind.keys() & {"enum", "format", "pattern"}
            if each["in"] == "query" and is_text and "{" not in path:
                found.append((path, each["name"]))
    return found


@TEXTS
def test_a_filter_of_the_api_finds_what_contains_the_text_and_nothing_else(
    names: list[str], strange: list[str]
) -> None:
    User.objects.create_superuser("ada")
    furnish(CALLED)
    caller, wrong = Caller(), []
    assert len([name for _, name in filters() if name in ("search", "text")]) >= 4
    for path, name in filters():
        _, nothing = asked(caller, path, name, NOTHING)
        for text in strange:
            code, content = asked(caller, path, name, text)
            is_named = code == 400 and name in content
            is_nothing = code == 200 and content.count(MARK) == nothing.count(MARK)
            if not (is_named if "\0" in text else is_named or is_nothing):
                wrong.append(f"{path}?{name}={text[:20]!r}: {code} {content[:200]}")
        for text in names if name in ("search", "text") else ():
            code, content = asked(caller, path, name, text)
            if code != 200 or MARK not in content:
                wrong.append(f"{path}?{name}={text}: {code}")
    assert wrong == []


def asked(caller: Caller, path: str, name: str, text: str) -> tuple[int, str]:
    answer = caller.client.get(f"{path}?{query(name, text)}")
    return answer.status_code, answer.content.decode() if not answer.streaming else ""


def test_the_command_takes_text() -> None:
    make_schedule(name="Plain")
    for text in [*NAMES, "%" * 60_000]:
        assert told("schedules", text)["schedules"] == []
    for text in NAMES:
        make_schedule(name=f"So {MARK} {text} x")
        assert len(told("schedules", f"{MARK} {text} x")["schedules"]) == 1
