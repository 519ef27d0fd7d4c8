"""Chores: delete identities whose grace period has passed."""

from __future__ import annotations

import logging
from datetime import datetime

from django.db import transaction

from activities.models import Activity
from database.statements import AWAY
from identity.models import Identity
from operations.initiator import Initiator

from .models.state import IdentityState
from .rulebook import Rulebook, RuleError
from .runs.deleting import deleted_items, deprovision, due, remove
from .runs.run import insert_items
from .runs.sync_page import SyncPage
from .runs.sync_report import report
from .runs.sync_writing import SyncWriter
from .runs.synchroniser import lock_metaverse

AT_ONCE = 50
logger = logging.getLogger(__name__)


def delete_due_identities(now: datetime) -> int:
    """Delete up to 50 identities, each in its own transaction, in the name of those who marked them."""
    ids = due(now, AT_ONCE)
    if not ids:
        return 0
    try:
        book = Rulebook.load()
    except RuleError as error:
        logger.warning("identities that are due cannot be deleted: %s", error)
        return 0
    for pk in ids:
        try:
            with transaction.atomic():
                _delete(book, pk, now)
        except AWAY:
            raise
        except Exception:
            logger.exception("identity %s could not be deleted; it is tried again later", pk)
    return 0


def _delete(book: Rulebook, pk: int, now: datetime) -> None:
    lock_metaverse()
    row = Identity.objects.filter(pk=pk).first()
    if row is None:
        return
    page = SyncPage(book, activity_id=0, initiator={}, now=now)
    deleted = deprovision(page, [pk], now=now)
    if not deleted:
        return
    SyncWriter(page).write()
    [identity] = deleted
    details = {"attributes": identity.attrs, "marked": identity.deletion}
    initiator = _initiator(identity)
    message = "Its grace period has passed."
    activity_id = Activity.objects.record(
        "delete", row, initiator=initiator, now=now, message=message, details=details
    )
    insert_items(activity_id, [*report(page).items, *deleted_items(page, deleted)], now=now)
    remove(deleted)


def _initiator(identity: IdentityState) -> Initiator:
    """Return who marked the identity for deletion."""
    by = (identity.deletion or {}).get("by") or {}
    return Initiator(by.get("type", "system"), by.get("id", ""), by.get("name", "JIM"))
