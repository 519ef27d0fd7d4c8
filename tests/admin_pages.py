"""The admin as people use it: who they are, what they type, what they are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.admin import site
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Model
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.urls import reverse

from schedules.forms.sent import data_of
from schedules.forms.steps import StepForm
from schedules.forms.tasks import shown
from schedules.models import Schedule

VIEW = (
    *("schedules.view_schedule", "schedules.view_occurrence", "schedules.view_backfill"),
    *("schedules.view_sharedcalendar", "schedules.view_tasktemplate", "activities.view_activity"),
    *("execution.view_execution", "execution.view_workertask", "execution.view_worker"),
    *("execution.view_reservation", "execution.view_limit"),
    *("workflows.view_workflow", "workflows.view_handler", "workflows.view_run"),
    *("workflows.view_topic", "workflows.view_event"),
)
ROLES = {
    "nobody": (),
    "viewer": VIEW,
    "operator": (*VIEW, "schedules.run_schedule", "workflows.operate_workflow"),
    "author": (*VIEW, "schedules.add_schedule", "schedules.change_schedule"),
    "coder": (*VIEW, "schedules.add_schedule", "schedules.change_schedule", "schedules.define_code"),
    "closer": (*VIEW, "schedules.delete_schedule"),
}
PYTHON = {
    "index": "0",
    "name": "work",
    "runs": "type:python",
    "drawn_for": "fields:type:python",
    "run_if": "success",
    "config-function": "tests.work.noop",
    "config-isolation": "thread",
    "max_failed_percent": "100",
    "max_retries": "3",
    "retry_seconds": "10",
    "retry_factor": "2.0",
    "retry_cap_seconds": "600",
    "retry_jitter": "0",
    "priority": "0",
    "on_crash": "retry",
    "pool": "default",
}


def sign_in(role: str = "superuser", *, client: Client | None = None) -> Client:
    """A member of staff with the permissions of that role."""
    client = client or Client()
    user = User.objects.create_user(role, is_staff=True, is_superuser=role == "superuser")
    for name in ROLES.get(role, ()):
        app, codename = name.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    client.force_login(user)
    return client


def member(*codenames: str, name: str = "member") -> Client:
    """A member of staff with these permissions."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def typed(
    schedule: Schedule | None = None, /, steps: Sequence[Mapping[str, str]] = (PYTHON,), **fields: Any
) -> dict[str, str]:
    """What a browser sends when the form is filled in so; without steps, the form says none."""
    form = dict.fromkeys(("description", "cron", "every", "at"), "") | {
        "name": schedule.name if schedule else "Typed",
        "time_zone": "UTC",
        "dst": "cron",
        "overlap": "skip",
        "on_failure": "stop",
        "catch_up_seconds": "86400",
        "failures_to_pause": "1",
        "failures_among": "1",
        "version": str(schedule.token) if schedule else "",
        "steps-TOTAL_FORMS": str(len(steps)),
        "steps-INITIAL_FORMS": "0",
    }
    for number, step in enumerate(steps):
        form |= {f"steps-{number}-{name}": value for name, value in step.items()}
    return form | fields


def typed_steps(schedule: Schedule) -> list[dict[str, str]]:
    """The steps as a browser sends them if they are left as they are shown."""
    forms = [StepForm(initial=shown(step)) for step in schedule.steps.all()]
    return [{name: values[-1] for name, values in data_of(form).items() if values} for form in forms]


def save(client: Client, form: Mapping[str, str], schedule: Schedule | None = None) -> Any:
    url = page("schedules_schedule_change", schedule.pk) if schedule else page("schedules_schedule_add")
    return client.post(url, form)


def complaints(response: Any) -> dict[str, str]:
    """What the form says is wrong, by field; `steps` is about all steps, `config` and the like about one."""
    form, formset = (response.context["adminform"].form, response.context["inline_admin_formsets"][0].formset)
    said = {name: " ".join(texts) for name, texts in form.errors.items()}
    if formset.non_form_errors():
        said["steps"] = " ".join(formset.non_form_errors())
    for errors in formset.errors:
        said |= {f"step {name}": " ".join(texts) for name, texts in errors.items()}
    return said


def errors(response: Any) -> dict[str, str]:
    """What a form without steps says is wrong, by field."""
    assert response.status_code == 200
    return {name: " ".join(texts) for name, texts in response.context["adminform"].form.errors.items()}


def listed(model: type[Model], query: str = "") -> list[Any]:
    """What the list shows to a superuser, without its page."""
    page("index")  # which loads the admin
    return list(site.get_model_admin(model).get_changelist_instance(_request(query)).result_list)


def stored() -> str:
    """All that the database holds of all its tables."""
    with connection.cursor() as cursor:
        rows = []
        for table in connection.introspection.table_names():
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            rows += cursor.fetchall()
    return repr(rows)


def _request(query: str) -> HttpRequest:
    request = RequestFactory().get(f"/?{query}")
    request.user = User(is_superuser=True, is_active=True)
    return request


def page(name: str, *args: Any) -> str:
    return reverse(f"admin:{name}", args=args)


def operation(model: str, name: str, *ids: Any) -> str:
    return f"{page(f'{model}_do', name)}?{'&'.join(f'id={pk}' for pk in ids)}"


def told(client: Client, response: Any) -> str:
    """The messages on the page that a redirect leads to, as one text."""
    assert response.status_code == 302
    shown = client.get(response["Location"])
    assert shown.status_code == 200
    return " ".join(str(message) for message in shown.context["messages"])
