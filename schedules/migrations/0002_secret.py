from __future__ import annotations

import django.core.validators
import django.db.models.functions.text
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("schedules", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Secret",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        max_length=64,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[a-z0-9_-]{1,64}\\Z",
                                "A name is made of up to 64 lower-case letters, digits, - and _, such as smtp_password.",
                            )
                        ],
                    ),
                ),
                ("description", models.TextField(blank=True, max_length=1000)),
                ("token", models.TextField(editable=False)),
                ("created_at", models.DateTimeField(editable=False)),
                ("changed_at", models.DateTimeField(editable=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("name",),
                        name="secret_name_once",
                        violation_error_code="unique",
                        violation_error_message="There is a secret with this name already: choose another name.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("name", django.db.models.functions.text.Lower("name"))),
                        name="secret_name_lower_case",
                    ),
                ],
            },
        ),
    ]
