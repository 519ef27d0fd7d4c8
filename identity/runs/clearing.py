"""Clear a connected system, or delete it: its accounts go, and the systems' own objects stay as they are."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from django.db import transaction

from activities.models import Activity
from database.statements import insert_each
from execution.models import Limit
from execution.steps.context import Context
from execution.steps.outcome import StepFailed
from identity.models import Account, ConnectedSystem, FormerAccount, UniqueValue

from .run import PageCounts, SystemRun, load_rules
from .sync_page import SyncPage
from .synchroniser import Synchroniser

AT_ONCE = 5_000


class ClearRun(SystemRun):
    """Forget all accounts of a system.

    The identities keep their values until the system has been imported and synchronised completely.
    """

    def perform(self) -> None:
        if not self.page(self.system.clear):
            raise StepFailed(f"“{self.system}” is being deleted, so it cannot be cleared.", can_retry=False)
        total, done = Account.objects.filter(system=self.system).count(), 0
        while count := self.page(self._clear_some):
            done += count
            self.take(PageCounts(count, counts=Counter(removed=count)))
            self.progress(done, max(done, total), f"{done:,} accounts removed")

    def _clear_some(self) -> int:
        accounts = Account.objects.filter(system=self.system).order_by("pk")
        some = list(accounts.values_list("pk", "identity", "type", "join")[:AT_ONCE])
        former = [row[1:] for row in some if row[1] is not None]
        if former:
            insert_each(FormerAccount, ("identity", "type", "join"), former, unless_known=True)
        Account.objects.filter(pk__in=[row[0] for row in some]).delete()
        return len(some)


class DeleteSystemRun(SystemRun):
    """Delete a system with its accounts, rules and run profiles, and mark identities as their types say.

    If this fails, the system is active again, and can be deleted again.
    """

    def __init__(self, system: ConnectedSystem, ctx: Context) -> None:
        super().__init__(system, ctx)
        self.book = load_rules()
        self.book.forget_system(system.pk)

    def perform(self) -> None:
        # In the rulebook as well: nothing is kept because of a system that was cleared before.
        self.page(self.book.systems[self.system.pk].begin_deletion)
        try:
            synchroniser = Synchroniser(self, self.book, page_size=AT_ONCE // 5)
            synchroniser.settle_accounts(self.system.pk, settle=SyncPage.dismiss)
            self._check_that_all_are_gone()
            synchroniser.settle_former(self.system.pk)
            synchroniser.settle_identities()
            self.page(self._delete)
        except BaseException:
            self._give_up()
            raise

    def _check_that_all_are_gone(self) -> None:
        left = Account.objects.filter(system=self.system).count()
        if left:
            raise StepFailed(
                f"{left:,} of the accounts of “{self.system}” could not be removed, because what remains of "
                "their identities cannot be computed: see the failed items. Correct the rules or the values, "
                "and delete the system again.",
                can_retry=False,
            )

    def _give_up(self) -> None:
        """Make the system active again, even if this attempt was cancelled, unless another one has begun."""
        with transaction.atomic():
            if Activity.objects.hold_attempt(UUID(self.ctx.work.key), self.ctx.attempt) is not None:
                self.system.give_up_deletion()

    def _delete(self) -> None:
        Limit.objects.filter(pk=f"resource:{self.system.resource}").delete()
        details = self.system.definition()
        Activity.objects.record(
            "delete", self.system, initiator=self.initiator, now=self.now, details=details
        )
        for kind in self.system.types.all():
            UniqueValue.objects.filter(scope__startswith=f"out:{kind.pk}:").delete()
        ConnectedSystem.objects.filter(pk=self.system.pk).delete()
