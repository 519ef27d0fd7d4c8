from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from database import clock
from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.models import Chore, Execution, Worker
from schedules.models import Schedule
from tests.admin_pages import sign_in
from tests.base import SOMEBODY, claim, end, make_schedule, make_worker, run_until_idle, seconds, start, step
from tests.web.pages import markup, poll, version_of
from tests.webhooks.base import make_endpoint
from text.words import badge
from webhooks.models import Endpoint

pytestmark = pytest.mark.django_db
PARTS = {part: f"/home/{part}" for part in ("pulse", "attention", "running", "upcoming")}


def at_work() -> Worker:
    """A scheduler that has just ticked, and a worker."""
    now = clock.now()
    tick(now)
    return make_worker(now)


def fail(**fields: Any) -> Execution:
    """An execution that has failed, and whose schedule knows it."""
    execution = start(step("work", 0, "fail"), now=clock.now(), **fields)
    run_until_idle(now=clock.now())
    invoke(clock.now())
    return execution


class TestPulse:
    def test_who_is_not_at_work_is_told_in_a_banner(self, client: Client) -> None:
        text = client.get("/").text
        assert "No worker is running" in text
        assert "Create the first schedule" in text
        make_schedule()
        at_work()
        text = client.get("/").text
        for words in ("No scheduler is running", "No worker is running", "Create the first schedule"):
            assert words not in text
        Chore.objects.filter(name="tick").update(last_run_at=clock.now() - timedelta(minutes=3))
        assert "No scheduler is running" in client.get("/").text

    def test_the_strip_counts_what_runs_waits_and_ended(self, client: Client) -> None:
        worker, now = at_work(), clock.now()
        for status in ("complete", "complete", "complete", "failed_with_error"):
            start(now=now)
            end(worker, *claim(worker, now=now), status=status, now=now)
        start(now=now)
        beats = client.get("/").context["pulse"]
        assert (beats["beats"].running, beats["beats"].queued) == (1, 1)
        assert (beats["day"].total, beats["day"].counts["failed"], beats["day"].success_rate) == (4, 1, 0.75)
        for name, count in (("runs in 24 h", 5), ("failed in 24 h", 1)):
            link = rf'<a href="([^"]+)"><b[^>]*>\d+</b><span>(?:<span[^>]*>[^<]*</span>)?{name}'
            [url] = re.findall(link, markup(client.get("/")))
            assert "since=" in url
            assert len(client.get(unescape(url)).context["rows"]) == count


class TestAttention:
    def test_a_failing_schedule_can_be_retried_by_those_who_may_run(self, client: Client) -> None:
        execution = fail(name="Shaky")
        text = client.get("/").text
        assert badge("failed") in text
        assert "it broke" in text
        assert f"/do/execution/retry?id={execution.pk}" in text
        text = sign_in("viewer").get("/home/attention").text
        assert "/do/" not in text
        assert execution.get_absolute_url() in text

    def test_each_concern_leads_to_what_helps(self, client: Client) -> None:
        now = clock.now()
        overdue = make_schedule(spec={"every": [{"every": "1h"}]}, now=now - timedelta(hours=3))
        broken = make_schedule()
        Schedule.objects.filter(pk=broken.pk).update(spec_error="cron: nonsense")
        make_schedule().pause(initiator=SOMEBODY, now=now, note="holiday")  # by somebody, so it needs nothing
        gave_up = fail(pause_on_failure=True)
        late = start(deadline_seconds=1, now=now - seconds(60))
        endpoint = make_endpoint(name="Pager")
        Endpoint.objects.filter(pk=endpoint.pk).update(failed_in_a_row=4)
        text = client.get("/home/attention").text
        for words in (badge("overdue"), "cron: nonsense", badge("late"), "The last 4 deliveries failed"):
            assert words in text
        assert (text.count("Paused automatically"), "holiday" in text) == (1, False)
        assert f"/do/schedule/resume?id={gave_up.schedule_id}" in text
        assert f"/schedules/{overdue.pk}/why?at=" in text
        assert f"/schedules/{broken.pk}/edit" in text
        assert f"/do/execution/cancel?id={late.pk}" in text
        assert f'href="{endpoint.get_absolute_url()}"' in text


def test_it_shows_progress_and_when_it_will_end_or_that_it_takes_longer_than_usual(client: Client) -> None:
    worker, now = at_work(), clock.now()
    execution = start(step("one"), step("two", 1), name="Long", now=now - seconds(600))
    assert execution.schedule is not None
    for _ in range(2):
        end(worker, *claim(worker, now=now - seconds(600)), now=now - seconds(480))
    trigger(execution.schedule, initiator=SOMEBODY, now=now - seconds(30))
    end(worker, *claim(worker, now=now))
    answer = client.get("/home/running")
    [row] = answer.context["running"]["rows"]
    assert (row.progress.done, row.progress.steps, row.part) == (1, 2, 0.5)
    assert row.eta == row.execution.started_at + seconds(120)
    assert "usually takes" not in answer.text
    Execution.objects.filter(pk=row.execution.pk).update(started_at=now - seconds(200))
    assert "usually takes 2 min" in client.get("/home/running").text


def test_the_next_times_can_be_skipped_and_a_skipped_one_says_so(client: Client) -> None:
    now = clock.now()
    schedule = make_schedule(spec={"every": [{"every": "1h"}]}, name="Hourly", now=now)
    assert f"/do/schedule/skip?id={schedule.pk}" in client.get("/").text
    paused = make_schedule(spec={"every": [{"every": "1h"}]}, paused=True, now=now)
    assert f"/do/schedule/skip?id={paused.pk}" not in client.get("/").text
    schedule.skip_next(initiator=SOMEBODY, now=now)
    text = client.get("/home/upcoming").text
    assert "/do/schedule/skip" not in text
    assert badge("skipped") in text


def test_a_part_is_sent_again_only_when_it_has_changed_and_costs_few_queries(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(15):
        home = client.get("/")
    now, versions = clock.now(), {part: version_of(home, part) for part in PARTS}
    for part, url in PARTS.items():
        assert poll(client, url, part, version=versions[part]).status_code == 204, part
    worker = make_worker(now)
    make_endpoint()
    for _ in range(5):
        make_schedule(spec={"every": [{"every": "1h"}]}, now=now)
        start(step("a"), step("b", 1), deadline_seconds=1, now=now - seconds(60))
    claim(worker, now=now)
    for part, url in PARTS.items():
        # Two of them for who asks.
        with django_assert_max_num_queries(5):
            changed = poll(client, url, part, version=versions[part])
        assert changed.status_code == 200, part
        assert poll(client, url, part, version=version_of(changed, part)).status_code == 204, part
