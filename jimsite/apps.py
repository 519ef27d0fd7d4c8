from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class JimsiteConfig(AppConfig):
    name = "jimsite"
    verbose_name = "JIM"


class JimAdminConfig(AdminConfig):
    default_site = "jimsite.site.JimAdminSite"
