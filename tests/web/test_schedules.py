from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from database import clock
from execution.loops.manual_runs import trigger
from schedules.models import Schedule
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, make_schedule
from tests.web.pages import poll, version_of
from text.words import badge

pytestmark = pytest.mark.django_db
HOURLY = {"every": [{"every": "1h"}]}


def names(client: Client, query: str = "") -> list[str]:
    return [row.schedule.name for row in client.get(f"/schedules{query}").context["rows"]]


def state(name: str, **fields: Any) -> Schedule:
    """A schedule that is as if this had happened to it."""
    schedule = make_schedule(name=name, spec=HOURLY, now=clock.now())
    Schedule.objects.filter(pk=schedule.pk).update(**fields)
    return schedule


def test_it_says_what_there_is_to_know_about_each(client: Client) -> None:
    spec = {"cron": ["0 2 * * *"], "time_zone": "Europe/London"}
    schedule = make_schedule(name="Nightly", tags=["finance"], spec=spec, now=clock.now())
    trigger(schedule, initiator=SOMEBODY, now=clock.now())
    assert "when resumed" not in client.get("/schedules").text
    schedule.pause(initiator=SOMEBODY, now=clock.now(), note="The bank is closed")
    text = client.get("/schedules").text
    for words in ("when resumed", "At 02:00 every day, Europe/London", ' 02:00:00 Europe/London">'):
        assert words in text
    assert badge("paused") in text
    assert "The bank is closed" in text
    assert 'href="/schedules?tag=finance"' in text
    assert f'<a href="{schedule.executions.get().get_absolute_url()}" tabindex="-1">' in text
    for role, count in (("viewer", 0), ("operator", 4)):
        assert sign_in(role).get("/schedules").text.count("formaction=") == count, role


@pytest.mark.parametrize(("failures", "told"), [(0, ""), (1, "last run failed"), (2, "2 failures in a row")])
def test_what_fails_says_so_beside_its_state(client: Client, failures: int, told: str) -> None:
    state("Shaky", failures_in_a_row=failures)
    [cell] = re.findall(r"<td>(.*?)</td>", client.get("/schedules").text, re.DOTALL)
    assert cell.split() == [*badge("active").split(), *(badge(told, "failed").split() if told else [])]


class TestNarrowing:
    def test_the_address_says_what_is_shown(self, client: Client) -> None:
        make_schedule(name="Alpha")
        make_schedule(name="beta", description="About money")
        make_schedule(name="Gamma", tags=["finance"])
        make_schedule(name="Gone").close(initiator=SOMEBODY, now=NOW)
        wanted = {
            "": ["Alpha", "beta", "Gamma"],
            "?q=ALPHA": ["Alpha"],
            "?q=money": ["beta"],
            "?q=fin": ["Gamma"],
            "?tag=finance": ["Gamma"],
            "?sort=newest": ["Gamma", "beta", "Alpha"],
            "?state=nonsense&sort=nonsense&page=nonsense": ["Alpha", "beta", "Gamma"],
            "?state=all": ["Alpha", "beta", "Gamma", "Gone"],
        }
        assert {query: names(client, query) for query in wanted} == wanted

    def test_by_state(self, client: Client) -> None:
        wanted: dict[str, dict[str, Any]] = {
            "active": {},
            "paused": {"status": "paused", "next_run_at": None},
            "broken": {"spec_error": "x", "next_run_at": None},
            "failing": {"failures_in_a_row": 2, "status": "paused"},
            "closed": {"status": "closed", "next_run_at": None},
            "idle": {"next_run_at": None},
            "overdue": {"next_run_at": NOW - timedelta(days=900), "status": "paused"},
        }
        assert "No schedules yet" in client.get("/schedules").text
        assert '<option value="active" selected>active</option>' in client.get("/schedules?state=active").text
        for name, fields in wanted.items():
            state(name, **fields)
        found = {name: names(client, f"?state={name}") for name in wanted}
        paused = {"paused": ["failing", "overdue", "paused"]}
        assert found == {name: [name] for name in wanted} | paused
        # Those without a next run come last.
        state("later", next_run_at=clock.now() + timedelta(hours=9))
        shown = names(client, "?sort=next")
        assert (shown[0], shown[-4], set(shown[-3:])) == ("overdue", "later", {"broken", "idle", "paused"})

    def test_pages_keep_what_was_asked(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("web.views.schedules.ROWS", 2)
        for name in ("a1", "a2", "a3", "b1"):
            make_schedule(name=name)
        first = client.get("/schedules?q=a")
        assert first.context["next"] == "/schedules?q=a&page=2"
        second = client.get(first.context["next"])
        assert [row.schedule.name for row in second.context["rows"]] == ["a3"]
        assert (second.context["previous"], second.context["next"]) == ("/schedules?q=a", "")
        # Rows that are sent again lead to pages, not to rows.
        assert client.get("/schedules/rows?version=old").context["next"] == "/schedules?page=2"


def test_those_selected_are_paused_and_one_comes_back_to_the_list(client: Client) -> None:
    both = [make_schedule(), make_schedule()]
    url = f"/do/schedule/pause?id={both[0].pk}&id={both[1].pk}&next=/schedules%3Fq%3DSchedule"
    assert both[0].name in client.get(url).text
    answer = client.post(url, {"note": "a test"})
    assert answer["Location"] == "/schedules?q=Schedule"
    assert set(Schedule.objects.values_list("status", "pause_note")) == {("paused", "a test")}


class TestRows:
    def test_they_are_sent_again_only_when_something_has_changed(self, client: Client) -> None:
        schedule = make_schedule(spec=HOURLY, now=clock.now())
        version = version_of(client.get("/schedules"), "rows")
        assert poll(client, "/schedules/rows", "rows", version=version).status_code == 204
        trigger(schedule, initiator=SOMEBODY, now=clock.now())
        assert poll(client, "/schedules/rows", "rows", version=version).status_code == 200

    def test_many_cost_as_many_queries_as_few(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        for number in range(8):
            trigger(make_schedule(tags=[f"tag {number}"], spec=HOURLY), initiator=SOMEBODY, now=NOW)
        clock.now()
        with django_assert_max_num_queries(4):
            assert client.get("/schedules/rows").status_code == 200
        with django_assert_max_num_queries(6):
            assert len(client.get("/schedules").context["rows"]) == 8
