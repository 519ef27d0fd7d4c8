from __future__ import annotations

from django.apps import AppConfig


class ExecutionConfig(AppConfig):
    name = "execution"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "The runtime"

    def ready(self) -> None:
        from schedules.registry import failure_policies

        from . import housekeeping, steps

        failure_policies |= {
            "stop": "Stop: the steps after it are cancelled",
            "continue": "Continue: the steps after it run as well",
            "skip": "Skip: the steps after it are skipped, not cancelled",
        }
        steps.register_own()
        housekeeping.register_own()
