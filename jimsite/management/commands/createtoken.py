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
        "Create an API token for a user and print it to standard output. The token cannot be shown again. "
        "A token never has more permissions than its user."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("user", metavar="USERNAME", help="user that the token acts for")
        parser.add_argument("--name", required=True, help="purpose of the token")
        parser.add_argument(
            "--scopes",
            type=scopes,
            default=["view"],
            metavar="A,B",
            help=f"scopes, separated by commas: {', '.join(SCOPES)} (default: view)",
        )
        parser.add_argument(
            "--expires",
            type=length,
            metavar="DURATION",
            help="lifetime, such as 90d (default: never expires)",
        )

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
        until = f", valid until {on_clock(expires_at)} UTC" if expires_at else ""
        self.stderr.write(
            f"Token of {token.user} with scopes {', '.join(token.scopes)}{until}. It is shown only once:", str
        )
        self.stdout.write(f"{text}\n")


def scopes(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in SCOPES]:
        raise argparse.ArgumentTypeError(f"scope “{unknown[0]}” does not exist; {hint(unknown[0], SCOPES)}")
    return names


def _user(name: str) -> Any:
    users = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()
    if user is None:
        known = users._default_manager.filter(is_active=True).values_list(users.USERNAME_FIELD, flat=True)
        raise Refused(
            f"User “{name}” does not exist; {hint(name, list(known[:1_000]), 'createsuperuser creates one')}"
        )
    if not user.is_active:
        raise Refused(f"User “{name}” is not active. Choose an active user.")
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
