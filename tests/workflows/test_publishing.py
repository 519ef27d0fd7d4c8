"""Publishing: each event once per topic, in order, all of a batch or none of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from pytest_django.fixtures import DjangoAssertNumQueries

from activities.models import Activity
from operations.initiator import Initiator
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, fresh
from tests.timeline import minutes
from tests.workflows.base import begin, deployed, events, publish, work
from tests.workflows.scripted import Script, SortMail
from workflows import Prepared, Transient
from workflows.models import Event, Handler, Topic
from workflows.models.commit import Commit
from workflows.models.event import PAYLOAD_BYTES, Publication, Published

pytestmark = pytest.mark.django_db


@pytest.fixture
def mail() -> Topic:
    return Topic.objects.create(slug="mail", title="Mail", created_at=NOW)


def payloads() -> dict[str, Any]:
    return dict(Event.objects.order_by("seq").values_list("message_id", "payload"))


def test_an_event_is_new_once_in_its_topic_and_told_apart_to_the_letter(mail: Topic) -> None:
    assert publish("mail", "a", payload={"size": 1}) == Published(new=1)
    event = Event.objects.get()
    assert (event.status, event.seq, event.attempt, event.payload) == ("pending", 1, 1, {"size": 1})
    assert (event.created_at, event.created_by, event.settled_at) == (NOW, None, None)
    Topic.objects.create(slug="post", created_at=NOW)
    assert publish("mail", "A", "a ", "ä") == publish("post", "c", "a", "b") == Published(new=3)
    publish("post", "0")
    assert list(events("post")) == ["c", "a", "b", "0"]
    assert Topic.objects.publish([], now=NOW) == Published()


class TestRepublished:
    def test_while_pending_the_last_payload_wins_and_the_place_stays(self, mail: Topic) -> None:
        batch = [Publication.of("mail", *each) for each in (("a", 0), ("b", 1), ("a", 1))]
        assert Topic.objects.publish(batch, now=NOW) == Published(new=2)
        assert payloads() == {"a": 1, "b": 1}
        assert publish("mail", "a", payload=2, now=minutes(1)) == Published(updated=1)
        assert payloads() == {"a": 2, "b": 1}
        assert Event.objects.get(message_id="a").created_at == NOW
        assert fresh(mail).last_seq == 2

    def test_while_reserved_nothing_changes_and_once_it_is_settled_nothing_happens_again(self) -> None:
        with deployed(Script(mutate=[Transient("?")]).workflow()):
            publish("mail", "a", "b", payload=1)
            Event.objects.get(message_id="b").skip("", initiator=SOMEBODY, now=NOW)
            work()
            assert events("mail") == {"a": "reserved", "b": "skipped"}
            assert publish("mail", "a", "b", "c", payload=2) == Published(new=1, unchanged=2)
            work(now=minutes(1))
            assert publish("mail", "a", "b", "c", payload=3) == Published(unchanged=3)
            assert work(now=minutes(1)) == []
            assert events("mail") == {"a": "consumed", "b": "skipped", "c": "consumed"}
            assert payloads() | {"b": 1, "c": 2} == payloads()
        assert not Activity.objects.filter(operation="publish").exists(), "a run has a record of its own"


def test_an_unknown_topic_refuses_all_of_a_batch(mail: Topic) -> None:
    batch = [Publication.of("mail", "a"), Publication.of("nowhere", "b")]
    with pytest.raises(Refused, match="Topic “nowhere” does not exist"):
        Topic.objects.publish(batch, now=NOW)
    assert not Event.objects.exists()
    assert fresh(mail).last_seq == 0


endless: list[Any] = []
endless.append(endless)
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"message_id": ""}, "message_id", "Must be a string with 1 to 200 characters"),
    ({"message_id": "a" * 201}, "message_id", "Must be a string with 1 to 200 characters"),
    ({"message_id": 7}, "message_id", "Must be a string with 1 to 200 characters"),
    ({"message_id": "a\0"}, "message_id", ""),
    ({"message_id": "\ud800"}, "message_id", ""),
    ({"title": "a" * 201}, "title", "Must be a string with at most 200 characters"),
    ({"title": None}, "title", "Must be a string with at most 200 characters"),
    ({"payload": object()}, "payload", "The payload cannot be stored as JSON"),
    ({"payload": float("nan")}, "payload", "The payload cannot be stored as JSON"),
    ({"payload": endless}, "payload", "The payload cannot be stored as JSON"),
    ({"payload": "a" * PAYLOAD_BYTES}, "payload", "262,146 bytes of JSON; at most 262,144 are allowed"),
]


@pytest.mark.parametrize(("fields", "field", "message"), WRONG, ids=[row[1] for row in WRONG])
def test_what_cannot_be_stored_is_refused_by_field(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Publication.of("mail", **{"message_id": "a", **fields})
    assert list(refusal.value.message_dict) == [field]
    assert message in refusal.value.message_dict[field][0]


@pytest.mark.parametrize(
    "payload",
    [None, False, "", {"ä": ["\N{SNOWMAN}", 1.5, None]}, "a" * (PAYLOAD_BYTES - 2)],
    ids=lambda payload: repr(payload)[:20],
)
def test_what_can_be_stored_comes_back(payload: Any, mail: Topic) -> None:
    publish("mail", "a", payload=payload)
    assert Event.objects.get().payload == payload


def test_text_is_cleaned_of_what_no_database_takes(mail: Topic) -> None:
    Topic.objects.publish([Publication.of("mail", "a", {"k": "x\0y"}, "t\0")], now=NOW)
    event = Event.objects.get()
    assert "\0" not in (event.payload or {})["k"] + event.title


def test_a_pending_event_is_skipped_once(mail: Topic) -> None:
    publish("mail", "a")
    event = Event.objects.get()
    assert event.skip("spam", initiator=SOMEBODY, now=minutes(1))
    assert (fresh(event).status, fresh(event).settled_at) == ("skipped", minutes(1))
    assert not event.skip("again", initiator=SOMEBODY, now=minutes(2))


def test_one_that_is_skipped_while_it_is_prepared_is_not_taken() -> None:
    def skipping(self: Any, ctx: Any) -> Any:
        prepared = SortMail.prepare(self, ctx)
        Event.objects.filter(message_id="a", status="pending").update(status="skipped")
        return prepared

    with deployed(Script().workflow(reserving=2, prepare=skipping)):
        publish("mail", "a", "b")
        work()
        assert events("mail") == {"a": "skipped", "b": "consumed"}


@pytest.fixture
def few_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """As many as a statement may have, where SQLite was built with such a limit."""
    monkeypatch.setattr("database.statements.VARIABLES_PER_STATEMENT", 100)
    if connection.vendor != "sqlite":
        yield 120
        return
    limit = sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER
    before = connection.connection.setlimit(limit, 120)
    yield 120
    connection.connection.setlimit(limit, before)


def test_more_than_one_statement_takes_are_published_and_reserved_all_the_same(few_variables: int) -> None:
    many = 3 * few_variables
    with deployed(Script().workflow(reserving=many)):
        batch = [Publication.of("mail", f"m{number}", number) for number in range(many)]
        assert Topic.objects.publish(batch, now=NOW) == Published(new=many)
        assert Topic.objects.publish(batch, now=NOW) == Published(updated=many)
        work()
    assert set(events("mail").values()) == {"consumed"}


def test_of_more_than_one_statement_takes_one_that_is_gone_keeps_all_from_being_reserved(
    few_variables: int,
) -> None:
    with deployed(Script().workflow()) as workflow:
        run = begin(workflow)
        publish("mail", *(f"m{number}" for number in range(3 * few_variables)))
        seen = [event.as_pending() for event in Event.objects.select_related("topic")]
        Event.objects.latest("pk").skip("", initiator=SOMEBODY, now=NOW)
        assert not run.reach_prepared(Prepared(seen), now=NOW)
    assert not Event.objects.filter(status="reserved").exists()


def test_events_say_who_published_them_and_the_topic_has_a_record_of_what_changed(mail: Topic) -> None:
    by = Initiator("token", "7", "ada (Shop)")
    Topic.objects.publish([Publication.of("mail", each) for each in "ab"], now=NOW, by=by)
    Topic.objects.publish([Publication.of("mail", "a", 1)], now=NOW, by=SOMEBODY)
    Event.objects.get(message_id="a").skip("", initiator=SOMEBODY, now=NOW)
    Topic.objects.publish([Publication.of("mail", "a", 2)], now=NOW, by=by)
    records = Activity.objects.filter(operation="publish", target_type="topic", target_id=str(mail.pk))
    assert list(records.order_by("pk").values_list("message", "initiator_name")) == [
        ("2 new", "ada (Shop)"),
        ("1 updated", SOMEBODY.name),
    ]
    assert set(Event.objects.values_list("published_by", flat=True)) == {"ada (Shop)"}


class TestStatements:
    """However many events, the same number of them; two of each are for the savepoint."""

    # PostgreSQL notifies listeners; SQLite queues a task and its activity by two statements.
    IS_POSTGRES = connection.vendor == "postgresql"
    PUBLISHING = 10 if IS_POSTGRES else 9
    REPUBLISHING = 6
    LOOKING = 5
    STARTING = 9 if IS_POSTGRES else 10
    REFRAINING = 4
    FOLLOWING = 10 if IS_POSTGRES else 11
    COMMITTING = 16 if IS_POSTGRES else 15

    @pytest.mark.parametrize("count", [1, 300])
    def test_new_and_known_events(
        self, count: int, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        with deployed(Script().workflow()):
            work()
            batch = [Publication.of("mail", f"m{number}", {"n": number}) for number in range(count)]
            with django_assert_num_queries(self.PUBLISHING):
                Topic.objects.publish(batch, now=NOW)
            assert Event.objects.count() == count
            with django_assert_num_queries(self.REPUBLISHING):
                Topic.objects.publish(batch, now=NOW)

    @pytest.mark.parametrize("pending", [0, 1, 300])
    def test_start(self, pending: int, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        with deployed(Script().workflow()) as workflow:
            work()
            publish("mail", *(f"m{number}" for number in range(pending)))
            with django_assert_num_queries(self.STARTING if pending else self.LOOKING):
                assert (workflow.start(NOW) is not None) == bool(pending)
            with django_assert_num_queries(self.REFRAINING if pending else self.LOOKING):
                assert workflow.start(NOW) is None

    def test_a_next_attempt_and_a_commit_of_many_events(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        with deployed(Script(next=[Transient("?")]).workflow(reserving=1_000)) as workflow:
            publish("mail", *(f"m{number}" for number in range(100)))
            work()
            with django_assert_num_queries(self.FOLLOWING):
                run = begin(workflow, minutes(1))
            given = [Publication.of("rows", f"m{number}") for number in range(100)]
            with django_assert_num_queries(self.COMMITTING):
                run.commit(Commit({"done": 1}, given, ""), now=minutes(1))
            assert Handler.objects.get().state == {"done": 1}
