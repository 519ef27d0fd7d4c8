from __future__ import annotations

from django.apps import AppConfig, apps
from django.contrib.admin.apps import SimpleAdminConfig
from django.db.models.signals import post_migrate, pre_migrate


class JimsiteConfig(AppConfig):
    name = "jimsite"
    verbose_name = "JIM"

    def ready(self) -> None:
        from .roles import give_permissions, remember_permissions

        # `web` is the last app with models, so all permissions exist when its `post_migrate` signal is sent.
        last = apps.get_app_config("web")
        pre_migrate.connect(remember_permissions, sender=last)
        post_migrate.connect(give_permissions, sender=last)


class JimAdminConfig(SimpleAdminConfig):
    default_site = "jimsite.site.JimAdminSite"
