from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """Where several would do, SQLite takes the one that was made last: those with conditions are made anew."""

    dependencies = [("schedules", "0006_topics")]

    operations = [
        migrations.RemoveIndex("occurrence", "occurrence_pending"),
        migrations.AddIndex(
            "occurrence",
            models.Index(
                fields=["schedule", "planned_at"], name="occurrence_pending", condition=Q(status="pending")
            ),
        ),
    ]
