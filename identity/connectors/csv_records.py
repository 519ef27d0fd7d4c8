"""Splits a CSV file into records, with bounded memory whatever the file contains.

A file that is damaged or cut off, or whose records cannot be told apart, is refused as a whole.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from hashlib import blake2b
from io import StringIO
from itertools import chain
from typing import BinaryIO

from .connector import ConnectorError
from .csv_settings import AUTO, DELIMITERS, WIDE_ENCODINGS, CsvSettings
from .handover import DIGEST_BYTES

BLOCK_BYTES = 256 * 1024
FIELD_CHARS = 1024**2
RECORD_BYTES = 10 * 1024**2
# Python has this limit once for all readers, and JIM has no others.
csv.field_size_limit(FIELD_CHARS)

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CAUSES = {
    "field larger": "a value is longer than 1 MiB; probably, a quotation mark is not closed",
    "expected after": "a closing quotation mark is followed by other text; write a quotation mark inside a "
    'value twice, as in "5"" pipe"',
    "unexpected end": "a quotation mark is not closed before the end of the file; the file is cut off, or a "
    "quotation mark is missing",
    "new-line": "a line ends with a carriage return only; save the file with the line ends LF or CR LF",
}


class Lines:
    """The lines of a file, decoded block by block. They raise ConnectorError where they are not text."""

    def __init__(self, file: BinaryIO, shown: str, encoding: str) -> None:
        self._file, self._shown = file, shown
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self.encoding, self.mark = self._recognised(encoding)
        self._decoder = codecs.getincrementaldecoder(self.encoding)()
        self._rest = ""
        self._lines_before = 0
        self._read = len(self.mark)
        self.ending = "\n"
        self.is_complete = True
        # How many bytes had been read when the latest lines were handed out.
        self.passed = 0
        # The reader of records tells here where the current record began.
        self.record_line = 1
        self.record_began = 0

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(StringIO(block) for block in self._blocks())

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def _recognised(self, encoding: str) -> tuple[str, bytes]:
        """Return the encoding and the byte order mark, which is skipped."""
        beginning = self._file.read(len(codecs.BOM_UTF8))
        name = "utf-8" if encoding == AUTO else codecs.lookup(encoding).name.removesuffix("-sig")
        for mark, marked in _MARKS:
            if beginning.startswith(mark) and (encoding == AUTO or name == marked):
                self._file.seek(len(mark))
                self._digest.update(mark)
                return marked, mark
        self._file.seek(0)
        return name, b""

    def _blocks(self) -> Iterator[str]:
        while data := self._next_block():
            text = self._rest + self._decoded(data)
            end = text.rfind("\n") + 1
            self._rest = text[end:]
            if end:
                yield self._handed_out(text[:end])
            self._check_length()
        self._decoded(b"")
        if self._rest:
            self.is_complete = False
            yield self._handed_out(self._rest)

    def _next_block(self) -> bytes:
        try:
            return self._file.read(BLOCK_BYTES)
        except OSError as error:
            message = f"{self._shown} cannot be read to its end: {error.strerror}"
            raise ConnectorError(message, is_transient=True) from None

    def _decoded(self, data: bytes) -> str:
        self._digest.update(data)
        self._read += len(data)
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise self._undecodable(error, is_end=not data) from None
        if "\0" in text:
            position = text.index("\0")
            where = self._where(text[position:], text[:position])
            raise ConnectorError(f"{where}: contains NUL. {_advice(self.encoding, data)}")
        return text

    def _handed_out(self, block: str) -> str:
        if not self.passed and block.partition("\n")[0].endswith("\r"):
            self.ending = "\r\n"
        self._lines_before += block.count("\n")
        self.passed = self._read
        return block

    def _check_length(self) -> None:
        if len(self._rest) > RECORD_BYTES:
            cause = "a carriage return only" if "\r" in self._rest else "no line end"
            raise ConnectorError(
                f"{self._where(self._rest)}: the line is longer than 10 MiB; the file is not a CSV file, or "
                f"its lines end with {cause}. Save it with the line ends LF or CR LF"
            )
        if self.passed - self.record_began > RECORD_BYTES:
            raise ConnectorError(
                f"{self._shown}, line {self.record_line}: the record that begins here is longer than 10 MiB; "
                "probably, a quotation mark is not closed"
            )

    def _undecodable(self, error: UnicodeDecodeError, *, is_end: bool) -> ConnectorError:
        before = error.object[: error.start].decode(self.encoding, errors="replace")
        line = self._lines_before + before.count("\n") + 1
        where = f"{self._shown}, line {line}, byte {self._read - len(error.object) + error.start + 1:,}"
        if is_end:
            return ConnectorError(f"{where}: the file is cut off in a character; deliver it again")
        return ConnectorError(
            f"{where}: the byte 0x{error.object[error.start]:02X} does not fit the encoding {self.encoding}. "
            f"{_advice(self.encoding, error.object)}"
        )

    def _where(self, rest: str, before: str = "") -> str:
        """Return the line and byte in which the rest of the text begins that has been decoded so far."""
        pending = len(self._decoder.getstate()[0])
        byte = self._read - pending - len(rest.encode(self.encoding)) + 1
        return f"{self._shown}, line {self._lines_before + before.count(chr(10)) + 1}, byte {byte:,}"


class Records:
    """The header of a file, and its records with the lines in which they begin."""

    def __init__(self, file: BinaryIO, settings: CsvSettings) -> None:
        self._shown = settings.path
        self.lines = Lines(file, self._shown, settings.encoding)
        self._reader = csv.reader(self.lines, delimiter=settings.delimiter, strict=True)
        self.header = self._read_header()

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        row, lines, reader = self.header, self.lines, self._reader
        try:
            for row in reader:
                line, lines.record_line = lines.record_line, reader.line_num + 1
                lines.record_began = lines.passed
                if row:
                    yield line, row
        except csv.Error as error:
            raise self._malformed(error) from None
        if not lines.is_complete and 0 < len(row) < len(self.header):
            raise ConnectorError(
                f"{self._shown} is cut off: its last line has {len(row)} of {len(self.header)} fields and no "
                "line end; deliver the file again"
            )

    def _read_header(self) -> list[str]:
        try:
            header = [name.strip() for name in next(self._reader, [])]
        except csv.Error as error:
            raise self._malformed(error) from None
        self.lines.record_line = self._reader.line_num + 1
        if not self.lines.passed:
            raise ConnectorError(f"{self._shown} is empty; it needs at least a header")
        if not any(header):
            raise ConnectorError(f"{self._shown} has no header: its first line is empty")
        if "" in header:
            raise ConnectorError(
                f"{self._shown}: column {header.index('') + 1} has no name in the header; name or remove it"
            )
        self._check_delimiter(header)
        return header

    def _check_delimiter(self, header: list[str]) -> None:
        if len(header) > 1:
            return
        for name, delimiter in DELIMITERS.items():
            if delimiter in header[0]:
                raise ConnectorError(
                    f"{self._shown}: the header has only one column, “{header[0]}”; "
                    f"set the delimiter to {name}"
                )

    def _malformed(self, error: csv.Error) -> ConnectorError:
        cause = next((cause for known, cause in _CAUSES.items() if known in str(error)), str(error))
        return ConnectorError(f"{self._shown}, line {self.lines.record_line}: {cause}")


def _advice(encoding: str, data: bytes) -> str:
    """Return the likely cause of bytes that are not text in this encoding, and what to do."""
    if encoding not in WIDE_ENCODINGS:
        for other, even, odd in (("utf-16-le", data[::2], data[1::2]), ("utf-16-be", data[1::2], data[::2])):
            if 0 not in even and odd.count(0) > len(odd) // 2:
                return f"The file is probably UTF-16 without a byte order mark: set encoding to {other}"
    if 0 in data:
        return "The file is damaged, or not a text file; deliver it again"
    if encoding != "utf-8":
        return "Set encoding to the one in which the file was saved"
    try:
        data.decode("cp1252")
    except UnicodeDecodeError:
        return "The file is probably latin-1: set encoding to latin-1, or save the file as UTF-8"
    return (
        "The file is probably cp1252 (Windows, Western Europe): set encoding to cp1252, or save it as UTF-8"
    )
