from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from database import clock
from execution.models import Execution
from tests.admin_pages import sign_in
from tests.base import SOMEBODY, claim, end, fresh, make_worker, run_until_idle, seconds, start, step
from tests.web.pages import ask, markup, poll, text_of, toasts, version_of

pytestmark = pytest.mark.django_db


def shown(answer: Any) -> list[int]:
    return [int(pk) for pk in re.findall(r'id="execution-(\d+)"', answer.text)]


def test_each_says_how_it_is_and_how_far(client: Client) -> None:
    start(step("a", 0, "fail"), step("b", 1), name="Broken")
    run_until_idle()
    start(step("a"), step("b", 1), step("c", 2), name="Halfway")
    worker = make_worker()
    end(worker, *claim(worker))
    text = text_of(client.get("/executions"))
    assert re.search(
        r"Halfway #\d+ ▶ in progress ada manual .* 2 of 3 Broken #\d+ .* it broke ✕ failed", text
    )


def test_an_end_with_warnings_has_the_same_words_in_every_list(client: Client) -> None:
    start(step("a", 0, "items", kwargs={"ok": 1, "warning": 1}), name="Uneasy")
    run_until_idle()
    for path in ("/executions", "/activities"):
        assert text_of(client.get(path)).count("! completed with warnings") >= 1, path


def test_filters_are_in_the_address(client: Client) -> None:
    now = clock.now()
    done = start(name="Done", now=now)
    run_until_idle(now=now)
    failed = start(step("a"), step("b", 1, "fail"), name="Broken", now=now)
    run_until_idle(now=now)
    late = start(name="Late", deadline_seconds=1, now=now - seconds(60))
    group = Execution.objects.submit("Group", [step("a")], initiator=SOMEBODY, now=now)
    stopping = start(step("slow"), name="Stopping", now=now)
    claim(make_worker(now), now=now)
    stopping.cancel(initiator=SOMEBODY, now=now)
    wanted = {
        "": [stopping, group, late, failed, done],
        "state=completed": [done],
        "state=failed": [failed],
        "state=partial": [failed],
        "state=in_progress": [stopping, group, late],
        "state=cancelling": [stopping],
        "state=late": [late],
        "source=manual": [stopping, late, failed, done],
        "source=job": [group],
        "q=roke": [failed],
        f"q={done.pk}": [done],
        f"schedule={late.schedule_id}": [late],
        "since=2100-01-01T00:00": [],
        "until=2000-01-01T00:00": [],
        "since=2000-01-01T00:00&until=2100-01-01T00:00&q=done": [done],
    }
    assert {query: shown(client.get(f"/executions?{query}")) for query in wanted} == {
        query: [execution.pk for execution in found] for query, found in wanted.items()
    }


def test_what_is_far_back_is_looked_for_in_parts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.views.executions.REACH", 2)
    wanted = start(name="Old")
    for number in range(3):
        start(name=f"New {number}")
    answer = client.get("/executions?q=old")
    assert shown(answer) == []
    assert "Searched back to" in text_of(answer)
    further = re.search(r'rel="next" href="([^"]+)"', markup(answer))
    assert further is not None
    answer = client.get(unescape(further[1]))
    assert (shown(answer), "Searched back to" in answer.text) == ([wanted.pk], False)


def test_the_list_is_sent_again_only_if_it_changed(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    execution = start(step("a"))
    version = version_of(client.get("/executions"))
    with django_assert_max_num_queries(5):
        assert poll(client, "/executions", "rows", version=version).status_code == 204
    run_until_idle()
    answer = poll(client, "/executions?state=completed", "rows", version=version)
    assert (answer.status_code, shown(answer)) == (200, [execution.pk])
    assert "<main" not in answer.text
    assert "version=" not in answer.text


def test_several_are_cancelled_at_once_with_what_that_means(client: Client) -> None:
    answer = client.get("/do/execution/cancel?next=/executions")
    assert toasts(client, answer) == ["Select at least one row first."]
    first, second = start(step("slow"), step("after", 1)), start(step("slow"), step("after", 1))
    claim(make_worker(), limit=1)
    url = ask("execution", "cancel", first.pk, second.pk)
    text = text_of(client.get(f"{url}&next=/executions"))
    assert "1 task is running, 1 task will not start" in text
    assert "2 tasks will not start" in text
    assert len(toasts(client, client.post(f"{url}&next=/executions", {"reason": "enough"}))) == 2
    # Those who may not run have nothing to choose them for.
    for page, count in ((client, 2), (sign_in("viewer"), 0)):
        assert page.get("/executions").text.count('name="id"') == count
    assert (fresh(first).state, fresh(second).state) == ("cancelling", "cancelled")


def test_the_list_costs_the_same_whatever_it_shows(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    for number in range(8):
        start(step("a"), name=f"Schedule of many {number}")
    client.get("/executions")
    with django_assert_max_num_queries(4):
        client.get("/executions")
    with django_assert_max_num_queries(8):
        client.get("/executions?q=many&since=2020-01-01T00:00&until=2100-01-01T00:00")
