from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from .operating import operate
from .views import activities, execution, executions, home, limits, queue, tokens

app_name = "web"

urlpatterns = [
    path("", home.home, name="home"),
    path("login", LoginView.as_view(template_name="web/login.html"), name="login"),
    path("logout", LogoutView.as_view(next_page="web:login"), name="logout"),
    path("do/<slug:kind>/<slug:name>", operate, name="operate"),
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
