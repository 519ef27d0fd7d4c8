"""Delete identities whose time has come: their accounts are deprovisioned first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Exists, OuterRef

from identity.models import FormerAccount, Identity, IdentityLink
from identity.models.state import IdentityState

from .provisioning import Provisioner
from .run import Item
from .sync_page import SyncPage
from .sync_writing import make_dirty


def due(now: datetime, limit: int) -> list[int]:
    """Return the ids of identities whose grace period has passed, the longest first.

    Those that may have an account in a system that is being rebuilt must wait: it could not be taken away.
    """
    ready = Identity.objects.filter(delete_after__lte=now).order_by("delete_after", "pk")
    waiting = FormerAccount.objects.filter(identity=OuterRef("pk"))
    return list(ready.exclude(Exists(waiting)).values_list("pk", flat=True)[:limit])


def deprovision(page: SyncPage, ids: Sequence[int], *, now: datetime) -> list[IdentityState]:
    """Take the accounts away from the identities that are still due; return these identities."""
    page.read_identities(ids)
    found = [page.identities[pk] for pk in ids if pk in page.identities]
    leaving = [each for each in found if each.delete_after is not None and each.delete_after <= now]
    Provisioner(page).provision(leaving, is_leaving=True)
    for identity in leaving:
        for account in [*identity.accounts.values(), *identity.kept]:
            if account.export is None:
                identity.disconnect(account)
    return leaving


def deleted_items(page: SyncPage, identities: Sequence[IdentityState]) -> list[Item]:
    return [
        Item(
            page.display(each),
            "deleted",
            each.name,
            data={name: [value, None] for name, value in each.attrs.items()},
        )
        for each in identities
    ]


def remove(identities: Sequence[IdentityState]) -> None:
    """Delete the rows; identities that refer to them are synchronised again."""
    ids = [each.id for each in identities]
    make_dirty(IdentityLink.objects.filter(target__in=ids).values_list("owner", flat=True))
    Identity.objects.filter(pk__in=ids).delete()
