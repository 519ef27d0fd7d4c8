from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin.apps import SimpleAdminConfig


class JimsiteConfig(AppConfig):
    name = "jimsite"
    verbose_name = "JIM"


class JimAdminConfig(SimpleAdminConfig):
    default_site = "jimsite.site.JimAdminSite"
