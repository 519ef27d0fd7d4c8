"""The permission to see the settings page."""

from __future__ import annotations

from django.db import models


class Settings(models.Model):
    """A model without a table, which exists only for the permission to see the settings."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = [("view_settings", "Can see the settings of the installation")]
