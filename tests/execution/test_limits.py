"""How many tasks with one key run at once: exactly as many as the limit says, whoever runs them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from database import clock
from execution.loops.lease import Lease
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.loops.worker import WorkerLoop
from execution.models import Execution, Limit, Reservation, Worker, WorkerTask
from execution.models.attempt import ClaimedTask
from execution.queue import snapshot
from execution.queue.request import NOTHING_HANDED_OVER, SeatCounts
from execution.steps import step_type
from execution.steps.context import Context
from execution.steps.fields import Field
from execution.steps.step_type import StepType
from schedules.models import Refused
from schedules.registry import step_types
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    end_and_claim,
    enqueue,
    everything,
    fates,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.counting import steps_of_sqlite
from tests.limit_invariants import limits_are_kept

pytestmark = pytest.mark.django_db


def limit(key: str, size: int = 1) -> Limit:
    return Limit.objects.define(key, size, initiator=SOMEBODY, now=NOW)


def resize(key: str, size: int) -> None:
    Limit.objects.get(pk=key).edit(changes={"size": size}, initiator=SOMEBODY, now=NOW)


def remove(key: str) -> None:
    Limit.objects.get(pk=key).remove(initiator=SOMEBODY, now=NOW)


def names(tasks: Sequence[ClaimedTask]) -> list[str]:
    return [task.name for task in tasks]


def marked() -> list[str]:
    """The tasks that some limit is about."""
    return sorted(WorkerTask.objects.filter(is_limited=True).values_list("name", flat=True))


def reserve(pool: str = "default", *, limit_keys: str = "global", taken: bool = False) -> Reservation:
    return Reservation.objects.create(
        pool=pool,
        limit_keys=limit_keys,
        holder="web:1",
        created_at=NOW,
        taken_at=NOW if taken else None,
        lease_until=NOW + seconds(60),
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, ["wait", "ldap", "hr", "plain"]),
        ({"global": 1}, ["wait"]),
        ({"global": 3}, ["wait", "ldap", "hr"]),
        ({"global": 0}, []),
        ({"type:python": 1}, ["wait", "ldap"]),
        ({"pool:ldap": 0}, ["wait", "hr", "plain"]),
        ({"pool:default": 1}, ["wait", "ldap", "hr"]),
        ({"resource:crm": 1}, ["wait", "ldap", "plain"]),
        ({"resource:crm": 0}, ["wait", "plain"]),
        ({"global": 2, "resource:crm": 1}, ["wait", "ldap"]),
        ({"global": 2, "type:wait": 0, "resource:crm": 1}, ["ldap", "plain"]),
        ({"resource:cr": 0, "resource:crm2": 0, "type:pyth": 0}, ["wait", "ldap", "hr", "plain"]),
    ],
)
def test_only_what_has_room_for_all_of_its_keys_starts(
    limits: Mapping[str, int], expected: list[str]
) -> None:
    """Whether the limits were there before the tasks or not; a full one holds back nobody else."""
    tasks = [
        step("wait") | {"step_type": "wait", "config": {"duration": "1s"}},
        step("ldap", pool="ldap", resources=["crm"]),
        step("hr", pool="hr", resources=["crm", "payroll"]),
        step("plain"),
    ]
    for is_first in (True, False):
        everything_goes()
        if not is_first:
            enqueue(*tasks)
        for key, size in limits.items():
            limit(key, size)
        if is_first:
            enqueue(*tasks)
        assert names(claim(make_worker())) == expected
        assert claim(make_worker()) == []


class TestOverTime:
    @pytest.mark.parametrize("how", ["fails", "retry", "release", "lost", "cancelled"])
    def test_whatever_ends_an_attempt_makes_room(self, how: str) -> None:
        limit("global")
        execution = start(step("first", max_retries=1, retry_seconds=60))
        enqueue(step("second"))
        worker, other = make_worker(), make_worker()
        (task,) = claim(worker)
        assert claim(other) == []
        match how:
            case "fails":
                break_down(worker, task, can_retry=False)
            case "retry":
                break_down(worker, task)
            case "release":
                WorkerTask.objects.release([task], worker_id=worker.pk)
                WorkerTask.objects.filter(name="first").update(position=9)
            case "lost":
                Worker.objects.filter(pk=worker.pk).bury(now=NOW)
                assert claim(other) == []
                WorkerTask.objects.recover(now=NOW)
                WorkerTask.objects.filter(name="first").update(position=9)
            case "cancelled":
                execution.terminate(initiator=SOMEBODY, now=NOW)
        assert names(claim(other)) == ["second"]

    def test_growing_starts_more_and_shrinking_stops_nobody(self) -> None:
        limit("global")
        enqueue(*(step(f"job {number}") for number in range(4)))
        worker = make_worker()
        tasks = claim(worker)
        resize("global", 3)
        tasks += claim(worker)
        assert names(tasks) == ["job 0", "job 1", "job 2"]
        resize("global", 1)
        end(worker, *tasks[:2])
        assert claim(worker) == []
        end(worker, tasks[2])
        assert names(claim(worker)) == ["job 3"]

    def test_a_limit_that_comes_while_tasks_run_counts_them(self) -> None:
        start(step("running"), step("later", 1))
        worker = make_worker()
        tasks = claim(worker)
        enqueue(step("queued"))
        limit("global")
        assert marked() == ["later", "queued", "running"]
        assert claim(worker) == []
        end(worker, *tasks)
        assert names(claim(worker)) == ["later"]
        assert claim(worker) == []

    def test_without_the_limit_nothing_holds_them_unless_another_one_does(self) -> None:
        limit("global", 0)
        limit("pool:ldap", 0)
        enqueue(step("free"), step("held", pool="ldap"))
        assert claim(make_worker()) == []
        remove("global")
        assert marked() == ["held"]
        assert names(claim(make_worker())) == ["free"]
        remove("pool:ldap")
        assert marked() == []
        assert names(claim(make_worker())) == ["held"]


class TestOrder:
    def test_order_holds_across_sets_of_keys_and_isolations(self) -> None:
        limit("global", 3)
        enqueue(
            step("d", resources=["a"], priority=-1),
            step("b", resources=["b"]),
            step("a", resources=["c"], priority=7, isolation="process"),
            step("c", pool="ldap"),
        )
        assert names(claim(make_worker())) == ["a", "b", "c"]

    def test_limited_and_others_take_turns_by_priority(self) -> None:
        limit("resource:crm", 2)
        for priority in range(6):
            crm = {"resources": ["crm"]} if priority % 2 else {}
            enqueue(step(f"{priority}", priority=priority, **crm))
        assert names(claim(make_worker(), limit=4)) == ["5", "4", "3", "2"]

    def test_nothing_is_claimed_ahead_that_would_go_before_one_that_waits_for_a_seat(self) -> None:
        limit("resource:crm", 9)
        enqueue(step("first", priority=2), step("crm", resources=["crm"], priority=1), step("last"))
        worker = make_worker()
        assert self.claim_ahead(worker, free=0) == ["first"]
        assert self.claim_ahead(worker, free=0) == []
        assert self.claim_ahead(worker, free=1) == ["crm", "last"]

    def claim_ahead(self, worker: Worker, *, free: int) -> list[str]:
        seats: SeatCounts = {"thread": free, "process": 0}
        return names(claim(worker, seats=seats, ahead={"thread": 50}))

    def test_many_full_sets_do_not_hide_one_that_has_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("execution.queue.snapshot.MOST_SETS", 2)
        for name in "abcdef":
            limit(f"resource:{name}", int(name == "f"))
            enqueue(step(name, resources=[name]))
        assert WorkerTask.objects.is_claimable(pools=[], now=NOW)
        assert names(claim(make_worker())) == ["f"]
        assert not WorkerTask.objects.is_claimable(pools=[], now=NOW)

    def test_a_worker_leaves_the_room_of_other_pools_alone(self) -> None:
        limit("global", 1)
        enqueue(step("ldap", pool="ldap", priority=9), step("hr", pool="hr"))
        assert names(claim(make_worker(), pools=["hr"])) == ["hr"]
        assert claim(make_worker()) == []

    def test_a_dead_worker_gets_nothing(self) -> None:
        limit("global")
        enqueue(step())
        worker = make_worker()
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        before = everything()
        assert claim(worker) == []
        assert everything() == before


class TestReservations:
    """The next free seat of a pool is kept for a direct request."""

    def test_with_a_limit_it_counts_as_one_that_runs(self) -> None:
        limit("pool:default", 2)
        enqueue(*(step(f"job {number}") for number in range(3)))
        reserved = reserve(limit_keys="pool:default")
        assert names(claim(make_worker())) == ["job 0"]
        reserved.released_at = NOW
        reserved.save()
        assert names(claim(make_worker())) == ["job 1"]

    def test_without_one_the_seats_of_the_living_workers_of_the_pool_are_its_limit(self) -> None:
        worker = Worker.objects.register(id=uuid.uuid4(), pools=["ldap"], seats=3, now=NOW)
        Worker.objects.register(id=uuid.uuid4(), pools=["hr"], seats=9, now=NOW)
        enqueue(*(step(f"job {number}", pool="ldap") for number in range(5)), step("other"))
        reserved = reserve("ldap")
        assert names(claim(worker, pools=["ldap"])) == ["job 0", "job 1"]
        assert claim(worker, pools=["ldap"]) == []
        assert names(claim(worker, pools=["ldap", "default"])) == ["other"]
        assert not WorkerTask.objects.is_claimable(pools=["ldap"], now=NOW)
        reserved.released_at = NOW
        reserved.save()
        assert names(claim(worker, limit=1, pools=["ldap"])) == ["job 2"]


def test_a_pool_without_a_limit_has_room_for_a_direct_request_while_its_workers_have_seats() -> None:
    """And in any case for one."""

    def room() -> bool:
        with transaction.atomic():
            return Limit.objects.room(limit_keys="global\npool:ldap", pool="ldap")

    assert room()
    Worker.objects.register(id=uuid.uuid4(), pools=["ldap"], seats=2, now=NOW)
    Worker.objects.register(id=uuid.uuid4(), pools=["hr"], seats=9, now=NOW)
    reserve("ldap", limit_keys="", taken=True)
    assert room()
    enqueue(step(pool="ldap"))
    worker = Worker.objects.register(id=uuid.uuid4(), pools=["nobody's"], seats=9, now=NOW)
    assert names(claim(worker)) == ["work"]
    assert not room()


def test_what_a_worker_that_runs_until_idle_waits_for() -> None:
    def is_ready(at: float = 0, **asked: Any) -> bool:
        return WorkerTask.objects.is_claimable(**{"pools": []} | asked, now=NOW + seconds(at))

    limit("global", 1)
    enqueue(step("running"))
    claim(make_worker())
    enqueue(step("blocked", pool="ldap"))
    for size, expected in ((0, False), (1, False), (2, True)):
        resize("global", size)
        assert is_ready() is expected
    assert not is_ready(pools=["hr"])
    assert is_ready(pools=["ldap"])
    WorkerTask.objects.queued().update(available_at=NOW + seconds(5), is_delayed=True)
    assert (is_ready(4), is_ready(5)) == (False, True)
    assert names(claim(make_worker(), now=NOW + seconds(5))) == ["blocked"]


class TestDefinitions:
    def test_what_is_wrong_is_said_and_nothing_is_saved(self) -> None:
        limit("pool:taken")
        before, wrong = everything(), []
        rows: dict[str, list[tuple[str, Any]]] = {
            "key": [(key, 1) for key in ("", "x" * 101, "two\nlines", "nul\x00", "pool:taken")],
            "size": [("global", size) for size in (-1, 100_001, None, "many")],
        }
        for field, asked in rows.items():
            for key, size in asked:
                with pytest.raises(ValidationError) as refused:
                    limit(key, size)
                if list(refused.value.message_dict) != [field]:
                    wrong.append((key, size, refused.value.message_dict))
        assert wrong == []
        assert (Limit.objects.count(), everything()) == (1, before)

    def test_each_change_is_recorded(self) -> None:
        key = "x" * 100
        limit(key, 1)
        Limit.objects.get().edit(changes={"size": 4, "note": " more "}, initiator=SOMEBODY, now=NOW)
        remove(key)
        made, edited, gone = Activity.objects.filter(target_type="limit", target_name=key).order_by("pk")
        assert (made.operation, made.details) == ("create", {"size": 1, "note": ""})
        assert made.initiator_name == "ada"
        assert edited.details == {"before": {"size": 1, "note": ""}, "after": {"size": 4, "note": "more"}}
        assert (gone.operation, gone.details) == ("delete", {"size": 4, "note": "more"})

    def test_a_change_that_is_wrong_or_too_late_changes_nothing(self) -> None:
        made = limit("global", 1)
        for changes in ({"size": -1}, {"key": "other"}):
            with pytest.raises(ValidationError):
                Limit.objects.get().edit(changes=changes, initiator=SOMEBODY, now=NOW)
        assert Limit.objects.get().size == 1
        remove("global")
        with pytest.raises(Refused, match="was deleted in the meantime"):
            made.edit(changes={"size": 2}, initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match="was deleted in the meantime"):
            made.remove(initiator=SOMEBODY, now=NOW)


class Raising:
    def keys(self, line: Mapping[str, Any]) -> Sequence[str]:
        raise LookupError("nobody knows")


class Senseless:
    def keys(self, line: Mapping[str, Any]) -> Sequence[Any]:
        return [7]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (f"{__name__}.Raising", "nobody knows"),
        (f"{__name__}.Senseless", "is not text"),
        (f"{__name__}.Missing", "does not name a usable class"),
    ],
)
def test_a_policy_that_fails_stops_what_it_was_asked_about_and_nobody_else(
    settings: Any, policy: str, words: str
) -> None:
    schedules = [make_schedule(spec={"cron": ["* * * * *"]}) for _ in range(2)]
    start(step("before"))
    settings.JIM_CONCURRENCY_POLICY = policy
    with pytest.raises(ValidationError, match="JIM_CONCURRENCY_POLICY.*" + words):
        enqueue(step(f"after {policy}"))
    tick(NOW + seconds(60))
    for schedule in schedules:
        [(status, reason)] = fates(schedule)
        assert (status, "JIM_CONCURRENCY_POLICY" in reason) == ("skipped", True)
    assert run_until_idle() == ["before"]


class Holder(StepType):
    """Holds what the limit with the name in its config says in its note, and `metaverse`."""

    name = "holder"
    title = "Holder"
    fields = (Field("of", "Limit", required=True),)

    def resources(self, config: Mapping[str, Any]) -> Collection[str]:
        if config["of"] == "away":
            raise OperationalError("the server closed the connection unexpectedly")
        return {"metaverse", *Limit.objects.get(pk=config["of"]).note.split()}

    def run(self, ctx: Context) -> object:
        return None


@pytest.fixture
def holder() -> Iterator[None]:
    for name in ("one", "two"):
        note = f"connected-system:{name}"
        Limit.objects.define(name, 1, note=note, initiator=SOMEBODY, now=NOW)
    step_type.register(Holder)
    yield
    step_types.pop("holder", None)


def holding(name: str, of: str, **fields: Any) -> dict[str, Any]:
    return step(name, **fields) | {"step_type": "holder", "config": {"of": of}}


def keys_of(name: str) -> list[str]:
    return WorkerTask.objects.get(name=name).limit_keys.split("\n")


@pytest.mark.usefixtures("holder")
class TestResourcesOfAStepType:
    @pytest.mark.parametrize("how", ["job", "group", "schedule"])
    def test_they_are_added_to_those_of_the_author_when_a_step_is_queued(self, how: str) -> None:
        steps = [holding("first", "one", resources=["crm", "metaverse"]), holding("second", "two")]
        match how:
            case "job":
                enqueue(*steps)
            case "group":
                Execution.objects.submit("Group", steps, initiator=SOMEBODY, now=NOW)
            case "schedule":
                start(*steps)
        common = ["global", "pool:default"]
        firsts = ["resource:connected-system:one", "resource:crm", "resource:metaverse", "type:holder"]
        assert keys_of("first") == [*common, *firsts]
        seconds_ = ["resource:connected-system:two", "resource:metaverse", "type:holder"]
        assert keys_of("second") == [*common, *seconds_]

    def test_they_are_limited_like_all_others_and_stay_as_they_were(self) -> None:
        limit("resource:metaverse")
        enqueue(holding("first", "one"), holding("second", "two"))
        Limit.objects.filter(pk="two").update(note="")
        worker = make_worker()
        (first,) = claim(worker)
        assert claim(worker) == []
        end(worker, first)
        assert names(claim(worker)) == ["second"]
        assert "resource:connected-system:two" in keys_of("second")

    def test_a_step_type_that_is_unknown_is_not_asked(self) -> None:
        schedule = make_schedule(holding("work", "one"))
        del step_types["holder"]
        trigger(schedule, initiator=SOMEBODY, now=NOW)
        assert keys_of("work") == ["global", "pool:default", "type:holder"]

    def test_one_that_cannot_say_stops_its_own_steps_and_nobody_else(self) -> None:
        schedules = [
            make_schedule(each, spec={"cron": ["* * * * *"]}) for each in (step("fine"), holding("bad", "no"))
        ]
        with pytest.raises(ValidationError, match="step type “holder” did not return the resources"):
            enqueue(holding("job", "no"))
        tick(NOW + seconds(60))
        [(status, _)], [(bad, reason)] = map(fates, schedules)
        assert (status, bad) == ("started", "skipped")
        assert "“holder” did not return the resources" in reason

    def test_an_outage_is_not_taken_for_a_mistake_of_the_step(self) -> None:
        with pytest.raises(OperationalError):
            enqueue(holding("job", "away"))


def urgent(**fields: Any) -> list[WorkerTask]:
    """A task that goes first: of the same kind as the others unless fields say otherwise."""
    available_at = fields.pop("available_at", NOW)
    asked = {"resources": ["crm"], "priority": 9} | fields
    return enqueue(step("urgent", **asked) | {"available_at": available_at})


Change = Callable[[Worker], object]
# What changes before one task ends (or none if two do), what is claimed then, whether no count was needed.
CHANGES_OF_THE_QUEUE: dict[str, tuple[Change | None, list[str], bool]] = {
    "nothing": (lambda _: 0, ["job 2"], True),
    "another limit with room": (lambda _: limit("type:python", 5), ["job 2"], True),
    "one of the same kind goes first": (lambda _: urgent(), ["urgent"], True),
    "the other one ends as well": (None, ["job 2", "job 3"], True),
    "nothing waits": (lambda _: WorkerTask.objects.queued().delete(), [], True),
    "another limit is full": (lambda _: limit("type:python", 1), [], False),
    "less room": (lambda _: resize("resource:crm", 1), [], False),
    "more room": (lambda _: resize("resource:crm", 3), ["job 2", "job 3"], False),
    "no limit any more": (lambda _: remove("resource:crm"), ["job 2", "job 3", "job 4", "job 5"], False),
    "something that nobody limits": (lambda _: urgent(resources=[]), ["urgent", "job 2"], False),
    "other keys": (lambda _: urgent(resources=["crm", "hr"]), ["urgent"], False),
    "another pool": (lambda _: urgent(pool="ldap"), ["urgent"], False),
    "another isolation": (lambda _: urgent(isolation="process"), ["urgent"], False),
    "a retry whose time has come": (lambda _: urgent(available_at=NOW + seconds(10)), ["urgent"], False),
    "a reservation": (lambda _: reserve(limit_keys="resource:crm"), [], False),
    "a reservation elsewhere": (lambda _: reserve("web", limit_keys="pool:web"), ["job 2"], False),
    "the worker is dead": (lambda worker: Worker.objects.filter(pk=worker.pk).bury(now=NOW), [], True),
}


class TestHandingOver:
    """What ends gives its place to the next of its kind, if that is all there is to decide."""

    @pytest.mark.parametrize("name", CHANGES_OF_THE_QUEUE)
    def test_it_is_the_one_that_a_count_would_choose(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change, expected, is_handed_over = CHANGES_OF_THE_QUEUE[name]
        # Where one transaction writes at a time, all is counted.
        is_handed_over &= connection.vendor == "postgresql"
        assert self.claimed_after(change) == (expected, is_handed_over)
        everything_goes()
        monkeypatch.setattr("execution.queue.postgresql.hand_over", lambda *_, **__: NOTHING_HANDED_OVER)
        assert self.claimed_after(change) == (expected, False)

    def claimed_after(self, change: Change | None) -> tuple[list[str], bool]:
        limit("resource:crm", 2)
        enqueue(*(step(f"job {number}", resources=["crm"]) for number in range(6)))
        worker = make_worker()
        first, second = claim(worker, limit=2)
        ending = [first] if change else [first, second]
        if change:
            change(worker)
        with CaptureQueriesContext(connection) as captured:
            found = end_and_claim(worker, *ending, now=NOW + seconds(20))
        asked, counted = (any(part in q["sql"] for q in captured) for part in ("is_all", "AS kind"))
        return names(found), asked and not counted

    def test_no_more_than_there_are_seats(self) -> None:
        limit("global", 2)
        enqueue(*(step(f"job {number}") for number in range(6)))
        worker = make_worker()
        assert names(end_and_claim(worker, *claim(worker), limit=1)) == ["job 2"]

    def test_each_place_is_handed_over_again(self) -> None:
        limit("global", 2)
        enqueue(*(step(f"job {number}") for number in range(7)))
        worker, other = make_worker(), make_worker()
        tasks, rounds = claim(worker), []
        while tasks:
            assert claim(other) == []
            rounds.append(names(tasks))
            tasks = end_and_claim(worker, *tasks, now=NOW + seconds(5))
            for task in tasks:
                activity = Activity.objects.get(pk=task.activity_id)
                begun = (activity.status, activity.worker_id, activity.executed_at)
                assert begun == ("in_progress", worker.pk, NOW + seconds(5))
        assert rounds == [["job 0", "job 1"], ["job 2", "job 3"], ["job 4", "job 5"], ["job 6"]]

    def test_whoever_thaws_after_its_lease_has_no_place_to_hand_over(self) -> None:
        limit("global", 2)
        enqueue(*(step(f"job {number}") for number in range(6)))
        frozen, other = make_worker(), make_worker()
        tasks = claim(frozen, limit=2)
        Worker.objects.filter(pk=frozen.pk).bury(now=NOW)
        assert WorkerTask.objects.recover(now=NOW) == 2
        assert len(claim(other)) == 2
        assert end_and_claim(frozen, *tasks) == []
        assert WorkerTask.objects.processing().count() == 2

    def test_what_was_cancelled_gives_its_place_away_when_it_ends(self) -> None:
        limit("global")
        enqueue(step("first"), step("second"))
        worker = make_worker()
        tasks = claim(worker)
        WorkerTask.objects.filter(pk=tasks[0].pk).cancel(now=NOW)
        assert claim(worker) == []
        assert names(end_and_claim(worker, *tasks)) == ["second"]
        assert WorkerTask.objects.processing().count() == 1


def everything_goes() -> None:
    for model in (WorkerTask, Limit, Reservation):
        model.objects.all().delete()


# On SQLite (where all is counted instead of handed over), on PostgreSQL. What the limits hold back makes no
# difference.
STATEMENTS = {"taken": (8, 6), "full": (5, 3), "handed over": (8, 2)}


class TestCosts:
    """A handful of statements, however many tasks, sets and limits there are."""

    @pytest.mark.parametrize("size", [1, 10])
    def test_claims_and_places_that_are_handed_over(
        self, size: int, django_assert_num_queries: Callable[[int], AbstractContextManager[object]]
    ) -> None:
        def pinned(what: str) -> AbstractContextManager[object]:
            return django_assert_num_queries(STATEMENTS[what][connection.vendor == "postgresql"])

        worker = make_worker()
        for number in range(size):
            limit(f"resource:r{number}")
            enqueue(step(f"a{number}", resources=[f"r{number}"]), step(f"b{number}"))
        with pinned("taken"):
            assert len(claim(worker)) == 2 * size
        everything_goes()
        limit("resource:crm", 0)
        enqueue(*(step(f"held {number}", resources=["crm"]) for number in range(size)), step("free"))
        with pinned("full"):
            assert names(claim(worker)) == ["free"]
        everything_goes()
        limit("global", size)
        enqueue(*(step(f"job {number}") for number in range(3 * size)))
        tasks = claim(worker)
        with pinned("handed over"):
            assert len(end_and_claim(worker, *tasks)) == size

    @pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite counts its steps")
    def test_a_longer_queue_takes_no_more_steps(self) -> None:
        limit("global", 2)
        worker, taken = make_worker(), []
        for size in (100, 1_000):
            enqueue(*([step("job")] * size))
            with steps_of_sqlite() as look:
                tasks = claim(worker)
            with steps_of_sqlite() as handing_over:
                tasks = end_and_claim(worker, *tasks)
            taken.append((len(look), len(handing_over)))
            end(worker, *tasks)
        (few, few_handed), (many, many_handed) = taken
        assert many < few * 1.5
        assert many_handed < few_handed * 1.5

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL tells what it read")
    @pytest.mark.parametrize("size", [0, 3])
    def test_the_queue_is_not_read_through(self, size: int) -> None:
        """Only as much of it as there are sets of keys, and seats for each."""
        limit("global", size)
        enqueue(*(step(f"job {number}", resources=[f"r{number % 5}"]) for number in range(300)))
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("SET LOCAL enable_bitmapscan = off")
        with CaptureQueriesContext(connection) as captured:
            assert len(claim(make_worker(), limit=4)) == size
        looks = [query["sql"] for query in captured if "AS kind" in query["sql"]]
        assert len(looks) == 1 + bool(size)
        assert max(rows_read(look) for look in looks) <= 5 * 4 * 2 + 20


def rows_read(sql: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        (plan,) = cursor.fetchone()[0]
    return _rows_read(plan["Plan"])


def _rows_read(plan: dict[str, Any]) -> int:
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    read = int(own * plan["Actual Loops"]) if plan.get("Relation Name") == "execution_workertask" else 0
    return read + sum(_rows_read(part) for part in plan.get("Plans", ()))


def test_a_lost_attempt_is_recorded_from_when_it_had_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim may wait for a lock; meanwhile another may take a place of the limit and give it back."""
    limit("type:python")
    early, late = enqueue(step("early", priority=1), step("late"))
    first, loop = make_worker(clock.now()), WorkerLoop(processes=1, threads=1)
    loop.registration.place = make_worker(clock.now()), Lease()

    def while_it_waits(*given: Any) -> Any:
        monkeypatch.undo()
        end(first, *claim(first, limit=1, now=clock.now()), now=clock.now())
        return snapshot.find_open_groups(*given)

    monkeypatch.setattr("execution.queue.claim.find_open_groups", while_it_waits)
    assert names(loop._claim()) == ["late"]
    Worker.objects.filter(pk=loop.worker.pk).bury(now=clock.now())
    WorkerTask.objects.recover(now=clock.now())
    kept = limits_are_kept({task.key: task.limit_keys for task in (early, late)}, seconds(0))
    assert list(kept) == []
