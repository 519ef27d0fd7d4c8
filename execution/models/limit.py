from __future__ import annotations

from django.core.validators import MaxValueValidator
from django.db import models


class Limit(models.Model):
    """How many tasks with one key run at once, whoever runs them."""

    key = models.CharField(max_length=100, primary_key=True)
    size = models.PositiveIntegerField(
        validators=[MaxValueValidator(100_000)], help_text="0: nothing with this key starts."
    )
    note = models.CharField(max_length=200, blank=True)

    def __str__(self) -> str:
        return self.key
