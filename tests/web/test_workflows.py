from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from activities import clock
from activities.models import Activity
from activities.words import NOTHING, badge
from execution.models import WorkerTask
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, fresh, make_schedule, seconds
from tests.web.flows import Bills, Inbox, Pay, Poll
from tests.web.pages import ask, poll, text_of, toasts, version_of
from tests.web.parts import version_in
from tests.workflows.base import deploy_all, deployed, publish, work
from web.views import runs as runs_page
from web.views import topics as topics_page
from workflows import Workflow as Definition
from workflows.errors import Indeterminate, Internal, PermissionRequired, Transient
from workflows.models import Event, Handler, Run, Topic, Workflow

pytestmark = pytest.mark.django_db
MAY_SEE = ("view_workflow", "view_run", "view_topic", "view_event")


@pytest.fixture(autouse=True)
def _at_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


@pytest.fixture
def client() -> Client:
    return sign_in()


def person(*codenames: str) -> Client:
    """Somebody with these permissions on workflows."""
    client = Client()
    user = User.objects.create_user("-".join(codenames)[:150] or "nobody")
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client.force_login(user)
    return client


@contextmanager
def inbox(*, is_idle: bool = True) -> Iterator[Workflow]:
    with deployed(Inbox, now=NOW) as workflow:
        if is_idle:
            work(now=NOW)
        yield workflow


@contextmanager
def stuck(failure: Exception, *, in_flight: bool = False) -> Iterator[Run]:
    """A run of “Bills” that met this failure."""
    settled = patch.multiple(Pay, failure=failure, in_flight=in_flight)
    with settled, deployed(Bills, now=NOW):
        publish("bills", "b1", now=NOW)
        work(now=NOW)
        yield Run.objects.stuck().get()


def actions(answer: Any) -> list[str]:
    """What can be done with a run, as the page offers it."""
    return re.findall(r'hx-get="/do/run/([\w-]+)\?', answer.text)


class TestList:
    def test_an_empty_one_teaches_how_to_write_the_first(self, client: Client) -> None:
        text = text_of(client.get("/workflows"))
        for words in ("There are no workflows yet", "class Inbox(Workflow)", "manage.py syncworkflows"):
            assert words in text
        assert "docs/workflows.md" in text

    def test_each_says_how_it_is_when_it_looks_and_what_it_did(self, client: Client) -> None:
        with inbox():
            answer = client.get("/workflows")
        text = text_of(answer)
        assert badge("idle") in answer.text
        assert "Schedule Every 5 minutes next check in 5 min" in text
        assert "Pending work New mail nothing" in text
        assert "Recent activity Consumed 1 event → published 1 event to rows" in text
        assert "Found nothing to do" not in text

    def test_that_it_found_nothing_is_told_if_it_did_nothing_else(self, client: Client) -> None:
        with deployed(Bills, now=NOW):
            work(now=NOW)
            text = text_of(client.get("/workflows"))
        assert "Found nothing to do" in text
        assert "Runs when an event comes" in text

    def test_one_at_work_is_running(self, client: Client) -> None:
        with inbox(is_idle=False) as workflow:
            workflow.start(NOW)
            answer = client.get("/workflows")
        assert badge("running", "in_progress") in answer.text
        assert "next check after this run" in text_of(answer)

    def test_one_that_is_stuck_comes_first_with_its_sentence_and_what_to_do(self, client: Client) -> None:
        with stuck(PermissionRequired("paying 18,400 needs a word of yours")):
            Workflow.objects.create(slug="a", title="A", created_at=NOW, deployed_at=NOW, status="stopped")
            answer = client.get("/workflows")
        assert [look.workflow.slug for look in answer.context["looks"]] == ["bills", "a"]
        text = text_of(answer)
        assert "Paying 18,400 needs a word of yours. Waiting for an operator to approve or reject it." in text
        assert actions(answer) == ["approve", "reject", "skip", "retry"]
        assert badge("needs_attention") in answer.text

    def test_those_who_may_not_operate_only_look(self) -> None:
        viewer = person(*MAY_SEE)
        with stuck(PermissionRequired("no")) as run:
            for url in ("/workflows", "/workflows/bills", f"/runs/{run.pk}", "/topics/bills"):
                assert "/do/" not in viewer.get(url).text
            assert viewer.post(ask("run", "approve", run.pk)).status_code == 403
            assert fresh(run).is_approved is False

    def test_much_pending_work_is_counted_no_further_than_it_matters(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workflows.models.event.MOST_COUNTED", 5)
        for module in ("workflows", "topics"):
            monkeypatch.setattr(f"web.views.{module}.MOST_COUNTED", 5)
        with stuck(PermissionRequired("no")):
            publish("bills", *(f"x{number}" for number in range(9)), now=NOW)
            assert "Bills 5+" in text_of(client.get("/workflows"))
            assert "5+ pending" in client.get("/workflows/bills").text
            assert "5+ pending" in text_of(client.get("/topics/bills"))


class TestPage:
    def test_the_drawing_says_how_events_go(self, client: Client) -> None:
        with inbox():
            text = client.get("/workflows/inbox").text
        told = "Poll the mailbox publishes to mail; Sort consumes mail and publishes to rows."
        assert f'aria-label="How events go: {told}"' in text
        assert 'href="/topics/rows"' in text

    def test_so_does_who_else_publishes_to_its_topics(self, client: Client) -> None:
        class Another(Poll):
            title = "Ask the partner"

        class Partner(Definition):
            slug, title, topics, producers = "partner", "Partner", {}, [Another]

        with deployed(Inbox, Partner, now=NOW):
            answer = client.get("/workflows/inbox")
        assert "Ask the partner publishes to mail" in answer.text
        assert 'class="box producer foreign"' in answer.text

    def test_handlers_say_when_they_run_what_they_know_and_which_code_they_are(self, client: Client) -> None:
        with inbox():
            text = text_of(client.get("/workflows/inbox"))
        version = Poll.code_version()[:11]
        told = 'Poll the mailbox State { "count": 1 } producer Every 5 minutes in 5 min mail'
        assert f"{told} {version}" in text
        assert f"Sort consumer mail with an event rows {version}" in text

    def test_a_handler_without_code_is_marked(self, client: Client) -> None:
        with inbox(), patch.object(Inbox, "producers", []):
            deploy_all(now=NOW)
            answer = client.get("/workflows/inbox")
        assert "Poll the mailbox ⊘ stopped The code no longer has it." in text_of(answer)
        assert "Runs when an event comes" in text_of(answer)

    def test_recent_runs_and_changes_are_listed(self, client: Client) -> None:
        with inbox():
            text = text_of(client.get("/workflows/inbox"))
        assert "All runs" in text
        assert "Changes What Who When deploy ada" in text

    def test_it_runs_now_pauses_with_a_note_and_resumes(self, client: Client) -> None:
        with inbox() as workflow:
            answer = client.post(ask("workflow", "run", workflow.pk))
            assert toasts(client, answer) == ["“Inbox” looks for new work: Poll the mailbox."]
            work(now=NOW)
            assert Event.objects.filter(topic__slug="mail").count() == 2
            answer = client.post(ask("workflow", "pause", workflow.pk), {"note": "moving house"})
            assert toasts(client, answer) == ["“Inbox” is paused."]
            shown = client.get("/workflows/inbox")
            assert "Paused by a person. moving house" in text_of(shown)
            assert badge("stopped") in shown.text
            client.post(ask("workflow", "resume", workflow.pk))
            assert fresh(workflow).status == "running"

    @pytest.mark.parametrize("is_idle", [True, False])
    def test_whether_it_can_run_now_is_known_without_another_query(
        self, client: Client, is_idle: bool, django_assert_num_queries: Any
    ) -> None:
        with inbox() as workflow:
            if not is_idle:
                Run.objects.begin(workflow.handlers.producers().get(), now=NOW)
            with django_assert_num_queries(4):
                shown = client.get("/workflows/inbox/now")
            assert ("/do/workflow/run?" in shown.text) == workflow.can_run_now == is_idle

    def test_there_is_no_run_now_without_producers(self, client: Client) -> None:
        with deployed(Bills, now=NOW):
            work(now=NOW)
            assert "/do/workflow/run?" not in client.get("/workflows/bills").text

    def test_one_that_does_not_exist_is_said_so(self, client: Client) -> None:
        for url in ("/workflows/none", "/workflows/none/now", "/workflows/none/runs", "/topics/none"):
            assert client.get(url).status_code == 404
        for url in ("/runs/999", "/runs/999/now", "/events/999"):
            assert client.get(url).status_code == 404


class TestStuckRun:
    FAILURES = {
        "approval": (PermissionRequired("no"), False, ["approve", "reject", "skip", "retry"]),
        "logic": (ValueError("no"), False, ["retry", "skip"]),
        "internal": (Internal("no"), False, ["retry", "skip"]),
        "outcome unknown": (Indeterminate("no"), True, ["happened", "did-not-happen", "skip", "retry"]),
    }

    @pytest.mark.parametrize("name", FAILURES)
    def test_each_failure_has_its_ways_out_on_both_pages(self, client: Client, name: str) -> None:
        failure, in_flight, wanted = self.FAILURES[name]
        with stuck(failure, in_flight=in_flight) as run:
            for url in ("/workflows/bills", f"/runs/{run.pk}"):
                assert actions(client.get(url)) == wanted

    def test_what_tries_again_by_itself_says_when(self, client: Client) -> None:
        with stuck(Transient("busy")) as run:
            answer = client.get("/workflows/bills")
            assert "Busy. Tries again in 10 s." in text_of(answer)
            assert actions(answer) == ["retry", "skip"]
            assert badge("running", "in_progress") in answer.text
            assert fresh(run).due_at is not None

    def test_it_is_approved_with_a_note_and_commits(self, client: Client) -> None:
        with stuck(PermissionRequired("no")) as run:
            url = ask("run", "approve", run.pk)
            assert "It goes on where it stopped" in text_of(client.get(url))
            answer = client.post(url, {"note": "seen the bill"})
            assert toasts(client, answer) == ["“Bills”: approved, and goes on."]
            assert answer["Location"] == "/workflows/bills"
            work(now=NOW)
            last = Run.objects.latest("pk")
            first = text_of(client.get(f"/runs/{run.pk}"))
        assert "approve seen the bill superuser" in first
        assert last.summary == "Found nothing to do"
        assert Event.objects.get().status == "consumed"

    def test_who_comes_second_is_told(self, client: Client) -> None:
        with stuck(PermissionRequired("no")) as run:
            run.approve("first", initiator=SOMEBODY, now=NOW)
            Run.objects.filter(pk=run.pk).update(settled_at=NOW)
            answer = client.post(ask("run", "reject", run.pk))
            [said] = toasts(client, answer)
        assert "does not wait for this any more" in said

    def test_a_result_that_is_no_json_is_complained_about(self, client: Client) -> None:
        with stuck(Indeterminate("no"), in_flight=True) as run:
            answer = client.post(ask("run", "happened", run.pk), {"result": "{"})
            assert "Enter a valid JSON." in text_of(answer)
            assert fresh(run).effect == "in_flight"
            client.post(ask("run", "happened", run.pk), {"result": '{"paid": 7}'})
            work(now=NOW)
            shown = text_of(client.get(f"/runs/{Run.objects.get(retry_of=run).pk}"))
        assert 'What the mutation returned { "paid": 7 }' in shown
        assert "Effect Applied" in shown


class TestRuns:
    def shown(self, answer: Any) -> list[int]:
        return [int(pk) for pk in re.findall(r'id="run-(\d+)"', answer.text)]

    def test_they_are_filtered_by_handler_and_status(self, client: Client) -> None:
        with inbox():
            ids = {
                name: list(
                    Run.objects.filter(handler__name=name).order_by("-pk").values_list("pk", flat=True)
                )
                for name in ("Poll", "Sort")
            }
            every = sorted([*ids["Poll"], *ids["Sort"]], reverse=True)
            wanted = {
                "": every,
                "handler=Poll": ids["Poll"],
                "handler=Sort&status=committed": ids["Sort"],
                "status=crashed": [],
                "handler=Nobody": every,
                "status=odd": every,
            }
            found = {query: self.shown(client.get(f"/workflows/inbox/runs?{query}")) for query in wanted}
        assert found == wanted

    def test_many_are_shown_a_page_at_a_time(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs_page, "REACH", 30)
        with inbox() as workflow:
            [handler, *_] = workflow.handlers.all()
            same = dict.fromkeys(("created_at", "updated_at", "settled_at"), NOW)
            rows = [make_run(handler, status="crashed" if n == 0 else "committed", **same) for n in range(70)]
            Run.objects.bulk_create(rows)
            newest = list(Run.objects.order_by("-pk").values_list("pk", flat=True))
            first = client.get("/workflows/inbox/runs")
            older = client.get(first.context["pages"].older)
            assert self.shown(first) + self.shown(older) == newest
            found, url = [], "/workflows/inbox/runs?status=crashed"
            for _ in range(3):
                answer = client.get(url)
                found += self.shown(answer)
                url = answer.context["pages"].further
        assert (found, url) == ([newest[69]], "")

    def test_an_empty_list_says_when_there_will_be_some(self, client: Client) -> None:
        with inbox(is_idle=False):
            assert "Nothing has run yet." in text_of(client.get("/workflows/inbox/runs"))


def make_run(handler: Handler, **fields: Any) -> Run:
    import uuid

    fields = {"phase": "committed", "status": "committed", "summary": "Did it", "code_version": "1"} | fields
    return Run(key=uuid.uuid4(), workflow=handler.workflow, handler=handler, **fields)


class TestRun:
    def track(self, client: Client, run: Run) -> list[tuple[str, str]]:
        return [(mark.phase, mark.how) for mark in client.get(f"/runs/{run.pk}").context["track"]]

    def test_the_track_says_how_far_it_went(self, client: Client) -> None:
        with inbox():
            last = Run.objects.filter(handler__name="Sort").order_by("pk")
            empty, full = last[0], last[1]
            producing = Run.objects.get(handler__name="Poll")
            assert self.track(client, producing) == [("preparing", "done"), ("committed", "done")]
            assert {how for _, how in self.track(client, full)} == {"done"}
            assert self.track(client, empty) == [
                *(("preparing", "done"), ("prepared", "done"), ("mutating", "left"), ("mutated", "left")),
                *(("emitting", "done"), ("committed", "done")),
            ]

    def test_and_where_it_stopped(self, client: Client) -> None:
        with stuck(Indeterminate("the line went dead"), in_flight=True) as run:
            assert self.track(client, run) == [
                *(("preparing", "done"), ("prepared", "done"), ("mutating", "stopped")),
                *(("mutated", "ahead"), ("emitting", "ahead"), ("committed", "ahead")),
            ]
            text = text_of(client.get(f"/runs/{run.pk}"))
        assert "The line went dead. Waiting for an operator to say whether it happened." in text
        assert "Effect Nobody knows" in text

    def test_all_attempts_are_a_chain(self, client: Client) -> None:
        with stuck(ValueError("no")) as run:
            for _ in range(3):
                last = Run.objects.stuck().get()
                last.retry("again", initiator=SOMEBODY, now=NOW)
                work(now=NOW)
            for each in (run, last, Run.objects.stuck().get()):
                chain = client.get(f"/runs/{each.pk}").context["chain"]
                assert [one.retry_of_id for one in chain] == [None, *(one.pk for one in chain[:-1])]
                assert len(chain) == 4

    def test_it_says_what_it_took_and_gave_and_leads_to_its_output(self, client: Client) -> None:
        with inbox():
            run = Run.objects.get(handler__name="Sort", effect="applied")
            answer = client.get(f"/runs/{run.pk}")
        text = text_of(answer)
        assert re.search(r"What it took .* Mail 1 m1 mail ✓ consumed", text)
        assert re.search(r"What it published .* m1 rows ○ pending", text)
        assert '"data": { "folder": "A" }' in text
        activity = Activity.objects.get(task_key=run.key)
        assert f'href="{activity.get_absolute_url()}"' in answer.text

    def test_its_activity_and_its_task_lead_back(self, client: Client) -> None:
        with inbox(is_idle=False) as workflow:
            run = workflow.start(NOW)
            assert run is not None
            assert f'href="{run.get_absolute_url()}"' in client.get("/queue").text
            task = WorkerTask.objects.get(key=run.key)
            page = client.get(f"/activities/{task.activity_id}")
            assert f'href="{run.get_absolute_url()}"' in page.text
            work(now=NOW)
            ended = client.get(f"/activities/{task.activity_id}")
            assert "Run of Inbox : Sort" in text_of(ended)
            # Its workflow decides what follows a run.
            assert "/do/activity/retry" not in ended.text

    def test_records_of_changes_lead_to_what_they_are_about(self, client: Client) -> None:
        with stuck(PermissionRequired("no")) as run:
            run.workflow.pause("", initiator=SOMEBODY, now=NOW)
            run.approve("", initiator=SOMEBODY, now=NOW)
            Event.objects.get().skip("", initiator=SOMEBODY, now=NOW)
        for kind, url in (("workflow", "/workflows/bills"), ("run", f"/runs/{run.pk}")):
            record = Activity.objects.filter(target_type=kind).latest("pk")
            assert f'href="{url}"' in client.get(record.get_absolute_url()).text


class TestTopics:
    def shown(self, answer: Any) -> list[str]:
        return [event.message_id for event in answer.context["pages"].rows]

    def test_each_says_what_waits_since_when_and_who_sees_to_it(self, client: Client) -> None:
        assert "There are no topics yet." in text_of(client.get("/topics"))
        with inbox():
            text = text_of(client.get("/topics"))
        assert f"mail New mail 0 {NOTHING} Inbox Sort 1" in text
        assert "rows Rows 1 now nobody 1" in text

    def test_an_event_is_published_by_hand(self, client: Client) -> None:
        with inbox():
            topic = Topic.objects.get(slug="mail")
            url = ask("topic", "publish", topic.pk)
            assert url in client.get("/topics/mail").text.replace("&amp;", "&")
            answers = {"message_id": "m7", "payload": '{"from": "ada"}', "title": "From Ada"}
            assert toasts(client, client.post(url, answers)) == ["“m7” is published to mail."]
            again = toasts(client, client.post(url, answers | {"payload": ""}))
            assert again == ["“m7” was pending in mail already: it has this payload now."]
            work(now=NOW)
            late = toasts(client, client.post(url, answers))
        assert late == ["“m7” was published to mail before, and is no longer pending: nothing changed."]
        event = Event.objects.get(topic=topic, message_id="m7")
        assert (event.title, event.payload, event.status) == ("From Ada", None, "consumed")

    @pytest.mark.parametrize(
        ("answers", "words"),
        [
            ({"message_id": ""}, "This field is required."),
            ({"message_id": "m7", "payload": "{"}, "not JSON: Expecting property name"),
            ({"message_id": "m7", "payload": "[" * 1_000}, "nested too deeply"),
            ({"message_id": "m7", "payload": f'"{"é" * 100_000}"'}, "more than the 262,144 of an event"),
            ({"message_id": "m7", "title": "x" * 201}, "at most 200 characters"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_what_cannot_be_published_is_said_and_nothing_is_stored(
        self, client: Client, answers: dict[str, str], words: str
    ) -> None:
        with inbox():
            url = ask("topic", "publish", Topic.objects.get(slug="mail").pk)
            answer = client.post(url, answers)
        assert answer.status_code == 200
        assert words in text_of(answer)
        assert not Event.objects.filter(message_id="m7").exists()

    def test_who_only_looks_is_not_offered_to_publish(self) -> None:
        with inbox():
            assert "Publish an event" not in person(*MAY_SEE).get("/topics/rows").text.split("<main")[1]

    def test_events_are_filtered_by_status_and_message_id(self, client: Client) -> None:
        with inbox():
            publish("mail", "n1", "n10", "N2", now=NOW)
            wanted = {
                "": ["N2", "n10", "n1", "m1"],
                "status=pending": ["N2", "n10", "n1"],
                "status=consumed": ["m1"],
                "status=skipped": [],
                "q=n1": ["n1"],
                "q=n": ["N2", "n10", "n1"],
                "q=1&status=pending": ["n10", "n1"],
                "q=nothing": [],
            }
            found = {query: self.shown(client.get(f"/topics/mail?{query}")) for query in wanted}
        assert found == wanted

    def test_many_are_shown_a_page_at_a_time_and_looked_through_in_parts(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topics_page, "REACH", 40)
        with inbox(is_idle=False):
            publish("rows", *(f"row {number}" for number in range(120)), now=NOW)
        seen, url = [], "/topics/rows"
        while url:
            answer = client.get(url)
            seen += self.shown(answer)
            url = answer.context["pages"].older
        assert seen == [f"row {number}" for number in reversed(range(120))]
        assert self.shown(client.get("/topics/rows?q=row+1")) == ["row 1"]
        seen, steps, url = [], 0, "/topics/rows?q=ROW+1"
        while url:
            answer = client.get(url)
            seen += self.shown(answer)
            url, steps = answer.context["pages"].further, steps + 1
        assert (len(seen), steps) == (31, 3)

    def test_several_pending_events_are_skipped_at_once(self, client: Client) -> None:
        with inbox():
            publish("rows", "r1", "r2", now=NOW)
            answer = client.get("/topics/rows")
            ids = [int(pk) for pk in re.findall(r'name="id" value="(\d+)"', answer.text)]
            assert len(ids) == 3
            client.post(f"{ask('event', 'skip', *ids[:2])}&next=/topics/rows", {"note": "not wanted"})
            assert Event.objects.filter(topic__slug="rows", status="skipped").count() == 2
            assert "not wanted" in text_of(client.get(f"/events/{ids[0]}"))

    def test_the_menu_marks_workflows_on_the_pages_of_their_topics_events_and_runs(
        self, client: Client
    ) -> None:
        with inbox():
            event, run = Event.objects.first(), Run.objects.first()
            assert event
            assert run
            for address in ("/topics", "/topics/mail", f"/events/{event.pk}", f"/runs/{run.pk}"):
                text = client.get(address).text
                assert 'href="/workflows" data-go="w" aria-current="page"' in text, address

    def test_an_event_says_where_it_came_from_and_what_became_of_it(self, client: Client) -> None:
        with inbox():
            mail = Event.objects.get(topic__slug="mail")
            row = Event.objects.get(topic__slug="rows")
            answer, after = client.get(f"/events/{mail.pk}"), client.get(f"/events/{row.pk}")
        text = text_of(answer)
        assert 'Payload { "number": 1 }' in text
        assert re.search(r"Published .* by run \d+ of Inbox, Poll the mailbox", text)
        assert re.search(r"Consumed by run \d+ of Inbox, Sort", text)
        assert re.search(r"What followed .* m1 rows ○ pending", text)
        assert re.search(r"Caused by .* Mail 1 m1 mail ✓ consumed", text_of(after))
        assert "/do/event/skip" in after.text
        assert "/do/event/skip" not in answer.text


class TestAttention:
    def test_one_that_waits_for_a_person_says_for_what(self, client: Client) -> None:
        with stuck(PermissionRequired("no")) as run:
            answer = client.get("/home/attention")
            assert "No. Waiting for an operator to approve or reject it." in text_of(answer)
            assert f"/do/run/approve?id={run.pk}" in answer.text

    def test_where_only_a_person_knows_it_leads_to_the_page(self, client: Client) -> None:
        with stuck(Indeterminate("no"), in_flight=True):
            answer = client.get("/home/attention")
        assert "/do/run/" not in answer.text
        assert 'href="/workflows/bills">Say what happened' in answer.text

    def test_those_who_may_not_operate_are_led_to_it(self) -> None:
        viewer = person(*MAY_SEE)
        with stuck(PermissionRequired("no")):
            answer = viewer.get("/home/attention")
        assert "/do/run/" not in answer.text
        assert 'href="/workflows/bills">Look at it' in answer.text

    def test_what_tries_again_by_itself_or_is_paused_needs_nobody(self, client: Client) -> None:
        with stuck(Transient("busy")):
            assert client.get("/home/attention").context["attention"]["concerns"] == []
        with stuck(PermissionRequired("no")) as run:
            run.workflow.pause("", initiator=SOMEBODY, now=NOW)
            assert client.get("/home/attention").context["attention"]["concerns"] == []


def test_a_topic_says_which_schedules_it_starts(client: Client) -> None:
    with inbox():
        schedule = make_schedule(topics=["mail"], name="Answer")
        shown = client.get("/topics/mail").content.decode()
        assert f'Each event starts <a href="{schedule.get_absolute_url()}">Answer</a>.' in shown


class TestCost:
    """However much there is, and nothing is sent while nothing has changed."""

    def much(self, workflow: Workflow) -> None:
        [poll_handler, sort] = workflow.handlers.all()
        rows = [make_run(sort, created_at=NOW, updated_at=NOW, settled_at=NOW) for _ in range(60)]
        Run.objects.bulk_create(rows)
        publish("mail", *(f"x{number}" for number in range(60)), now=NOW)
        run = Run.objects.begin(poll_handler, now=NOW)
        Topic.objects.filter(slug="rows").update(last_seq=99)
        assert run.is_active

    PAGES = {
        "/workflows": 4,
        "/workflows/inbox": 5,
        "/workflows/inbox/runs": 4,
        "/workflows/inbox/runs?status=committed": 5,
        "/topics": 3,
        "/topics/mail": 5,
        "/topics/mail?status=pending": 5,
        "/topics/mail?q=x": 6,
    }

    @pytest.mark.parametrize("url", PAGES)
    def test_of_a_page(self, client: Client, url: str, django_assert_num_queries: Any) -> None:
        with inbox() as workflow:
            self.much(workflow)
            client.get(url)
            with django_assert_num_queries(self.PAGES[url]):
                assert client.get(url).status_code == 200

    def test_of_one_run_and_of_one_event(self, client: Client, django_assert_num_queries: Any) -> None:
        with inbox():
            run = Run.objects.get(handler__name="Sort", effect="applied")
            event = Event.objects.get(topic__slug="mail")
            with django_assert_num_queries(9):
                client.get(f"/runs/{run.pk}")
            with django_assert_num_queries(5):
                client.get(f"/events/{event.pk}")

    PARTS = {
        "/workflows": ("rows", 3),
        "/workflows/inbox/runs": ("rows", 4),
        "/topics": ("rows", 3),
        "/topics/mail": ("rows", 4),
    }

    @pytest.mark.parametrize("url", PARTS)
    def test_of_asking_again(self, client: Client, url: str, django_assert_num_queries: Any) -> None:
        part, cost = self.PARTS[url]
        with inbox() as workflow:
            self.much(workflow)
            version = version_of(client.get(url))
            with django_assert_num_queries(cost):
                assert poll(client, url, part, version=version).status_code == 204
            publish("mail", "new", now=NOW)
            Run.objects.update(status="crashed")
            answer = poll(client, url, part, version=version)
            assert answer.status_code == 200
            assert "<html" not in answer.text
            assert poll(client, url, part, version=version_of(answer)).status_code == 204

    def test_of_asking_about_one_workflow(self, client: Client, django_assert_num_queries: Any) -> None:
        with inbox() as workflow:
            self.much(workflow)
            version = version_in(client.get("/workflows/inbox").text, "now")
            with django_assert_num_queries(3):
                assert poll(client, "/workflows/inbox/now", "now", version=version).status_code == 204
            publish("mail", "new", now=NOW)
            answer = poll(client, "/workflows/inbox/now", "now", version=version)
            assert "61 pending" in answer.text

    def test_of_asking_about_one_run(self, client: Client, django_assert_num_queries: Any) -> None:
        with stuck(PermissionRequired("no")) as run:
            version = version_in(client.get(f"/runs/{run.pk}").text, "now")
            with django_assert_num_queries(5):
                assert poll(client, f"/runs/{run.pk}/now", "now", version=version).status_code == 204
            run.approve("", initiator=SOMEBODY, now=NOW)
            work(now=NOW)
            answer = poll(client, f"/runs/{run.pk}/now", "now", version=version)
        assert answer.status_code == 286
        assert "data-poll" not in answer.text

    def test_words_that_grow_old_are_told_anew(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        with stuck(Transient("busy")):
            version = version_of(client.get("/workflows"))
            assert poll(client, "/workflows", "rows", version=version).status_code == 204
            monkeypatch.setattr(clock, "now", lambda: NOW + seconds(20))
            assert poll(client, "/workflows", "rows", version=version).status_code == 200
