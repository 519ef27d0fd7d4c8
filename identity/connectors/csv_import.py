"""Imports a CSV file.

The file is read twice: first to find out whether it is complete, which external ids occur in it more than
once, and how far its changes go; then for its objects. So nothing is imported from a file that is damaged
near its end.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, BinaryIO

from identity.shape import TypeShape
from text.numbers import whole_number

from .connector import ConnectorError, NeedsFullImport, Page, Problem, Reading, ReadObject
from .csv_objects import Key, ObjectReader, Row, Unreadable
from .csv_records import Records
from .csv_settings import CsvSettings
from .handover import FileState, HandedFile

# A page of very large records ends early.
PAGE_BYTES = 4 * 1024**2

Moment = Decimal | datetime


@dataclass
class Scan:
    """What the first pass found out."""

    digest: str
    records: int
    newest: Moment | None
    # The hashes of all external ids that occur more than once, and of some that do not.
    repeated: set[int]


class CsvReading(Reading):
    def __init__(
        self,
        file: HandedFile,
        opened: BinaryIO,
        settings: CsvSettings,
        types: Mapping[str, TypeShape],
        *,
        page_size: int,
        since: Mapping[str, Any] | None,
    ) -> None:
        self._file, self._opened, self._settings = file, opened, settings
        self._page_size, self._since = page_size, since or {}
        self._state = FileState.of(os.fstat(opened.fileno()))
        self._problems = 0
        with self._unchanged():
            records = self._records()
            self._reader = ObjectReader(settings, records.header, types, is_delta=since is not None)
            self._scan = self._scanned(records)
            self._check_count()
            self._reader.repeated = self._repeated_keys()
        self._start = self._starting_point() if since is not None and settings.change_column else None

    def pages(self) -> Iterator[Page]:
        with self._unchanged():
            yield from self._all_pages()

    def watermark(self) -> dict[str, Any]:
        mark: dict[str, Any] = {"digest": self._scan.digest, "size": self._state.size}
        if self._scan.newest is not None:
            mark |= {"change_column": self._settings.change_column, "newest": str(self._scan.newest)}
        # Records that were not read again are still as they were.
        unread = self._since.get("problems", 0) if self._start is not None else 0
        return mark | {"problems": self._problems + unread}

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Raise ConnectorError if the file is changed meanwhile, which also explains other errors."""
        try:
            yield
        except ConnectorError:
            self._file.check_unchanged(self._state)
            raise
        self._file.check_unchanged(self._state)

    def _records(self) -> Records:
        self._opened.seek(0)
        return Records(self._opened, self._settings)

    def _scanned(self, records: Records) -> Scan:
        reader, count, newest = self._reader, 0, None
        hashes = array("q")
        for _, row in records:
            count += 1
            key = reader.key(row)
            if key is not None:
                hashes.append(hash(key))
            if reader.change_place is not None:
                at = moment(reader.change(row))
                newest = at if newest is None or _is_earlier(newest, at) else newest
        repeated = {one for one, other in pairwise(sorted(hashes)) if one == other}
        return Scan(records.lines.digest, count, newest, repeated)

    def _repeated_keys(self) -> dict[Key, list[int]]:
        """Return the first two lines of each external id that occurs more than once."""
        if not self._scan.repeated:
            return {}
        lines: dict[Key, list[int]] = {}
        for line, row in self._records():
            key = self._reader.key(row)
            if key is not None and hash(key) in self._scan.repeated and len(lines.get(key, ())) < 2:
                lines.setdefault(key, []).append(line)
        return {key: found for key, found in lines.items() if len(found) > 1}

    def _check_count(self) -> None:
        name = self._settings.count_file
        if not name:
            return
        text = self._file.sidecar(name)
        count = whole_number(text)
        if count is None:
            raise ConnectorError(f"{name} must contain the number of records, but contains “{text}”")
        if count != self._scan.records:
            raise ConnectorError(
                f"{self._settings.path} has {self._scan.records:,} records, but {name} says {count:,}; "
                "deliver both files again"
            )

    def _starting_point(self) -> Moment:
        path, column = self._settings.path, self._settings.change_column
        is_known = self._since.get("change_column") == column
        start = moment(self._since["newest"]) if is_known else None
        if start is None:
            raise NeedsFullImport(
                f"JIM does not know up to which value of the column “{column}” it has read {path}; "
                "run a full import"
            )
        newest = self._scan.newest
        if type(newest) is not type(start) or _is_earlier(newest, start):
            raise NeedsFullImport(
                f"the newest value of the column “{column}” in {path} was {start}, and is now "
                f"{'missing' if newest is None else newest}, so JIM cannot tell what changed; "
                "run a full import"
            )
        return start

    def _is_new(self, row: Row) -> bool:
        """Return whether the record may have changed.

        Equal values count, because a record can change again at the same moment, and so does a cell that is
        neither a number nor a time.
        """
        return not _is_earlier(moment(self._reader.change(row)), self._start)

    def _all_pages(self) -> Iterator[Page]:
        records, enough = self._records(), PAGE_BYTES
        objects, problems = list[ReadObject](), list[Problem]()
        for line, row in records:
            try:
                found = self._reader.read(row, line) if self._start is None or self._is_new(row) else None
            except Unreadable as unreadable:
                problems.append(unreadable.problem(line))
            else:
                if found is not None:
                    objects.append(found)
            passed = records.lines.passed
            if len(objects) + len(problems) >= self._page_size or passed >= enough:
                yield self._page(objects, problems, passed)
                objects, problems, enough = [], [], passed + PAGE_BYTES
        if objects or problems:
            yield self._page(objects, problems, records.lines.passed)
        if records.lines.digest != self._scan.digest:
            raise ConnectorError(f"{self._settings.path} was changed while it was read", is_transient=True)

    def _page(self, objects: list[ReadObject], problems: list[Problem], passed: int) -> Page:
        self._problems += len(problems)
        return Page(objects, problems, passed / self._state.size)


def moment(cell: str) -> Moment | None:
    """Return the number or time in a cell; a time without an offset is taken as UTC."""
    text = cell.strip()
    try:
        number = Decimal(text)
    except InvalidOperation:
        pass
    else:
        return number if number.is_finite() else None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _is_earlier(one: Moment | None, other: Moment | None) -> bool:
    """Return whether both are numbers or both are times, and the first is less than the second."""
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return one < other
    return isinstance(one, datetime) and isinstance(other, datetime) and one < other
