from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.template.response import TemplateResponse

from execution.models import Execution, Worker
from schedules.models import Schedule

ROWS = 10
ORDER = {
    "schedules": ("Schedule", "Occurrence"),
    "execution": ("Execution", "WorkerTask", "Worker"),
    "activities": ("Activity",),
}


class JimAdminSite(AdminSite):
    site_header = site_title = "JIM"
    site_url = None
    index_title = "What runs, when, and what became of it"

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """In the order in which people need them, not in that of the alphabet."""
        apps = super().get_app_list(request, app_label)
        for app in apps:
            for model in app["models"]:
                model["name"] = getattr(self.get_model_admin(model["model"]), "list_title", model["name"])
            app["models"].sort(
                key=lambda model: _place(ORDER.get(app["app_label"], ()), model["object_name"])
            )
        return sorted(apps, key=lambda app: _place(tuple(ORDER), app["app_label"]))

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        return super().index(request, {**_now(request), **(extra_context or {})})


def _place(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _now(request: HttpRequest) -> dict[str, Any]:
    can = request.user.has_perm
    shown: dict[str, Any] = {}
    if can("execution.view_execution"):
        shown["running"] = Execution.objects.in_progress().defer("plan").order_by("-pk")[:ROWS]
    if can("execution.view_worker"):
        shown["workers"] = Worker.objects.alive().count()
    if can("schedules.view_schedule"):
        troubled = Schedule.objects.open().exclude(spec_error="")
        failed = Schedule.objects.open().filter(spec_error="", last_outcome="failed")
        shown["troubled"] = [*troubled.order_by("name")[:ROWS], *failed.order_by("name")[:ROWS]][:ROWS]
    return shown
