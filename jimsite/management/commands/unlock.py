from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from django.core.management.base import CommandParser

from api.models import FailedSignIn
from jimsite.terminal import JimCommand


class Command(JimCommand):
    help = "Unlock an account or IP address that was locked after too many failed sign-in attempts."

    def ask(self, parser: CommandParser) -> None:
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument(
            "who", nargs="?", default="", metavar="USERNAME|ADDRESS", help="such as ada or 203.0.113.9"
        )
        who.add_argument("--all", action="store_true", help="unlock all accounts and IP addresses")

    def run(self, options: dict[str, Any]) -> None:
        who = options["who"]
        named = {"address" if _is_address(who) else "username": who} if who else {}
        count = FailedSignIn.objects.lift(**named, initiator=self.by, now=self.now)
        self.tell({"unlocked": count}, lambda: self.say(f"Locks removed: {count:,}."))


def _is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False
