"""Exceptions with which a handler reports why it failed. Any other exception counts as a logic error."""

from __future__ import annotations


class Failure(Exception):
    """The base class of failures. Its message is shown to people: say what happened and what to do."""


class Transient(Failure):
    """A failure that is likely to be temporary, such as a rate limit. The mutation did not happen."""


class AuthRequired(Failure):
    """A person must sign in again, then approve the run."""


class PermissionRequired(Failure):
    """A person must approve the run."""


class Indeterminate(Failure):
    """The outcome of the mutation is unknown."""


class Internal(Failure):
    """A fault in JIM or in a connector; a retry would not help."""


class PhaseError(Exception):
    """A handler called something that belongs to another phase."""


class DefinitionError(ValueError):
    """A workflow in the code that cannot be deployed."""


class Superseded(Exception):
    """Another worker, or the recovery of lost work, has taken over the run from this worker."""
