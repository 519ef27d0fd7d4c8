from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("schedules", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="backfill",
            name="key",
            field=models.CharField(blank=True, help_text="Of the form that asked for it.", max_length=64),
        ),
        migrations.AddConstraint(
            model_name="backfill",
            constraint=models.UniqueConstraint(
                condition=models.Q(("key", ""), _negated=True),
                fields=("schedule", "key"),
                name="backfill_once",
            ),
        ),
    ]
