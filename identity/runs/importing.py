"""Import runs: copy the objects of a connected system into accounts, and confirm earlier exports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db.models import QuerySet

from database.statements import fetch
from execution.steps.context import Context
from execution.steps.outcome import StepFailed
from identity.connectors.connector import ConnectorError, Page
from identity.models import Account, Attribute, ConnectedSystem, PendingExport, RunProfile
from identity.rulebook import Rulebook
from identity.values import Kind

from .import_page import ImportedType, ImportPage
from .keys import add_missing_keys
from .limits import Finding
from .run import PageCounts, ProfileRun, load_rules
from .seen import SeenIds

AT_ONCE = 1_000


class ImportRun(ProfileRun):
    def __init__(self, profile: RunProfile, ctx: Context) -> None:
        super().__init__(profile, ctx)
        self.is_full = profile.run_type == RunProfile.RunType.FULL_IMPORT
        self.book = load_rules()
        self.types = imported_types(self.system, self.book)
        unselected = self.system.types.filter(is_selected=False)
        self.unselected = set(unselected.values_list("name", flat=True))
        self.seen = SeenIds()
        # Types of which an object could not be identified, so that absence cannot be concluded.
        self.unsure: set[str] = set()
        self.confirms = False

    def _exported(self) -> QuerySet[PendingExport]:
        return PendingExport.objects.filter(system=self.system).awaiting_confirmation()

    def _deleted(self) -> QuerySet[PendingExport]:
        """Return the deletions that were exported: that these accounts are gone is no surprise."""
        return self._exported().filter(operation=PendingExport.Operation.DELETE)

    def perform(self) -> None:
        add_missing_keys(self, self.book)
        self.page(PendingExport.objects.filter(system=self.system).presume_sent)
        self.confirms = self._exported().exists()
        try:
            watermark = self._read()
        except ConnectorError as error:
            raise StepFailed(str(error), can_retry=error.is_transient) from None
        if self.is_full:
            self._refuse_emptiness()
            self._find_absent()
        self.page(lambda: self._store_watermark(watermark))

    def _read(self) -> dict[str, Any]:
        since = None if self.is_full else self.system.watermark or {}
        if not self.is_full and self.system.imported_at is None:
            raise StepFailed(
                f"“{self.system}” has not been imported yet. Run a full import first.", can_retry=False
            )
        shapes = {name: each.shape for name, each in self.types.items()}
        connector, done = self.system.connect(), 0
        with connector.open(shapes, page_size=self.profile.page_size, since=since) as reading:
            for page in map(self._of_selected_types, reading.pages()):
                self._import(page)
                done += len(page.objects) + len(page.problems)
                total = max(done, round(done / page.part)) if page.part else None
                self.progress(done, total, f"{done:,} objects read")
            return reading.watermark()

    def _of_selected_types(self, page: Page) -> Page:
        """Leave out the objects of types that are known, but not selected for import."""
        problems = [each for each in page.problems if each.type not in self.unselected]
        return replace(page, problems=problems) if len(problems) < len(page.problems) else page

    def _import(self, page: Page) -> None:
        written = self.page(lambda: self._write(page))
        for pk in written.seen:
            self.seen.add(pk)
        for each in page.problems:
            if not each.external_id:
                self.unsure |= {each.type} if each.type in self.types else self.types.keys()
        self._take(len(page.objects) + len(page.problems), written)

    def _take(self, total: int, written: ImportPage) -> None:
        """Count a page that was committed."""
        outcomes = Counter(each.outcome for each in written.items)
        self.take(PageCounts(total, outcomes["failed"], outcomes["warning"], written.counts))

    def _write(self, page: Page) -> ImportPage:
        written = self._page()
        written.write(page)
        self.write_items(written.items)
        return written

    def _page(self) -> ImportPage:
        return ImportPage(
            system_id=self.system.pk,
            types=self.types,
            source={"activity": self.activity_id},
            is_full=self.is_full,
            confirms=self.confirms,
            is_seen=self.seen.__contains__,
        )

    # After the last page of a full import

    def _refuse_emptiness(self) -> None:
        if self.ctx.items_total:
            return
        held = Account.objects.filter(system=self.system, status=Account.Status.PRESENT)
        if held.exclude(pk__in=self._deleted().values("account")).exists():
            raise StepFailed(
                f"The input has no objects, but JIM knows objects of “{self.system}”. An empty input never "
                "counts as “everything was deleted”. If it is really empty, clear the system instead.",
                can_retry=False,
            )

    def _find_absent(self) -> None:
        absent = self._absent_ids()
        deleted = set(self._deleted().values_list("account", flat=True))
        if missed := [pk for pk in absent if pk not in deleted]:
            present = Account.objects.filter(system=self.system, status=Account.Status.PRESENT)
            self.check(Finding.of("absent", missed, number=len(missed), total=present.count()))
        for start in range(0, len(absent), AT_ONCE):
            self._write_absent(absent[start : start + AT_ONCE])
        self._write_uncreated()

    def _absent_ids(self) -> list[int]:
        """Return the ids of the accounts that this import has not seen, in order."""
        sure = {each.id for name, each in self.types.items() if name not in self.unsure}
        return [pk for pk, type_id in self._present() if pk not in self.seen and type_id in sure]

    def _present(self) -> Iterator[Sequence[Any]]:
        last = 0
        sql = (
            "SELECT id, type_id FROM identity_account "
            "WHERE system_id = %s AND id > %s AND status = 'present' ORDER BY id LIMIT 10000"
        )
        while rows := fetch(sql, [self.system.pk, last]):
            last = rows[-1][0]
            yield from rows

    def _write_absent(self, ids: Sequence[int]) -> None:
        def work() -> ImportPage:
            written = self._page()
            written.mark_absent(ids)
            self.write_items(written.items)
            return written

        self.take(PageCounts(len(ids), counts=self.page(work).counts))

    def _write_uncreated(self) -> None:
        """Take back what was sent for accounts that should have been created, but were not found."""

        def work() -> ImportPage:
            written = self._page()
            uncreated = self._exported().filter(account__status=Account.Status.PROVISIONING)
            locked = uncreated.select_for_update(of=("self",), no_key=True).order_by("account_id")
            written.take_back(locked.select_related("account__type")[:AT_ONCE])
            written.store_confirmations()
            self.write_items(written.items)
            return written

        while self.confirms and (found := self.page(work)).confirmations:
            self._take(len(found.confirmations), found)

    def _store_watermark(self, watermark: Mapping[str, Any]) -> None:
        ended: dict[str, Any] = {"watermark": watermark, "imported_at": self.now}
        if self.system.status == ConnectedSystem.Status.REBUILDING and self.ctx.items_failed:
            # What cannot be read still exists, but after the system was cleared, JIM has no account for it.
            del ended["imported_at"]
        ConnectedSystem.objects.filter(pk=self.system.pk).update(**ended)


def imported_types(system: ConnectedSystem, book: Rulebook) -> dict[str, ImportedType]:
    """Return the selected types of a system; raise StepFailed if there are none."""
    shapes = system.shapes()
    if not shapes:
        raise StepFailed(
            f"“{system}” has no types of objects to import. Read its schema and select a type.",
            can_retry=False,
        )
    found = {}
    for pk, name in system.types.filter(name__in=shapes).values_list("pk", "name"):
        shape, rules = shapes[name], book.types[pk]
        references = Attribute.objects.filter(type=pk, kind=Kind.REFERENCE, name__in=shape.attributes)
        found[name] = ImportedType(
            pk,
            shape,
            rules.matches,
            bool(rules.inbound),
            rules.keys,
            dict(references.values_list("name", "pk")),
        )
    return found
