from __future__ import annotations

from .account import Account, AccountKey, AccountLink, FormerAccount
from .identity import Identity, IdentityKey, IdentityLink, UniqueValue
from .identity_type import IdentityAttribute, IdentityType
from .pending_export import PendingExport
from .profile import RunProfile
from .rule import Flow, SyncRule
from .system import Attribute, ConnectedSystem, ObjectType

__all__ = [
    "Account",
    "AccountKey",
    "AccountLink",
    "Attribute",
    "ConnectedSystem",
    "Flow",
    "FormerAccount",
    "Identity",
    "IdentityAttribute",
    "IdentityKey",
    "IdentityLink",
    "IdentityType",
    "ObjectType",
    "PendingExport",
    "RunProfile",
    "SyncRule",
    "UniqueValue",
]
