from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """Where several would do, SQLite takes the one that was made last: those with conditions are made anew."""

    dependencies = [("execution", "0006_brief_lines")]

    operations = [
        migrations.RemoveIndex("execution", "execution_active"),
        migrations.RemoveIndex("execution", "execution_unaccounted"),
        migrations.AddIndex(
            "execution",
            models.Index(fields=["schedule"], name="execution_active", condition=Q(status="in_progress")),
        ),
        migrations.AddIndex(
            "execution",
            models.Index(
                fields=["schedule"],
                name="execution_unaccounted",
                condition=Q(accounted_at=None) & ~Q(status="in_progress"),
            ),
        ),
    ]
