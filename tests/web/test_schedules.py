from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from activities import clock
from activities.words import badge
from execution.invoker import trigger
from schedules.models import Schedule
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, claim, end, everything, make_schedule, make_worker, seconds
from tests.web.parts import poll, version_in

pytestmark = pytest.mark.django_db
HOURLY = {"every": [{"every": "1h"}]}


@pytest.fixture
def client() -> Client:
    return sign_in()


def names(client: Client, query: str = "") -> list[str]:
    return [row.schedule.name for row in client.get(f"/schedules{query}").context["rows"]]


def state(name: str, **fields: Any) -> Schedule:
    """A schedule that is as if this had happened to it."""
    schedule = make_schedule(name=name, spec=HOURLY, now=clock.now())
    Schedule.objects.filter(pk=schedule.pk).update(**fields)
    return schedule


class TestList:
    def test_it_says_what_there_is_to_know_about_each(self, client: Client) -> None:
        schedule = make_schedule(
            name="Nightly",
            tags=["finance"],
            spec={"cron": ["0 2 * * *"], "time_zone": "Europe/London"},
            now=clock.now(),
        )
        schedule.pause(initiator=SOMEBODY, now=clock.now(), note="The bank is closed")
        text = client.get("/schedules").text
        assert "At 02:00 every day, Europe/London" in text
        assert badge("paused") in text
        assert "The bank is closed" in text
        assert 'href="/schedules?tag=finance"' in text
        assert "02:00 Europe/London</time>" in text

    def test_nothing_is_next_before_a_paused_one_is_resumed(self, client: Client) -> None:
        schedule = make_schedule(spec={"cron": ["0 2 * * *"]}, now=clock.now())
        assert "when resumed" not in client.get("/schedules").text
        schedule.pause(initiator=SOMEBODY, now=clock.now())
        assert "when resumed" in client.get("/schedules").text

    def test_each_run_is_a_bar_that_leads_to_it(self, client: Client) -> None:
        schedule, worker = make_schedule(overlap="allow_all"), make_worker()
        for status in ("complete", "failed_with_error"):
            trigger(schedule, initiator=SOMEBODY, now=NOW)
            end(worker, *claim(worker), status=status, now=NOW + seconds(5))
        text = client.get("/schedules").text
        for execution in schedule.executions.all():
            assert f'<a href="/executions/{execution.pk}" tabindex="-1">' in text
        assert "The last 2 runs: 1 completed and 1 failed" in text

    def test_without_schedules_it_teaches_the_first_step(self, client: Client) -> None:
        text = client.get("/schedules").text
        assert "There are no schedules yet" in text
        assert 'href="/schedules/new"' in text

    def test_text_is_shown_as_text(self, client: Client) -> None:
        make_schedule(name="<script>alert(1)</script>", tags=["<b>"], description="<i>")
        text = client.get("/schedules").text
        assert "<script>alert(1)" not in text
        assert "&lt;script&gt;alert(1)" in text


class TestNarrowing:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", ["Alpha", "beta", "Gamma"]),
            ("?q=ALPHA", ["Alpha"]),
            ("?q=money", ["beta"]),
            ("?q=fin", ["Gamma"]),
            ("?tag=finance", ["Gamma"]),
            ("?tag=fin", []),
            ("?sort=newest", ["Gamma", "beta", "Alpha"]),
            ("?state=nonsense&sort=nonsense&page=nonsense", ["Alpha", "beta", "Gamma"]),
            ("?q=%00", []),
            ("?page=2", []),
        ],
    )
    def test_the_address_says_what_is_shown(self, client: Client, query: str, expected: list[str]) -> None:
        make_schedule(name="Alpha")
        make_schedule(name="beta", description="About money")
        make_schedule(name="Gamma", tags=["finance"])
        assert names(client, query) == expected

    @pytest.mark.parametrize(
        ("wanted", "fields"),
        [
            ("running", {}),
            ("paused", {"status": "paused", "next_run_at": None}),
            ("broken", {"spec_error": "x", "next_run_at": None}),
            ("failing", {"failures_in_a_row": 2, "status": "paused"}),
            ("closed", {"status": "closed", "next_run_at": None}),
            ("idle", {"next_run_at": None}),
            ("overdue", {"next_run_at": NOW - timedelta(days=900), "status": "paused"}),
        ],
    )
    def test_by_state(self, client: Client, wanted: str, fields: dict[str, Any]) -> None:
        state("Wanted", **fields)
        state("Other", **({"status": "closed", "next_run_at": None} if wanted != "closed" else {}))
        assert names(client, f"?state={wanted}") == ["Wanted"]

    def test_closed_ones_are_shown_when_asked_for(self, client: Client) -> None:
        make_schedule(name="Gone").close(initiator=SOMEBODY, now=NOW)
        assert names(client) == []
        assert names(client, "?state=all") == ["Gone"]

    def test_by_the_next_run_those_without_one_come_last(self, client: Client) -> None:
        state("Never", next_run_at=None)
        state("Later", next_run_at=clock.now() + timedelta(hours=9))
        state("Soon", next_run_at=clock.now() + timedelta(hours=1))
        assert names(client, "?sort=next") == ["Soon", "Later", "Never"]

    def test_pages_keep_what_was_asked(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("web.views.schedules.ROWS", 2)
        for name in ("a1", "a2", "a3", "b1"):
            make_schedule(name=name)
        first = client.get("/schedules?q=a")
        assert first.context["next"] == "/schedules?q=a&page=2"
        second = client.get(first.context["next"])
        assert [row.schedule.name for row in second.context["rows"]] == ["a3"]
        assert (second.context["previous"], second.context["next"]) == ("/schedules?q=a", "")


class TestTogether:
    def test_those_selected_are_paused_and_one_comes_back_to_the_list(self, client: Client) -> None:
        both = [make_schedule(), make_schedule()]
        url = f"/do/schedule/pause?id={both[0].pk}&id={both[1].pk}&next=/schedules%3Fq%3DSchedule"
        assert both[0].name in client.get(url).text
        answer = client.post(url, {"note": "a test"})
        assert answer["Location"] == "/schedules?q=Schedule"
        assert set(Schedule.objects.values_list("status", "pause_note")) == {("paused", "a test")}

    def test_without_a_selection_one_is_asked_to_choose(self, client: Client) -> None:
        answer = client.get("/do/schedule/pause?next=/schedules", follow=True)
        assert "Choose at least one" in answer.text

    @pytest.mark.parametrize(("role", "count"), [("viewer", 0), ("operator", 4)])
    def test_only_what_is_allowed_is_offered(self, role: str, count: int) -> None:
        make_schedule()
        text = sign_in(role).get("/schedules").text
        assert text.count("formaction=") == count


class TestRows:
    def test_they_are_sent_again_only_when_something_has_changed(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY, now=clock.now())
        version = version_in(client.get("/schedules").text, "rows")
        assert poll(client, "/schedules/rows", version).status_code == 204
        trigger(schedule, initiator=SOMEBODY, now=clock.now())
        assert poll(client, "/schedules/rows", version).status_code == 200

    def test_they_lead_to_pages_not_to_rows(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("web.views.schedules.ROWS", 1)
        make_schedule()
        make_schedule()
        assert client.get("/schedules/rows?version=old").context["next"] == "/schedules?page=2"

    def test_many_cost_as_many_queries_as_few(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        for number in range(20):
            trigger(make_schedule(tags=[f"tag {number}"], spec=HOURLY), initiator=SOMEBODY, now=NOW)
        clock.now()
        with django_assert_max_num_queries(4):
            assert client.get("/schedules/rows").status_code == 200
        with django_assert_max_num_queries(6):
            assert len(client.get("/schedules").context["rows"]) == 20


def test_looking_changes_nothing(client: Client) -> None:
    make_schedule(spec=HOURLY)
    before = everything()
    client.get("/schedules")
    assert everything() == before


def test_it_needs_a_permission() -> None:
    client = sign_in("nobody")
    assert client.get("/schedules").status_code == 403
    assert client.get("/schedules/rows").status_code == 403
