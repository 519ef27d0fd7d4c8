"""JIM's own settings, with an app that brings workflows along."""

from __future__ import annotations

from jimsite.settings import *  # noqa: F403
from jimsite.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.flows"]
