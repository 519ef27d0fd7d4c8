"""What is asked and done on the pages of a schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client

from activities.models import Activity
from database import clock
from execution.loops.manual_runs import trigger
from schedules.admin import filters
from schedules.generator import generate
from schedules.models import Backfill, Occurrence, Schedule, SharedCalendar
from tests.admin_pages import listed, operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, run_until_idle, start, step
from text.words import badge

pytestmark = pytest.mark.django_db
HOURLY = {"cron": ["0 * * * *"], "time_zone": "Europe/Berlin"}
DAYS_AGO = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=3)
EVIL = "<img src=x onerror=alert(1)>"
RANGE = {
    "start_at": f"{DAYS_AGO:%Y-%m-%dT%H:%M}",
    "end_at": f"{DAYS_AGO + timedelta(hours=20):%Y-%m-%dT%H:%M}",
    "which": "all",
    "overlap": "buffer_all",
    "key": "k",
}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """No hour passes while it looks."""
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    return sign_in()


def text_of(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    assert EVIL not in response.content.decode()
    return str(response.content.decode())


def ask(name: str, *schedules: Schedule) -> str:
    return operation("schedules_schedule", name, *(schedule.pk for schedule in schedules))


def ask_backfill(schedule: Schedule, *, hours: int = 6) -> Backfill:
    times: dict[str, Any] = {"start_at": DAYS_AGO, "end_at": DAYS_AGO + timedelta(hours=hours)}
    return Backfill.objects.ask(schedule, **times, initiator=SOMEBODY, now=clock.now())


def test_the_page_says_how_the_schedule_is_doing_in_a_handful_of_queries(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    now, spec = clock.now(), HOURLY | {"jitter": "10m"}
    failing = step("a", 0, "fail")
    schedule = make_schedule(failing, name=EVIL, spec=spec, now=now, overlap="allow_all", remaining=7)
    for _ in range(15):
        trigger(schedule, initiator=SOMEBODY, now=now)
    run_until_idle(now=now)
    trigger(schedule, initiator=SOMEBODY, now=now)
    Schedule.objects.update(skipped_count=3, skipped_reasons={"overlap": 2, "superseded": 1})
    schedule.refresh_from_db()
    schedule.skip_next(initiator=SOMEBODY, now=now)
    [at] = schedule.skips
    backfill, *_ = (ask_backfill(schedule, hours=hours) for hours in (1, 2, 3))
    url = page("schedules_schedule_change", schedule.pk)
    shown = page("schedules_backfill_change", backfill.pk)
    with django_assert_max_num_queries(16):
        text = text_of(client, url)
    for words in (
        "16 started, 15 failed, 3 skipped (2 overlap, 1 superseded), 0 missed, 0 dropped",
        *("15 failures in a row", "<dt>Runs left</dt><dd>7</dd>", shown),
        *("Starts, with jitter", "skipped by ada"),
    ):
        assert words in text
    cancel = operation("schedules_backfill", "cancel", backfill.pk)
    unskip = f"{page('schedules_schedule_do', 'unskip')}?id={schedule.pk}&amp;at={at}"
    assert (cancel in text, unskip in text) == (True, True)
    text = text_of(sign_in("viewer"), url)
    assert (cancel in text, unskip in text) == (False, False)
    client.post(cancel, {"reason": "wrong week"})
    assert "wrong week" in text_of(client, shown)


def test_next_times_are_left_out_once_by_a_page_that_is_sent_twice_and_taken_back(client: Client) -> None:
    schedule = make_schedule(name="Skippable", spec=HOURLY, now=clock.now())
    url = ask("skip", schedule, make_schedule(name="Manual"))
    asked = client.get(url)
    assert "Europe/Berlin" in asked.content.decode()
    for odd in ("", "x", "1:2,", "1:" + "9" * 40):
        assert set(client.post(url, {"tokens": odd}).context["form"].errors) == {"tokens"}, odd
    assert fresh(schedule).skips == {}
    tokens = {"tokens": asked.context["form"]["tokens"].value()}
    said = told(client, client.post(url, tokens))
    assert "“Skippable” will skip" in said
    assert "“Manual” has no upcoming run to skip" in said
    assert "This schedule was changed in the meantime" in told(client, client.post(url, tokens))
    (at,) = fresh(schedule).skips
    url = f"{ask('unskip', schedule)}&at={at}"
    assert client.get(url).context["form"]["at"].value() == at
    assert set(client.post(url, {"at": "2998-01-01"}).context["form"].errors) == {"at"}
    assert "will no longer skip" in told(client, client.post(url, {"at": at}))
    assert fresh(schedule).skips == {}
    assert {"skip", "unskip"} <= set(Activity.objects.values_list("operation", flat=True))


class TestBackfill:
    def test_a_dry_run_on_the_schedules_clock_comes_first(self, client: Client) -> None:
        schedule = make_schedule(name=EVIL, spec=HOURLY, now=DAYS_AGO - timedelta(hours=3))
        local = DAYS_AGO.replace(tzinfo=schedule.zone)
        trigger(schedule, initiator=SOMEBODY, now=DAYS_AGO, at=local)
        url = ask("backfill", schedule)
        assert "Preview" in text_of(client, url)
        shown = client.post(url, RANGE)
        text = shown.content.decode()
        assert "<b>21</b> of 21 times" in text
        assert f"{DAYS_AGO:%a %Y-%m-%d} 12:00:00" in text
        assert ("and so on, until" in text, 'value="Backfill"' in text, EVIL in text) == (True, True, False)
        rehearsed = {"rehearsed": shown.context["answers"]}
        # Other answers are rehearsed anew.
        text = client.post(url, RANGE | {"which": "missing"} | rehearsed).content.decode()
        assert ("<b>20</b> of 21 times" in text, "1 already executed" in text) == (True, True)
        assert Backfill.objects.count() == 0
        for _ in range(2):  # sent twice, as by a double click
            response = client.post(url, RANGE | rehearsed)
            backfill = Backfill.objects.get()
            assert response["Location"] == backfill.get_absolute_url()
        assert "has been queued" in told(client, response)
        assert (backfill.total, backfill.overlap, backfill.initiator_name) == (21, "buffer_all", "superuser")
        assert backfill.start_at == local

    def test_a_form_asks_for_one_backfill_of_each_schedule_and_for_no_other(self, client: Client) -> None:
        several = [make_schedule(name=name, spec=HOURLY, now=DAYS_AGO) for name in "ab"]
        url, missing = ask("backfill", *several), RANGE | {"which": "missing"}

        def send(**answers: str) -> str:
            shown = client.post(url, missing | answers)
            return told(client, client.post(url, missing | answers | {"rehearsed": shown.context["answers"]}))

        assert client.get(url).context["form"]["key"].value()
        send()
        for each in Backfill.objects.all():  # what it asked for is not missing any more
            each.generate(clock.now())
        rehearsed = {"rehearsed": urlencode(sorted(missing.items()))}
        assert "has been queued" in told(client, client.post(url, missing | rehearsed))
        assert [each.schedule for each in Backfill.objects.order_by("pk")] == several
        assert "Open the form again" in send(overlap="skip", which="all")
        assert Backfill.objects.count() == 2
        send(key="another", which="all")
        assert Backfill.objects.count() == 4

    def test_bad_answers_are_told_at_their_fields(self, client: Client) -> None:
        url = ask("backfill", make_schedule(spec={"cron": ["0 * * * *"]}, now=DAYS_AGO))
        for field, answer, words in (
            ("start_at", "yesterday", "Enter a date and time"),
            ("end_at", "2998-01-01T00:00", "ends in the future"),
            ("end_at", "1980-01-01T00:00", "ends before it starts"),
            ("which", "failed", "Scheduled times in the range: 21 (21 never executed)"),
        ):
            response = client.post(url, RANGE | {field: answer})
            assert words in " ".join(response.context["form"].errors[field])
        schedule = make_schedule(name="Manual")
        url = ask("backfill", schedule)
        assert "“Manual” has no scheduled times" in client.post(url, RANGE).content.decode()
        assert url not in text_of(client, page("schedules_schedule_change", schedule.pk))

    def test_its_page_shows_how_far_it_is_and_cancels_it(self, client: Client) -> None:
        backfill = ask_backfill(make_schedule(name="Past", spec=HOURLY, now=DAYS_AGO))
        shown = page("schedules_backfill_change", backfill.pk)
        text = text_of(client, shown)
        assert ("nothing yet" in text, 'http-equiv="refresh"' in text) == (True, True)
        generate(clock.now())
        backfill.generate(clock.now())
        text = text_of(client, shown)
        for words in (f"{backfill.total} waiting", f"?backfill__id__exact={backfill.pk}", badge("waiting")):
            assert words in text
        assert "Finished" not in text
        url = operation("schedules_backfill", "cancel", backfill.pk)
        assert "of “Past”" in text_of(client, url)
        assert "is cancelled" in told(client, client.post(url, {"reason": ""}))
        text = text_of(client, shown)
        assert (f"{backfill.total} not started" in text, "Finished" in text) == (True, True)
        assert 'http-equiv="refresh"' not in text
        assert "has already ended" in told(client, client.post(url, {"reason": ""}))
        assert len(listed(Occurrence, f"backfill__id__exact={backfill.pk}")) == backfill.total


def test_everything_is_paused_and_resumed(client: Client) -> None:
    schedules = [make_schedule(), make_schedule(), make_schedule(paused=True, note="mine")]
    before = everything()
    for name, bad in (("pause", {"note": "x" * 1001}), ("resume", {"missed": "?"})):
        assert set(client.post(page(f"schedules_schedule_{name}_all"), bad).context["form"].errors) == {*bad}
    url = page("schedules_schedule_pause_all")
    assert "2 schedules are affected" in text_of(client, url)
    assert everything() == before
    assert "2 schedules are paused" in told(client, client.post(url, {"note": "flood"}))
    assert [fresh(each).pause_note for each in schedules] == ["flood", "flood", "mine"]
    url = page("schedules_schedule_resume_all")
    assert "2 schedules are affected" in text_of(client, url)
    assert "2 schedules are active again" in told(client, client.post(url, {"missed": "discard"}))
    assert [fresh(each).status for each in schedules] == ["active", "active", "paused"]


def test_pausing_a_selection_leaves_what_is_paused_and_resuming_one_shows_why_each_is(client: Client) -> None:
    runs, own = make_schedule(name="Runs"), make_schedule(name="Own", paused=True, note="the bank moves")
    url = operation("schedules_schedule", "pause", runs.pk, own.pk)
    text = told(client, client.post(url, {"note": "flood", "until_0": "", "until_1": ""}))
    assert "“Own” is already paused (the bank moves). Nothing was changed." in text
    assert [fresh(each).pause_note for each in (runs, own)] == ["flood", "the bank moves"]
    text = text_of(client, operation("schedules_schedule", "resume", runs.pk, own.pk))
    assert "paused (flood)" in text
    assert "paused (the bank moves)" in text


def test_questions_about_one_schedule_are_answered(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    feast = [{"dates": "2027-05-03", "comment": EVIL}]
    SharedCalendar.objects.define("Days off", feast, initiator=SOMEBODY, now=NOW)
    spec = {"cron": ["0 9 * * *"], "exclude": [{"calendar": "Days off"}]}
    schedule = make_schedule(spec=spec, now=NOW, description="<b>one</b>")
    why, revisions = (page(f"schedules_schedule_{name}", schedule.pk) for name in ("why", "revisions"))
    assert "At 09:00 every day" in text_of(client, why)
    assert "3 May 2027 is excluded (Days off: " in text_of(client, f"{why}?at=2027-05-03T09:00")
    for at in ("", "9999-01-01T00:00", "%00"):
        assert 'class="errorlist"' in text_of(client, f"{why}?at={at}"), at
    for query in ("from=0&to=9", "from=x&to=", "from=99999999999999", "page=7", "page=x"):
        assert "There is only one revision" in text_of(client, f"{revisions}?{query}"), query
    for token in range(1, 27):
        changes = {"description": f"now {token}"}
        schedule.edit(token=token, initiator=SOMEBODY, now=clock.now(), changes=changes)
    with django_assert_max_num_queries(10):
        assert len(client.get(revisions).context["page"].object_list) == 25
    assert "Revision 3 cannot be compared with itself." in text_of(client, f"{revisions}?from=3&to=3")
    text = text_of(client, f"{revisions}?page=2")
    for words in ("From revision 26 to 27", "Newer", "description: &lt;b&gt;one&lt;/b&gt; → now 1"):
        assert words in text
    [change] = client.get(f"{revisions}?from=3&to=1").context["differences"]
    assert change == ("description", "now 2", "<b>one</b>")
    for name in ("why", "revisions"):
        pages = {client.get(page(f"schedules_schedule_{name}", pk)).status_code for pk in (10**6, 10**30)}
        assert pages == {404}


class TestLedger:
    def test_it_is_searched_and_filtered(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        mine, other = start(name="Mine"), start(name="Other", paused=True)
        of_mine, of_other = (f"schedule__id__exact={each.schedule_id}" for each in (mine, other))
        shown = {
            "q=min": ["Mine"],
            "q=%25": [],
            of_mine: ["Mine"],
            "status__exact=started": ["Other", "Mine"],
        }
        shown |= {f"schedule__id__exact={odd}": [] for odd in ("x", "9" * 40)}
        assert {query: [each.schedule.name for each in listed(Occurrence, query)] for query in shown} == shown
        url = page("schedules_occurrence_changelist")
        assert f'{of_other}"' in text_of(client, url)
        # A list of schedules that nobody could read is not offered.
        monkeypatch.setattr(filters, "MOST_CHOICES", 1)
        assert "schedule__id__exact" not in text_of(client, url)
        text = text_of(client, f"{url}?{of_mine}")
        assert (f'{of_mine}"' in text, f'{of_other}"' in text) == (True, False)

    def test_the_newest_of_a_schedule_are_found_on_an_index(self) -> None:
        newest = Occurrence.objects.filter(schedule=7, pk__lt=1_000).order_by("-pk")[:51]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        plan = newest.explain()
        assert "occurrence_newest" in plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan

    def test_it_says_what_each_waits_for_and_what_was_in_its_way(self, client: Client) -> None:
        now = clock.now()
        spec = {"every": ["1h"], "jitter": "30m"}
        waits = make_schedule(spec=spec, now=now - timedelta(hours=5), paused=True)
        busy = make_schedule(overlap="buffer_all")
        for _ in range(2):
            trigger(busy, initiator=SOMEBODY, now=NOW)
        execution = busy.executions.get()
        skipped = Occurrence.manual(busy, initiator=SOMEBODY, now=now, key="x")
        skipped.status, skipped.reason, skipped.due_at = "skipped", "overlap", None
        skipped.blocked_by, skipped.settled_at = execution.pk, now
        skipped.save()
        generate(now)
        text = text_of(client, page("schedules_occurrence_changelist"))
        assert text.count("waiting: the schedule is paused") == waits.occurrences.count() > 0
        link = f'<a href="{page("execution_execution_change", execution.pk)}">'
        assert ("waiting for its turn" in text, text.count(link)) == (True, 2)
        for occurrence in waits.occurrences.all():
            if occurrence.planned_at != occurrence.nominal_at:
                assert f"{occurrence.planned_at:%Y-%m-%d %H:%M:%S}" in text
        text = text_of(client, page("schedules_occurrence_change", skipped.pk))
        assert f"execution {execution.pk}, which had started at" in text
        assert page("schedules_schedule_why", busy.pk) in text
