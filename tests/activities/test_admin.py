from __future__ import annotations

import pytest
from django.test import Client

from activities.models import Activity, ActivityItem, OutputLine
from tests.admin_pages import listed, page, sign_in
from tests.base import NOW, attempts, make_schedule, run_until_idle, seconds, start, step

pytestmark = pytest.mark.django_db
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def client() -> Client:
    return sign_in()


def shown(client: Client, pk: int | None) -> str:
    return str(client.get(page("activities_activity_change", pk)).content.decode())


def test_the_page_shows_the_chain_of_attempts_and_all_that_each_said(client: Client) -> None:
    flaky = step("flaky", 2, "fail", max_retries=1)
    execution = start(step("talk", 0, "talk"), step("count", 1, "result", kwargs={"value": {"n": 42}}), flaky)
    run_until_idle()
    run_until_idle(now=NOW + seconds(10))
    first, second = attempts(execution, "flaky")
    text = shown(client, second.pk)
    for words in ("attempt 2 (this one)", "RuntimeError: it broke", "Traceback (most recent call last)"):
        assert words in text
    assert str(second.task_key) in text
    told = ["Failed permanently after 2 attempts." in shown(client, each.pk) for each in (first, second)]
    assert told == [False, True]
    for pk in (first.pk, execution.activity_id):
        assert page("activities_activity_change", pk) in text
    talk, count = attempts(execution, "talk")[0], attempts(execution, "count")[0]
    text = shown(client, talk.pk)
    for words in ("object 1", "line 2", "3 of 3"):
        assert words in text
    assert "&quot;n&quot;: 42" in shown(client, count.pk)
    root = shown(client, execution.activity_id)
    assert page("activities_activity_change", talk.pk) in root
    assert page("activities_activity_change", count.pk) in root
    make_schedule(name="Defined")
    created = Activity.objects.filter(operation="create").latest("pk")
    assert "&quot;name&quot;: &quot;Defined&quot;" in shown(client, created.pk)


def test_of_many_items_failed_ones_come_first_and_long_output_is_whole_as_text(client: Client) -> None:
    activity = attempts(start(), "work")[0]
    names = [*((f"good one {n}", "ok") for n in range(210)), ("the bad one", "failed")]
    ActivityItem.objects.bulk_create(
        ActivityItem(activity=activity, name=name, outcome=outcome, created_at=NOW) for name, outcome in names
    )
    Activity.objects.filter(pk=activity.pk).update(items_total=211, items_failed=1)
    lines = [
        OutputLine(activity=activity, number=n, stream="stdout", text=f"line {n} {EVIL}", written_at=NOW)
        for n in range(1, 211)
    ]
    OutputLine.objects.bulk_create(lines)
    text = shown(client, activity.pk)
    assert text.index("the bad one") < text.index("good one 0")
    assert "200 of 211 shown" in text
    assert "The last 200 lines." in text
    assert ("line 10 " in text, "line 11 " in text, EVIL in text) == (False, True, False)
    whole = client.get(page("activities_activity_output", activity.pk))
    assert whole["Content-Type"] == "text/plain; charset=utf-8"
    assert whole["X-Content-Type-Options"] == "nosniff"
    assert whole.content.decode().splitlines() == [line.text for line in lines]


def test_items_of_objects_say_what_happened_to_each_and_none_are_missing_that_were_only_counted(
    client: Client,
) -> None:
    activity = attempts(start(), "work")[0]
    ActivityItem.objects.create(
        activity=activity,
        name="ada",
        outcome="ok",
        change="updated",
        error_type="bad_value",
        external_id="e-1",
        data={"title": [None, EVIL]},
        created_at=NOW,
    )
    Activity.objects.filter(pk=activity.pk).update(items_total=12_345)
    text = shown(client, activity.pk)
    for words in ("updated", "bad_value", "e-1", "<del>none</del> → <ins>&lt;img"):
        assert words in text
    assert "12345 shown" not in text


def test_filters() -> None:
    start(step("fine"), step("broken", 0, "fail"), name="Filtered")
    run_until_idle()
    wanted = {
        "status__exact=failed_with_error": {"broken", "Filtered"},
        "target_type=python": {"fine", "broken"},
        "target_type=schedule&operation=create": {"Filtered"},
        "initiator_type=system": set(),
        "q=brok": {"broken"},
    }
    assert {query: {each.target_name for each in listed(Activity, query)} for query in wanted} == wanted
