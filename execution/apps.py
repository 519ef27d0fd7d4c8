from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class ExecutionConfig(AppConfig):
    name = "execution"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Execution"

    def ready(self) -> None:
        from . import checks, failure, steps
        from .loops import housekeeping

        steps.register_own()
        failure.register_own()
        housekeeping.register_own()
        register(checks.concurrency_policy, checks.ENGINE)
