"""What is asked and done on the pages of a schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import clock
from activities.models import Activity
from activities.words import badge
from execution.invoker import trigger
from schedules.admin import filters
from schedules.admin.operations import SkipForm
from schedules.generator import generate
from schedules.models import Backfill, Occurrence, Schedule, SharedCalendar
from tests.admin_pages import listed, operation, page, sign_in, told
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, run_until_idle, start, step

pytestmark = pytest.mark.django_db
HOURLY = {"cron": ["0 * * * *"], "time_zone": "Europe/Berlin"}
DAYS_AGO = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=3)


@pytest.fixture
def client() -> Client:
    return sign_in()


def text_of(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return str(response.content.decode())


class TestOverview:
    def test_it_says_how_the_schedule_is_doing(self, client: Client) -> None:
        execution = start(step("a", 0, "fail"), name="Shaky", spec=HOURLY, deadline_seconds=1, remaining=7)
        run_until_idle()
        schedule = execution.schedule
        assert schedule
        trigger(schedule, initiator=SOMEBODY, now=NOW)
        Schedule.objects.update(skipped_count=3, skipped_reasons={"overlap": 2, "superseded": 1})
        text = text_of(client, page("schedules_schedule_change", schedule.pk))
        assert "2 started, 1 failed, 3 skipped (2 overlap, 1 superseded), 0 missed, 0 dropped" in text
        assert "1 failure in a row" in text
        assert "it broke" in text
        assert "<dt>Runs left</dt><dd>7</dd>" in text
        assert badge("late") in text
        assert badge("overdue") in text
        assert "is one running?" in text

    def test_it_marks_what_is_left_out_and_what_jitter_moves(self, client: Client) -> None:
        spec = {
            "at": ["2998-06-01T00:00:00Z", "2998-06-02T00:00:00Z"],
            "jitter": "1h",
            "time_zone": "Europe/Berlin",
        }
        schedule = make_schedule(spec=spec)
        schedule.skip_next(initiator=SOMEBODY, now=NOW)
        text = text_of(client, page("schedules_schedule_change", schedule.pk))
        assert "left out on request of ada" in text
        unskip = f"{page('schedules_schedule_do', 'unskip')}?id={schedule.pk}&amp;at=2998-06-01T00:00:00Z"
        assert unskip in text
        assert "Starts, with jitter" in text
        viewed = text_of(sign_in("viewer"), page("schedules_schedule_change", schedule.pk))
        assert "left out on request of ada" in viewed
        assert unskip not in viewed

    def test_it_shows_open_backfills(self, client: Client) -> None:
        backfill = ask_backfill(make_schedule(spec=HOURLY, now=DAYS_AGO))
        text = text_of(client, page("schedules_schedule_change", backfill.schedule_id))
        assert page("schedules_backfill_change", backfill.pk) in text
        assert f'<progress max="{backfill.total}" value="0"></progress>' in text
        cancel = operation("schedules_backfill", "cancel", backfill.pk)
        assert cancel in text
        client.post(cancel, {"reason": "wrong week"})
        assert "wrong week" in text_of(client, page("schedules_backfill_change", backfill.pk))

    def test_it_is_read_in_a_handful_of_queries(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY, overlap="allow_all", remaining=9, tags=["a"])
        for number in range(16):
            trigger(schedule, initiator=SOMEBODY, now=NOW)
            if number < 3:
                ask_backfill(schedule, hours=number + 1)
        run_until_idle()
        with CaptureQueriesContext(connection) as captured:
            text_of(client, page("schedules_schedule_change", schedule.pk))
        assert len(captured) <= 16


class TestSkip:
    def test_the_next_time_is_left_out_and_taken_back(self, client: Client) -> None:
        schedule = make_schedule(name="Skippable", spec=HOURLY, now=clock.now())
        url = operation("schedules_schedule", "skip", schedule.pk)
        asked = client.get(url)
        assert "Europe/Berlin" in asked.content.decode()
        assert fresh(schedule).skips == {}
        said = told(client, client.post(url, {"tokens": asked.context["form"]["tokens"].value()}))
        assert "“Skippable” leaves out" in said
        (at,) = fresh(schedule).skips
        url = f"{operation('schedules_schedule', 'unskip', schedule.pk)}&at={at}"
        assert client.get(url).context["form"]["at"].value() == at
        assert "has its time" in told(client, client.post(url, {"at": at}))
        assert fresh(schedule).skips == {}
        assert {"skip", "unskip"} <= set(Activity.objects.values_list("operation", flat=True))

    def test_several_are_skipped_together(self, client: Client) -> None:
        schedules = [make_schedule(spec=HOURLY, now=clock.now()), make_schedule(name="Manual")]
        url = operation("schedules_schedule", "skip", *(each.pk for each in schedules))
        tokens = ",".join(f"{each.pk}:{each.token}" for each in schedules)
        said = told(client, client.post(url, {"tokens": tokens}))
        assert "leaves out" in said
        assert "“Manual” has no next time that could be skipped" in said
        # The page is sent a second time: the next time is not left out as well.
        assert "Somebody else changed this schedule meanwhile" in told(
            client, client.post(url, {"tokens": tokens})
        )
        assert len(fresh(schedules[0]).skips) == 1

    @pytest.mark.parametrize("tokens", ["", "x", "1:2,", "1:" + "9" * 40])
    def test_odd_tokens_are_no_tokens(self, tokens: str) -> None:
        assert not SkipForm({"tokens": tokens}).is_valid()

    def test_what_is_not_left_out_cannot_be_taken_back(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY)
        response = client.post(operation("schedules_schedule", "unskip", schedule.pk), {"at": "2998-01-01"})
        assert response.status_code == 200
        assert "not one of the available choices" in response.content.decode()


class TestPause:
    def test_the_end_is_read_on_the_clock_of_each_schedule(self, client: Client) -> None:
        schedules = [make_schedule(spec=HOURLY), make_schedule(spec=HOURLY | {"time_zone": "Asia/Tokyo"})]
        url = operation("schedules_schedule", "pause", *(each.pk for each in schedules))
        assert "On the clock of each of them." in text_of(client, url)
        client.post(url, {"note": "", "until": "2998-07-01T09:00"})
        assert [fresh(each).paused_until for each in schedules] == [
            datetime(2998, 7, 1, 7, tzinfo=UTC),
            datetime(2998, 7, 1, 0, tzinfo=UTC),
        ]


class TestRun:
    def test_it_may_stand_for_another_time_on_the_schedules_clock(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY)
        client.post(
            operation("schedules_schedule", "run", schedule.pk), {"key": "k", "at": "2026-07-01T09:00"}
        )
        assert Occurrence.objects.get().nominal_at == datetime(2026, 7, 1, 7, tzinfo=UTC)

    def test_it_may_have_a_policy_of_its_own(self, client: Client) -> None:
        execution = start()
        url = operation("schedules_schedule", "run", execution.schedule_id)
        response = client.post(url, {"key": "b", "overlap": "buffer_one"})
        assert "waits for its turn" in told(client, response)
        waiting = Occurrence.objects.get(status="pending")
        assert response["Location"] == waiting.schedule.get_absolute_url()
        record = text_of(client, page("schedules_occurrence_change", waiting.pk))
        assert "By hand (superuser): it is waiting for execution" in record

    def test_bad_answers_start_nothing(self, client: Client) -> None:
        url = operation("schedules_schedule", "run", make_schedule().pk)
        response = client.post(url, {"key": "k", "at": "3999-01-01T00:00", "overlap": "sometimes"})
        assert set(response.context["form"].errors) == {"at", "overlap"}
        assert Occurrence.objects.count() == 0


class TestBackfill:
    RANGE = {
        "start_at": f"{DAYS_AGO:%Y-%m-%dT%H:%M}",
        "end_at": f"{DAYS_AGO + timedelta(hours=20):%Y-%m-%dT%H:%M}",
        "which": "all",
        "overlap": "buffer_all",
    }

    def test_a_dry_run_comes_first(self, client: Client) -> None:
        schedule = make_schedule(name="Past", spec={"cron": ["0 * * * *"]}, now=DAYS_AGO)
        trigger(schedule, initiator=SOMEBODY, now=DAYS_AGO, at=DAYS_AGO)
        url = operation("schedules_schedule", "backfill", schedule.pk)
        assert "Show what it would do" in text_of(client, url)
        shown = client.post(url, self.RANGE)
        text = shown.content.decode()
        assert "<b>21</b> of 21 times" in text
        assert f"{DAYS_AGO:%a %Y-%m-%d} 12:00:00" in text
        assert "and so on, until" in text
        assert 'value="Backfill"' in text
        # Other answers are rehearsed anew.
        text = client.post(
            url, self.RANGE | {"which": "missing", "rehearsed": shown.context["answers"]}
        ).content.decode()
        assert "<b>20</b> of 21 times" in text
        assert "1 executed already" in text
        assert Backfill.objects.count() == 0
        response = client.post(url, self.RANGE | {"rehearsed": shown.context["answers"]})
        backfill = Backfill.objects.get()
        assert response["Location"] == backfill.get_absolute_url()
        assert "is on its way" in told(client, response)
        assert (backfill.total, backfill.overlap, backfill.initiator_name) == (21, "buffer_all", "superuser")
        assert backfill.start_at == DAYS_AGO

    def test_the_range_is_read_on_the_schedules_clock(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY, now=DAYS_AGO)
        url = operation("schedules_schedule", "backfill", schedule.pk)
        shown = client.post(url, self.RANGE)
        client.post(url, self.RANGE | {"rehearsed": shown.context["answers"]})
        local = Backfill.objects.get().start_at.astimezone(schedule.zone)
        assert f"{local:%Y-%m-%dT%H:%M}" == self.RANGE["start_at"]

    @pytest.mark.parametrize(
        ("answers", "words"),
        [
            ({"start_at": "yesterday"}, "valid date/time"),
            ({"end_at": "2998-01-01T00:00"}, "ends in the future"),
            ({"end_at": "1980-01-01T00:00"}, "ends before it starts"),
            ({"which": "failed"}, "Nothing is left to do among 21 times: 21 never executed"),
        ],
    )
    def test_bad_answers_are_told_at_their_fields(
        self, client: Client, answers: dict[str, str], words: str
    ) -> None:
        schedule = make_schedule(spec={"cron": ["0 * * * *"]}, now=DAYS_AGO)
        response = client.post(operation("schedules_schedule", "backfill", schedule.pk), self.RANGE | answers)
        (field,) = answers
        assert words in " ".join(response.context["form"].errors[field])

    def test_a_schedule_without_times_has_none_to_start(self, client: Client) -> None:
        schedule = make_schedule(name="Manual")
        response = client.post(operation("schedules_schedule", "backfill", schedule.pk), self.RANGE)
        assert "“Manual” has no times of its own" in response.content.decode()
        url = operation("schedules_schedule", "backfill", schedule.pk)
        assert url not in text_of(client, page("schedules_schedule_change", schedule.pk))

    def test_its_page_shows_how_far_it_is_and_cancels_it(self, client: Client) -> None:
        schedule = make_schedule(name="Past", spec=HOURLY, now=DAYS_AGO)
        backfill = ask_backfill(schedule)
        text = text_of(client, page("schedules_backfill_change", backfill.pk))
        assert "nothing yet" in text
        assert 'http-equiv="refresh"' in text
        generate(clock.now())
        backfill.generate(clock.now())
        text = text_of(client, page("schedules_backfill_change", backfill.pk))
        assert f"{backfill.total} waiting" in text
        assert f"?backfill__id__exact={backfill.pk}" in text
        assert badge("waiting") in text
        assert "Finished" not in text
        url = operation("schedules_backfill", "cancel", backfill.pk)
        assert "of “Past”" in text_of(client, url)
        assert "is cancelled" in told(client, client.post(url, {"reason": "enough"}))
        text = text_of(client, page("schedules_backfill_change", backfill.pk))
        assert f"{backfill.total} not started" in text
        assert "Finished" in text
        assert 'http-equiv="refresh"' not in text
        assert "has ended already" in told(client, client.post(url, {"reason": ""}))
        ledger = page("schedules_occurrence_changelist") + f"?backfill__id__exact={backfill.pk}"
        assert text_of(client, ledger).count("backfill cancelled") == backfill.total


class TestAll:
    def test_everything_is_paused_and_resumed(self, client: Client) -> None:
        schedules = [make_schedule(), make_schedule(), make_schedule(paused=True, note="mine")]
        url = page("schedules_schedule_pause_all")
        before = everything()
        assert "2 schedules are concerned" in text_of(client, url)
        assert everything() == before
        assert "2 schedules are paused" in told(client, client.post(url, {"note": "flood"}))
        assert [fresh(each).pause_note for each in schedules] == ["flood", "flood", "mine"]
        url = page("schedules_schedule_resume_all")
        assert "2 schedules are concerned" in text_of(client, url)
        assert "2 schedules are running again" in told(client, client.post(url, {"missed": "discard"}))
        assert [fresh(each).status for each in schedules] == ["running", "running", "paused"]

    def test_bad_answers_pause_nobody(self, client: Client) -> None:
        make_schedule()
        response = client.post(page("schedules_schedule_pause_all"), {"note": "x" * 1001})
        assert "at most 1000 characters" in response.content.decode()
        response = client.post(page("schedules_schedule_resume_all"), {"missed": "?"})
        assert "not one of the available choices" in response.content.decode()
        assert Schedule.objects.get().status == "running"


class TestWhy:
    def test_it_answers_for_any_time(self, client: Client) -> None:
        feast = [{"dates": "2027-05-03", "comment": "a feast"}]
        SharedCalendar.objects.define("Days off", feast, initiator=SOMEBODY, now=NOW)
        spec = {"cron": ["0 9 * * *"], "exclude": [{"calendar": "Days off"}]}
        schedule = make_schedule(name="Daily", spec=spec, now=NOW)
        schedule.skip_next(initiator=SOMEBODY, now=NOW)
        url = page("schedules_schedule_why", schedule.pk)
        assert "At 09:00 every day" in text_of(client, url)
        answers = {
            "2027-05-03T09:00": "3 May 2027 is excluded (Days off: a feast)",
            "2990-12-31T09:00": "It will run.",
            "2026-11-16T09:00": "It is left out on request of ada",
            "1970-01-01T00:00": "It has no such time",
        }
        before = everything()
        said = {at: text_of(client, f"{url}?at={at}") for at in answers}
        assert [at for at, words in answers.items() if words not in said[at]] == []
        assert everything() == before

    def test_what_is_no_time_is_told_and_nobodys_page_is_no_page(self, client: Client) -> None:
        url = page("schedules_schedule_why", make_schedule(spec=HOURLY).pk)
        for at in ("", "9999-01-01T00:00", "%00"):
            assert 'class="errorlist"' in text_of(client, f"{url}?at={at}"), at
        for name in ("schedules_schedule_why", "schedules_schedule_revisions"):
            assert {client.get(page(name, pk)).status_code for pk in (10**6, 10**30)} == {404}


class TestRevisions:
    def test_it_says_who_changed_what_and_compares_any_two(self, client: Client) -> None:
        schedule = make_schedule(name="Mine", spec=HOURLY, description="<b>one</b>")
        edits: list[dict[str, Any]] = [{"description": "two"}, {"spec": {"every": ["2h"]}}]
        for token, changes in enumerate(edits, 1):
            schedule.edit(token=token, initiator=SOMEBODY, now=clock.now(), changes=changes)
        url = page("schedules_schedule_revisions", schedule.pk)
        text = text_of(client, url)
        assert "From revision 2 to 3" in text
        assert "description: &lt;b&gt;one&lt;/b&gt; → two" in text
        assert text.count("Compare with the one before") == 2
        paths = [change.path for change in client.get(f"{url}?from=1&to=3").context["differences"]]
        assert "description" in paths
        assert "spec.time_zone" in paths
        assert [change.after for change in client.get(f"{url}?from=2&to=1").context["differences"]] == [
            "<b>one</b>"
        ]

    def test_odd_numbers_are_read_as_none(self, client: Client) -> None:
        url = page("schedules_schedule_revisions", make_schedule().pk)
        for query in ("from=0&to=9", "from=x&to=", "from=99999999999999", "page=7", "page=x"):
            assert "There is one revision only" in text_of(client, f"{url}?{query}"), query

    def test_many_of_them_are_read_in_pages(self, client: Client) -> None:
        schedule = make_schedule()
        for token in range(1, 27):
            schedule.edit(
                token=token, initiator=SOMEBODY, now=clock.now(), changes={"description": str(token)}
            )
        url = page("schedules_schedule_revisions", schedule.pk)
        with CaptureQueriesContext(connection) as captured:
            assert len(client.get(url).context["page"].object_list) == 25
        assert len(captured) <= 10
        assert "Newer" in text_of(client, f"{url}?page=2")


class TestLedger:
    def test_it_is_searched_and_filtered(self, client: Client) -> None:
        mine = start(name="Mine")
        start(name="Other", paused=True)
        chosen = f"schedule__id__exact={mine.schedule_id}"
        shown = {
            "": ["Other", "Mine"],
            "q=min": ["Mine"],
            "q=%25": [],
            chosen: ["Mine"],
            "schedule__id__exact=x": [],
            "schedule__id__exact=" + "9" * 40: [],
            "source__exact=auto": [],
            "status__exact=started": ["Other", "Mine"],
        }
        assert {query: [each.schedule.name for each in listed(Occurrence, query)] for query in shown} == shown
        url = page("schedules_occurrence_changelist")
        assert list(client.get(f"{url}?{chosen}").context["cl"].result_list) == listed(Occurrence, chosen)

    def test_the_newest_of_a_schedule_are_found_on_an_index(self) -> None:
        newest = Occurrence.objects.filter(schedule=7, pk__lt=1_000).order_by("-pk")[:51]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        plan = newest.explain()
        assert "occurrence_newest" in plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan

    def test_a_list_of_schedules_that_nobody_could_read_is_not_offered(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules = [make_schedule() for _ in range(3)]
        url, chosen = page("schedules_occurrence_changelist"), "?schedule__id__exact="
        assert f'{chosen}{schedules[1].pk}"' in text_of(client, url)
        monkeypatch.setattr(filters, "MOST_CHOICES", 2)
        assert "By schedule" not in " ".join(text_of(client, url).split())
        text = text_of(client, f"{url}{chosen}{schedules[0].pk}")
        assert "By schedule" in " ".join(text.split())
        assert f'{chosen}{schedules[1].pk}"' not in text

    def test_it_says_why_each_of_them_waits_and_for_when_it_is_planned(self, client: Client) -> None:
        now = clock.now()
        spec = {"every": ["1h"], "jitter": "30m"}
        waits = make_schedule(name="Paused", spec=spec, now=now - timedelta(hours=5), paused=True)
        busy = make_schedule(name="Busy", overlap="buffer_all")
        for _ in range(2):
            trigger(busy, initiator=SOMEBODY, now=now)
        generate(now)
        text = text_of(client, page("schedules_occurrence_changelist"))
        assert text.count("waits: the schedule is paused") == waits.occurrences.count() > 0
        assert "waits for <a href" in text
        jittered = [each for each in waits.occurrences.all() if each.planned_at != each.nominal_at]
        for occurrence in jittered:
            assert f"{occurrence.planned_at:%Y-%m-%d %H:%M:%S}" in text


# The page, what is posted (None: GET), and who may.
PAGES: dict[str, tuple[dict[str, Any] | None, str]] = {
    "run": ({"key": "k"}, "operator"),
    "ask to run": (None, "operator"),
    "pause": ({}, "operator"),
    "resume": ({"missed": "catch_up"}, "operator"),
    "cancel": ({}, "operator"),
    "skip": ({}, "operator"),
    "unskip": ({"at": "2998-01-01T00:00:00Z"}, "operator"),
    "backfill": (TestBackfill.RANGE, "operator"),
    "cancel a backfill": ({}, "operator"),
    "close": ({}, "closer"),
    "ask to close": (None, "closer"),
}


@pytest.mark.parametrize("role", ["viewer", "operator", "author", "closer"])
def test_who_may_do_what(role: str) -> None:
    client, for_those_who_may_not, wrong = sign_in(role), make_busy(), []
    for what, (posted, who) in PAGES.items():
        schedule = make_busy(paused=what == "resume") if role == who else for_those_who_may_not
        if what == "cancel a backfill":
            url = operation("schedules_backfill", "cancel", schedule.backfills.get().pk)
        else:
            url = operation("schedules_schedule", what.removeprefix("ask to "), schedule.pk)
        if what == "skip":
            posted = {"tokens": f"{schedule.pk}:{schedule.token}"}
        before = everything()
        response = client.get(url) if posted is None else client.post(url, posted)
        only_asks = posted is None or what == "backfill"
        expected = (200 if only_asks else 302) if role == who else 403
        if response.status_code != expected or (everything() != before) is not (expected == 302):
            wrong.append((what, response.status_code))
    assert wrong == []


def make_busy(*, paused: bool = False) -> Schedule:
    """It runs, has a backfill, and leaves out a time."""
    spec = {"at": ["2998-01-01T00:00:00Z"], "cron": ["0 * * * *"]}
    schedule = make_schedule(spec=spec, now=DAYS_AGO, paused=paused, overlap="allow_all")
    Schedule.objects.filter(pk=schedule.pk).update(skips={"2998-01-01T00:00:00Z": "ada"})
    trigger(schedule, initiator=SOMEBODY, now=clock.now())
    ask_backfill(schedule)
    return schedule


def test_names_are_text_never_markup(client: Client) -> None:
    evil = "<img src=x onerror=alert(1)>"
    calendar = SharedCalendar.objects.define(
        evil, [{"dates": f"{clock.now().year}-12-25", "comment": evil}], initiator=SOMEBODY, now=NOW
    )
    spec = {"cron": ["0 * * * *"], "exclude": [{"calendar": evil}]}
    labels: dict[str, Any] = {"name": evil, "tags": [evil], "memo": {evil: evil}, "description": evil}
    schedule = make_schedule(step(evil), spec=spec, now=DAYS_AGO, pause_on_failure=True, **labels)
    Schedule.objects.update(skips={"2998-01-01T00:00:00Z": evil}, last_failure=evil, failures_in_a_row=1)
    fresh(schedule).edit(token=1, initiator=SOMEBODY, now=clock.now(), changes={"description": "other"})
    fresh(schedule).pause(initiator=SOMEBODY, now=clock.now(), note=evil)
    trigger(fresh(schedule), initiator=SOMEBODY, now=clock.now())
    backfill = ask_backfill(schedule)
    run = operation("schedules_schedule", "run", schedule.pk)
    change = page("schedules_schedule_change", schedule.pk)
    urls = [
        page("schedules_schedule_changelist") + "?tag=%3Cimg+src%3Dx&memo=%3Cimg+src%3Dx",
        change,
        *(page(f"schedules_schedule_{name}", schedule.pk) for name in ("why", "revisions")),
        page("schedules_schedule_why", schedule.pk) + "?at=2026-12-25T09:00",
        *(operation("schedules_schedule", name, schedule.pk) for name in ("skip", "unskip", "backfill")),
        run,
        page("schedules_backfill_changelist"),
        page("schedules_backfill_change", backfill.pk),
        page("schedules_occurrence_changelist"),
        page("schedules_sharedcalendar_changelist"),
        page("schedules_sharedcalendar_change", calendar.pk),
        page("schedules_schedule_pause_all"),
        page("index"),
    ]
    assert [url for url in urls if "<img src=x" in client.get(url).content.decode()] == []
    viewer = sign_in("viewer")
    seen = (change, page("schedules_sharedcalendar_change", calendar.pk))
    assert [url for url in seen if "<img src=x" in viewer.get(url).content.decode()] == []
    shown = client.post(operation("schedules_schedule", "backfill", schedule.pk), TestBackfill.RANGE)
    assert "<img src=x" not in shown.content.decode()
    assert "<img src=x" not in told(client, client.post(run, {"key": "k"}))


def test_the_list_of_backfills_needs_as_many_queries_for_many_as_for_few(client: Client) -> None:
    url, schedule, counts = (
        page("schedules_backfill_changelist"),
        make_schedule(spec=HOURLY, now=DAYS_AGO),
        [],
    )
    for more in (1, 9):
        for hours in range(1, more + 1):
            ask_backfill(schedule, hours=hours)
        with CaptureQueriesContext(connection) as captured:
            text_of(client, url)
        counts.append(len(captured))
    assert counts[1] == counts[0] <= 5


def ask_backfill(schedule: Schedule, *, hours: int = 6) -> Backfill:
    return Backfill.objects.ask(
        schedule,
        start_at=DAYS_AGO,
        end_at=DAYS_AGO + timedelta(hours=hours),
        initiator=SOMEBODY,
        now=clock.now(),
    )
