from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from database import clock
from execution.models import WorkerTask
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, fresh, make_schedule, seconds
from tests.web.flows import Bills, Inbox, Pay, Poll
from tests.web.pages import ask, markup, poll, text_of, toasts, version_of
from tests.workflows.base import deploy_all, deployed, publish, work
from text.words import NOTHING, badge
from web.views import runs as runs_page
from web.views import topics as topics_page
from web.views import workflows as workflows_page
from workflows import Workflow as Definition
from workflows.errors import Indeterminate, PermissionRequired, Transient
from workflows.models import Event, Handler, Run, Topic, Workflow

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


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
    def test_one_at_work_is_running_and_its_activity_and_its_task_lead_back(self, client: Client) -> None:
        with inbox(is_idle=False) as workflow:
            run = workflow.start(NOW)
            assert run is not None
            answer = client.get("/workflows")
            assert badge("running") in answer.text
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
        viewer = sign_in("viewer")
        with stuck(PermissionRequired("paying 18,400 needs a word of yours")) as run:
            Workflow.objects.create(slug="a", title="A", created_at=NOW, deployed_at=NOW, status="stopped")
            answer = client.get("/workflows")
            assert [look.workflow.slug for look in answer.context["looks"]] == ["bills", "a"]
            told = "Paying 18,400 needs a word of yours. An operator must approve or reject the run."
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
            assert 'href="/workflows/bills">View' in answer.text
            assert viewer.post(ask("run", "approve", run.pk)).status_code == 403
            assert fresh(run).is_approved is False
            run.workflow.pause("", initiator=SOMEBODY, now=NOW)
            assert client.get("/home/attention").context["attention"]["concerns"] == []

    def test_those_that_are_stuck_come_first_of_all_and_what_is_left_out_is_said(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workflows_page, "MOST_SHOWN", 2)

        def listed() -> tuple[list[str], bool]:
            answer = client.get("/workflows")
            slugs = [look.workflow.slug for look in answer.context["looks"]]
            return slugs, "Only the first 2 workflows are shown" in text_of(answer)

        with stuck(ValueError("wrong")) as run:
            Workflow.objects.create(slug="a", title="A", created_at=NOW, deployed_at=NOW)
            assert listed() == (["bills", "a"], False)
            Workflow.objects.create(slug="aa", title="AA", created_at=NOW, deployed_at=NOW)
            assert listed() == (["bills", "a"], True)
            run.workflow.pause("", initiator=SOMEBODY, now=NOW)
            assert listed() == (["a", "aa"], True)


class TestPage:
    def test_list_and_page_say_how_it_is_what_it_did_and_how_events_go(self, client: Client) -> None:
        with inbox():
            listed, page = client.get("/workflows"), client.get("/workflows/inbox")
            with patch.object(Inbox, "producers", []):
                deploy_all(now=NOW)
                without = text_of(client.get("/workflows/inbox"))
        text = text_of(listed)
        assert badge("idle") in listed.text
        for words in (
            "Schedule Every 5 minutes next check in 5 min Pending work New mail none",
            "Recent activity Consumed 1 event → published 1 event to rows",
        ):
            assert words in text
        assert "Found nothing to do" not in text
        told = "Poll the mailbox publishes to mail; Sort consumes mail and publishes to rows."
        assert f'aria-label="Event flow: {told}"' in page.text
        assert 'href="/topics/rows"' in page.text
        text, version = text_of(page), Poll.code_version()[:11]
        told = 'Poll the mailbox State { "count": 1 } producer Every 5 minutes in 5 min mail'
        assert f"{told} {version}" in text
        assert f"Sort consumer mail on the next event rows {version}" in text
        assert "Changes What Who When deploy ada" in text
        assert "Poll the mailbox ⊘ stopped The handler was removed from the code." in without
        assert "Runs when an event is published" in without

    def test_so_does_who_else_publishes_to_its_topics(self, client: Client) -> None:
        class Another(Poll):
            title = "Ask the partner"

        class Partner(Definition):
            slug, title, topics, producers = "partner", "Partner", {}, [Another]

        with deployed(Inbox, Partner, now=NOW):
            answer = client.get("/workflows/inbox")
        assert "Ask the partner publishes to mail" in answer.text
        assert 'class="box producer foreign"' in answer.text

    def test_it_runs_now_pauses_with_a_note_and_resumes(
        self, client: Client, django_assert_num_queries: Any
    ) -> None:
        with inbox() as workflow:
            client.post(ask("workflow", "run", workflow.pk))
            work(now=NOW)
            assert Event.objects.filter(topic__slug="mail").count() == 2
            # Whether it can run now is known without another query.
            for is_idle in (True, False):
                if not is_idle:
                    Run.objects.begin(workflow.handlers.producers().get(), now=NOW)
                with django_assert_num_queries(4):
                    shown = client.get("/workflows/inbox/now")
                assert ("/do/workflow/run?" in shown.text) == fresh(workflow).can_run_now == is_idle
            client.post(ask("workflow", "pause", workflow.pk), {"note": "moving house"})
            shown = client.get("/workflows/inbox")
            assert "Paused by an operator. moving house" in text_of(shown)
            assert badge("paused") in shown.text
            client.post(ask("workflow", "resume", workflow.pk))
            assert fresh(workflow).status == "active"


class TestStuckRun:
    def test_what_tries_again_by_itself_says_when_anew_as_time_passes_and_needs_nobody(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with stuck(Transient("busy")) as run:
            answer = client.get("/workflows/bills")
            assert "Busy. Retries in 10 s." in text_of(answer)
            assert actions(answer) == ["retry", "skip"]
            assert badge("running") in answer.text
            assert fresh(run).due_at is not None
            assert client.get("/home/attention").context["attention"]["concerns"] == []
            version = version_of(client.get("/workflows"), "rows")
            assert poll(client, "/workflows", "rows", version=version).status_code == 204
            monkeypatch.setattr(clock, "now", lambda: NOW + seconds(20))
            assert poll(client, "/workflows", "rows", version=version).status_code == 200

    def test_who_comes_second_is_told_and_records_lead_to_what_they_are_about(self, client: Client) -> None:
        with stuck(PermissionRequired("no")) as run:
            run.workflow.pause("", initiator=SOMEBODY, now=NOW)
            run.approve("first", initiator=SOMEBODY, now=NOW)
            Run.objects.filter(pk=run.pk).update(settled_at=NOW)
            answer = client.post(ask("run", "reject", run.pk))
            [said] = toasts(client, answer)
        assert "was already resolved" in said
        for kind, url in (("workflow", "/workflows/bills"), ("run", f"/runs/{run.pk}")):
            record = Activity.objects.filter(target_type=kind).latest("pk")
            assert f'href="{url}"' in client.get(record.get_absolute_url()).text

    def test_where_only_a_person_knows_what_happened_it_is_asked_for(self, client: Client) -> None:
        with stuck(Indeterminate("the line went dead"), in_flight=True) as run:
            answer = client.get("/home/attention")
            assert "/do/run/" not in answer.text
            assert 'href="/workflows/bills">Resolve' in answer.text
            assert track(client, run) == [
                *(("preparing", "done"), ("prepared", "done"), ("mutating", "stopped")),
                *(("mutated", "ahead"), ("emitting", "ahead"), ("committed", "ahead")),
            ]
            answer = client.get(f"/runs/{run.pk}")
            assert actions(answer) == ["happened", "did-not-happen", "skip", "retry"]
            assert "Effect Outcome unknown" in text_of(answer)
            answer = client.post(ask("run", "happened", run.pk), {"result": "{"})
            assert (answer.status_code, fresh(run).effect) == (200, "in_flight")
            client.post(ask("run", "happened", run.pk), {"result": '{"paid": 7}'})
            work(now=NOW)
            shown = text_of(client.get(f"/runs/{Run.objects.get(retry_of=run).pk}"))
        assert 'Mutation result { "paid": 7 }' in shown
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
        assert re.search(r"Reserved events .* Mail 1 m1 mail ✓ consumed", text)
        assert re.search(r"Published events .* m1 rows ○ pending", text)
        assert '"data": { "folder": "A" }' in text
        activity = Activity.objects.get(task_key=full.key)
        assert f'href="{activity.get_absolute_url()}"' in answer.text


class TestTopics:
    def shown(self, answer: Any) -> list[str]:
        return [event.message_id for event in answer.context["pages"].rows]

    def test_topics_and_events_say_what_waits_who_sees_to_it_and_what_became_of_it(
        self, client: Client, django_assert_num_queries: Any
    ) -> None:
        with inbox():
            topics = text_of(client.get("/topics"))
            mail = Event.objects.get(topic__slug="mail")
            with django_assert_num_queries(5):
                answer = client.get(f"/events/{mail.pk}")
            after = client.get(f"/events/{Event.objects.get(topic__slug='rows').pk}")
            schedule = make_schedule(topics=["mail"], name="Answer")
            shown = markup(client.get("/topics/mail"))
            assert (
                f'Each event starts the schedule<a href="{schedule.get_absolute_url()}">Answer</a>.' in shown
            )
            assert "Publish an event" not in sign_in("viewer").get("/topics/rows").text.split("<main")[1]
        assert f"mail New mail 0 {NOTHING} Inbox Sort 1" in topics
        assert "rows Rows 1 now no consumer 1" in topics
        text = text_of(answer)
        assert 'Payload { "number": 1 }' in text
        assert re.search(r"Published .* by run \d+ of Inbox, Poll the mailbox", text)
        assert re.search(r"Consumed by run \d+ of Inbox, Sort", text)
        assert re.search(r"Led to .* m1 rows ○ pending", text)
        assert re.search(r"Caused by .* Mail 1 m1 mail ✓ consumed", text_of(after))
        assert ("/do/event/skip" in after.text, "/do/event/skip" in answer.text) == (True, False)

    def test_an_event_is_published_by_hand(self, client: Client) -> None:
        with inbox():
            topic = Topic.objects.get(slug="mail")
            url = ask("topic", "publish", topic.pk)
            for answers, words in (
                ({"message_id": ""}, "This field is required."),
                ({"message_id": "m7", "payload": "{"}, "not JSON: Expecting property name"),
                ({"message_id": "m7", "payload": f'"{"é" * 100_000}"'}, "at most 262,144 are allowed"),
            ):
                assert words in text_of(client.post(url, answers))
            answers = {"message_id": "m7", "payload": '{"from": "ada"}', "title": "From Ada"}
            said = toasts(client, client.post(url, answers))
            said += toasts(client, client.post(url, answers | {"payload": ""}))
            work(now=NOW)
            said += toasts(client, client.post(url, answers))
        assert said == [
            "Published “m7” to mail.",
            "“m7” was already pending in mail. Its payload was replaced.",
            "“m7” was already published to mail and is no longer pending. Nothing changed.",
        ]
        event = Event.objects.get(topic=topic, message_id="m7")
        assert (event.title, event.payload, event.status) == ("From Ada", None, "consumed")

    def test_events_are_filtered_by_status_and_message_id_and_skipped_together(self, client: Client) -> None:
        with inbox():
            publish("mail", "n1", "n10", "N2", now=NOW)
            wanted = {
                "": ["N2", "n10", "n1", "m1"],
                "status=consumed": ["m1"],
                "q=n1": ["n1"],
                "q=n": ["N2", "n10", "n1"],
                "q=1&status=pending": ["n10", "n1"],
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
        names = [f"row {number}" for number in reversed(range(120))]
        with inbox(is_idle=False):
            publish("rows", *reversed(names), now=NOW)
        for query, wanted, count in (("", names, 3), ("?q=ROW+1", [n for n in names if "row 1" in n], 3)):
            seen, steps, url = [], 0, f"/topics/rows{query}"
            while url:
                pages = client.get(url).context["pages"]
                seen += [event.message_id for event in pages.rows]
                url, steps = pages.further if query else pages.older, steps + 1
            assert (seen, steps) == (wanted, count)
        assert self.shown(client.get("/topics/rows?q=row+1")) == ["row 1"]


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
            parts = {url: "now" if url.endswith("/now") else "rows" for url in self.PARTS}
            versions = {
                url: version_of(client.get(url.removesuffix("/now")), part) for url, part in parts.items()
            }

            def again(url: str) -> Any:
                return poll(client, url, parts[url], version=versions[url])

            assert {url: self.cost(again, url, status=204) for url in parts} == self.PARTS
            publish("mail", "new", now=NOW)
            Run.objects.update(status="crashed")
            for url, part in parts.items():
                answer = again(url)
                assert (answer.status_code, "<html" in answer.text) == (200, False), url
                assert ("61 pending" in answer.text) == url.endswith("/now")
                versions[url] = version_of(answer, part)
                assert again(url).status_code == 204, url

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

    def test_of_asking_about_one_run(self, client: Client, django_assert_num_queries: Any) -> None:
        with stuck(PermissionRequired("no")) as run:
            version = version_of(client.get(f"/runs/{run.pk}"), "now")
            with django_assert_num_queries(5):
                assert poll(client, f"/runs/{run.pk}/now", "now", version=version).status_code == 204
            run.approve("", initiator=SOMEBODY, now=NOW)
            work(now=NOW)
            answer = poll(client, f"/runs/{run.pk}/now", "now", version=version)
        assert (answer.status_code, "data-poll" in answer.text) == (286, False)
