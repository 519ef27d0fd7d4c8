from __future__ import annotations

from typing import Any

import pytest

from schedules.models import Schedule, SharedCalendar
from tests.api.calling import Caller, fields
from tests.base import NOW, SOMEBODY, make_schedule

pytestmark = pytest.mark.django_db
HOLIDAYS: dict[str, Any] = {"name": "Holidays", "excluded": [{"dates": "2026-12-25", "comment": "Christmas"}]}


def test_a_calendar_is_made_read_changed_and_removed() -> None:
    api = Caller("Author")
    made = api.post("calendars", HOLIDAYS)
    assert made.status_code == 201, made.json()
    url = f"calendars/{made.json()['id']}"
    read = api.get(url)
    assert (read.json(), read["ETag"]) == (made.json(), made["ETag"])
    assert api.get(f"{url}/dates", year=2026).json() == [{"date": "2026-12-25", "comment": "Christmas"}]
    assert api.get(f"{url}/dates", year="x").status_code == 400
    sent = api.put(url, read.json(), if_match=read["ETag"])
    assert (sent.status_code, sent["ETag"]) == (200, read["ETag"])
    assert fields(api.put(url, HOLIDAYS | {"name": "Other"}, if_match="*")) == ["name"]
    assert fields(api.post("calendars", {"name": "x", "excluded": [{"calendar": "x"}]})) == ["excluded"]
    changed = api.patch(url, {"description": "of all"}, if_match=read["ETag"])
    assert (changed.json()["description"], changed.json()["token"]) == ("of all", 2)
    assert api.delete(url, if_match=read["ETag"]).status_code == 412
    assert api.delete(url, if_match=changed["ETag"]).status_code == 204
    assert not SharedCalendar.objects.exists()


def test_a_calendar_in_use_stays_and_hands_its_changes_on() -> None:
    api = Caller("Author")
    made = api.post("calendars", HOLIDAYS)
    schedule = make_schedule(spec={"cron": ["0 2 * * *"], "exclude": [{"calendar": "Holidays"}]})
    url = f"calendars/{made.json()['id']}"
    assert api.get(url).json()["used_by"] == [{"id": schedule.pk, "name": schedule.name}]
    refused = api.delete(url, if_match="*")
    assert (refused.status_code, schedule.name in refused.json()["detail"]) == (409, True)
    everyday = {"excluded": [{"hour": "*", "minute": "*"}]}
    assert api.patch(url, everyday, if_match="*").status_code in (400, 409)
    assert api.patch(url, {"excluded": [{"dates": "2026-11-17"}]}, if_match="*").status_code == 200
    assert Schedule.objects.get().token == 2


def test_a_list_of_calendars(django_assert_num_queries: Any) -> None:
    for number in range(3):
        SharedCalendar.objects.define(f"Calendar {number}", [], initiator=SOMEBODY, now=NOW)
    api = Caller("Viewer")
    with django_assert_num_queries(5):
        assert len(api.get("calendars").json()["results"]) == 3
    assert len(api.get("calendars", search="r 1").json()["results"]) == 1
