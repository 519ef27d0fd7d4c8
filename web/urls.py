from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from .operating import operate
from .views import home, limits, tokens

app_name = "web"

urlpatterns = [
    path("", home.home, name="home"),
    path("login", LoginView.as_view(template_name="web/login.html"), name="login"),
    path("logout", LogoutView.as_view(next_page="web:login"), name="logout"),
    path("do/<slug:kind>/<slug:name>", operate, name="operate"),
    path("limits", limits.limits, name="limits"),
    path("tokens", tokens.tokens, name="tokens"),
]
