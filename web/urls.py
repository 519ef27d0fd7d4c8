"""The addresses of the pages."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import path

from .operating import operate
from .signing_in import limits_guesses
from .views import (
    account,
    activities,
    backfills,
    calendars,
    editor,
    execution,
    executions,
    home,
    ledger,
    limits,
    queue,
    runs,
    schedule,
    schedules,
    settings,
    templates,
    tokens,
    topics,
    webhooks,
    workers,
    workflows,
)

app_name = "web"

urlpatterns = [
    path("", home.home, name="home"),
    path("login", limits_guesses(account.Login.as_view()), name="login"),
    path("time-zone", account.time_zone, name="time-zone"),
    path("logout", LogoutView.as_view(next_page="web:login"), name="logout"),
    path("do/<slug:kind>/<slug:name>", operate, name="operate"),
    path("schedules/new", editor.new, name="schedule-new"),
    path("schedules/<int:pk>/edit", editor.edit, name="schedule-edit"),
    path("schedules/<int:pk>/duplicate", editor.duplicate, name="schedule-duplicate"),
    path("password", account.password, name="password"),
    path("workers", workers.workers, name="workers"),
    path("workers/now", workers.workers_now, name="workers-now"),
    path("workers/<uuid:pk>", workers.worker, name="worker"),
    path("workers/<uuid:pk>/now", workers.worker_now, name="worker-now"),
    path("limits", limits.limits, name="limits"),
    path("limits/now", limits.limits_now, name="limits-now"),
    path("limits/new", limits.new, name="limit-new"),
    path("limits/edit/<path:key>", limits.edit, name="limit-edit"),
    path("limits/key/<path:key>", limits.limit, name="limit"),
    path("calendars", calendars.calendars, name="calendars"),
    path("calendars/new", calendars.new, name="calendar-new"),
    path("calendars/<int:pk>", calendars.calendar, name="calendar"),
    path("calendars/<int:pk>/edit", calendars.edit, name="calendar-edit"),
    path("templates", templates.templates, name="templates"),
    path("templates/new", templates.new, name="template-new"),
    path("templates/<int:pk>", templates.template, name="template"),
    path("templates/<int:pk>/edit", templates.edit, name="template-edit"),
    path("webhooks", webhooks.webhooks, name="webhooks"),
    path("webhooks/new", webhooks.new, name="endpoint-new"),
    path("webhooks/<int:pk>", webhooks.endpoint, name="endpoint"),
    path("webhooks/<int:pk>/edit", webhooks.edit, name="endpoint-edit"),
    path("webhooks/deliveries", webhooks.deliveries, name="deliveries"),
    path("webhooks/deliveries/<int:pk>", webhooks.delivery, name="delivery"),
    path("webhooks/deliveries/<int:pk>/now", webhooks.delivery_now, name="delivery-now"),
    path("tokens", tokens.tokens, name="tokens"),
    path("tokens/new", tokens.new, name="token-new"),
    path("tokens/<int:pk>/revoke", tokens.revoke, name="token-revoke"),
    path("settings", settings.settings, name="settings"),
]

urlpatterns += [
    path("executions", executions.executions, name="executions"),
    path("executions/<int:pk>", execution.execution, name="execution"),
    path("executions/<int:pk>/live", execution.execution_live, name="execution-live"),
    path("executions/<int:pk>/output", execution.execution_output, name="execution-output"),
    path("executions/<int:pk>/output.txt", execution.execution_output_text, name="execution-output-text"),
    path("activities", activities.activities_list, name="activities"),
    path("activities/<int:pk>", activities.activity, name="activity"),
    path("activities/<int:pk>/live", activities.activity_live, name="activity-live"),
    path("activities/<int:pk>/output", activities.activity_output, name="activity-output"),
    path("activities/<int:pk>/output.txt", activities.activity_output_text, name="activity-output-text"),
    path("queue", queue.queue, name="queue"),
]

urlpatterns += [
    path("home/pulse", home.pulse_part, name="home-pulse"),
    path("home/attention", home.attention_part, name="home-attention"),
    path("home/running", home.running_part, name="home-running"),
    path("home/upcoming", home.upcoming_part, name="home-upcoming"),
    path("schedules", schedules.schedules, name="schedules"),
    path("schedules/rows", schedules.schedules_part, name="schedules-rows"),
    path("schedules/<int:pk>", schedule.schedule, name="schedule"),
    path("schedules/<int:pk>/now", schedule.now_part, name="schedule-now"),
    path("schedules/<int:pk>/export", schedule.export, name="schedule-export"),
    path("schedules/<int:pk>/ledger", ledger.ledger, name="ledger"),
    path("schedules/<int:pk>/why", ledger.why, name="why"),
    path("schedules/<int:pk>/revisions", schedule.revisions, name="revisions"),
    path("schedules/<int:pk>/backfills", backfills.backfills, name="backfills"),
    path("backfills/<int:pk>", backfills.backfill, name="backfill"),
]

urlpatterns += [
    path("workflows", workflows.workflows, name="workflows"),
    path("workflows/<slug:slug>", workflows.workflow, name="workflow"),
    path("workflows/<slug:slug>/now", workflows.workflow_now, name="workflow-now"),
    path("workflows/<slug:slug>/runs", runs.runs, name="runs"),
    path("runs/<int:pk>", runs.run, name="run"),
    path("runs/<int:pk>/now", runs.run_now, name="run-now"),
    path("topics", topics.topics, name="topics"),
    path("topics/<slug:slug>", topics.topic, name="topic"),
    path("events/<int:pk>", topics.event, name="event"),
]
