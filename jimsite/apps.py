from __future__ import annotations

from django.apps import AppConfig


class JimsiteConfig(AppConfig):
    name = "jimsite"
    verbose_name = "JIM"
