from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from api.metrics import Metrics
from jimsite.health import healthz

handler400 = "jimsite.mishaps.bad_request"
handler403 = "jimsite.mishaps.forbidden"
handler404 = "jimsite.mishaps.not_found"
handler500 = "jimsite.mishaps.broken"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("api.urls")),
    path("api/v1", RedirectView.as_view(pattern_name="api:docs")),
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}jim/jim.svg")),
    path("healthz", healthz, name="healthz"),
    path("metrics", Metrics.as_view(), name="metrics"),
    path("", include("web.urls")),
]
