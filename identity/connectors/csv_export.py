"""Exports to CSV files: all objects, or the changes of one export.

A change to values that an import could not read again is refused alone: its object is written as it was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from identity.shape import TypeShape
from identity.values import BadValue

from .connector import Change, ConnectorError, Export, ReadObject, Result
from .csv_cells import Sheet, Style
from .csv_objects import Key
from .csv_records import BLOCK_BYTES, Records
from .csv_settings import CsvSettings
from .handover import DIGEST_BYTES, FileState, HandedFile, Handover

# The first columns of a log. Another column may have the same name, but not the same place.
OPERATION, CHANGED = "operation", "changed"
BAD_VALUE = "bad_value"
PLAIN_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")

Outcome = tuple[list[Result], dict[str, Any]]


@dataclass(frozen=True)
class Existing:
    """The file that an export replaces."""

    state: FileState
    digest: str
    style: Style
    header: list[str]
    holds_records: bool


def export_whole(handover: Handover, settings: CsvSettings, export: Export) -> Outcome:
    """Replace the file with all objects, unless this would not change a byte."""
    file, types = handover.file, settings.types_in_file(export.types)
    old = _existing(file, settings)
    style = old.style if old else Style.of_new_file(settings.encoding)
    sheet = Sheet(_whole_header(settings, types, old), settings, types, style)
    results, refused = _judged(export.changes, sheet)
    with handover.draft(file) as draft:
        draft.write(sheet.beginning())
        count = 0
        for each in export.objects:
            line = _object_line(sheet, each, refused, settings)
            draft.write(line)
            count += bool(line)
        if old is None or draft.digest != old.digest:
            _check_known(settings, old, export.watermark)
            draft.replace(old.state if old else None)
            handover.note()
    if settings.count_file:
        handover.write_beside(settings.count_file, f"{count}\n".encode())
    if settings.marker:
        handover.write_beside(settings.marker, b"")
    return results, {**export.watermark, "digest": draft.digest, "size": draft.size, "problems": 0}


def export_log(handover: Handover, settings: CsvSettings, export: Export) -> Outcome:
    """Write the changes to a new file, whose name contains the key of the run.

    The column “changed” names the attributes that changed, so that an empty cell of one means that its value
    is removed.
    """
    types = settings.types_in_file(export.types)
    sheet = Sheet(_new_header(settings, types), settings, types, Style.of_new_file(settings.encoding))
    results = []
    target = handover.file.beside(log_name(handover.file.name, export.run_key))
    with handover.draft(target) as draft:
        draft.write(sheet.beginning(OPERATION, CHANGED))
        for change in export.changes:
            try:
                draft.write(_change_line(sheet, change, settings))
                results.append(Result(change.key))
            except BadValue as error:
                results.append(Result(change.key, BAD_VALUE, str(error)))
        if any(result.is_ok for result in results):
            draft.replace(target.state())
    # The file that is imported stays as it was.
    return results, dict(export.watermark)


def log_name(name: str, run_key: str) -> str:
    path = PurePath(name)
    if not PLAIN_KEY.fullmatch(run_key):
        run_key = blake2b(run_key.encode(), digest_size=8).hexdigest()
    return f"{path.stem}.{run_key}{path.suffix}"


def _existing(file: HandedFile, settings: CsvSettings) -> Existing | None:
    if file.stat() is None:
        return None
    with file.opened() as opened:
        state, digest = FileState.of(os.fstat(opened.fileno())), blake2b(digest_size=DIGEST_BYTES)
        while data := opened.read(BLOCK_BYTES):
            digest.update(data)
        if not state.size:
            style = Style.of_new_file(settings.encoding)
            return Existing(state, digest.hexdigest(), style, [], holds_records=False)
        opened.seek(0)
        records = Records(opened, settings)
        holds_records = next(iter(records), None) is not None
    lines = records.lines
    style = Style(lines.encoding, lines.mark, lines.ending)
    return Existing(state, digest.hexdigest(), style, records.header, holds_records)


def _new_header(settings: CsvSettings, types: Mapping[str, TypeShape]) -> list[str]:
    """Return the external ids, the type and the attributes, each once."""
    names = [shape.external_id for shape in types.values()]
    names += [settings.type_column] if settings.type_column else []
    return list(dict.fromkeys([*names, *(name for shape in types.values() for name in shape.attributes)]))


def _whole_header(settings: CsvSettings, types: Mapping[str, TypeShape], old: Existing | None) -> list[str]:
    """Return the columns of the file in their order, and after them those that it lacks."""
    needed = _new_header(settings, types)
    if old is None:
        return needed
    unknown = [name for name in old.header if name not in {*needed, settings.delete_column}]
    if unknown and old.holds_records:
        raise ConnectorError(
            f"{settings.path} has columns that are not selected: {', '.join(unknown)}. The export would "
            "empty them; select these attributes, or remove the columns"
        )
    return [*old.header, *(name for name in needed if name not in old.header)]


def _judged(changes: Iterable[Change], sheet: Sheet) -> tuple[list[Result], dict[Key, Change]]:
    """Return the result of each change, and the refused changes by object."""
    results, refused = [], {}
    for change in changes:
        result = Result(change.key)
        if change.operation != "delete":
            try:
                sheet.line(sheet.cells(change.type, change.external_id, change.result))
            except BadValue as error:
                result = Result(change.key, BAD_VALUE, str(error))
                refused[sheet.key(change.type, change.external_id, change.attributes)] = change
        results.append(result)
    return results, refused


def _object_line(
    sheet: Sheet, each: ReadObject, refused: Mapping[Key, Change], settings: CsvSettings
) -> bytes:
    """Return the line of an object, or no bytes if it would have been created by a refused change."""
    change = refused.get(sheet.key(each.type, each.external_id, each.attributes))
    if change is not None and change.operation == "create":
        return b""
    try:
        attributes = each.attributes if change is None else change.held
        return sheet.line(sheet.cells(each.type, each.external_id, attributes))
    except BadValue as error:
        raise ConnectorError(
            f"{each.type} “{each.external_id}” cannot be written to {settings.path}, so nothing is "
            f"exported; {error}"
        ) from None


def _change_line(sheet: Sheet, change: Change, settings: CsvSettings) -> bytes:
    is_deleted = change.operation == "delete"
    attributes = {} if is_deleted else change.attributes
    object_cells = sheet.cells(change.type, change.external_id, attributes)
    return sheet.line([change.operation, settings.separator.join(attributes), *object_cells])


def _check_known(settings: CsvSettings, old: Existing | None, watermark: Mapping[str, Any]) -> None:
    """Raise ConnectorError if the file contains something that JIM has not read."""
    if old is None:
        return
    known = watermark.get("digest")
    if known is None and old.holds_records:
        raise ConnectorError(
            f"{settings.path} contains records that JIM has never read; run an import first, so that nothing "
            "is overwritten"
        )
    if known is not None and (known, watermark.get("size")) != (old.digest, old.state.size):
        raise ConnectorError(
            f"{settings.path} was changed since JIM last read it; run an import first, so that nothing is "
            "overwritten"
        )
    if old.holds_records and watermark.get("problems"):
        raise ConnectorError(
            f"{settings.path} contains records that JIM could not read ({watermark['problems']:,}), and the "
            "export would remove them; correct them and run a full import"
        )
