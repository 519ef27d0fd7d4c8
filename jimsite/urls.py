from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from api.metrics import Metrics
from jimsite.health import healthz

handler400 = "jimsite.error_pages.bad_request"
handler403 = "jimsite.error_pages.forbidden"
handler404 = "jimsite.error_pages.not_found"
handler500 = "jimsite.error_pages.broken"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("api.urls")),
    path("api/v1", RedirectView.as_view(pattern_name="api:docs")),
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}jim/jim.svg")),
    path("healthz", healthz, name="healthz"),
    path("metrics", Metrics.as_view(), name="metrics"),
    path("", include("web.urls")),
]
