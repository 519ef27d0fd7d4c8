from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from activities.models import Activity, ActivityItem
from database import clock
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    claim,
    end,
    enqueue,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.web.pages import ask, markup, poll, text_of, version_of
from workflows.words import NOTHING_TO_DO

pytestmark = pytest.mark.django_db


def shown(answer: Any) -> list[str]:
    return re.findall(r'href="/activities/\d+" data-row-link>([^<]+)', markup(answer))


def test_filters_are_in_the_address(client: Client) -> None:
    execution = start(step("good"), step("bad", 1, "fail"), name="Nightly")
    run_until_idle()
    assert execution.schedule is not None
    execution.schedule.pause(note="holiday", until=None, initiator=SOMEBODY, now=NOW)
    enqueue(step("job"))
    wanted = {
        "": (every := ["job", "Nightly", "bad", "good", "Nightly", "Nightly", "Nightly"]),
        "status=failed_with_error": ["bad", "Nightly"],
        "status=pending": ["job"],
        "operation=changes": ["Nightly", "Nightly", "Nightly"],
        "operation=run&target_type=python": ["job", "bad", "good"],
        f"target_type=schedule&target_id={execution.schedule_id}": ["Nightly"] * 4,
        "initiator_type=schedule": [],
        "initiator=AD": every,
        "initiator=bob": [],
        "q=holiday": ["Nightly"],
        "q=it broke": ["bad", "Nightly"],
        "since=2100-01-01T00:00": [],
        "until=2000-01-01T00:00": [],
        "since=2026-01-01T00:00&until=2100-01-01T00:00&status=pending": ["job"],
    }
    assert {query: shown(client.get(f"/activities?{query}")) for query in wanted} == wanted


def test_the_list_costs_the_same_whatever_it_shows(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    enqueue(*(step(f"job {number}") for number in range(60)))
    with django_assert_max_num_queries(4):
        client.get("/activities")
    with django_assert_max_num_queries(8):
        client.get("/activities?q=job&since=2020-01-01T00:00&until=2100-01-01T00:00")


def test_runs_that_found_nothing_to_do_are_shown_on_request(client: Client) -> None:
    enqueue(step("job"), step("busy"), step("idle"))
    Activity.objects.exclude(target_name="job").update(target_type="handler", message=NOTHING_TO_DO)
    Activity.objects.filter(target_name="busy").update(message="Consumed 1 event")
    assert shown(client.get("/activities")) == ["busy", "job"]
    assert shown(client.get("/activities?idle=on")) == ["idle", "busy", "job"]


def test_the_list_is_sent_again_when_something_has_happened(client: Client) -> None:
    version = version_of(client.get("/activities"), "rows")
    assert poll(client, "/activities", "rows", version=version).status_code == 204
    enqueue(step("job"))
    assert shown(poll(client, "/activities", "rows", version=version)) == ["job"]


class TestPage:
    def test_an_attempt_has_its_chain_its_items_and_its_output(self, client: Client) -> None:
        execution = start(step("flaky", 0, "fail", max_retries=1, retry_seconds=0), step("talk", 0, "talk"))
        run_until_idle()
        first, second = attempts(execution, "flaky")
        text = text_of(client.get(first.get_absolute_url()))
        assert "RuntimeError: it broke" in text
        assert re.search(r"Attempt 1 ✕ failed .* Attempt 2 ✕ failed", text)
        assert "Traceback" in text
        assert "Failed permanently" not in text
        assert "Failed permanently after 2 attempts." in text_of(client.get(second.get_absolute_url()))
        # When each began, not when it was queued; one that never began says so.
        Activity.objects.filter(pk=first.pk).update(created_at=NOW, executed_at=NOW + seconds(3_600))
        Activity.objects.filter(pk=second.pk).update(executed_at=None)
        chain = client.get(first.get_absolute_url()).text.partition('class="chain"')[2]
        assert "2026-11-16 04:00:00" in chain
        assert "2026-11-16 03:00:00" not in chain
        assert "not started" in chain
        assert f"Step of {execution} ✕ failed" in text
        assert second.get_absolute_url() in client.get(first.get_absolute_url()).text
        text = text_of(client.get(attempts(execution, "talk")[0].get_absolute_url()))
        assert "line 2" in text
        assert "object 2" in text

    def test_records_lead_to_their_parts_and_to_what_they_are_about(self, client: Client) -> None:
        execution = start(step("a"), step("b", 1), name="Nightly")
        answer = client.get(f"/activities/{execution.activity_id}")
        assert shown(answer) == ["a", "b"]
        assert f"Record of Nightly #{execution.pk}" in text_of(answer)
        execution.cancel(initiator=SOMEBODY, now=NOW, reason="enough")
        answer = client.get(Activity.objects.get(operation="cancel").get_absolute_url())
        assert execution.get_absolute_url() in answer.text
        assert "enough" in text_of(answer)

    def test_one_that_waits_says_why_and_live_parts_are_sent_when_they_change(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        (task,) = enqueue(step("job", 0, "talk"), now=clock.now())
        url = f"/activities/{task.activity_id}"
        answer = client.get(url)
        assert "No running worker serves pool default." in text_of(answer)
        assert f"/do/workertask/front?id={task.pk}" in answer.text
        version = version_of(answer)
        with django_assert_max_num_queries(5):
            assert poll(client, f"{url}/live", "live", version=version).status_code == 204
        with django_assert_max_num_queries(3):
            assert poll(client, f"{url}/output", "more").status_code == 204
        run_until_idle(now=clock.now())
        answer = poll(client, f"{url}/live", "live", version=version)
        assert (answer.status_code, "✓" in answer.text) == (286, True)
        answer = poll(client, f"{url}/output", "more")
        assert (answer.status_code, answer.text.count('class="line ')) == (286, 3)
        assert client.get(f"{url}/output.txt").text == "line 0\nline 1\nline 2\n"

    def test_items_of_objects_say_what_happened_to_each(self, client: Client) -> None:
        execution = start(step("sync"))
        (activity,) = attempts(execution, "sync")
        for fields in (
            {"name": "Ada", "change": "updated", "data": {"department": ["Sales", "IT"], "line": 17}},
            {"name": "Bob", "outcome": "failed", "error_type": "bad_value", "external_id": "b-7"},
            {"name": "plain", "message": "as ever"},
        ):
            ActivityItem.objects.create(activity=activity, created_at=NOW, **{"outcome": "ok"} | fields)
        page = client.get(activity.get_absolute_url())
        tab = client.get(f"/executions/{execution.pk}?tab=items")
        for answer in (page, tab):
            ada, bob, plain = re.findall(
                r'<tr><th scope="row">.*?</tr>', markup(answer).partition("Items")[2]
            )
            assert '<span class="tag">updated</span>' in ada
            assert "<li>department:<del>Sales</del>→<ins>IT</ins></li><li>line: 17</li>" in ada
            assert '<div class="quiet">b-7</div>' in bob
            assert '<span class="tag">bad_value</span>' in bob
            assert '<td class="line">as ever</td>' in plain
            assert 'class="tag"' not in plain

    def test_objects_that_were_only_counted_are_told(self, client: Client) -> None:
        (activity,) = attempts(start(step("sync")), "sync")
        Activity.objects.filter(pk=activity.pk).update(items_total=12_345)
        text = text_of(client.get(activity.get_absolute_url()))
        assert "The step counted 12,345 objects without recording an item for each." in text

    def test_a_running_step_says_how_fast_it_is_and_how_long_it_will_take(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clock, "now", lambda: NOW + seconds(20))
        start(step("sync"))
        worker = make_worker()
        (task,) = claim(worker)
        url = f"/activities/{task.activity_id}"
        assert "Progress" not in text_of(client.get(url))
        Activity.objects.tell_progress([(task.activity_id, 17_000, 100_000, "")], worker_id=worker.pk)
        answer = client.get(url)
        assert "Progress 17,000 of 100,000 · 850/s · about 2 min left" in text_of(answer)
        version = version_of(answer)
        assert poll(client, f"{url}/live", "live", version=version).status_code == 204
        monkeypatch.setattr(clock, "now", lambda: NOW + seconds(200))
        assert "85/s · about 16 min left" in text_of(poll(client, f"{url}/live", "live", version=version))
        end(worker, task, now=NOW + seconds(200))
        assert "17,000 of 100,000 Requested by" in text_of(client.get(url))

    def test_a_failed_job_is_retried(self, client: Client) -> None:
        (task,) = enqueue(step("bad", 0, "fail"))
        run_until_idle()
        failed = Activity.objects.get(task_key=task.key)
        assert f"/do/activity/retry?id={failed.pk}" in client.get(failed.get_absolute_url()).text
        answer = client.post(ask("activity", "retry", failed.pk))
        assert answer["Location"] == Activity.objects.get(retry_of=failed).get_absolute_url()
