"""The command `rotatesecrets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from database import clock
from operations.initiator import Initiator
from schedules import vault
from schedules.management.usable_database import require_migrated
from schedules.models import Secret
from schedules.spec.wording import counted
from schedules.vault import Keys, Undecryptable, VaultError


class Command(BaseCommand):
    help = (
        "Encrypt all secrets with a new key and drop the old keys. If JIM_SECRETS_KEYS is set, encrypt all "
        "secrets with the first key in JIM_SECRETS_KEYS instead. JIM can keep running meanwhile. You can "
        "interrupt the command at any time, and run it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
        parser.add_argument("--keep-old", action="store_true", help="keep the old keys in the file")
        parser.add_argument(
            "--skip-lost",
            action="store_true",
            help="continue even if some secrets cannot be decrypted; those secrets will need new values",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            require_migrated(Secret._meta.db_table)
            if not Secret.objects.is_anything_encrypted():
                self.stdout.write("Nothing is encrypted yet, so there is nothing to do.")
            elif options["dry_run"]:
                self._announce(vault.current(), keep_old=options["keep_old"], skip_lost=options["skip_lost"])
            else:
                self._rotate(keep_old=options["keep_old"], skip_lost=options["skip_lost"])
        except Undecryptable as error:
            hint = "Use --skip-lost to continue with all other secrets."
            raise CommandError(f"{error} {hint}") from None
        except VaultError as error:
            raise CommandError(str(error), returncode=2) from None
        except OperationalError as error:
            words = " ".join(str(error).split())
            raise CommandError(f"The database cannot be used: {words}", returncode=2) from None

    def _rotate(self, *, keep_old: bool, skip_lost: bool) -> None:
        for told in Secret.objects.rotate(
            initiator=Initiator.command("rotatesecrets"),
            now=clock.now(),
            keep_old=keep_old,
            skip_lost=skip_lost,
        ):
            self.stdout.write(told)
        if lost := Secret.objects.survey().lost:
            self.stdout.write(_need_new_values(lost))
        self.stdout.write(_afterwards(vault.current()))

    def _announce(self, keys: Keys, *, keep_old: bool, skip_lost: bool) -> None:
        survey = Secret.objects.survey()
        if settings.JIM_SECRETS_KEYS:
            older = counted(survey.older, "secret")
            self.stdout.write(f"Would encrypt {older} with the first key in {keys.source}.")
        else:
            secrets = counted(survey.newest + survey.older, "secret")
            old = f"{'keep' if keep_old else 'remove'} {counted(len(keys.texts), 'old key')}"
            self.stdout.write(
                f"Would add a new key to {keys.source}, encrypt {secrets} with the new key, and {old}."
            )
        if survey.lost and not skip_lost:
            raise Undecryptable(survey.lost, keys)
        if survey.lost:
            self.stdout.write(_need_new_values(survey.lost))


def _need_new_values(lost: Sequence[str]) -> str:
    return f"These secrets cannot be decrypted and need new values: {', '.join(lost)}."


def _afterwards(keys: Keys) -> str:
    if not settings.JIM_SECRETS_KEYS:
        return f"Back up {keys.source}, and copy the file to every other host that has its own data folder."
    if len(keys.texts) == 1:
        return "JIM_SECRETS_KEYS contains only one key, so no old keys need to be removed."
    return (
        f"Only the first of the {len(keys.texts)} keys in JIM_SECRETS_KEYS is still needed. Before you "
        "remove the old keys, restart every JIM process that was started without the first key. Then run "
        "this command again, because such a process might have used an old key in the meantime."
    )
