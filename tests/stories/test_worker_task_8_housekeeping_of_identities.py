"""Housekeeping of identities: those whose grace period has passed go, at most 50 a cycle; and old history."""

from __future__ import annotations

from datetime import timedelta

import pytest

from activities.models import Activity, ActivityItem
from execution.loops.housekeeping import keep_house
from identity.models import Identity, PendingExport, SyncRule
from operations.initiator import Initiator
from tests.base import NOW, enqueue, fresh, run_until_idle
from tests.identity.world import EXPORT, FULL_IMPORT, FULL_SYNC, System, identities, identity_type, rule
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db

GRACE = timedelta(days=30)
MINUTE = timedelta(seconds=60)
EVE = Initiator("user", "8", "eve")
NO_LIMITS = {name: {"percent": None, "count": None} for name in ("absent", "losses", "deletes")}


class Company:
    """People of HR with accounts in AD, which deletes them, and in a wiki, which disables them."""

    def __init__(self, people: int) -> None:
        self.hr, self.ad, self.wiki = System("HR"), System("AD"), System("Wiki")
        kind = identity_type(sources=[self.hr], deletion="authoritative", grace_days=GRACE.days)
        rule("in", self.hr, kind, {"id": "id", "first": "first"}, join="id")
        flows = {"id": "id", "first": "first"}
        rule("out", self.ad, kind, flows, deprovision="delete")
        rule("out", self.wiki, kind, flows, deprovision="disable", disable_values={"first": "(left)"})
        self.hr.put("stays", first="Zoe")
        self.names = [f"{number:03d}" for number in range(people)]
        for name in self.names:
            self.hr.put(name, first="Ada")
        self.synchronise()
        for system in (self.ad, self.wiki):
            system.run(EXPORT)
            system.run(FULL_IMPORT)

    def synchronise(self) -> Activity:
        self.hr.run(FULL_IMPORT, limits=NO_LIMITS)
        return self.hr.run(FULL_SYNC, limits=NO_LIMITS)

    def leave(self, *names: str) -> Activity:
        """Return the run that marks these people; Eve has asked for it."""
        self.hr.drop(*names)
        self.hr.run(FULL_IMPORT, limits=NO_LIMITS)
        profile = self.hr.row.profiles.get(run_type=FULL_SYNC)
        enqueue(self.hr.step(profile))
        Activity.objects.open().update(initiator_type=EVE.type, initiator_id=EVE.id, initiator_name=EVE.name)
        run_until_idle()
        return Activity.objects.filter(target_type="run_profile").latest("pk")


def deletions() -> list[Activity]:
    return list(Activity.objects.filter(operation="delete", target_type="identity").order_by("pk"))


class TestMvoCleanup:
    def test_nobody_is_found_before_the_grace_period_has_passed(self) -> None:
        company = Company(1)
        company.leave("000")
        keep_house(NOW + GRACE - timedelta(seconds=1))
        assert set(identities()) == {"stays", "000"}
        assert deletions() == []

    def test_at_most_50_are_deleted_per_cycle_the_longest_waiting_first(self) -> None:
        company = Company(53)
        company.leave(*company.names)
        at = NOW + GRACE + MINUTE
        Identity.objects.filter(display="007").update(delete_after=at)
        keep_house(at)
        assert set(identities()) == {"stays", "007", "051", "052"}
        keep_house(at + MINUTE / 2)
        assert len(identities()) == 4, "less than a minute after the last cycle"
        keep_house(at + MINUTE)
        assert set(identities()) == {"stays"}
        assert len(deletions()) == 53

    def test_delete_exports_are_staged_before_the_identity_is_gone(self) -> None:
        company = Company(1)
        company.leave("000")
        accounts = {system: system.account("000").pk for system in (company.ad, company.wiki)}

        keep_house(NOW + GRACE)

        assert set(identities()) == {"stays"}
        assert company.ad.pending() == {"000": ("delete", {})}
        assert company.wiki.pending() == {"000": ("update", {"first": "(left)"})}
        assert {system: system.account("000").pk for system in accounts} == accounts
        for system in accounts:
            system.run(EXPORT)
            system.run(FULL_IMPORT)
        assert "000" not in company.ad.objects
        assert company.wiki.objects["000"]["first"] == "(left)"
        assert not PendingExport.objects.exists()

    def test_the_deletion_is_recorded_in_the_name_of_who_caused_it(self) -> None:
        company = Company(1)
        run = company.leave("000")
        identity = identities()["000"]

        keep_house(NOW + GRACE)

        [recorded] = deletions()
        by = (recorded.initiator_type, recorded.initiator_id, recorded.initiator_name)
        assert by == (EVE.type, EVE.id, EVE.name)
        assert (recorded.target_name, recorded.status) == ("000", "complete")
        assert recorded.details is not None
        assert recorded.details["attributes"] == identity.attrs
        assert recorded.details["marked"]["by"]["activity"] == run.pk
        history = ActivityItem.objects.of_object(f"identity:{identity.pk}")
        assert [item.change for item in history] == ["deleted", "marked", "projected"]
        assert history[0].activity == recorded
        assert history[0].data == {name: [value, None] for name, value in identity.attrs.items()}
        staged = recorded.items.filter(change="staged").order_by("pk")
        assert [item.message for item in staged] == ["delete", "update"]

    def test_who_has_come_back_meanwhile_stays(self) -> None:
        company = Company(1)
        company.leave("000")
        company.hr.put("000", first="Ada")
        company.synchronise()
        keep_house(NOW + GRACE)
        assert set(identities()) == {"stays", "000"}

    def test_one_that_cannot_be_deleted_stops_no_other_and_is_tried_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        company = Company(3)
        company.leave(*company.names)
        with database_that_refuses("NEW.target_name = '001'", event="INSERT"):
            keep_house(NOW + GRACE)
        assert set(identities()) == {"stays", "001"}
        assert "001" not in company.ad.pending()
        assert "could not be deleted; it is tried again later" in caplog.text
        keep_house(NOW + GRACE + MINUTE)
        assert set(identities()) == {"stays"}

    def test_with_a_wrong_rule_nobody_is_deleted(self, caplog: pytest.LogCaptureFixture) -> None:
        """Nobody would know which accounts to take away."""
        company = Company(1)
        company.leave("000")
        wrong = SyncRule.objects.get(object_type=company.ad.type)
        wrong.flows.filter(target="first").update(source="nickname")
        keep_house(NOW + GRACE)
        assert set(identities()) == {"stays", "000"}
        assert f"The rule “{wrong}” cannot be used" in caplog.text

    def test_identities_that_refer_to_a_deleted_one_are_synchronised_again(self) -> None:
        company = Company(1)
        company.leave("000")
        referrer = identities()["stays"]
        referrer.links.create(target=identities()["000"])
        keep_house(NOW + GRACE)
        assert fresh(referrer).is_dirty


class TestHistoryCleanup:
    def test_runs_and_the_changes_of_objects_go_after_the_retention_period(self) -> None:
        company = Company(1)
        company.leave("000")
        keep_house(NOW + GRACE)
        assert ActivityItem.objects.exists()

        keep_house(NOW + timedelta(days=91))

        runs = Activity.objects.filter(operation=Activity.RUN)
        assert not runs.filter(created_at__lt=NOW + timedelta(days=1)).exists()
        assert {item.activity for item in ActivityItem.objects.all()} == set(deletions())
        keep_house(NOW + GRACE + timedelta(days=91))
        assert not ActivityItem.objects.exists()
        assert len(deletions()) == 1, "administrative records are kept for years"

    def test_within_six_hours_it_is_skipped(self) -> None:
        Company(1)
        late = NOW + timedelta(days=89, hours=20)
        keep_house(late)
        keep_house(late + timedelta(hours=5))
        assert ActivityItem.objects.exists()
        keep_house(late + timedelta(hours=6))
        assert not ActivityItem.objects.exists()
