"""Events of a topic start a schedule: once each, through the invoker, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks

from database import clock
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import is_due, next_due, tick
from execution.models import Execution
from schedules.models import Occurrence, Refused, Schedule
from tests.admin_pages import sign_in
from tests.api.calling import Caller
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    fates,
    fresh,
    make_schedule,
    make_template,
    run_until_idle,
    seconds,
    step,
)
from tests.schedule_invariants import RULES, Life
from tests.web.editor_form import Form
from tests.workflows.base import deployed, events, make_topics, publish
from tests.workflows.orders import Orders
from tests.workflows.test_publish_step import publishing
from workflows import scheduling
from workflows.models import Event, EventTrigger
from workflows.models.trigger import share

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def topics(settings: Any) -> Iterator[None]:
    """Within the settings of each test: the invariants know the buffer."""
    make_topics("orders", "mail")
    yield
    lives = Life.load_all(moment=seconds(0))
    assert [words for life in lives for rule in RULES for words in rule(life)] == []


def edit(schedule: Schedule, **changes: Any) -> None:
    current = fresh(schedule)
    current.edit(token=current.token, initiator=SOMEBODY, now=NOW, changes=changes)


def keys(schedule: Schedule) -> list[str]:
    rows = schedule.occurrences.order_by("pk").values_list("initiator_name", flat=True)
    return [name.removeprefix("orders: ") for name in rows]


class TestStarting:
    def test_each_event_starts_it_once(self) -> None:
        schedule = make_schedule(topics=["orders"], overlap="allow_all")
        assert (is_due(NOW), next_due(NOW)) == (False, None)
        publish("orders", "a", "b", "skipped")
        Event.objects.get(message_id="skipped").skip("", initiator=SOMEBODY, now=NOW)
        assert (is_due(NOW), fates(schedule)) == (True, []), "a crash after the commit loses nothing"
        tick(NOW)
        tick(NOW)
        assert not is_due(NOW)
        assert keys(schedule) == ["a", "b"]
        assert fates(schedule) == [("started", ""), ("started", "")]
        first = Event.objects.get(message_id="a")
        occurrence = schedule.occurrences.get(key=f"event/{first.pk}")
        assert (occurrence.source, occurrence.nominal_at) == ("event", NOW)
        assert [e.source for e in Execution.objects.all()] == ["event", "event"]
        publish("orders", "a", now=NOW + seconds(1))
        tick(NOW + seconds(1))
        assert keys(schedule) == ["a", "b"], "it is the same event"

    def test_whoever_publishes_starts_it_after_commit(
        self,
        django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(clock, "now", lambda: NOW)
        schedule = make_schedule(topics=["orders"])
        with django_capture_on_commit_callbacks(execute=True):
            publish("orders", "a")
        assert fates(schedule) == [("started", "")]
        assert EventTrigger.objects.get().due_at is None

    def test_what_came_before_does_not_start_it(self) -> None:
        publish("orders", "old")
        schedule = make_schedule(topics=["orders"])
        publish("mail", "other")
        tick(NOW)
        assert fates(schedule) == []
        publish("orders", "new")
        tick(NOW)
        assert keys(schedule) == ["new"]

    def test_one_topic_starts_several_and_several_topics_start_one(self) -> None:
        both = make_schedule(topics=["orders", "mail"], overlap="allow_all")
        one = make_schedule(topics=["mail"], spec={"every": ["1h"]})
        assert one.spec_in_words == "Every hour, and for each event in the topic mail"
        publish("orders", "a")
        publish("mail", "m")
        tick(NOW)
        assert len(fates(both)) == 2
        assert fates(one) == [("started", "")]
        assert (events("orders"), events("mail")) == ({"a": "consumed"}, {"m": "consumed"})

    def test_what_has_a_consumer_is_left_to_it(self) -> None:
        with deployed(Orders):
            schedule = make_schedule(topics=["orders"])
            publish("orders", "a")
            tick(NOW)
            assert fates(schedule) == [("started", "")]
            assert events("orders") == {"a": "pending"}


class TestPolicies:
    def test_the_overlap_policy_decides(self) -> None:
        skips, waits = (make_schedule(topics=["orders"], overlap=each) for each in ("skip", "buffer_all"))
        publish("orders", "a", "b")
        tick(NOW)
        assert fates(skips) == [("started", ""), ("skipped", "overlap")]
        assert fates(waits) == [("started", ""), ("pending", "overlap")]
        run_until_idle()
        tick(NOW)
        assert fates(waits) == [("started", ""), ("started", "")]

    def test_a_paused_schedule_keeps_them_until_it_is_resumed(self) -> None:
        schedule = make_schedule(topics=["orders"], overlap="buffer_all", catch_up_seconds=0)
        schedule.pause(initiator=SOMEBODY, now=NOW)
        publish("orders", "a", "b")
        tick(NOW)
        edit(schedule, description="other")
        tick(NOW + seconds(3_600))
        assert fates(schedule) == [("pending", ""), ("pending", "")]
        assert not is_due(NOW + seconds(3_600))
        later = NOW + seconds(7_200)
        fresh(schedule).resume(initiator=SOMEBODY, now=later)
        tick(later)
        assert fates(schedule) == [("started", ""), ("pending", "overlap")], "no window is too small for them"

    def test_pending_ones_are_held_by_a_later_pause_and_may_be_discarded(self) -> None:
        schedule = make_schedule(topics=["orders"], overlap="buffer_all")
        publish("orders", "a", "b")
        tick(NOW)
        schedule.pause(initiator=SOMEBODY, now=NOW)
        run_until_idle()
        tick(NOW)
        assert fates(schedule) == [("started", ""), ("pending", "overlap")]
        schedule.resume(initiator=SOMEBODY, now=NOW, discard=True)
        assert fates(schedule) == [("started", ""), ("skipped", "discarded")]

    def test_an_edit_adds_and_removes_topics_and_a_close_all_of_them(self) -> None:
        schedule = make_schedule(topics=["orders"], overlap="allow_all")
        publish("mail", "before")
        edit(schedule, topics=["mail", " mail"])
        publish("orders", "a")
        publish("mail", "m")
        tick(NOW)
        assert keys(schedule) == ["mail: m"]
        edit(schedule, topics=[])
        publish("mail", "n")
        tick(NOW)
        assert keys(schedule) == ["mail: m"]
        edit(schedule, topics=["mail"])
        fresh(schedule).close(initiator=SOMEBODY, now=NOW)
        assert not EventTrigger.objects.exists()


class TestABuffer:
    @pytest.fixture(autouse=True)
    def small(self, settings: Any) -> None:
        settings.JIM_BUFFER_LIMIT = 8

    def test_no_more_wait_than_there_is_room_for_and_none_is_lost(self) -> None:
        schedule = make_schedule(topics=["orders"], overlap="buffer_all")
        names = [f"{number:02}" for number in range(8)]
        publish("orders", *names)
        most = 0
        for _ in names:
            tick(NOW)
            most = max(most, schedule.occurrences.pending().count())
            run_until_idle()
        tick(NOW)
        assert keys(schedule) == names
        assert {status for status, _ in fates(schedule)} == {"started"}
        assert most == share() == 4

    def test_what_is_discarded_makes_room_for_the_rest(self) -> None:
        schedule = make_schedule(topics=["orders"], overlap="allow_all")
        schedule.pause(initiator=SOMEBODY, now=NOW)
        publish("orders", *"abcdef")
        tick(NOW)
        assert keys(schedule) == [*"abcd"]
        schedule.resume(initiator=SOMEBODY, now=NOW, discard=True)
        tick(NOW)
        assert [status for status, _ in fates(schedule)] == ["skipped"] * 4 + ["started"] * 2

    def test_times_still_have_room(self) -> None:
        schedule = make_schedule(topics=["orders"], overlap="buffer_all", spec={"every": ["1m"]})
        schedule.pause(initiator=SOMEBODY, now=NOW)
        publish("orders", *"abcdef")
        tick(NOW)
        tick(NOW + seconds(600))
        waiting = [*schedule.occurrences.pending().values_list("source", flat=True)]
        assert (waiting.count("event"), waiting.count("auto")) == (4, 4)


class TestWhatTheRunKnows:
    def test_steps_use_the_event(self) -> None:
        told = {
            "order": "{{ event.payload.id }}",
            "all": "{{ event.payload }}",
            "who": "{{ event.topic }}/{{ event.message_id }}/{{ event.title }}",
        }
        make_schedule(step("tell", 0, "result", kwargs={"value": told}), topics=["orders"])
        publish("orders", "a", payload={"id": 17})
        tick(NOW)
        Event.objects.update(payload={"id": 18})
        run_until_idle()
        [done] = attempts(Execution.objects.get(), "tell")
        assert done.result == {"order": 17, "all": {"id": 17}, "who": "orders/a/"}

    def test_a_retry_by_hand_knows_it_too(self) -> None:
        make_schedule(
            step("tell", 0, "fail", kwargs={"message": "{{ event.message_id }}"}), topics=["orders"]
        )
        publish("orders", "a")
        tick(NOW)
        run_until_idle()
        failed = Execution.objects.get()
        failed.retry(initiator=SOMEBODY, now=NOW, whole=False)
        run_until_idle()
        [again] = attempts(Execution.objects.get(retry_of=failed.pk), "tell")
        assert again.error == "RuntimeError: a"

    def test_what_no_event_says_fails_the_step(self) -> None:
        telling = step("tell", 0, "result", kwargs={"value": "{{ event.payload.id }}"})
        schedule = make_schedule(telling, topics=["orders"], overlap="allow_all")
        publish("orders", "a", payload={"a": 1})
        publish("orders", "b", payload=None)
        tick(NOW)
        trigger(schedule, initiator=SOMEBODY, now=NOW)
        run_until_idle()
        errors = [attempts(each, "tell")[0].error for each in Execution.objects.order_by("pk")]
        assert ["id does not exist; available: a" in errors[0], "id does not exist: “" in errors[1]] == [
            True
        ] * 2
        assert errors[2] == "{{ event.payload.id }}: this run was not started by an event"

    def test_an_event_that_one_schedule_consumed_is_kept_for_another_that_has_no_room_yet(
        self, settings: Any
    ) -> None:
        settings.JIM_BUFFER_LIMIT = 2
        quick = make_schedule(topics=["orders"], overlap="allow_all", name="quick")
        slow = make_schedule(topics=["orders"], overlap="allow_all", name="slow", catch_up_seconds=None)
        slow.pause(initiator=SOMEBODY, now=NOW)
        for name in "abc":
            publish("orders", name)
            tick(NOW)
        assert (keys(quick), keys(slow)) == ([*"abc"], ["a"])
        later = NOW + seconds(86_400 * 365)
        assert (set(events("orders").values()), scheduling.prune_events(later)) == ({"consumed"}, 0)
        slow.resume(initiator=SOMEBODY, now=later)
        for _ in range(3):
            tick(later)
        assert keys(slow) == [*"abc"]
        assert scheduling.prune_events(later) == 3


class TestDefining:
    @pytest.mark.parametrize(
        "given", ["orders", [7], None, ["order"], [f"t{number}" for number in range(21)]]
    )
    def test_what_is_no_list_of_known_topics_is_refused(self, given: Any) -> None:
        with pytest.raises(ValidationError) as refused:
            make_schedule(topics=given)
        assert list(refused.value.message_dict) == ["topics"]
        assert not Schedule.objects.exists()

    def test_events_in_steps_need_a_topic(self) -> None:
        using = step("tell", 0, "result", kwargs={"value": "{{ event.payload }}"})
        with pytest.raises(ValidationError) as refused:
            make_schedule(step("a"), using)
        [text] = refused.value.message_dict["steps.1.config.kwargs"]
        assert text.startswith("{{ event.payload }}: ")
        schedule = make_schedule(step("a"), using, topics=["orders"])
        with pytest.raises(ValidationError, match="events do not start this schedule"):
            edit(schedule, topics=[])

    def test_a_circle_through_others_is_refused_wherever_it_is_closed(self) -> None:
        make_topics("rows")
        make_schedule(publishing(topic="mail"), name="First", topics=["orders"])
        make_schedule(publishing(topic="rows"), name="Second", topics=["mail"])
        last = make_schedule(publishing(topic="mail"), name="Last", topics=[])
        expected = (
            "The schedule would start itself: rows → “Last” → orders → “First” → mail → “Second” → rows. "
            "Change one of these topics to break the cycle."
        )
        steps = [publishing(topic="orders")]
        with pytest.raises(ValidationError) as refused:
            last.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"topics": ["rows"]}, steps=steps)
        assert refused.value.message_dict == {"topics": [expected]}
        fresh(last).edit(token=1, initiator=SOMEBODY, now=NOW, changes={}, steps=steps)
        with pytest.raises(ValidationError, match="The schedule would start itself"):
            edit(last, topics=["rows"])
        Schedule.objects.get(name="Second").close(initiator=SOMEBODY, now=NOW)
        edit(last, topics=["rows"])

    def test_a_template_closes_no_circle_either(self) -> None:
        template = make_template("Tell", step_type="publish", config={"topic": "mail"})
        make_schedule({"name": "tell", "index": 0, "template": "Tell"}, name="Echo", topics=["orders"])
        with pytest.raises(
            Refused, match="“Echo”: The schedule would start itself: orders → “Echo” → orders"
        ):
            template.edit(token=1, changes={"config": {"topic": "orders"}}, initiator=SOMEBODY, now=NOW)


class TestCost:
    def test_without_triggers_a_publication_asks_once(self) -> None:
        with CaptureQueriesContext(connection) as found:
            publish("orders", *map(str, range(50)))
        about = [query["sql"] for query in found.captured_queries if "eventtrigger" in query["sql"]]
        assert len(about) == 1

    def test_a_slice_is_settled_in_a_handful_of_statements(
        self, django_assert_max_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_schedule(topics=["orders"], overlap="buffer_all")
        publish("orders", *map(str, range(100)))
        with django_assert_max_num_queries(14):
            EventTrigger.objects.settle(Schedule.objects.get().pk, now=NOW)
        assert Occurrence.objects.count() == 100


class TestFaces:
    """Topics wherever a schedule is defined."""

    def test_the_editor(self) -> None:
        client, schedule = sign_in(), make_schedule(topics=["mail"])
        address = f"/schedules/{schedule.pk}/edit"
        form = Form(client.get(address).content.decode())
        assert form.value("topics") == "mail"
        preview = client.post(address, form.sent("preview", topics="mail, orders")).content.decode()
        assert "For each event in the topics mail and orders" in preview
        wrong = client.post(address, form.sent("save", topics="mail, order")).content.decode()
        assert "Topic “order” does not exist; did you mean orders?" in wrong
        assert client.post(address, form.sent("save", topics="mail, orders")).status_code == 302
        assert fresh(schedule).topics == ["mail", "orders"]

    def test_the_api(self) -> None:
        caller = Caller()
        body = {"name": "Ship", "topics": ["order"], "steps": [publishing(topic="mail")]}
        refused = caller.post("schedules", body)
        assert refused.status_code == 400
        assert refused.json()["errors"][0]["field"] == "topics"
        made = caller.post("schedules", body | {"topics": ["orders"]})
        assert (made.status_code, made.json()["topics"]) == (201, ["orders"])
