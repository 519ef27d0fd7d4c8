from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import clock
from activities.models import Activity, ActivityItem, OutputLine
from tests.admin_pages import page, sign_in
from tests.base import NOW, attempts, make_schedule, run_until_idle, seconds, start, step

pytestmark = pytest.mark.django_db
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def client() -> Client:
    return sign_in()


def test_the_page_shows_the_chain_of_attempts_and_why_each_failed(client: Client) -> None:
    execution = start(step("flaky", 0, "fail", max_retries=1))
    run_until_idle()
    run_until_idle(now=NOW + seconds(10))
    first, second = attempts(execution, "flaky")
    text = client.get(page("activities_activity_change", second.pk)).content.decode()
    assert page("activities_activity_change", first.pk) in text
    assert "attempt 2 (this one)" in text
    assert "RuntimeError: it broke" in text
    assert "Traceback (most recent call last)" in text
    assert str(second.task_key) in text
    assert page("activities_activity_change", execution.activity_id) in text


def test_the_page_shows_children_items_output_result(client: Client) -> None:
    execution = start(step("talk", 0, "talk"), step("count", 1, "result", kwargs={"value": {"n": 42}}))
    run_until_idle()
    talk, count = attempts(execution, "talk")[0], attempts(execution, "count")[0]
    text = client.get(page("activities_activity_change", talk.pk)).content.decode()
    for shown in ("object 1", "line 2", "3 of 3"):
        assert shown in text
    text = client.get(page("activities_activity_change", count.pk)).content.decode()
    assert "&quot;n&quot;: 42" in text
    root = client.get(page("activities_activity_change", execution.activity_id)).content.decode()
    assert page("activities_activity_change", talk.pk) in root
    assert page("activities_activity_change", count.pk) in root


def test_an_administrative_change_shows_its_details(client: Client) -> None:
    make_schedule(name="Defined")
    created = Activity.objects.get(operation="create")
    text = client.get(page("activities_activity_change", created.pk)).content.decode()
    assert "&quot;name&quot;: &quot;Defined&quot;" in text


def test_failed_items_come_first_and_many_are_cut(client: Client) -> None:
    activity = attempts(start(), "work")[0]
    rows = [
        ActivityItem(activity=activity, name=f"good one {n}", outcome="ok", created_at=NOW)
        for n in range(210)
    ]
    rows.append(ActivityItem(activity=activity, name="the bad one", outcome="failed", created_at=NOW))
    ActivityItem.objects.bulk_create(rows)
    Activity.objects.filter(pk=activity.pk).update(items_total=211, items_failed=1)
    text = client.get(page("activities_activity_change", activity.pk)).content.decode()
    assert text.index("the bad one") < text.index("good one 0")
    assert "200 of 211 shown" in text


def test_long_output_is_cut_on_the_page_and_whole_as_text(client: Client) -> None:
    activity = attempts(start(), "work")[0]
    lines = [
        OutputLine(activity=activity, number=n, stream="stdout", text=f"line {n} {EVIL}", written_at=NOW)
        for n in range(1, 211)
    ]
    OutputLine.objects.bulk_create(lines)
    text = client.get(page("activities_activity_change", activity.pk)).content.decode()
    assert "The last 200 lines." in text
    assert "line 10 " not in text
    assert "line 11 " in text
    assert EVIL not in text
    whole = client.get(page("activities_activity_output", activity.pk))
    assert whole["Content-Type"] == "text/plain; charset=utf-8"
    assert whole["X-Content-Type-Options"] == "nosniff"
    assert whole.content.decode().splitlines() == [line.text for line in lines]


def test_whatever_a_step_says_is_text(client: Client) -> None:
    execution = start(step(EVIL, 0, "fail", kwargs={"message": EVIL}))
    run_until_idle()
    activity = attempts(execution, EVIL)[0]
    for url in (
        page("activities_activity_changelist"),
        page("activities_activity_change", activity.pk),
        page("activities_activity_change", execution.activity_id),
        page("execution_execution_change", execution.pk),
        page("execution_execution_changelist"),
    ):
        assert EVIL not in client.get(url).content.decode()


def test_filters(client: Client) -> None:
    start(step("fine"), step("broken", 0, "fail"), step("after", 1), name="Filtered")
    run_until_idle()
    make_schedule(name="Unused")
    wanted = {
        "status__exact=failed_with_error": {"broken", "Filtered"},
        "operation=trigger": {"Filtered"},
        "operation=create": {"Filtered", "Unused"},
        "target_type=python": {"fine", "broken", "after"},
        "target_type=schedule&operation=create": {"Filtered", "Unused"},
        "initiator_type=system": set(),
        "q=brok": {"broken"},
    }
    url = page("activities_activity_changelist")
    lists = {query: client.get(f"{url}?{query}").context["cl"].result_list for query in wanted}
    assert {query: {each.target_name for each in listed} for query, listed in lists.items()} == wanted


def test_the_list_counts_nothing_and_needs_as_many_queries_for_many_rows_as_for_few(client: Client) -> None:
    start(step("a"))
    few = queries(client)
    start(*(step(f"s{n}", n) for n in range(40)))
    many = queries(client)
    assert len(many) == len(few) <= 3
    assert not [sql for sql in many if "COUNT(" in sql]


def queries(client: Client) -> list[str]:
    clock.now()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(page("activities_activity_changelist")).status_code == 200
    return [query["sql"] for query in captured]
