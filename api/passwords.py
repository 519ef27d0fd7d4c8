"""Revokes API tokens when a password changes."""

from __future__ import annotations

from django.contrib.auth.models import User

from database import clock
from operations.initiator import Initiator

from .models import ApiToken


class RevokesTokens:
    """A password validator that revokes the user's tokens when a new password is set.

    Django notifies validators of every new password, wherever it was set, but not when a hash is upgraded.
    A user who changes a leaked password expects tokens that were created with that password to stop working.
    """

    def validate(self, password: str, user: User | None = None) -> None:
        """Accept every password: this validator only reacts to password changes."""

    def password_changed(self, password: str, user: User | None = None) -> None:
        if user is not None and user.pk is not None:
            ApiToken.objects.filter(user=user.pk).revoke(
                initiator=Initiator.user(user),
                now=clock.now(),
                message="The user's password was changed.",
            )

    def get_help_text(self) -> str:
        """Return the text that forms show beside the password."""
        return "Setting a new password revokes all API tokens of the account."
