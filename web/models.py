from __future__ import annotations

from django.db import models


class Settings(models.Model):
    """No table: only who may see the page of the settings."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = [("view_settings", "Can see the settings of the installation")]
