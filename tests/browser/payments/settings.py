"""JIM's own settings, with an app that has a workflow."""

from __future__ import annotations

from jimsite.settings import *  # noqa: F403
from jimsite.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.browser.payments"]
