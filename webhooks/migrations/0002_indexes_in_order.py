from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """Where several would do, SQLite takes the one that was made last: those with conditions are made anew."""

    dependencies = [("webhooks", "0001_initial")]

    operations = [
        migrations.RemoveIndex("delivery", "delivery_due"),
        migrations.AddIndex(
            "delivery",
            models.Index(
                fields=["endpoint", "next_try_at"], name="delivery_due", condition=Q(status="pending")
            ),
        ),
    ]
