from __future__ import annotations

from django.apps import AppConfig


class ActivitiesConfig(AppConfig):
    name = "activities"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "What happened"
