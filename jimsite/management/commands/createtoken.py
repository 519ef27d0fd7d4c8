from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandParser

from api.models import ApiToken
from api.scopes import SCOPES
from jimsite.arguments import length
from jimsite.terminal import JimCommand, on_clock
from schedules.models import Refused
from schedules.placeholders import hint


class Command(JimCommand):
    help = (
        "Make an API token for a user. Its text goes to standard output, and nothing else does; nobody can "
        "read it again. It never reaches further than its user."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("user", metavar="USERNAME", help="whom it stands for")
        parser.add_argument("--name", required=True, help="what it is for")
        parser.add_argument(
            "--scopes", type=scopes, default=["view"], metavar="A,B", help=f"of {', '.join(SCOPES)} (view)"
        )
        parser.add_argument("--expires", type=length, metavar="DURATION", help="after how long: 90d (never)")

    def run(self, options: dict[str, Any]) -> None:
        now = self.now
        expires_at = now + options["expires"] if options["expires"] else None
        token, text = ApiToken.objects.issue(
            name=options["name"],
            scopes=options["scopes"],
            user=_user(options["user"]),
            initiator=self.by,
            now=now,
            expires_at=expires_at,
        )
        self.tell(_facts(token, text), lambda: self._show(token, text, expires_at))

    def _show(self, token: ApiToken, text: str, expires_at: datetime | None) -> None:
        until = f" until {on_clock(expires_at)} UTC" if expires_at else ""
        self.stderr.write(
            f"A token of {token.user} for {', '.join(token.scopes)}{until}; it is shown this once:", str
        )
        self.stdout.write(f"{text}\n")


def scopes(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in SCOPES]:
        raise argparse.ArgumentTypeError(f"there is no scope “{unknown[0]}”; {hint(unknown[0], SCOPES)}")
    return names


def _user(name: str) -> Any:
    users = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()
    if user is None:
        known = users._default_manager.filter(is_active=True).values_list(users.USERNAME_FIELD, flat=True)
        raise Refused(
            f"There is no user “{name}”; {hint(name, list(known[:1_000]), 'createsuperuser makes one')}"
        )
    if not user.is_active:
        raise Refused(f"The user “{name}” is not active.")
    return user


def _facts(token: ApiToken, text: str) -> dict[str, Any]:
    return {
        "token": text,
        "prefix": token.prefix,
        "name": token.name,
        "user": str(token.user),
        "scopes": token.scopes,
        "expires_at": token.expires_at,
    }
