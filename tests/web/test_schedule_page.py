from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from database import clock
from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
from execution.models import Execution
from schedules.models import Backfill, Schedule
from tests.admin_pages import member, sign_in
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    make_schedule,
    make_template,
    make_worker,
    run_until_idle,
    start,
    step,
)
from tests.web.pages import markup, poll, version_of
from text.words import badge

pytestmark = pytest.mark.django_db
HOURLY = {"every": [{"every": "1h"}]}
LONDON = {"cron": ["30 1 * * *"], "time_zone": "Europe/London"}


def page(schedule: Schedule, tab: str = "") -> str:
    return f"/schedules/{schedule.pk}{tab}"


def labels(client: Client, schedule: Schedule) -> list[str]:
    return [verb.name for verb, _ in client.get(page(schedule)).context["verbs"]]


def ask_backfill(schedule: Schedule, hours: int = 3) -> Backfill:
    """Of the hours before the schedule was made."""
    between: dict[str, Any] = {"start_at": NOW - timedelta(hours=hours), "end_at": NOW - timedelta(seconds=1)}
    return Backfill.objects.ask(schedule, **between, initiator=SOMEBODY, now=NOW)


class TestHead:
    def test_it_says_what_the_schedule_is_and_draws_its_plan(self, client: Client) -> None:
        plan = (step("import"), step("left", 4), step("right", 4), step("mail", 7))
        schedule = make_schedule(
            *plan, name="Nightly", description="Moves money", spec=LONDON, now=clock.now()
        )
        answer = client.get(page(schedule))
        text = answer.text
        for words in ("Nightly", "Moves money", "At 01:30 every day, Europe/London", badge("active")):
            assert words in text
        assert "The plan: “import”, then “left” beside “right”, then “mail”" in text
        groups = re.findall(r'<tr><td class="number">(\d+)</td><th scope="row">(\w+)', markup(answer))
        assert groups == [("1", "import"), ("2", "left"), ("2", "right"), ("3", "mail")]

    def test_each_tab_has_its_own_title_and_what_is_done_there_leads_back_to_it(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY, name="Nightly", now=clock.now())
        titles = set()
        for tab in ("", "/ledger", "/why", "/backfills", "/revisions", "/export?show"):
            shown = client.get(page(schedule, tab))
            titles.add(shown.context["title"])
            assert "Nightly" in shown.context["title"]
            verbs = {verb.name: url for verb, url in shown.context["verbs"]}
            assert client.get(verbs["pause"]).context["back"] == page(schedule, tab)
        assert len(titles) == 6
        assert client.post(verbs["pause"])["Location"] == page(schedule, tab)
        # Of what is closed there is no code to be shown.
        assert client.post(verbs["close"])["Location"] == page(schedule)

    def test_run_now_takes_one_click_and_shows_the_execution(self, client: Client) -> None:
        schedule = make_schedule()
        shown = client.get(page(schedule))
        url, sent = f"/do/schedule/run?id={schedule.pk}", {"key": shown.context["run_key"]}
        assert f'action="{url}' in shown.text
        for _ in range(2):  # a double click
            answer = client.post(url, sent)
        assert answer["Location"] == Execution.objects.get().get_absolute_url()

    def test_everything_that_can_be_done_and_is_allowed_is_in_its_menu(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY, now=clock.now())
        text = client.get(page(schedule)).text
        for url in ("/edit", "/duplicate", "/export"):
            assert f'href="{page(schedule)}{url}"' in text
        assert labels(client, schedule) == ["run", "skip", "backfill", "pause", "close"]
        assert labels(sign_in("operator"), schedule) == ["run", "skip", "backfill", "pause"]
        assert labels(sign_in("viewer"), schedule) == []
        schedule.pause(initiator=SOMEBODY, now=clock.now())
        schedule.skip_next(initiator=SOMEBODY, now=clock.now())
        trigger(schedule, initiator=SOMEBODY, now=clock.now())
        expected = ["run", "cancel", "skip", "unskip", "backfill", "resume", "close"]
        assert labels(client, schedule) == expected
        text = client.get(f"/do/schedule/close?id={schedule.pk}").text
        assert "1 execution will continue" in text
        assert "1 task will be cancelled" in client.get(f"/do/schedule/cancel?id={schedule.pk}").text
        schedule.close(initiator=SOMEBODY, now=clock.now())
        # What runs goes on.
        assert labels(client, schedule) == ["cancel"]
        assert "/edit" not in client.get(page(schedule)).text
        assert client.get(page(schedule, "/export")).status_code == 404


class TestOverview:
    def test_a_skip_can_be_taken_back_and_a_pause_or_a_broken_one_says_why(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY, now=clock.now())
        schedule.skip_next(initiator=SOMEBODY, now=clock.now())
        text = client.get(page(schedule)).text
        assert "skipped</span> by ada" in text
        assert f"/do/schedule/unskip?id={schedule.pk}" in text
        schedule.pause(initiator=SOMEBODY, now=clock.now(), note="The bank is closed")
        text = client.get(page(schedule)).text
        assert "by ada" in text
        assert "The bank is closed" in text
        Schedule.objects.filter(pk=schedule.pk).update(spec={"cron": ["nonsense"]}, spec_error="cron: no")
        assert "the spec is corrected: cron: no" in " ".join(client.get(page(schedule)).text.split())

    def test_results_durations_and_the_year_are_shown(self, client: Client) -> None:
        schedule, worker, now = make_schedule(), make_worker(), clock.now()
        for status in ("complete", "failed_with_error"):
            trigger(schedule, initiator=SOMEBODY, now=now - timedelta(seconds=60))
            end(
                worker,
                *claim(worker, now=now),
                status=status,
                now=now - timedelta(seconds=30),
                error="no luck",
            )
        invoke(now)
        shown = client.get(page(schedule))
        assert [run.state for run in shown.context["ended"]] == ["failed", "completed"]
        assert shown.context["durations"].label == "Duration of the last 2 runs: at most 30 s, usually 30 s"
        assert shown.context["year"].label.endswith("1 completed and 1 failed")
        assert "no luck" in shown.text
        assert "50.0 %" in shown.text

    def test_what_runs_is_followed_cheaply(self, client: Client, django_assert_max_num_queries: Any) -> None:
        backfilled, execution = make_schedule(spec=HOURLY), start(*(step(f"s{n}", n % 3) for n in range(20)))
        assert execution.schedule is not None
        ask_backfill(backfilled)
        for schedule in (backfilled, execution.schedule):
            with django_assert_max_num_queries(15):
                shown = client.get(page(schedule))
        version = version_of(shown, "now")
        url = page(execution.schedule, "/now")
        with django_assert_max_num_queries(5):
            assert poll(client, url, "now", version=version).status_code == 204
        run_until_idle(now=clock.now())
        with django_assert_max_num_queries(5):
            assert badge("completed") in poll(client, url, "now", version=version).text


def test_it_is_downloaded_as_code_or_shown_to_be_copied(client: Client) -> None:
    schedule = make_schedule(name="Ümlaut / x", spec=HOURLY)
    answer = client.get(page(schedule, "/export"))
    assert answer["Content-Disposition"] == 'attachment; filename="umlaut-x.yaml"'
    assert "name: Ümlaut / x" in answer.text
    assert 'data-copy="#code"' in client.get(page(schedule, "/export?show")).text
    schedule = make_schedule(name="日本語")
    answer = client.get(page(schedule, "/export"))
    assert f'filename="schedule-{schedule.pk}.yaml"' in answer["Content-Disposition"]


def test_its_code_needs_the_permissions_to_view_what_it_uses() -> None:
    make_template("Export")
    schedule = make_schedule({"name": "a", "template": "Export"})
    url = page(schedule, "/export")
    assert member("view_schedule").get(url).status_code == 403
    User.objects.all().delete()
    assert "Export" in member("view_schedule", "view_tasktemplate").get(url).text


class TestLedger:
    def test_each_time_has_a_fate_and_a_reason(self, client: Client) -> None:
        schedule = make_schedule()
        for number in range(2):
            trigger(schedule, initiator=SOMEBODY, now=NOW, key=str(number), overlap="allow_all")
        occurrences = schedule.occurrences.order_by("pk")
        blocker = Execution.objects.earliest("pk")
        skipped = {"status": "skipped", "reason": "overlap", "blocked_by": blocker.pk}
        occurrences.filter(pk=occurrences[1].pk).update(**skipped)
        text = client.get(page(schedule, "/ledger")).text
        assert badge("skipped") in text
        assert "another execution was running" in text
        assert f"/schedules/{schedule.pk}/why?at=2026-11-16T03%3A00%3A00Z" in text
        rows = client.get(page(schedule, "/ledger?status=skipped")).context["occurrences"]
        assert [row["occurrence"].status for row in rows] == ["skipped"]
        assert client.get(page(schedule, "/ledger?source=backfill")).context["occurrences"] == []
        assert len(client.get(page(schedule, "/ledger?status=nonsense")).context["occurrences"]) == 2
        # Only a time of its own can start after its time: others are asked for when they start.
        occurrences.update(planned_at=NOW - timedelta(seconds=7))
        assert "7.0 s" not in client.get(page(schedule, "/ledger")).text
        occurrences.update(source="auto")
        assert "7.0 s" in client.get(page(schedule, "/ledger")).text

    def test_it_is_read_in_pages(self, client: Client, django_assert_max_num_queries: Any) -> None:
        make_schedule(spec=HOURLY, catch_up_seconds=0).generate_until(NOW + timedelta(hours=2))
        schedule = make_schedule(spec={"every": [{"every": "1m"}]}, catch_up_seconds=0)
        schedule.generate_until(NOW + timedelta(minutes=60))
        with django_assert_max_num_queries(6):
            first = client.get(page(schedule, "/ledger")).context["pages"]
        older = client.get(first.older).context["pages"]
        assert (len(first.rows), len(older.rows), older.older) == (50, 10, "")


def test_a_time_is_explained_on_the_clock_of_the_schedule(client: Client) -> None:
    url = page(make_schedule(spec=LONDON, now=clock.now()), "/why?at=")
    text = client.get(f"{url}2998-06-01T12:00:00").text
    assert "The schedule does not run at this time: no rule matches this time" in text
    assert "12:00 on 1 June 2998, Europe/London" in text
    for asked in ("2026-07-16T03:00:00Z", "2026-07-16T04:00:00"):
        text = client.get(f"{url}{asked}").text
        assert 'value="2026-07-16T04:00:00"' in text
        assert "04:00 on 16 July 2026, Europe/London" in text
    execution = start(now=NOW)
    assert execution.schedule is not None
    text = client.get(page(execution.schedule, "/why?at=2026-11-16T03:00:00Z")).text
    assert f'href="{execution.get_absolute_url()}"' in text
    answer = client.get(f"{url}soon")
    assert (answer.status_code, answer.context["answer"]) == (200, None)
    assert answer.context["form"].errors


def test_each_change_is_shown_and_any_two_can_be_compared(client: Client) -> None:
    schedule = make_schedule(name="One")
    for token, name in enumerate(("Two", "Three"), 1):
        schedule.edit(token=token, initiator=SOMEBODY, now=NOW, changes={"name": name})
    for query, before, after in (("", "Two", "Three"), ("?from=1&to=3", "One", "Three")):
        text = client.get(page(schedule, f"/revisions{query}")).text
        assert f"<del>{before}</del>" in text
        assert f"<ins>{after}</ins>" in text


def waits_for(answer: Any) -> list[int]:
    """The executions that what is pending is said to wait for."""
    rows = re.findall(r'waiting for another execution to end <a href="/executions/(\d+)">', answer.text)
    return [int(pk) for pk in rows]


def test_backfills_are_listed_followed_until_they_are_done_and_can_be_cancelled(client: Client) -> None:
    schedule = make_schedule(spec=HOURLY)
    backfill = ask_backfill(schedule)
    url = f"/backfills/{backfill.pk}"
    text = client.get(page(schedule, "/backfills")).text
    assert (f'href="{url}"' in text, "0 of 3" in text) == (True, True)
    shown = client.get(url)
    assert "3 not reached yet" in shown.text
    assert "No runs yet" in shown.text
    asked = {"part": "backfill", "version": version_of(shown, "backfill")}
    assert poll(client, url, **asked).status_code == 204
    backfill.generate(NOW)
    invoke(NOW)
    going_on = poll(client, url, **asked)
    first = Execution.objects.latest("pk")
    assert "1 running, 2 waiting" in going_on.text
    assert "No runs yet" not in going_on.text
    # Each says what it waits for now, whatever that was at first.
    assert waits_for(going_on) == waits_for(client.get(page(schedule, "/ledger"))) == [first.pk, first.pk]
    run_until_idle(now=NOW)
    assert waits_for(client.get(url)) == []
    invoke(NOW)
    second = poll(client, url, part="backfill", version=version_of(going_on, "backfill"))
    assert waits_for(second) == [Execution.objects.latest("pk").pk] != [first.pk]
    for _ in range(2):
        run_until_idle(now=NOW)
        invoke(NOW)
    ended = poll(client, url, **asked)
    assert (ended.status_code, "3 ended" in ended.text) == (286, True)
    assert "data-poll" not in ended.text
    another = ask_backfill(make_schedule(spec=HOURLY))
    cancel = f"/do/backfill/cancel?id={another.pk}"
    assert cancel in client.get(another.get_absolute_url()).text
    client.post(cancel, {"reason": "not now"})
    assert "not now" in client.get(another.get_absolute_url()).text
