"""The admin looks like the pages, leads to them, and they lead back; its lists cost what they cost."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from api.models import ApiToken
from database import clock
from execution.models import Limit
from schedules.models import Backfill, SharedCalendar
from tests.admin_pages import operation, page, sign_in
from tests.base import NOW, SOMEBODY, fresh, make_schedule, make_template, make_worker, seconds, start, step
from tests.workflows.base import publish
from tests.workflows.orders import orders
from workflows.models import Handler, Run, Topic, Workflow

STYLES = settings.BASE_DIR / "static" / "jim"


def tokens(name: str) -> dict[str, str]:
    """The colours that a stylesheet gives names to."""
    text = (STYLES / name).read_text()
    return dict(re.findall(r"--([a-z-]+): (light-dark\([^;]+\));", text))


def test_both_stylesheets_have_the_same_colours() -> None:
    assert tokens("admin.css") == tokens("jim.css")
    assert len(tokens("jim.css")) > 10


@pytest.mark.django_db
def test_a_row_of_the_admin_and_its_page_lead_to_each_other() -> None:
    client, schedule = sign_in(), make_schedule()
    limit = Limit.objects.define("type:sql", 1, initiator=SOMEBODY, now=NOW)
    in_admin = page("execution_limit_change", "type_3Asql")
    for row, url in ((schedule, page("schedules_schedule_change", schedule.pk)), (limit, in_admin)):
        assert f'href="{row.get_absolute_url()}"' in client.get(url).text
    assert in_admin in client.get(limit.get_absolute_url()).text
    User.objects.update(is_staff=False)
    assert "/admin/" not in client.get(limit.get_absolute_url()).text


@pytest.mark.django_db
def test_tokens_are_read_and_revoked_in_the_admin_and_nothing_else() -> None:
    client = sign_in()
    by: dict[str, Any] = {"user": User.objects.get(), "initiator": SOMEBODY, "now": clock.now()}
    token, text = ApiToken.objects.issue(name="import", scopes=["view"], **by)
    shown = client.get(page("api_apitoken_change", token.pk)).text
    assert ("import" in shown, text in shown, token.digest in shown) == (True, False, False)
    assert client.get(page("api_apitoken_add")).status_code == 403
    client.post(operation("api_apitoken", "revoke", token.pk))
    assert fresh(token).revoked_at is not None


# The most queries that a list takes, however many rows it has; of the large ones, nothing is counted.
SMALL = {"schedules_schedule": 6, "schedules_sharedcalendar": 5, "schedules_tasktemplate": 6}
SMALL |= {"schedules_backfill": 5, "execution_worker": 4, "execution_limit": 9, "workflows_topic": 9}
SMALL |= {"workflows_workflow": 9, "workflows_handler": 9}
LARGE = {"schedules_occurrence": 6, "execution_execution": 4, "execution_workertask": 8}
LARGE |= {"activities_activity": 3, "workflows_run": 9, "workflows_event": 9}


@pytest.mark.django_db
def test_lists_need_as_many_queries_for_many_rows_as_for_few() -> None:
    client = sign_in()
    taken: dict[str, list[int]] = {name: [] for name in SMALL | LARGE}
    with orders():
        for numbers in ("1", "23456"):
            add_rows(numbers)
            for name, counts in taken.items():
                client.get(page(f"{name}_changelist"))  # Django remembers the types of content
                with CaptureQueriesContext(connection) as captured:
                    assert client.get(page(f"{name}_changelist")).status_code == 200
                counts.append(len(captured))
                assert name in SMALL or not [each for each in captured if "COUNT(*)" in each["sql"]]
    most = SMALL | LARGE
    assert {name: many for name, (few, many) in taken.items() if few != many or many > most[name]} == {}


def add_rows(numbers: str) -> None:
    """As many of each."""
    for n in numbers:
        publish("parcels", f"p{n}")
        run = Run.objects.filter(status="committed")[0]
        run.pk, run.key = None, uuid.uuid4()
        run.save(force_insert=True)
        other = Workflow.objects.create(slug=f"w{n}", title=n, created_at=NOW, deployed_at=NOW)
        Handler.objects.create(workflow=other, name="H", kind="consumer", code_version="1")
        Topic.objects.create(slug=f"t{n}", created_at=NOW)
        make_worker()
        make_template(f"Template {n}")
        SharedCalendar.objects.define(f"C{n}", [{"dates": "2998-01-01"}], initiator=SOMEBODY, now=NOW)
        Limit.objects.define(f"resource:{n}", 1, initiator=SOMEBODY, now=NOW)
        execution = start(step("a", resources=[n]), step("b", 1), spec={"cron": ["0 * * * *"]})
        assert execution.schedule is not None
        past: dict[str, Any] = {"start_at": NOW - seconds(7_200), "end_at": NOW}
        Backfill.objects.ask(execution.schedule, **past, initiator=SOMEBODY, now=NOW)
