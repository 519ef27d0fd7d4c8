from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from database import clock
from execution.loops.manual_runs import trigger
from jimsite.demo import CALENDAR, NIGHTLY, TEMPLATE, definitions
from jimsite.workflows import inbox
from operations.initiator import Initiator
from schedules.management.usable_database import require_migrated
from schedules.models import Schedule, SharedCalendar, TaskTemplate
from schedules.spec.wording import counted

BY = Initiator.system("demo")
FILES = {
    "order-17.csv": "item,count\npaper,500\n",
    "order-17.json": '{"customer": "Ada Lovelace"}\n',
    "order-18.csv": "item,count\nglue,3\n",
    "order-18.json": '{"customer": "Grace Hopper"}\n',
    "order-19.csv": "item,count\nink,7\n",
}


class Command(BaseCommand):
    help = (
        "Create the example schedules that do not exist yet, and input files for the example workflow “Inbox "
        "files”. If “Nightly HR Sync” is among the new schedules, it runs at once."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            require_migrated(Schedule._meta.db_table)
            created = create(now=clock.now())
        except OperationalError as error:
            words = " ".join(str(error).split())
            raise CommandError(f"The database cannot be used: {words}", returncode=2) from None
        names = ", ".join(schedule.name for schedule in created)
        self.stdout.write(f"Created: {names}." if created else "All example schedules exist already.")
        if files := put_files():
            self.stdout.write(
                f"Created {counted(files, 'file')} in {inbox()}, where the example workflow finds them. "
                "Restart the scheduler and the workers to load the workflow."
            )


def create(*, now: datetime) -> list[Schedule]:
    """Create the example schedules that do not exist yet, and return them.

    If the nightly schedule is created, it runs at once, so that there is something to see.
    """
    known = {name.casefold() for name in Schedule.objects.open().values_list("name", flat=True)}
    if all(fields["name"].casefold() in known for fields in definitions()):
        return []
    calendar, is_templated = create_calendar(now), create_template(now)
    missing = [each for each in definitions(calendar) if each["name"].casefold() not in known]
    return [_create(fields if is_templated else _without_template(fields), now) for fields in missing]


def create_calendar(now: datetime) -> str:
    """Create the example calendar unless a calendar with its name exists; return the name as stored."""
    known = SharedCalendar.objects.filter(name__iexact=CALENDAR["name"]).first()
    return (known or SharedCalendar.objects.define(**CALENDAR, initiator=BY, now=now)).name


def create_template(now: datetime) -> bool:
    """Create the example template unless a template with its name exists; return whether it can be used."""
    if not TaskTemplate.objects.known().filter(name__iexact=TEMPLATE["name"]).exists():
        TaskTemplate.objects.define(**TEMPLATE, initiator=BY, now=now)
    function = TEMPLATE["config"]["function"]
    return TaskTemplate.objects.active().filter(name=TEMPLATE["name"], config__function=function).exists()


def _without_template(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a schedule with the template's settings in place of references to it."""
    own = {name: value for name, value in TEMPLATE.items() if name not in ("name", "description")}
    steps = [
        own | {"index": step["index"], "name": step["name"], "config": own["config"] | step["config"]}
        if "template" in step
        else step
        for step in fields["steps"]
    ]
    return fields | {"steps": steps}


def _create(fields: dict[str, Any], now: datetime) -> Schedule:
    schedule = Schedule.objects.define(**fields, initiator=BY, now=now)
    if schedule.name == NIGHTLY:
        trigger(schedule, initiator=BY, now=now)
    return schedule


def put_files() -> int:
    """Create the missing input files of the example workflow, and return how many were created."""
    inbox().mkdir(parents=True, exist_ok=True)
    missing = {name: text for name, text in FILES.items() if not (inbox() / name).exists()}
    for name, text in missing.items():
        (inbox() / name).write_text(text)
    return len(missing)
