"""JIM's own settings, for a worker that claims ahead of its seats whatever its steps take, and keeps it."""

from __future__ import annotations

from django.apps import AppConfig

from jimsite.settings import *  # noqa: F403
from jimsite.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, f"{__name__}.Ahead"]


class Ahead(AppConfig):
    name = "tests.chaos"

    def ready(self) -> None:
        from execution.loops import runs, worker

        runs.QUICK_SECONDS = worker.AHEAD_SECONDS = 3_600
