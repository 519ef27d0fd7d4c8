"""Task execution, synchronisation tasks: a connector, a run profile of one of five types, and its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.models import Activity
from execution.models import Execution, WorkerTask
from identity.connectors.connector import ConnectorError, Problem, Result, connectors
from identity.models import PendingExport, RunProfile
from tests.base import attempts, claim, end, enqueue, fresh, make_worker, run_until_idle, start, step
from tests.identity.world import (
    DELTA_IMPORT,
    DELTA_SYNC,
    EXPORT,
    FULL_IMPORT,
    FULL_SYNC,
    System,
    identity_type,
    items,
    rule,
)

pytestmark = pytest.mark.django_db

PEOPLE = ("0", "1", "2")
CHANGE = "change"


class Company:
    """Three people of HR, who get accounts in AD."""

    def __init__(self) -> None:
        self.hr, self.ad = System("HR"), System("AD")
        people = identity_type()
        rule("in", self.hr, people, {"id": "id", "first": "first", "ends": "last"}, join="id")
        rule("out", self.ad, people, {"id": "id", "first": "first"})
        for number in PEOPLE:
            self.hr.put(number, first="Ada")

    def prepare(self, *runs: str) -> None:
        """Run these run types on HR, and change Ada in between."""
        for name in runs:
            if name == CHANGE:
                self.hr.change("1", first="Eda")
            else:
                self.hr.run(name)


@pytest.fixture
def company() -> Company:
    return Company()


def profile(system: System, run_type: str) -> RunProfile:
    name = str(RunProfile.RunType(run_type).label)
    return RunProfile.objects.get_or_create(system=system.row, name=name, run_type=run_type)[0]


def perform(system: System, run_type: str) -> tuple[Execution, Activity]:
    """Run a schedule of two steps, of which the first is this run, until nothing is left."""
    execution = start(system.step(profile(system, run_type), index=0), step("next", 1))
    run_until_idle()
    [attempt] = attempts(execution, str(profile(system, run_type)))
    return fresh(execution), attempt


class TestTheFiveRunTypes:
    @pytest.mark.parametrize(
        ("before", "run_type", "expected"),
        [
            ([], FULL_IMPORT, {"added": 3}),
            ([FULL_IMPORT, CHANGE], DELTA_IMPORT, {"updated": 1}),
            ([FULL_IMPORT], FULL_SYNC, {"projected": 3, "provisioned": 3, "staged": 3}),
            ([FULL_IMPORT, DELTA_SYNC, CHANGE, DELTA_IMPORT], DELTA_SYNC, {"flowed": 1, "staged": 1}),
            ([FULL_IMPORT, DELTA_SYNC], EXPORT, {"created": 3}),
        ],
    )
    def test_each_is_performed_and_the_activity_completed_with_its_counts(
        self, before: list[str], run_type: str, expected: dict[str, int], company: Company
    ) -> None:
        company.prepare(*before)
        system = company.ad if run_type == EXPORT else company.hr

        execution, activity = perform(system, run_type)

        assert (activity.status, activity.result) == ("complete", expected)
        assert activity.executed_at is not None
        assert activity.finished_at is not None
        assert execution.status == "completed"
        assert not WorkerTask.objects.exists()

    def test_an_import_of_all_sees_who_is_gone_and_one_of_changes_is_told(self, company: Company) -> None:
        company.prepare(FULL_IMPORT)
        company.hr.drop("1")
        assert perform(company.hr, FULL_IMPORT)[1].result == {"absent": 1, "unchanged": 2}
        company.hr.drop("2")
        assert perform(company.hr, DELTA_IMPORT)[1].result == {"absent": 1}


class TestItemsDecideHowTheActivityEnds:
    """Judged over all objects that were considered, not only over those that changed or failed."""

    @pytest.mark.parametrize(
        ("broken", "known", "status"),
        [
            pytest.param([], [], "complete", id="none failed"),
            pytest.param(["1"], [], "complete_with_warning", id="some failed"),
            pytest.param(["1"], [*PEOPLE], "complete_with_warning", id="one failed, all others unchanged"),
            pytest.param([*PEOPLE], [], "failed_with_error", id="all failed"),
        ],
    )
    def test_import(self, broken: list[str], known: list[str], status: str, company: Company) -> None:
        if known:
            company.prepare(FULL_IMPORT)
        company.hr.drop(*broken)
        company.hr.store.problems = [
            Problem("person", f"line {number}", "bad_record", "too few fields", number) for number in broken
        ]
        self.check(company.hr, FULL_IMPORT, broken, status, "bad_record")

    @pytest.mark.parametrize(
        ("broken", "status"),
        [([], "complete"), (["1"], "complete_with_warning"), ([*PEOPLE], "failed_with_error")],
    )
    def test_synchronisation(self, broken: list[str], status: str, company: Company) -> None:
        for number in PEOPLE:
            company.hr.change(number, last="soon" if number in broken else "2026-12-31")
        company.prepare(FULL_IMPORT)
        self.check(company.hr, FULL_SYNC, broken, status, "bad_value")

    @pytest.mark.parametrize(
        ("broken", "status"),
        [([], "complete"), (["1"], "complete_with_warning"), ([*PEOPLE], "failed_with_error")],
    )
    def test_export(self, broken: list[str], status: str, company: Company) -> None:
        company.prepare(FULL_IMPORT, FULL_SYNC)
        company.ad.store.answers = {number: Result(0, "refused", "no licence") for number in broken}
        self.check(company.ad, EXPORT, broken, status, "refused")
        assert PendingExport.objects.filter(status="refused").count() == len(broken)

    def check(self, system: System, run_type: str, broken: list[str], status: str, error: str) -> None:
        execution, activity = perform(system, run_type)
        assert (activity.status, activity.items_total, activity.items_failed) == (status, 3, len(broken))
        assert [name for name, _, kind in items(activity) if kind] == broken
        assert {kind for _, _, kind in items(activity) if kind} == ({error} if broken else set())
        assert execution.status == ("failed" if status == "failed_with_error" else "completed")


class TestAnException:
    """The activity is failed, never stuck in progress; the task is gone, and the next run finds no trace."""

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, company: Company) -> Iterator[None]:
        yield
        assert not WorkerTask.objects.exists()
        assert not Activity.objects.open().exists()
        assert fresh(company.hr.row).running_activity_id is None

    def fails(self, company: Company, run_type: str = FULL_IMPORT) -> Activity:
        execution, activity = perform(company.hr, run_type)
        assert (execution.status, activity.status) == ("failed", "failed_with_error")
        return activity

    def test_the_connector_is_not_installed(self, company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
        execution = start(company.hr.step(profile(company.hr, FULL_IMPORT), index=0))
        with monkeypatch.context() as patched:
            patched.delitem(connectors, "memory")
            run_until_idle()
        [activity] = attempts(execution, "HR: Full Import")
        assert activity.status == "failed_with_error"
        assert "its connector “memory” is not installed; installed connectors: csv" in activity.error

    def test_the_run_profile_was_removed_after_the_task_was_queued(self, company: Company) -> None:
        execution = start(company.hr.step(profile(company.hr, FULL_IMPORT), index=0))
        RunProfile.objects.all().delete()
        run_until_idle()
        [activity] = attempts(execution, "HR: Full Import")
        assert activity.status == "failed_with_error"
        assert "unknown run profile “Full Import”; the run profiles of “HR”: none yet" in activity.error

    def test_the_system_cannot_be_reached(self, company: Company) -> None:
        company.hr.store.before_page = self.raising(ConnectorError("ldap.example.com does not answer"))
        activity = self.fails(company)
        assert (activity.error, activity.traceback) == ("ldap.example.com does not answer", "")

    def test_something_that_nobody_has_foreseen(self, company: Company) -> None:
        company.hr.store.before_page = self.raising(RuntimeError("page 7 is upside down"))
        activity = self.fails(company)
        assert activity.error == "RuntimeError: page 7 is upside down"
        assert "raise error" in activity.traceback

    def test_the_input_is_empty(self, company: Company) -> None:
        company.prepare(FULL_IMPORT)
        company.hr.drop(*PEOPLE)
        assert "An empty input never counts as “everything was deleted”" in self.fails(company).error
        assert set(company.hr.accounts()) == set(PEOPLE)

    def test_more_objects_are_gone_than_the_limit_allows(self, company: Company) -> None:
        for number in range(10, 20):
            company.hr.put(str(number))
        company.prepare(FULL_IMPORT)
        company.hr.drop(*map(str, range(10, 20)))
        assert self.fails(company).error.startswith("limit_exceeded: 10 of 13 objects")

    def test_the_next_run_goes_on_with_what_was_committed(self, company: Company) -> None:
        company.hr.store.before_page = self.raising(RuntimeError("no"), at=2)
        RunProfile.objects.filter(pk=profile(company.hr, FULL_IMPORT).pk).update(page_size=1)
        assert self.fails(company).items_total == 1
        company.hr.store.before_page = lambda: None
        assert perform(company.hr, FULL_IMPORT)[1].result == {"added": 2, "unchanged": 1}

    @staticmethod
    def raising(error: Exception, *, at: int = 1) -> Any:
        pages = iter(range(1, 100))

        def raise_it() -> None:
            if next(pages) == at:
                raise error

        return raise_it


class TestSideBySide:
    """Tasks of one claim run at the same time; runs that would disturb each other are not in one claim."""

    @pytest.mark.parametrize(
        ("runs", "claims"),
        [
            pytest.param([("hr", FULL_IMPORT), ("ad", FULL_IMPORT)], [2], id="two systems"),
            pytest.param([("hr", FULL_IMPORT), ("hr", DELTA_IMPORT)], [1, 1], id="one system"),
            pytest.param([("hr", FULL_SYNC), ("ad", FULL_IMPORT)], [2], id="one synchronises"),
            pytest.param([("hr", FULL_SYNC), ("ad", FULL_SYNC)], [1, 1], id="both synchronise"),
        ],
    )
    def test_which_runs_wait_for_each_other(
        self, runs: list[tuple[str, str]], claims: list[int], company: Company
    ) -> None:
        systems = [(getattr(company, name), run_type) for name, run_type in runs]
        enqueue(*(system.step(profile(system, run_type)) for system, run_type in systems))
        worker, found = make_worker(), []
        while tasks := claim(worker):
            found.append(len(tasks))
            end(worker, *tasks)
        assert found == claims
