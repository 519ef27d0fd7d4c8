"""Questions about schedules: previews, why, the ledger, revisions, backfills."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from api.rates import Meter
from database import clock
from schedules.models import Backfill
from tests.api.calling import Caller, fields
from tests.base import NOW, SOMEBODY, everything, make_schedule, step

pytestmark = pytest.mark.django_db
DAILY = {"cron": ["0 2 * * *"]}
HOURLY = {"cron": ["0 * * * *"]}


def test_a_spec_is_previewed_before_anybody_saves_it() -> None:
    api = Caller("Viewer")
    body = {"spec": {"cron": ["30 1 * * *"], "time_zone": "Europe/London"}, "count": 3}
    before = everything()
    response = api.post("schedules/preview", body)
    assert response.status_code == 200, response.json()
    shown = response.json()
    assert shown["sentence"] == "At 01:30 every day, Europe/London"
    assert len(shown["upcoming"]) == 3
    assert (shown["warnings"], shown["difference"]) == ([], None)
    past = api.post("schedules/preview", {"spec": {"at": ["2020-01-01T00:00:00Z"]}}).json()
    assert (past["upcoming"], "scheduled times are in the past" in past["warnings"][0]) == ([], True)
    assert everything() == before


def test_previews_that_take_long_are_few_for_each_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("schedules.spec.timeline", "api.throttling"):
        monkeypatch.setattr(f"{module}.EFFORT", 100)
    monkeypatch.setattr(clock, "estimate", lambda: NOW.replace(second=10))
    monkeypatch.setattr("api.throttling.meter", Meter())
    api, other = Caller("Viewer"), Caller("Operator")
    large = {"spec": {"cron": ["*/2 * * * * * *"], "exclude": [{"second": "2-59/2"}]}}
    answers = [api.post("schedules/preview", large) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429]
    assert "not all of the next times are shown" in answers[0].json()["warnings"][0]
    assert answers[-1].headers["Retry-After"] == "50"
    saved = make_schedule(spec=large["spec"], now=clock.now())
    assert api.get(f"schedules/{saved.pk}/preview").status_code == 429
    shown = other.get(f"schedules/{saved.pk}/preview").json()
    assert (len(shown["upcoming"]) >= 1, len(shown["warnings"])) == (True, 1)


def test_a_preview_of_an_edit_says_which_times_change() -> None:
    api, schedule = Caller("Viewer"), make_schedule(spec=DAILY, now=clock.now())
    body = {"spec": {"cron": ["0 2 * * *", "0 14 * * *"]}, "schedule": schedule.pk, "count": 4}
    difference = api.post("schedules/preview", body).json()["difference"]
    assert difference["gone"] == []
    assert [at[11:] for at in difference["added"]] == ["14:00:00Z", "14:00:00Z"]
    assert len(api.get(f"schedules/{schedule.pk}/preview", count=100).json()["upcoming"]) == 100
    assert api.get(f"schedules/{schedule.pk}/preview", count=101).status_code == 400
    odd: list[tuple[dict[str, Any], str]] = [({}, "spec"), ({"spec": DAILY, "count": 101}, "count")]
    for wrong, field in (*odd, ({"spec": {"exclude": [{"calendar": "none"}]}}, "spec")):
        response = api.post("schedules/preview", wrong)
        assert (response.status_code, fields(response)) == (400, [field]), wrong
    assert api.post("schedules/preview", {"spec": DAILY, "schedule": 999_999}).status_code == 404


def test_why_it_did_not_run() -> None:
    schedule = make_schedule(spec=DAILY)
    api = Caller("Viewer")
    answer = api.get(f"schedules/{schedule.pk}/why", at="2026-11-20T03:00:00Z").json()
    assert answer["at"] == "2026-11-20T03:00:00Z"
    assert "no rule matches this time" in answer["sentence"]
    unescaped = f"/api/v1/schedules/{schedule.pk}/why?at=2026-11-20T03:00:00+01:00"
    assert api.client.get(unescaped).json()["at"] == "2026-11-20T02:00:00Z"
    for wrong in ("", "yesterday", "2026-13-01T00:00:00Z"):
        assert fields(api.get(f"schedules/{schedule.pk}/why", at=wrong)) == ["at"]
    assert fields(api.get(f"schedules/{schedule.pk}/why")) == ["at"]


def test_the_ledger_is_read_in_pages_and_narrowed_down(django_assert_num_queries: Any) -> None:
    api, schedule = Caller("Viewer"), make_schedule(spec=HOURLY, catch_up_seconds=0)
    schedule.generate_until(NOW + timedelta(hours=5))
    schedule.save()
    url = f"schedules/{schedule.pk}/occurrences"
    first = api.get(url, limit=3).json()
    times = [row["nominal_at"] for row in first["results"]]
    assert times == sorted(times, reverse=True)
    assert len(api.client.get(first["next"]).json()["results"]) == 2
    assert api.get(url, status="pending").json()["results"] == first["results"][:1]
    after = api.get(url, after="2026-11-16T07:00:00Z", before="2026-11-16T08:00:00Z").json()["results"]
    assert [row["nominal_at"] for row in after] == ["2026-11-16T07:00:00Z"]
    assert api.get(url, source="manual").json()["results"] == []
    pk = first["results"][0]["id"]
    assert api.get(f"{url}/{pk}").json() == first["results"][0]
    assert api.get(f"schedules/{make_schedule().pk}/occurrences/{pk}").status_code == 404
    assert api.get("schedules/999999/occurrences").status_code == 404
    with django_assert_num_queries(5):  # the token, two for permissions, the schedule, the list
        api.get(url)


def test_how_a_definition_came_to_be_and_what_differs_between_two_revisions() -> None:
    api, schedule = Caller("Viewer"), make_schedule(step("one"), spec=DAILY, tags=["a"])
    schedule.edit(token=1, changes={"tags": ["b"]}, initiator=SOMEBODY, now=NOW)
    schedule.edit(token=2, changes={"spec": HOURLY}, initiator=SOMEBODY, now=NOW)
    url = f"schedules/{schedule.pk}/revisions"
    first = api.get(url, limit=2).json()
    assert [row["number"] for row in first["results"]] == [3, 2]
    changed = {"path": "spec.cron[0]", "before": "0 2 * * *", "after": "0 * * * *"}
    assert first["results"][0]["changes"] == [changed]
    last = api.client.get(first["next"]).json()
    assert ([row["operation"] for row in last["results"]], last["next"]) == (["create"], None)
    assert api.client.get(last["previous"]).json()["results"] == first["results"]
    assert api.get(f"{url}/1").json()["definition"]["tags"] == ["a"]
    assert {api.get(f"{url}/{number}").status_code for number in (0, 4)} == {404}
    assert fields(api.get(url, cursor="99")) == ["cursor"]
    whole = api.get(f"{url}/3/diff", against=1).json()
    assert (whole["older"], whole["newer"]) == (1, 3)
    assert [change["path"] for change in whole["changes"]] == ["tags[0]", "spec.cron[0]"]
    assert "- 0 2 * * *" in whole["text"]
    assert [change["path"] for change in api.get(f"{url}/3/diff").json()["changes"]] == ["spec.cron[0]"]
    assert api.get(f"{url}/1/diff").json()["changes"] == []
    assert api.get(f"{url}/3/diff", against=9).status_code == 404


RANGE = {"start_at": "2026-11-10T00:00:00Z", "end_at": "2026-11-12T23:00:00Z"}


def test_a_backfill_is_rehearsed_then_asked_for_and_cancelled() -> None:
    schedule, api = make_schedule(spec=DAILY), Caller("Operator")
    url = f"schedules/{schedule.pk}/backfills"
    rehearsed = api.post(url, RANGE | {"dry_run": True})
    assert rehearsed.status_code == 200, rehearsed.json()
    times = [f"2026-11-{day}T02:00:00Z" for day in (10, 11, 12)]
    told = {"total": 3, "chosen": 3, "left_out": {}, "times": times, "last": times[-1]}
    assert rehearsed.json() == told
    assert not Backfill.objects.exists()
    assert api.post(url, RANGE | {"dry_run": True}, idempotency_key="x" * 201).status_code == 400
    asked = api.post(url, RANGE | {"overlap": "allow_all"})
    assert (asked.status_code, asked.json()["total"]) == (202, 3)
    shown = api.client.get(asked["Location"]).json()
    assert (shown["status"], shown["overlap"], shown["progress"]["waiting"]) == ("open", "allow_all", 0)
    assert [row["id"] for row in api.get(url, status="open").json()["results"]] == [shown["id"]]
    assert [row["id"] for row in api.get("backfills").json()["results"]] == [shown["id"]]
    cancelled = api.post(f"backfills/{shown['id']}/cancel", {"reason": "enough"})
    assert (cancelled.json()["status"], cancelled.json()["reason"]) == ("cancelled", "enough")
    assert api.post(f"backfills/{shown['id']}/cancel").status_code == 409
    odd = [("end_at", "2026-11-01T00:00:00Z"), ("end_at", "2099-11-01T00:00:00Z"), ("which", "some")]
    odd += [("start_at", "2026-11-10")]
    for name, value in (*odd, ("start_at", "2026-11-10T00:00:00"), ("end_at", "2026-11-10T01:00:00Z")):
        response = api.post(url, RANGE | {name: value})
        assert (response.status_code, fields(response)) == (400, [name]), value
    assert api.post(f"schedules/{make_schedule().pk}/backfills", RANGE).status_code == 409
