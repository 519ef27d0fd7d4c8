"""What people see when something is wrong: in the look of all pages, with a way on, and no traceback."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from django.db import OperationalError, connection
from django.test import Client, RequestFactory

from jimsite import error_pages
from tests.admin_pages import sign_in

pytestmark = pytest.mark.django_db


def test_an_address_that_does_not_exist() -> None:
    answer = sign_in().get("/nowhere")
    assert answer.status_code == 404
    assert "This page does not exist" in answer.text
    assert "jim.css" in answer.text
    assert "/login?next=/nowhere" in Client().get("/nowhere").text


REDIRECTS = {
    "/schedules/": "/schedules",
    "/schedules/7/edit/?a=b": "/schedules/7/edit?a=b",
    "/api/v1/schedules/": "/api/v1/schedules",
    "/api/v1/": "/api/v1",
    "/api/v1": "/api/v1/docs",
    "/favicon.ico": "/static/jim/jim.svg",
}


@pytest.mark.parametrize(("asked", "found"), REDIRECTS.items())
def test_an_address_that_is_nearly_right_leads_to_the_right_one(asked: str, found: str) -> None:
    assert Client().get(asked)["Location"] == found


def test_a_slash_too_many_keeps_the_method_and_leads_nowhere_if_nothing_is_there() -> None:
    assert Client().post("/api/v1/tasks/").status_code == 308
    for path in ("/nowhere/", "/schedules/x/", "//", "//evil.example/", "//schedules/", "/%5Cevil.example/"):
        assert Client().get("/", PATH_INFO=unquote(path)).status_code == 404, path


def test_a_form_that_was_open_for_too_long() -> None:
    client = sign_in(client=Client(enforce_csrf_checks=True))
    answer = client.post("/tokens/new", {"name": "x"})
    assert (answer.status_code, "Reload the page" in answer.text) == (403, True)


def test_when_all_is_broken_not_even_the_database_is_asked(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        answer = error_pages.broken(RequestFactory().get("/"))
    assert (answer.status_code, "Internal error" in answer.text) == (500, True)


TRY_AGAIN = [
    ("GET", "/schedules/7?tab=%22a%22&b=c", "/schedules/7?tab=%22a%22&amp;b=c"),
    ("GET", "//evil.example/", "/%2Fevil.example/"),
    ("POST", "/do/schedule/run?id=7", "/"),
]


@pytest.mark.parametrize(("method", "path", "again"), TRY_AGAIN)
def test_the_way_on_is_the_page_that_failed_unless_a_form_was_sent(
    method: str, path: str, again: str
) -> None:
    asked, _, query = path.partition("?")
    request = RequestFactory().generic(method, "/", PATH_INFO=asked, QUERY_STRING=query)
    outage = error_pages.DatabaseAway(error_pages.broken).process_exception(
        request, OperationalError("closed")
    )
    for answer in (error_pages.broken(request), outage):
        assert answer is not None
        assert f'href="{again}">{"Try again" if method == "GET" else "Go to the home page"}' in answer.text


@pytest.mark.parametrize("path", ["/schedules", "/admin/schedules/schedule/"])
def test_an_outage_of_the_database_is_no_fault_of_a_page(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sign_in()

    def away(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("the connection is closed")

    monkeypatch.setattr("django.contrib.auth.middleware.auth.get_user", away)
    answer = client.get(path)
    assert (answer.status_code, answer["Retry-After"]) == (503, "2")
    assert "The database cannot be reached" in answer.text


def test_a_table_that_is_missing_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    client = sign_in()
    client.raise_request_exception = False

    def look(*args: Any, **kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM nowhere")

    monkeypatch.setattr("django.contrib.auth.middleware.auth.get_user", look)
    assert client.get("/schedules").status_code == 500


def test_a_page_that_one_may_not_see_names_what_is_missing_and_text_is_text() -> None:
    answer = sign_in().get("/do/%3Cscript%3E/x")
    assert "<script>" not in answer.text.replace("<script src", "")
    answer = sign_in("nobody").get("/settings")
    assert (answer.status_code, "web.view_settings" in answer.text) == (403, True)
