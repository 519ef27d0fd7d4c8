"""The URLs of the API."""

from __future__ import annotations

from typing import Any

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularRedocView, SpectacularSwaggerSplitView
from rest_framework.routers import SimpleRouter

from .health import Live, Ready
from .resources.activities import Activities, Children, Items
from .resources.backfills import Backfills, BackfillsOfSchedule
from .resources.calendars import Calendars
from .resources.direct import Direct
from .resources.executions import Executions
from .resources.limits import Limits
from .resources.occurrences import Occurrences
from .resources.reservations import Reservations
from .resources.revisions import RevisionsOfSchedule
from .resources.runs import Runs
from .resources.schedules import Schedules
from .resources.secrets import Secrets
from .resources.tasks import Tasks
from .resources.templates import Templates
from .resources.tokens import Tokens
from .resources.topics import Events, EventsOfTopic, Topics
from .resources.webhooks import Deliveries, Webhooks
from .resources.workers import Pools, Workers
from .resources.workflows import SLUG, Workflows

app_name = "api"

router = SimpleRouter(trailing_slash=False)
router.register("limits", Limits, basename="limit")

# Definitions.
OF_SCHEDULE = "schedules/(?P<schedule_id>[0-9]{1,18})"
router.register("schedules", Schedules, basename="schedule")
router.register(f"{OF_SCHEDULE}/occurrences", Occurrences, basename="schedule-occurrence")
router.register(f"{OF_SCHEDULE}/backfills", BackfillsOfSchedule, basename="schedule-backfill")
router.register(f"{OF_SCHEDULE}/revisions", RevisionsOfSchedule, basename="schedule-revision")
router.register("backfills", Backfills, basename="backfill")
router.register("calendars", Calendars, basename="calendar")
router.register("templates", Templates, basename="template")
router.register("secrets", Secrets, basename="secret")

# Work and its history.
router.register("executions", Executions, basename="execution")
router.register("tasks", Tasks, basename="task")
router.register("direct", Direct, basename="direct")
router.register("activities", Activities, basename="activity")
router.register("activities/(?P<activity>[0-9]{1,18})/children", Children, basename="activity-child")
router.register("activities/(?P<activity>[0-9]{1,18})/items", Items, basename="activity-item")

# Event-driven work.
router.register("workflows", Workflows, basename="workflow")
router.register("runs", Runs, basename="run")
router.register("topics", Topics, basename="topic")
router.register(f"topics/(?P<topic>{SLUG})/events", EventsOfTopic, basename="topic-event")
router.register("events", Events, basename="event")

# Workers, notifications and access.
router.register("workers", Workers, basename="worker")
router.register("pools", Pools, basename="pool")
router.register("reservations", Reservations, basename="reservation")
router.register("webhooks", Webhooks, basename="webhook")
router.register("deliveries", Deliveries, basename="delivery")
router.register("tokens", Tokens, basename="token")

# The templates of these pages cannot render DRF's response to OPTIONS.
READ_ONLY: dict[str, Any] = {"http_method_names": ["get", "head"]}

urlpatterns = [
    path("", include(router.urls)),
    path("health/live", Live.as_view(), name="live"),
    path("health/ready", Ready.as_view(), name="ready"),
    path("schema", SpectacularAPIView.as_view(**READ_ONLY), name="schema"),
    path(
        "docs",
        SpectacularSwaggerSplitView.as_view(
            url_name="api:schema", template_name="api/docs.html", **READ_ONLY
        ),
        name="docs",
    ),
    path(
        "redoc",
        SpectacularRedocView.as_view(url_name="api:schema", template_name="api/redoc.html", **READ_ONLY),
        name="redoc",
    ),
]
