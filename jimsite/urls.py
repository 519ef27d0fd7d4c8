from __future__ import annotations

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from jimsite.health import healthz

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("healthz", healthz, name="healthz"),
]
