from __future__ import annotations

import pytest
from django.test import Client

from schedules.models import Schedule
from tests.admin_pages import sign_in
from tests.web.editor_form import Form

pytestmark = pytest.mark.django_db
NEW = "/schedules/new"


def test_a_schedule_is_made_with_the_buttons_of_the_form_alone() -> None:
    client = sign_in()
    form = opened(client, NEW)
    form = pressed(client, form, "add-rule.week", name="Nightly")
    form = pressed(client, form, "add-step")
    form = pressed(client, form, "show", step__1__name="fetch", step__1__runs="type:http")
    form = pressed(client, form, "add-step", step__1__config__url="https://shop.example/orders")
    form = pressed(client, form, "show", step__2__name="load", step__2__runs="type:wait")
    form = pressed(client, form, "join.2", step__2__config__duration="5m")
    answer = client.post(NEW, form.sent("save"))
    assert answer.status_code == 302, answer.context["reading"].errors
    schedule = Schedule.objects.get()
    assert answer["Location"] == schedule.get_absolute_url()
    assert schedule.spec == {"patterns": [{"times": ["09:00"], "weekdays": "mon-fri"}]}
    assert [(each.index, each.name, each.step_type) for each in schedule.steps.all()] == [
        (0, "fetch", "http"),
        (0, "load", "wait"),
    ]
    assert schedule.steps.all()[0].config["url"] == "https://shop.example/orders"


def test_nothing_is_complained_about_before_somebody_has_typed_it() -> None:
    client = sign_in()
    page = client.get(NEW)
    assert "<p>This field is required.</p>" not in page.text
    sent = Form(page.text).sent("preview", touched="name")
    assert "This field is required." in client.post(NEW, sent).text


def opened(client: Client, url: str) -> Form:
    answer = client.get(url)
    assert answer.status_code == 200
    return Form(answer.text)


def pressed(client: Client, form: Form, do: str, url: str = NEW, **changes: str | None) -> Form:
    answer = client.post(url, form.sent(do, **changes))
    assert answer.status_code == 200
    return Form(answer.text)
