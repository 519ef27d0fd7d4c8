from __future__ import annotations

from django.contrib.auth.models import User

from database import clock
from operations.initiator import Initiator

from .models import ApiToken


class RevokesTokens:
    """Django tells validators of every new password, wherever it was set, but not of a hash that is renewed.

    Who changes a password because somebody else may know it wants to end all that it opened.
    """

    def validate(self, password: str, user: User | None = None) -> None:
        """Any password will do."""

    def password_changed(self, password: str, user: User | None = None) -> None:
        if user is not None and user.pk is not None:
            ApiToken.objects.filter(user=user.pk).revoke(
                initiator=Initiator.user(user), now=clock.now(), message="Its user got a new password."
            )

    def get_help_text(self) -> str:
        """Forms list it beside the password."""
        return "A new password revokes all API tokens of the account."
