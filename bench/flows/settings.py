"""The settings of JIM, plus the app with the workflow that is measured."""

from __future__ import annotations

from jimsite.settings import *  # noqa: F403
from jimsite.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "bench.flows"]
