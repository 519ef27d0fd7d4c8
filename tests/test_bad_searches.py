"""What is typed into a search box or a filter is text and nothing else, wherever there is one."""

from __future__ import annotations

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client

from tests.addresses import Route, routes
from tests.api.calling import Caller
from tests.api.test_schema import schema
from tests.base import everything, make_schedule
from tests.commands import told
from tests.test_looking import furnish, others

pytestmark = pytest.mark.django_db

MARK, NOTHING = "quince", "zzzzzzzz"
LIVE = "<img src=x onerror=alert(1)>"
# Something may be called so, and is then found by it.
NAMES = ["*)(uid=*", "%", "%_\\%", "\\", "' OR 1=1 --", '"', LIVE]
# Nothing is.
NO_NAMES = ["{{ secrets.x }}", "a\0b", "\ud800", "x" * 10_240, "x " * 5_120, "%" * 60_000]
# By what is typed there, a thing is found that is called exactly so.
EXACT = {"pool", "memo", "target_id"}
WHOLE = "/admin/workflows/event/"


class Box(NamedTuple):
    """One place to type, or to choose, what a list is narrowed down to."""

    path: str
    name: str
    is_text: bool

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


@pytest.fixture
def client() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("ada"))
    return client


# Which addresses have which boxes is the same whatever is in the database.
known: dict[Route, dict[str, bool]] = {}


def boxes(client: Client, examples: Mapping[str, Any]) -> list[Box]:
    if not known:
        known.update((route, controls(client, route.path(examples))) for route in pages())
    return [
        Box(route.path(examples), name, is_text)
        for route, found in known.items()
        for name, is_text in found.items()
    ]


def pages() -> list[Route]:
    """Questions before an operation narrow nothing down."""
    return [route for route in routes() if not route.fixed and not route.name.startswith("api:")]


def controls(client: Client, path: str) -> dict[str, bool]:
    answer = client.get(path)
    is_page = answer.headers.get("Content-Type", "").startswith("text/html")
    return Controls(answer.content.decode()).found if answer.status_code == 200 and is_page else {}


def shown(client: Client, box: Box, text: str) -> tuple[int, int]:
    """How it is answered, and how often the mark is on the page."""
    answer = client.get(f"{box.path}?{query(box.name, text)}")
    content = answer.content.decode()
    assert LIVE not in content, f"{box} shows markup"
    return answer.status_code, content.count(MARK)


def query(name: str, text: str) -> str:
    return urlencode({name: text.encode("utf-8", "surrogatepass")})


def test_a_text_is_in_nothing_that_does_not_contain_it(client: Client) -> None:
    wrong, examples = [], furnish(MARK)
    before = everything() | others()
    for box in [box for box in boxes(client, examples) if box.is_text]:
        expected = shown(client, box, NOTHING)
        found = {text[:20]: shown(client, box, text) for text in [*NAMES, *NO_NAMES]}
        wrong += [f"{box}{text!r}: {got}, not {expected}" for text, got in found.items() if got != expected]
    assert wrong == []
    assert everything() | others() == before


def test_what_contains_it_is_found(client: Client) -> None:
    wrong, examples = [], furnish(f"{MARK} {' '.join(NAMES)}")
    for box in [box for box in boxes(client, examples) if box.is_text and not box.is_exact]:
        nothing, everything_there = shown(client, box, NOTHING)[1], shown(client, box, "")[1]
        found = {text: shown(client, box, text)[1] for text in NAMES}
        if everything_there > nothing:
            wrong += [f"{box}{text}" for text, count in found.items() if count <= nothing]
    assert wrong == []


def test_an_underscore_is_an_underscore(client: Client) -> None:
    """Of which there are some in the output and the errors of steps."""
    make_schedule(name="a_b", description=MARK)
    make_schedule(name="axb", description=MARK)
    for path in ("/schedules", "/admin/schedules/schedule/"):
        content = client.get(path, {"q": "A_B"}).content.decode()
        assert ("a_b" in content, "axb" in content) == (True, False), path


def test_what_is_no_choice_breaks_nothing(client: Client) -> None:
    others_ = [box for box in boxes(client, furnish(MARK)) if not box.is_text]
    codes = {
        f"{box}{text[:9]!r}": shown(client, box, text)[0] for box in others_ for text in ("\0", "%", "9" * 40)
    }
    assert {box: code for box, code in codes.items() if code >= 500} == {}


def test_the_boxes_are_found(client: Client) -> None:
    found = {(box.path, box.name) for box in boxes(client, furnish(MARK)) if box.is_text}
    searched = [model for model, admin in site._registry.items() if admin.search_fields]
    assert len({path for path, _ in found if path.startswith("/admin/")}) == len(searched)
    listed = ("schedules", "executions", "activities", "calendars", "templates", "topics/mail")
    assert found >= {(f"/{name}", "q") for name in listed}


def filters() -> list[tuple[str, str]]:
    """Those of the API that take any text."""
    found = []
    for path, of in schema()["paths"].items():
        for each in of.get("get", {}).get("parameters", []):
            kind = each["schema"].get("items", each["schema"])
            is_text = kind.get("type") == "string" and not kind.keys() & {"enum", "format", "pattern"}
            if each["in"] == "query" and is_text and "{" not in path:
                found.append((path, each["name"]))
    return found


def asked(caller: Caller, path: str, name: str, text: str) -> tuple[int, str]:
    answer = caller.client.get(f"{path}?{query(name, text)}")
    return answer.status_code, answer.content.decode() if not answer.streaming else ""


def test_a_filter_of_the_api_takes_text() -> None:
    User.objects.create_superuser("ada")
    furnish(MARK)
    caller, wrong = Caller(), []
    for path, name in filters():
        _, nothing = asked(caller, path, name, NOTHING)
        for text in [*NAMES, *NO_NAMES]:
            code, content = asked(caller, path, name, text)
            is_named = code == 400 and name in content
            is_nothing = code == 200 and content.count(MARK) == nothing.count(MARK)
            if not (is_named if "\0" in text else is_named or is_nothing):
                wrong.append(f"{path}?{name}={text[:20]!r}: {code} {content[:200]}")
    assert wrong == []


def test_the_api_finds_what_contains_it() -> None:
    User.objects.create_superuser("ada")
    furnish(f"{MARK} {' '.join(NAMES)}")
    caller = Caller()
    searches = [(path, name) for path, name in filters() if name in ("search", "text")]
    assert len(searches) >= 4
    for path, name in searches:
        for text in NAMES:
            code, content = asked(caller, path, name, text)
            assert (code, MARK in content) == (200, True), f"{path}?{name}={text}"


@pytest.mark.parametrize("text", [*NAMES, "%" * 60_000], ids=lambda text: text[:20])
def test_the_command_takes_text(text: str) -> None:
    make_schedule(name="Plain")
    assert told("schedules", text)["schedules"] == []
    make_schedule(name=f"So {text[:100]}")
    assert len(told("schedules", text[:100])["schedules"]) == 1
