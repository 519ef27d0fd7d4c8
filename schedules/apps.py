from __future__ import annotations

from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    name = "schedules"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Schedules"

    def ready(self) -> None:
        from activities.models import RESTRICTED

        RESTRICTED["secret"] = "schedules.view_secret"  # noqa: S105
