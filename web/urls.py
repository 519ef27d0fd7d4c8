from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from .operating import operate
from .views import editor, home, limits, tokens

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
