"""The connector for CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from identity.shape import FoundType, TypeShape

from .connector import Capability, Connector, ConnectorError, Export, Reading, Result
from .csv_export import export_log, export_whole
from .csv_import import CsvReading
from .csv_records import Records
from .csv_schema import SAMPLE, found_types, sample_of
from .csv_settings import FIELDS, CsvSettings, complaints
from .handover import HandedFile, reached


class CsvConnector(Connector):
    """Reads and writes objects in one CSV file."""

    name = "csv"
    title = "CSV file(s)"
    fields = FIELDS

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._settings = CsvSettings.of(config)

    @property
    def can(self) -> frozenset[Capability]:
        match self._settings.export:
            case "whole":
                return frozenset({"delta", "export"})
            case "log":
                return frozenset({"delta", "export", "auto_confirm"})
        return frozenset({"delta"})

    def test(self) -> list[str]:
        path = self._settings.path
        with reached(path) as file:
            found = file.stat()
            if found is None and self._settings.export != "none":
                return [f"{path} does not exist yet; an export creates it"]
            with self._records(file) as records:
                sample = sample_of(records)
        lines = records.lines
        mark = " with a byte order mark" if lines.mark else ""
        size = 0 if found is None else found.st_size
        return [
            f"{path} has {size:,} bytes in the encoding {lines.encoding}{mark}",
            f"{len(records.header)} columns: {', '.join(records.header)}",
            f"readable records: {'at least ' if len(sample) == SAMPLE else ''}{len(sample):,}",
        ]

    def schema(self) -> list[FoundType]:
        with reached(self._settings.path) as file, self._records(file) as records:
            return found_types(records, self._settings)

    @contextmanager
    def open(
        self,
        types: Mapping[str, TypeShape],
        *,
        page_size: int,
        since: Mapping[str, Any] | None = None,
    ) -> Iterator[Reading]:
        settings = self._settings
        shapes = settings.types_in_file(types)
        with reached(settings.path) as file, file.opened() as opened:
            # After it was opened, so that a file that replaces it now is noticed as a change.
            file.check_complete(marker=settings.marker, stable_seconds=settings.stable_seconds)
            yield CsvReading(file, opened, settings, shapes, page_size=page_size, since=since)

    def export(self, export: Export) -> tuple[list[Result], dict[str, Any]]:
        if self._settings.export == "none":
            raise ConnectorError(f"exports to {self._settings.path} are off; set export to whole or log")
        write = export_log if self._settings.export == "log" else export_whole
        with reached(self._settings.path) as file, file.locked(export.run_key) as handover:
            return write(handover, self._settings, export)

    @contextmanager
    def _records(self, file: HandedFile) -> Iterator[Records]:
        with file.opened() as opened:
            yield Records(opened, self._settings)

    @classmethod
    def check(cls, values: dict[str, Any]) -> dict[str, str]:
        return complaints(values)
