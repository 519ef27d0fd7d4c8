"""The operations on API tokens that the pages and the admin offer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from activities import vocabulary
from operations.initiator import Initiator
from operations.operation import Declined, Done, Operation, offer

from .models import ApiToken


class Revoke(Operation[ApiToken]):
    name, label, permission, is_final = "revoke", "Revoke", "api.change_apitoken", True
    question = (
        "Programs that use this token, or a token created with it, will get 401 Unauthorized. "
        "This cannot be undone. Revoke the token?"
    )

    def applies(self, token: ApiToken) -> bool:
        return token.revoked_at is None

    def about(self, token: ApiToken) -> str:
        return f"of {token.user.get_username()}"

    def perform(
        self, token: ApiToken, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not token.revoke(initiator=initiator, now=now):
            raise Declined(f"“{token}” was already revoked.")
        return Done(f"“{token}” was revoked.")


offer(ApiToken, Revoke())
vocabulary.add("revoke", targets=lambda: ("apitoken",))
