from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from activities import clock
from activities.words import badge
from execution.invoker import invoke, trigger
from execution.models import Chore, Execution, Worker
from execution.scheduler import tick
from schedules.models import Schedule
from tests.admin_pages import sign_in
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    everything,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.web.parts import poll, version_in
from tests.webhooks.base import make_endpoint
from webhooks.models import Endpoint

pytestmark = pytest.mark.django_db
PARTS = {"pulse": "/home/pulse", "attention": "/home/attention", "running": "/home/running"} | {
    "upcoming": "/home/upcoming"
}


@pytest.fixture
def client() -> Client:
    return sign_in()


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
    def test_a_healthy_system_has_no_banner(self, client: Client) -> None:
        at_work()
        text = client.get("/").text
        assert "No scheduler is at work" not in text
        assert "No worker is at work" not in text
        assert "1 worker" in text

    def test_no_scheduler_for_two_minutes_is_told_in_a_banner(self, client: Client) -> None:
        at_work()
        Chore.objects.filter(name="tick").update(last_run_at=clock.now() - timedelta(minutes=3))
        text = client.get("/").text
        assert "No scheduler is at work" in text
        assert "manage.py runscheduler" in text

    def test_no_worker_is_told_as_well(self, client: Client) -> None:
        assert "No worker is at work" in client.get("/").text

    def test_the_strip_counts_what_runs_waits_and_ended(self, client: Client) -> None:
        worker, now = at_work(), clock.now()
        for status in ("complete", "complete", "complete", "failed_with_error"):
            start(now=now)
            end(worker, *claim(worker, now=now), status=status, now=now)
        start(now=now)
        beats = client.get("/").context["pulse"]
        assert (beats["beats"].running, beats["beats"].queued) == (1, 1)
        assert (beats["day"].total, beats["day"].counts["failed"], beats["day"].success_rate) == (4, 1, 0.75)

    def test_without_schedules_the_first_step_is_shown(self, client: Client) -> None:
        assert "Make the first schedule" in client.get("/").text
        make_schedule()
        assert "Make the first schedule" not in client.get("/").text


class TestAttention:
    def test_nothing_needs_it(self, client: Client) -> None:
        assert "no schedule is failing" in client.get("/").text

    def test_a_failing_schedule_can_be_retried(self, client: Client) -> None:
        execution = fail(name="Shaky")
        text = client.get("/").text
        assert badge("failed") in text
        assert "it broke" in text
        assert f"/do/execution/retry?id={execution.pk}" in text

    def test_one_that_paused_itself_can_be_resumed(self, client: Client) -> None:
        execution = fail(pause_on_failure=True)
        text = client.get("/home/attention").text
        assert "Paused by itself" in text
        assert f"/do/schedule/resume?id={execution.schedule_id}" in text

    def test_one_that_somebody_paused_needs_nothing(self, client: Client) -> None:
        make_schedule().pause(initiator=SOMEBODY, now=clock.now(), note="holiday")
        assert client.get("/home/attention").context["attention"]["concerns"] == []

    def test_an_overdue_one_leads_to_why(self, client: Client) -> None:
        schedule = make_schedule(spec={"every": [{"every": "1h"}]}, now=clock.now() - timedelta(hours=3))
        text = client.get("/home/attention").text
        assert badge("overdue") in text
        assert f"/schedules/{schedule.pk}/why?at=" in text

    def test_a_broken_one_leads_to_the_editor(self, client: Client) -> None:
        schedule = make_schedule()
        Schedule.objects.filter(pk=schedule.pk).update(spec_error="cron: nonsense")
        text = client.get("/home/attention").text
        assert "cron: nonsense" in text
        assert f"/schedules/{schedule.pk}/edit" in text

    def test_a_late_execution_can_be_cancelled(self, client: Client) -> None:
        execution = start(deadline_seconds=1, now=clock.now() - seconds(60))
        text = client.get("/home/attention").text
        assert badge("late") in text
        assert f"/do/execution/cancel?id={execution.pk}" in text

    def test_a_webhook_that_fails_leads_to_its_deliveries(self, client: Client) -> None:
        endpoint = make_endpoint(name="Pager")
        Endpoint.objects.filter(pk=endpoint.pk).update(failed_in_a_row=4)
        text = client.get("/home/attention").text
        assert "4 deliveries in a row failed" in text
        assert f'href="{endpoint.get_absolute_url()}"' in text

    def test_who_may_not_run_is_led_to_it_instead(self) -> None:
        execution = fail()
        text = sign_in("viewer").get("/home/attention").text
        assert "/do/" not in text
        assert execution.get_absolute_url() in text


class TestRunning:
    def test_it_shows_progress_and_when_it_will_end(self, client: Client) -> None:
        worker, now = at_work(), clock.now()
        execution = start(step("one"), step("two", 1), name="Long", now=now - seconds(600))
        assert execution.schedule is not None
        for _ in range(2):
            end(worker, *claim(worker, now=now - seconds(600)), now=now - seconds(480))
        trigger(execution.schedule, initiator=SOMEBODY, now=now - seconds(30))
        end(worker, *claim(worker, now=now))
        [row] = client.get("/home/running").context["running"]["rows"]
        assert (row.progress.done, row.progress.steps, row.part) == (1, 2, 0.5)
        assert row.eta == row.execution.started_at + seconds(120)

    def test_what_takes_longer_than_usual_says_so(self, client: Client) -> None:
        worker, now = at_work(), clock.now()
        execution = start(name="Slow", now=now - seconds(600))
        end(worker, *claim(worker, now=now), now=now - seconds(590))
        assert execution.schedule is not None
        trigger(execution.schedule, initiator=SOMEBODY, now=now - seconds(60))
        assert "usually takes 10 s" in client.get("/home/running").text


class TestUpcoming:
    def test_the_next_times_can_be_skipped_and_a_skipped_one_says_so(self, client: Client) -> None:
        now = clock.now()
        schedule = make_schedule(spec={"every": [{"every": "1h"}]}, name="Hourly", now=now)
        assert f"/do/schedule/skip?id={schedule.pk}" in client.get("/").text
        schedule.skip_next(initiator=SOMEBODY, now=now)
        text = client.get("/home/upcoming").text
        assert "/do/schedule/skip" not in text
        assert badge("skipped") in text

    def test_paused_ones_are_not_upcoming(self, client: Client) -> None:
        make_schedule(spec={"every": [{"every": "1h"}]}, paused=True, now=clock.now())
        assert "No schedule has a time to come" in client.get("/").text


@pytest.mark.parametrize(("part", "url"), PARTS.items())
def test_a_part_is_sent_again_only_when_it_has_changed(client: Client, part: str, url: str) -> None:
    version = version_in(client.get("/").text, part)
    assert poll(client, url, version).status_code == 204
    now = clock.now()
    worker = make_worker(now)
    make_schedule(spec={"every": [{"every": "1h"}]}, now=now)
    start(deadline_seconds=1, now=now - seconds(60))
    claim(worker, now=now)
    changed = poll(client, url, version)
    assert changed.status_code == 200
    assert poll(client, url, version_in(changed.text, part)).status_code == 204


@pytest.mark.parametrize("url", PARTS.values())
def test_asking_costs_few_queries(client: Client, url: str, django_assert_max_num_queries: Any) -> None:
    """Two of them for who asks."""
    make_endpoint()
    for _ in range(5):
        start(step("a"), step("b", 1), deadline_seconds=1, now=clock.now() - seconds(60))
        make_schedule(spec={"every": [{"every": "1h"}]}, now=NOW)
    clock.now()
    with django_assert_max_num_queries(5):
        assert client.get(url).status_code == 200


def test_the_page_costs_few_queries_and_changes_nothing(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    start(now=clock.now())
    before = everything()
    with django_assert_max_num_queries(15):
        client.get("/")
    assert everything() == before


def test_who_may_see_nothing_is_told_what_to_do() -> None:
    text = sign_in("nobody").get("/").text
    assert "an administrator can give you a role" in text


@pytest.mark.parametrize("url", [*PARTS.values()])
def test_parts_need_the_same_permissions_as_what_they_show(url: str) -> None:
    assert sign_in("nobody").get(url).status_code == (200 if url == PARTS["attention"] else 403)
