from __future__ import annotations

import pytest

from activities.models import Activity
from database import clock
from execution.models import Reservation
from execution.models.adhoc import job_line
from tests.admin_pages import operation, page, sign_in, told
from tests.base import SOMEBODY, everything, fresh, step

pytestmark = pytest.mark.django_db


def test_people_see_who_has_which_seat_and_an_operator_frees_it() -> None:
    now = clock.now()
    line = job_line(step("direct"), now=now)
    reservation = Reservation.objects.reserve(line, holder="here:1", now=now)
    assert reservation is not None
    assert reservation.take(line, initiator=SOMEBODY, now=now)
    url, before = operation("execution_reservation", "release", reservation.pk), everything()
    viewer, operator = sign_in("viewer"), sign_in("operator")
    listed = viewer.get(page("execution_reservation_changelist")).content.decode()
    shown = viewer.get(page("execution_reservation_change", reservation.pk)).content.decode()
    for words in ("here:1", "running", page("activities_activity_change", reservation.activity_id)):
        assert words in listed
        assert words in shown
    assert "pool:default" in shown
    for client in (viewer, sign_in("author")):
        assert client.post(url, {"reason": ""}).status_code == 403
    for wrong in ("7", "x", "00000000-0000-0000-0000-000000000000", ""):
        assert operator.post(operation("execution_reservation", "release", wrong), {}).status_code == 404
    assert operator.get(url).status_code == 200
    assert everything() == before
    assert "was released" in told(operator, operator.post(url, {"reason": "stuck"}))
    assert fresh(reservation).state == "released"
    run = Activity.objects.get(operation="run")
    assert (run.status, run.message) == (
        "cancelled",
        "The seat of this direct request was released by operator.",
    )
    record = Activity.objects.get(operation="release")
    assert (record.target_id, record.message) == (str(reservation.pk), "stuck")
    assert "was already released" in told(operator, operator.post(url, {"reason": ""}))
