from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from api.models import MARK, ApiToken
from jimsite.terminal import on_clock, state
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused

_TEXT = re.compile(rf"(?:{MARK}_)?([0-9a-f]{{8}})(?:_.*)?")
TONES = {"active": "complete", "expired": "skipped", "revoked": "cancelled"}


def token_called(text: str) -> ApiToken:
    """Find a token by its prefix. The input may be a whole token, so error messages do not repeat it."""
    found = _TEXT.fullmatch(text.strip())
    token = ApiToken.objects.select_related("user").filter(prefix=found[1]).first() if found else None
    if token is None:
        raise Refused("No token has this prefix. Use “token list” to see the prefixes.")
    return token


class Command(VerbsCommand):
    help = "List and revoke API tokens. To create a token, use “createtoken”."

    def verbs(self) -> Iterator[Verb]:
        yield Verb("list", "List the active tokens with their scopes.", self.list_all, _ask)
        target = Target(
            "PREFIX", f"prefix of the token, such as {MARK}_0a1b2c3d, as shown by “token list”", token_called
        )
        yield from self.operations_of(ApiToken, target)

    def list_all(self, options: dict[str, Any]) -> None:
        now, rows = self.now, ApiToken.objects.select_related("user").order_by("pk")
        found = list(rows if options["all"] else rows.living(now))
        self.tell({"tokens": [_facts(row, now) for row in found]}, lambda: self._show(found, now))

    def _show(self, rows: Sequence[ApiToken], now: datetime) -> None:
        if not rows:
            self.say("No active tokens. Use “createtoken” to create one.")
            return
        states = [row.state(now) for row in rows]
        self.columns(
            {
                "State": [state(each, of=TONES[each]) for each in states],
                "Prefix": [f"{MARK}_{row.prefix}" for row in rows],
                "Name": [row.name for row in rows],
                "User": [str(row.user) for row in rows],
                "Scopes": [", ".join(row.scopes) for row in rows],
                "Expires (UTC)": [on_clock(row.expires_at) for row in rows],
                "Used (UTC)": [on_clock(row.last_used_at) for row in rows],
            },
            spare=("Used (UTC)",),
        )


def _ask(parser: CommandParser) -> None:
    parser.add_argument("--all", action="store_true", help="also list expired and revoked tokens")


def _facts(row: ApiToken, now: datetime) -> dict[str, Any]:
    return {
        "prefix": row.prefix,
        "name": row.name,
        "user": str(row.user),
        "scopes": row.scopes,
        "state": row.state(now),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "last_used_at": row.last_used_at,
    }
