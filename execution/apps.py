from __future__ import annotations

from django.apps import AppConfig


class ExecutionConfig(AppConfig):
    name = "execution"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "The runtime"

    def ready(self) -> None:
        from . import failure, housekeeping, steps

        steps.register_own()
        failure.register_own()
        housekeeping.register_own()
