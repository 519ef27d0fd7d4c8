from __future__ import annotations

from django.db import migrations

import execution.models.brief


class Migration(migrations.Migration):
    """The columns stay as they are, and so does what is in them: old lines say more than they need to."""

    dependencies = [("execution", "0005_tick_seconds")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="execution",
                    name="plan",
                    field=execution.models.brief.PlanField(),
                ),
                migrations.AlterField(
                    model_name="workertask",
                    name="step",
                    field=execution.models.brief.LineField(help_text="The line of the plan, frozen."),
                ),
            ]
        )
    ]
