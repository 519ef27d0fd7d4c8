from __future__ import annotations

import pytest
from django.test import Client

from activities import clock
from activities.models import Activity
from execution.models import Reservation
from execution.models.adhoc import job_line
from tests.admin_pages import operation, page, sign_in, told
from tests.base import SOMEBODY, everything, fresh, step

pytestmark = pytest.mark.django_db


@pytest.fixture
def reservation() -> Reservation:
    now = clock.now()
    line = job_line(step("direct"), now=now)
    made = Reservation.objects.reserve(line, holder="here:1", now=now)
    assert made is not None
    assert made.take(line, initiator=SOMEBODY, now=now)
    return made


def test_people_see_who_has_which_seat(reservation: Reservation) -> None:
    client = sign_in("viewer")
    listed = client.get(page("execution_reservation_changelist")).content.decode()
    shown = client.get(page("execution_reservation_change", reservation.pk)).content.decode()
    for text in (listed, shown):
        assert "here:1" in text
        assert "running" in text
        assert page("activities_activity_change", reservation.activity_id) in text
    assert "pool:default" in shown


def test_an_operator_frees_a_seat(reservation: Reservation) -> None:
    client = sign_in("operator")
    url = operation("execution_reservation", "release", reservation.pk)
    assert client.get(url).status_code == 200
    assert fresh(reservation).state == "running"
    assert "is released" in told(client, client.post(url, {"reason": "stuck"}))
    assert fresh(reservation).state == "released"
    run = Activity.objects.get(operation="run")
    assert (run.status, run.message) == ("cancelled", "Its seat was released by operator.")
    record = Activity.objects.get(operation="release")
    assert (record.target_id, record.message) == (str(reservation.pk), "stuck")
    assert "is free already" in told(client, client.post(url, {"reason": ""}))


@pytest.mark.parametrize("role", ["viewer", "author"])
def test_others_may_not(reservation: Reservation, role: str) -> None:
    before = everything()
    url = operation("execution_reservation", "release", reservation.pk)
    assert sign_in(role).post(url, {"reason": ""}).status_code == 403
    assert everything() == before


def test_what_does_not_exist_is_not_found(reservation: Reservation) -> None:
    client: Client = sign_in()
    for wrong in ("7", "x", "00000000-0000-0000-0000-000000000000", ""):
        assert client.post(operation("execution_reservation", "release", wrong), {}).status_code == 404
