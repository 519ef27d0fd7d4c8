"""What a handler raises to say what kind of failure it met. Anything else is an error in its logic."""

from __future__ import annotations


class Failure(Exception):
    """The message is shown to people: it says what happened and, where somebody has to act, what to do."""


class Transient(Failure):
    """It did not happen, and may work later without a change: a rate limit, a service that is down."""


class AuthRequired(Failure):
    """A person has to sign in again, and then say so."""


class PermissionRequired(Failure):
    """A person has to allow it."""


class Indeterminate(Failure):
    """The mutation may have happened or not."""


class Internal(Failure):
    """JIM's or a connector's own fault: trying again would not help."""


class PhaseError(Exception):
    """A handler did in one phase what belongs to another."""


class DefinitionError(ValueError):
    """A workflow in code that cannot be deployed; the message names the place and the way out."""


class Superseded(Exception):
    """The run is no longer this worker's: nothing of what it does counts."""
