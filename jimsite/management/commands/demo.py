from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from database import clock
from jimsite.demo import create
from jimsite.workflows import inbox, put_files
from schedules.management.usable_database import require_migrated
from schedules.models import Schedule


class Command(BaseCommand):
    help = (
        "Create the demonstration schedules that are not there yet, start the nightly one, and put files "
        "into the inbox that the workflow “Files of the inbox” watches."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            require_migrated(Schedule._meta.db_table)
            created = create(now=clock.now())
        except OperationalError as error:
            words = " ".join(str(error).split())
            raise CommandError(f"The database cannot be used: {words}", returncode=2) from None
        names = ", ".join(schedule.name for schedule in created)
        self.stdout.write(f"Created: {names}." if created else "The demonstration schedules are all there.")
        if files := put_files():
            self.stdout.write(
                f"Put {files} files into {inbox()}: a workflow combines them. Schedulers and workers know it "
                "from their next start on."
            )
