from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from .operating import operate
from .views import (
    activities,
    backfills,
    editor,
    execution,
    executions,
    home,
    ledger,
    limits,
    queue,
    revisions,
    schedule,
    schedules,
    tokens,
)

app_name = "web"

urlpatterns = [
    path("", home.home, name="home"),
    path("login", LoginView.as_view(template_name="web/login.html"), name="login"),
    path("logout", LogoutView.as_view(next_page="web:login"), name="logout"),
    path("do/<slug:kind>/<slug:name>", operate, name="operate"),
    path("schedules/new", editor.new, name="schedule-new"),
    path("schedules/<int:pk>/edit", editor.edit, name="schedule-edit"),
    path("schedules/<int:pk>/duplicate", editor.duplicate, name="schedule-duplicate"),
    path("limits", limits.limits, name="limits"),
    path("tokens", tokens.tokens, name="tokens"),
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
    path("schedules/<int:pk>/revisions", revisions.revisions, name="revisions"),
    path("schedules/<int:pk>/backfills", backfills.backfills, name="backfills"),
    path("backfills/<int:pk>", backfills.backfill, name="backfill"),
    path("backfills/<int:pk>/progress", backfills.progress_part, name="backfill-progress"),
]
