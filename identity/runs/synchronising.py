"""Synchronisation runs: derive identities from accounts, and stage what other systems should get."""

from __future__ import annotations

from django.db.models import Exists, OuterRef

from execution.steps.context import Context
from identity.models import Account, ConnectedSystem, FormerAccount, RunProfile

from .keys import add_missing_keys
from .limits import Finding, is_exceeded, limit_of
from .losses import losing
from .run import ProfileRun, load_rules
from .synchroniser import Synchroniser


class SyncRun(ProfileRun):
    def __init__(self, profile: RunProfile, ctx: Context) -> None:
        super().__init__(profile, ctx)
        self.is_full = profile.run_type == RunProfile.RunType.FULL_SYNC
        self.book = load_rules()

    def perform(self) -> None:
        self._check_losses()
        add_missing_keys(self, self.book)
        synchroniser = Synchroniser(self, self.book, page_size=self.profile.page_size)
        synchroniser.settle_accounts(self.system.pk, only_dirty=not self.is_full)
        if self.is_full and self.system.is_reimported:
            self._end_rebuilding(synchroniser)
        synchroniser.settle_identities()
        synchroniser.delete_due()
        ConnectedSystem.objects.filter(pk=self.system.pk).update(synchronised_at=self.now)

    def _check_losses(self) -> None:
        """Change nothing at all if more accounts would lose their identity than the limit allows."""
        lost = losing(self.book, self.system.pk, is_full=self.is_full)
        if is_exceeded(limit_of(self.profile.limits, "losses"), len(lost), 0):
            joined = Account.objects.filter(system=self.system, identity__isnull=False).count()
            self.check(Finding.of("losses", lost, number=len(lost), total=joined))

    def _end_rebuilding(self, synchroniser: Synchroniser) -> None:
        """Settle the identities whose account did not return after the system was cleared.

        If this is interrupted, the next full synchronisation repeats it.
        """
        self._check_return()
        self.book.systems[self.system.pk].count_as_active()
        synchroniser.settle_former(self.system.pk)
        synchroniser.settle_lacking(self.system.pk)
        self.page(self._forget_former)

    def _check_return(self) -> None:
        """Settle none of these identities if there are more than the limit for losses allows."""
        former = FormerAccount.objects.filter(type__system=self.system)
        returned = Account.objects.filter(type=OuterRef("type"), identity=OuterRef("identity"))
        lost = list(former.exclude(Exists(returned)).order_by("identity").values_list("identity", flat=True))
        self.check(Finding.of("losses", lost, number=len(lost), total=former.count()))

    def _forget_former(self) -> None:
        FormerAccount.objects.filter(type__system=self.system).delete()
        self.system.end_rebuilding()
