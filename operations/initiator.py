from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from django.contrib.auth.base_user import AbstractBaseUser
from django.db import models
from django.http import HttpRequest


@dataclass(frozen=True)
class Initiator:
    """Who or what asked for a change.

    Activities store these values as text, so that they outlive the user, token or schedule.
    """

    type: str
    id: str
    name: str

    @classmethod
    def user(cls, user: AbstractBaseUser) -> Initiator:
        return cls("user", str(user.pk), user.get_username())

    @classmethod
    def schedule(cls, schedule: models.Model) -> Initiator:
        return cls("schedule", str(schedule.pk), str(schedule))

    @classmethod
    def system(cls, name: str) -> Initiator:
        return cls("system", "", name)

    @classmethod
    def command(cls, name: str) -> Initiator:
        """Return the initiator for a command: its name, and the operating system user who runs it."""
        return cls.system(f"{name} ({_shell_user()})")


def _shell_user() -> str:
    """Return the name of the operating system user.

    Environment variables are not used, because a user can set them to any value.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may use an id without a name
        return f"uid {os.getuid()}"


def initiator_of(request: HttpRequest) -> Initiator:
    assert request.user.is_authenticated
    return Initiator.user(request.user)
