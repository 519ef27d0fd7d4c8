from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import clock
from activities.models import Activity
from activities.words import NOTHING, badge
from execution.models import WorkerTask
from tests.base import NOW, SOMEBODY, fresh, make_schedule, seconds
from tests.web.flows import Bills, Inbox, Pay, Poll
from tests.web.pages import ask, poll, text_of, toasts
from tests.web.parts import version_in
from tests.workflows.base import deploy_all, deployed, publish, work
from web.views import runs as runs_page
from web.views import topics as topics_page
from workflows import Workflow as Definition
from workflows.errors import Indeterminate, PermissionRequired, Transient
from workflows.models import Event, Handler, Run, Topic, Workflow

pytestmark = pytest.mark.django_db
MAY_SEE = ("view_workflow", "view_run", "view_topic", "view_event")


@pytest.fixture(autouse=True)
def _at_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


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


def make_run(handler: Handler, **fields: Any) -> Run:
    fields = {"phase": "committed", "status": "committed", "summary": "Did it", "code_version": "1"} | fields
    return Run(key=uuid.uuid4(), workflow=handler.workflow, handler=handler, **fields)


class TestList:
    def test_an_empty_one_teaches_how_to_write_the_first(self, client: Client) -> None:
        text = text_of(client.get("/workflows"))
        for words in ("There are no workflows yet", "class Inbox(Workflow)", "manage.py syncworkflows"):
            assert words in text
        assert "docs/workflows.md" in text

    def test_that_it_found_nothing_is_told_if_it_did_nothing_else(self, client: Client) -> None:
        with deployed(Bills, now=NOW):
            work(now=NOW)
            text = text_of(client.get("/workflows"))
            assert "Found nothing to do" in text
            assert "Runs when an event comes" in text
            assert "/do/workflow/run?" not in client.get("/workflows/bills").text

    def test_one_at_work_is_running_and_its_activity_and_its_task_lead_back(self, client: Client) -> None:
        with inbox(is_idle=False) as workflow:
            assert "Nothing has run yet." in text_of(client.get("/workflows/inbox/runs"))
            run = workflow.start(NOW)
            assert run is not None
            answer = client.get("/workflows")
            assert badge("running", "in_progress") in answer.text
            assert "next check after this run" in text_of(answer)
            assert f'href="{run.get_absolute_url()}"' in client.get("/queue").text
            task = WorkerTask.objects.get(key=run.key)
            page = client.get(f"/activities/{task.activity_id}")
            assert f'href="{run.get_absolute_url()}"' in page.text
            work(now=NOW)
            ended = client.get(f"/activities/{task.activity_id}")
            assert "Run of Inbox : Sort" in text_of(ended)
            # Its workflow decides what follows a run.
            assert "/do/activity/retry" not in ended.text

    def test_one_that_is_stuck_comes_first_with_its_sentence_and_what_to_do(self, client: Client) -> None:
        viewer = person(*MAY_SEE)
        with stuck(PermissionRequired("paying 18,400 needs a word of yours")) as run:
            Workflow.objects.create(slug="a", title="A", created_at=NOW, deployed_at=NOW, status="stopped")
            answer = client.get("/workflows")
            assert [look.workflow.slug for look in answer.context["looks"]] == ["bills", "a"]
            told = "Paying 18,400 needs a word of yours. Waiting for an operator to approve or reject it."
            assert told in text_of(answer)
            for shown in (answer, client.get("/workflows/bills"), client.get(f"/runs/{run.pk}")):
                assert actions(shown) == ["approve", "reject", "skip", "retry"]
            assert badge("needs_attention") in answer.text
            answer = client.get("/home/attention")
            assert told in text_of(answer)
            assert f"/do/run/approve?id={run.pk}" in answer.text
            # Those who may not operate only look.
            for url in ("/workflows", "/workflows/bills", f"/runs/{run.pk}", "/topics/bills"):
                assert "/do/" not in viewer.get(url).text
            answer = viewer.get("/home/attention")
            assert "/do/run/" not in answer.text
            assert 'href="/workflows/bills">Look at it' in answer.text
            assert viewer.post(ask("run", "approve", run.pk)).status_code == 403
            assert fresh(run).is_approved is False
            run.workflow.pause("", initiator=SOMEBODY, now=NOW)
            assert client.get("/home/attention").context["attention"]["concerns"] == []

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
    def test_list_and_page_say_how_it_is_what_it_did_and_how_events_go(self, client: Client) -> None:
        with inbox():
            listed, page = client.get("/workflows"), client.get("/workflows/inbox")
            with patch.object(Inbox, "producers", []):
                deploy_all(now=NOW)
                without = text_of(client.get("/workflows/inbox"))
        text = text_of(listed)
        assert badge("idle") in listed.text
        assert "Schedule Every 5 minutes next check in 5 min" in text
        assert "Pending work New mail nothing" in text
        assert "Recent activity Consumed 1 event → published 1 event to rows" in text
        assert "Found nothing to do" not in text
        told = "Poll the mailbox publishes to mail; Sort consumes mail and publishes to rows."
        assert f'aria-label="How events go: {told}"' in page.text
        assert 'href="/topics/rows"' in page.text
        text, version = text_of(page), Poll.code_version()[:11]
        told = 'Poll the mailbox State { "count": 1 } producer Every 5 minutes in 5 min mail'
        assert f"{told} {version}" in text
        assert f"Sort consumer mail with an event rows {version}" in text
        assert "All runs" in text
        assert "Changes What Who When deploy ada" in text
        assert "Poll the mailbox ⊘ stopped The code no longer has it." in without
        assert "Runs when an event comes" in without

    def test_so_does_who_else_publishes_to_its_topics(self, client: Client) -> None:
        class Another(Poll):
            title = "Ask the partner"

        class Partner(Definition):
            slug, title, topics, producers = "partner", "Partner", {}, [Another]

        with deployed(Inbox, Partner, now=NOW):
            answer = client.get("/workflows/inbox")
        assert "Ask the partner publishes to mail" in answer.text
        assert 'class="box producer foreign"' in answer.text

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

    def test_whether_it_can_run_now_is_known_without_another_query(
        self, client: Client, django_assert_num_queries: Any
    ) -> None:
        with inbox() as workflow:
            for is_idle in (True, False):
                if not is_idle:
                    Run.objects.begin(workflow.handlers.producers().get(), now=NOW)
                with django_assert_num_queries(4):
                    shown = client.get("/workflows/inbox/now")
                assert ("/do/workflow/run?" in shown.text) == fresh(workflow).can_run_now == is_idle

    def test_one_that_does_not_exist_is_said_so(self, client: Client) -> None:
        of_workflows = ("/workflows/none", "/workflows/none/now", "/workflows/none/runs", "/topics/none")
        for url in (*of_workflows, "/runs/999", "/runs/999/now", "/events/999"):
            assert client.get(url).status_code == 404


class TestStuckRun:
    def test_what_tries_again_by_itself_says_when_anew_as_time_passes_and_needs_nobody(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with stuck(Transient("busy")) as run:
            answer = client.get("/workflows/bills")
            assert "Busy. Tries again in 10 s." in text_of(answer)
            assert actions(answer) == ["retry", "skip"]
            assert badge("running", "in_progress") in answer.text
            assert fresh(run).due_at is not None
            assert client.get("/home/attention").context["attention"]["concerns"] == []
            version = version_in(client.get("/workflows").text, "rows")
            assert poll(client, "/workflows", "rows", version=version).status_code == 204
            monkeypatch.setattr(clock, "now", lambda: NOW + seconds(20))
            assert poll(client, "/workflows", "rows", version=version).status_code == 200

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

    def test_who_comes_second_is_told_and_records_lead_to_what_they_are_about(self, client: Client) -> None:
        with stuck(PermissionRequired("no")) as run:
            run.workflow.pause("", initiator=SOMEBODY, now=NOW)
            run.approve("first", initiator=SOMEBODY, now=NOW)
            Run.objects.filter(pk=run.pk).update(settled_at=NOW)
            answer = client.post(ask("run", "reject", run.pk))
            [said] = toasts(client, answer)
        assert "does not wait for this any more" in said
        for kind, url in (("workflow", "/workflows/bills"), ("run", f"/runs/{run.pk}")):
            record = Activity.objects.filter(target_type=kind).latest("pk")
            assert f'href="{url}"' in client.get(record.get_absolute_url()).text

    def test_where_only_a_person_knows_what_happened_it_is_asked_for(self, client: Client) -> None:
        with stuck(Indeterminate("the line went dead"), in_flight=True) as run:
            answer = client.get("/home/attention")
            assert "/do/run/" not in answer.text
            assert 'href="/workflows/bills">Say what happened' in answer.text
            assert track(client, run) == [
                *(("preparing", "done"), ("prepared", "done"), ("mutating", "stopped")),
                *(("mutated", "ahead"), ("emitting", "ahead"), ("committed", "ahead")),
            ]
            answer = client.get(f"/runs/{run.pk}")
            assert actions(answer) == ["happened", "did-not-happen", "skip", "retry"]
            text = text_of(answer)
            assert "The line went dead. Waiting for an operator to say whether it happened." in text
            assert "Effect Nobody knows" in text
            answer = client.post(ask("run", "happened", run.pk), {"result": "{"})
            assert "Enter a valid JSON." in text_of(answer)
            assert fresh(run).effect == "in_flight"
            client.post(ask("run", "happened", run.pk), {"result": '{"paid": 7}'})
            work(now=NOW)
            shown = text_of(client.get(f"/runs/{Run.objects.get(retry_of=run).pk}"))
        assert 'What the mutation returned { "paid": 7 }' in shown
        assert "Effect Applied" in shown


def track(client: Client, run: Run) -> list[tuple[str, str]]:
    return [(mark.phase, mark.how) for mark in client.get(f"/runs/{run.pk}").context["track"]]


class TestRuns:
    def shown(self, answer: Any) -> list[int]:
        return [int(pk) for pk in re.findall(r'id="run-(\d+)"', answer.text)]

    def test_they_are_filtered_and_shown_a_page_at_a_time(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runs_page, "REACH", 30)
        with inbox() as workflow:
            pks = Run.objects.order_by("-pk").values_list("pk", flat=True)
            ids = {name: list(pks.filter(handler__name=name)) for name in ("Poll", "Sort")}
            every = list(pks.all())
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
            [handler, *_] = workflow.handlers.all()
            same = dict.fromkeys(("created_at", "updated_at", "settled_at"), NOW)
            rows = [make_run(handler, status="crashed" if n == 0 else "committed", **same) for n in range(70)]
            Run.objects.bulk_create(rows)
            newest = list(pks.all())
            first = client.get("/workflows/inbox/runs")
            older = client.get(first.context["pages"].older)
            assert self.shown(first) + self.shown(older) == newest
            seen, url = [], "/workflows/inbox/runs?status=crashed"
            for _ in range(3):
                answer = client.get(url)
                seen += self.shown(answer)
                url = answer.context["pages"].further
        assert (seen, url) == ([newest[69]], "")

    def test_one_says_how_far_it_went_what_it_took_and_gave(
        self, client: Client, django_assert_num_queries: Any
    ) -> None:
        with inbox():
            empty, full = Run.objects.filter(handler__name="Sort").order_by("pk")[:2]
            producing = Run.objects.get(handler__name="Poll")
            assert track(client, producing) == [("preparing", "done"), ("committed", "done")]
            assert {how for _, how in track(client, full)} == {"done"}
            assert track(client, empty) == [
                *(("preparing", "done"), ("prepared", "done"), ("mutating", "left"), ("mutated", "left")),
                *(("emitting", "done"), ("committed", "done")),
            ]
            with django_assert_num_queries(9):
                answer = client.get(f"/runs/{full.pk}")
        text = text_of(answer)
        assert re.search(r"What it took .* Mail 1 m1 mail ✓ consumed", text)
        assert re.search(r"What it published .* m1 rows ○ pending", text)
        assert '"data": { "folder": "A" }' in text
        activity = Activity.objects.get(task_key=full.key)
        assert f'href="{activity.get_absolute_url()}"' in answer.text

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


class TestTopics:
    def shown(self, answer: Any) -> list[str]:
        return [event.message_id for event in answer.context["pages"].rows]

    def test_topics_and_events_say_what_waits_who_sees_to_it_and_what_became_of_it(
        self, client: Client, django_assert_num_queries: Any
    ) -> None:
        assert "There are no topics yet." in text_of(client.get("/topics"))
        with inbox():
            text = text_of(client.get("/topics"))
            mail = Event.objects.get(topic__slug="mail")
            row = Event.objects.get(topic__slug="rows")
            with django_assert_num_queries(5):
                answer = client.get(f"/events/{mail.pk}")
            after = client.get(f"/events/{row.pk}")
            run = Run.objects.latest("pk")
            for address in ("/topics", "/topics/mail", f"/events/{mail.pk}", f"/runs/{run.pk}"):
                page = client.get(address).text
                assert 'href="/workflows" data-go="w" aria-current="page"' in page, address
            schedule = make_schedule(topics=["mail"], name="Answer")
            shown = client.get("/topics/mail").text
            assert f'Each event starts <a href="{schedule.get_absolute_url()}">Answer</a>.' in shown
            assert "Publish an event" not in person(*MAY_SEE).get("/topics/rows").text.split("<main")[1]
        assert f"mail New mail 0 {NOTHING} Inbox Sort 1" in text
        assert "rows Rows 1 now nobody 1" in text
        text = text_of(answer)
        assert 'Payload { "number": 1 }' in text
        assert re.search(r"Published .* by run \d+ of Inbox, Poll the mailbox", text)
        assert re.search(r"Consumed by run \d+ of Inbox, Sort", text)
        assert re.search(r"What followed .* m1 rows ○ pending", text)
        assert re.search(r"Caused by .* Mail 1 m1 mail ✓ consumed", text_of(after))
        assert "/do/event/skip" in after.text
        assert "/do/event/skip" not in answer.text

    def test_an_event_is_published_by_hand(self, client: Client) -> None:
        with inbox():
            topic = Topic.objects.get(slug="mail")
            url = ask("topic", "publish", topic.pk)
            assert url in client.get("/topics/mail").text.replace("&amp;", "&")
            for answers, words in (
                ({"message_id": ""}, "This field is required."),
                ({"message_id": "m7", "payload": "{"}, "not JSON: Expecting property name"),
                ({"message_id": "m7", "payload": f'"{"é" * 100_000}"'}, "more than the 262,144 of an event"),
                ({"message_id": "m7", "title": "x" * 201}, "at most 200 characters"),
            ):
                assert words in text_of(client.post(url, answers))
            assert not Event.objects.filter(message_id="m7").exists()
            answers = {"message_id": "m7", "payload": '{"from": "ada"}', "title": "From Ada"}
            assert toasts(client, client.post(url, answers)) == ["“m7” is published to mail."]
            again = toasts(client, client.post(url, answers | {"payload": ""}))
            assert again == ["“m7” was pending in mail already: it has this payload now."]
            work(now=NOW)
            late = toasts(client, client.post(url, answers))
        assert late == ["“m7” was published to mail before, and is no longer pending: nothing changed."]
        event = Event.objects.get(topic=topic, message_id="m7")
        assert (event.title, event.payload, event.status) == ("From Ada", None, "consumed")

    def test_events_are_filtered_by_status_and_message_id_and_skipped_together(self, client: Client) -> None:
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
            publish("rows", "r1", "r2", now=NOW)
            answer = client.get("/topics/rows")
            ids = [int(pk) for pk in re.findall(r'name="id" value="(\d+)"', answer.text)]
            assert len(ids) == 3
            client.post(f"{ask('event', 'skip', *ids[:2])}&next=/topics/rows", {"note": "not wanted"})
            assert Event.objects.filter(topic__slug="rows", status="skipped").count() == 2
            assert "not wanted" in text_of(client.get(f"/events/{ids[0]}"))

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


class TestCost:
    """However much there is, and nothing is sent while nothing has changed."""

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
    PARTS = {
        "/workflows": 3,
        "/workflows/inbox/runs": 4,
        "/topics": 3,
        "/topics/mail": 4,
        "/workflows/inbox/now": 3,
    }

    def test_of_pages_and_of_asking_again(self, client: Client) -> None:
        with inbox() as workflow:
            self.much(workflow)
            client.get("/workflows")
            assert {url: self.cost(client.get, url) for url in self.PAGES} == self.PAGES
            versions = {url: self.version(client, url) for url in self.PARTS}
            found = {
                url: self.cost(self.poll, client, url, version, status=204)
                for url, version in versions.items()
            }
            assert found == self.PARTS
            publish("mail", "new", now=NOW)
            Run.objects.update(status="crashed")
            for url, version in versions.items():
                answer = self.poll(client, url, version)
                assert (answer.status_code, "<html" in answer.text) == (200, False), url
                assert ("61 pending" in answer.text) == url.endswith("/now")
                again = version_in(answer.text, self.part(url))
                assert self.poll(client, url, again).status_code == 204, url

    def much(self, workflow: Workflow) -> None:
        [poll_handler, sort] = workflow.handlers.all()
        rows = [make_run(sort, created_at=NOW, updated_at=NOW, settled_at=NOW) for _ in range(60)]
        Run.objects.bulk_create(rows)
        publish("mail", *(f"x{number}" for number in range(60)), now=NOW)
        run = Run.objects.begin(poll_handler, now=NOW)
        Topic.objects.filter(slug="rows").update(last_seq=99)
        assert run.is_active

    def cost(self, ask: Any, *given: Any, status: int = 200) -> int:
        with CaptureQueriesContext(connection) as asked:
            assert ask(*given).status_code == status, given
        return len(asked)

    def version(self, client: Client, url: str) -> str:
        return version_in(client.get(url.removesuffix("/now")).text, self.part(url))

    def part(self, url: str) -> str:
        return "now" if url.endswith("/now") else "rows"

    def poll(self, client: Client, url: str, version: str) -> Any:
        return poll(client, url, self.part(url), version=version)

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
