"""What an import reads from a CSV file, and which files it refuses."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from identity.connectors.connector import ConnectorError, NeedsFullImport, Page, Problem, Reading, ReadObject
from identity.connectors.csv_connector import CsvConnector
from identity.connectors.csv_import import moment
from identity.shape import AttributeShape, TypeShape
from identity.values import Kind

PERSON = TypeShape.of(
    "person",
    AttributeShape("id"),
    AttributeShape("name"),
    AttributeShape("mail", is_multi=True),
    external_id="id",
)


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.JIM_IDENTITY_FOLDERS = [tmp_path]
    return tmp_path


class File:
    """A CSV file, and the connector that reads it."""

    def __init__(self, folder: Path, content: bytes | str = b"", **config: Any) -> None:
        self.path = folder / "hr.csv"
        self.path.write_bytes(content if isinstance(content, bytes) else content.encode())
        config = {"path": "hr.csv", "stable_seconds": 0, **config}
        self.connector = CsvConnector(CsvConnector.clean(config))

    def read(
        self, *types: TypeShape, since: dict[str, Any] | None = None, page_size: int = 1000
    ) -> tuple[list[ReadObject], list[Problem], dict[str, Any]]:
        with self.connector.open(by_name(*types), page_size=page_size, since=since) as reading:
            pages = list(reading.pages())
            objects = [each for page in pages for each in page.objects]
            return objects, [each for page in pages for each in page.problems], reading.watermark()

    def objects(self, *types: TypeShape, since: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        """Return the attributes by external id of a file without problems."""
        objects, problems, _ = self.read(*types, since=since)
        assert problems == []
        return {each.external_id: each.attributes for each in objects}

    def problems(self, *types: TypeShape, page_size: int = 1000) -> list[Problem]:
        return self.read(*types, page_size=page_size)[1]


def by_name(*types: TypeShape) -> dict[str, TypeShape]:
    return {shape.name: shape for shape in types or (PERSON,)}


def person(*attributes: AttributeShape, external_id: str = "id") -> TypeShape:
    return TypeShape.of("person", *attributes, external_id=external_id)


# What is read


def test_selected_columns_become_attributes_whatever_their_order(folder: Path) -> None:
    file = File(folder, "name,unused,mail,id\nAda,x,a@x|b@x,7\nBob,y,,8\n")
    assert file.objects() == {
        "7": {"id": "7", "name": "Ada", "mail": ["a@x", "b@x"]},
        "8": {"id": "8", "name": "Bob"},
    }


def test_the_external_id_need_not_be_selected(folder: Path) -> None:
    file = File(folder, "id,name\n 7 ,Ada\n")
    assert file.objects(person(AttributeShape("name"))) == {"7": {"name": "Ada"}}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("Ada", "Ada"),
        ("  Ada  ", "  Ada  "),
        (" ", " "),
        ("0017", "0017"),
        ('"one, two"', "one, two"),
        ('"5"" pipe"', '5" pipe'),
        ('5" pipe', '5" pipe'),
        ('"two\nlines"', "two\nlines"),
        ('"two\r\nlines"', "two\r\nlines"),
        ("Łódź 😀", "Łódź 😀"),
        ("one\u2028\x0b\x0c\x1c\x85line", "one\u2028\x0b\x0c\x1c\x85line"),
    ],
)
def test_text_is_kept_exactly(folder: Path, cell: str, text: str) -> None:
    assert File(folder, f"id,name,mail\n7,{cell},\n").objects()["7"]["name"] == text


@pytest.mark.parametrize(
    ("kind", "cell", "value"),
    [
        (Kind.INTEGER, " 007 ", 7),
        (Kind.DECIMAL, "1.50", "1.5"),
        (Kind.BOOLEAN, "Yes", True),
        (Kind.DATE, "2026-01-31", "2026-01-31"),
        (Kind.DATETIME, "2026-01-31T09:00:00+01:00", "2026-01-31T08:00:00Z"),
        (Kind.REFERENCE, " 9 ", " 9 "),
        (Kind.BINARY, "YWJj", "YWJj"),
    ],
)
def test_other_kinds_are_converted(folder: Path, kind: Kind, cell: str, value: object) -> None:
    assert File(folder, f"id,x\n7,{cell}\n").objects(person(AttributeShape("x", kind)))["7"] == {"x": value}


def test_several_values_come_from_one_cell_or_from_columns_of_the_same_name(folder: Path) -> None:
    file = File(folder, "id,n,n\n7,3,\n8,2;1,1\n9,,\n", separator=";")
    numbers = person(AttributeShape("n", Kind.INTEGER, is_multi=True))
    assert file.objects(numbers) == {"7": {"n": [3]}, "8": {"n": [1, 2]}, "9": {}}


def test_an_external_id_of_another_kind_is_compared_as_a_value(folder: Path) -> None:
    file = File(folder, "id\n7\n 08\n")
    shape = person(AttributeShape("id", Kind.INTEGER))
    assert file.objects(shape) == {"7": {"id": 7}, "8": {"id": 8}}
    file.path.write_text("id\n7\n007\n")
    assert [each.external_id for each in file.problems(shape)] == ["7", "7"]


def test_the_place_is_the_line_in_which_the_record_begins(folder: Path) -> None:
    objects, _, _ = File(folder, 'id,name,mail\n7,"a\nb\nc",\n\n8,Bob,\n').read()
    assert [(each.external_id, each.place) for each in objects] == [("7", "line 2"), ("8", "line 6")]


def test_a_column_can_name_the_type(folder: Path) -> None:
    group = TypeShape.of("group", AttributeShape("name"), external_id="id")
    file = File(folder, "kind,id,name,mail\nperson,1,Ada,\n group ,1,Admins,\n", type_column="kind")
    objects, problems, _ = file.read(PERSON, group)
    assert [(each.type, each.external_id, each.attributes["name"]) for each in objects] == [
        ("person", "1", "Ada"),
        ("group", "1", "Admins"),
    ]
    assert problems == []


def test_pages_have_the_wanted_size_and_tell_how_much_is_read(folder: Path) -> None:
    file = File(folder, "id,name,mail\n" + "".join(f"{n},x,\n" for n in range(25)))
    with file.connector.open(by_name(), page_size=10) as reading:
        pages = list(reading.pages())
    assert [len(page.objects) for page in pages] == [10, 10, 5]
    assert pages[-1].part == 1


def test_pages_of_large_records_end_early(folder: Path) -> None:
    file = File(folder, "id,name,mail\n" + "".join(f"{n},{'x' * 500_000},\n" for n in range(40)))
    with file.connector.open(by_name(), page_size=1000) as reading:
        pages = list(reading.pages())
    assert sum(len(page.objects) for page in pages) == 40
    assert max(len(page.objects) for page in pages) < 20
    parts = [page.part or 0 for page in pages]
    assert parts == sorted(parts)


def test_a_file_with_only_a_header_has_no_objects_and_no_problems(folder: Path) -> None:
    assert File(folder, "id,name,mail\n").read()[:2] == ([], [])


@pytest.mark.parametrize(
    ("encoded", "config"),
    [
        ("id,name,mail\n7,Zoë,\n".encode(), {}),
        ("id,name,mail\n7,Zoë,\n".encode("utf-8-sig"), {}),
        ("id,name,mail\n7,Zoë,\n".encode("utf-8-sig"), {"encoding": "utf-8"}),
        ("id,name,mail\n7,Zoë,\n".encode("utf-16"), {}),
        (b"\xfe\xff" + "id,name,mail\n7,Zoë,\n".encode("utf-16-be"), {}),
        ("id,name,mail\n7,Zoë,\n".encode("utf-16-le"), {"encoding": "utf-16-le"}),
        ("id,name,mail\n7,Zoë,\n".encode("cp1252"), {"encoding": "cp1252"}),
        ("id,name,mail\r\n7,Zoë,\r\n".encode("latin-1"), {"encoding": "latin-1"}),
        (b"id;name;mail\n7;Zo\xc3\xab;\n", {"delimiter": ";"}),
        (b"id\tname\tmail\n7\tZo\xc3\xab\t\n", {"delimiter": "tab"}),
        (b"id|name|mail\n7|Zo\xc3\xab|\n", {"delimiter": "|"}),
        (b" id , name ,mail\n7,Zo\xc3\xab,", {}),
    ],
)
def test_encodings_delimiters_and_line_ends(folder: Path, encoded: bytes, config: dict[str, Any]) -> None:
    assert File(folder, encoded, **config).objects() == {"7": {"id": "7", "name": "Zoë"}}


def test_a_character_is_not_torn_apart_where_blocks_end(folder: Path) -> None:
    name = "ë" * 700_001
    assert File(folder, f"id,name,mail\n7,{name},\n").objects()["7"]["name"] == name


# What is a problem of one record


@pytest.mark.parametrize(
    ("content", "error_type", "external_id", "message"),
    [
        (
            "id,name,mail\n7,Ada\n",
            "bad_record",
            "7",
            "line 2: the record has 2 fields, but the header has 3; check for a missing field or an unquoted "
            "line break",
        ),
        (
            "id,name,mail\n7,Love,lace,Ada\n",
            "bad_record",
            "7",
            "line 2: the record has 4 fields, but the header has 3; check for an unquoted comma",
        ),
        ("name,id,mail\nLove,lace,7,x\n", "bad_record", "", "check for an unquoted comma"),
        ('id,name,mail\n7,"Ada\n8,Bob"\n', "bad_record", "", "the record has 2 fields"),
        ("id,name,mail\n ,Ada,\n", "missing_external_id", "", "line 2: column “id” is empty"),
    ],
)
def test_a_bad_record_is_a_problem(
    folder: Path, content: str, error_type: str, external_id: str, message: str
) -> None:
    objects, problems, _ = File(folder, content + "9,9,9\n").read()
    assert [(each.type, each.place) for each in problems] == [("person", "line 2")]
    assert (problems[0].error_type, problems[0].external_id) == (error_type, external_id)
    assert message in problems[0].message
    assert len(objects) == 1


def test_values_that_do_not_fit_are_named_with_line_and_column(folder: Path) -> None:
    shape = person(
        AttributeShape("born", Kind.DATE), AttributeShape("n", Kind.INTEGER, is_multi=True), external_id="id"
    )
    [problem] = File(folder, "id,born,n\n7,soon,1|two\n").problems(shape)
    assert (problem.error_type, problem.external_id) == ("bad_value", "7")
    assert problem.message == (
        "line 2: column “born”: “soon” is not a date, such as 2026-01-31; "
        "column “n”: “two” is not a whole number"
    )


def test_an_external_id_that_does_not_fit_is_no_external_id(folder: Path) -> None:
    [problem] = File(folder, "id\nseven\n").problems(person(AttributeShape("id", Kind.INTEGER)))
    assert (problem.error_type, problem.external_id) == ("bad_value", "")
    assert "column “id”: “seven” is not a whole number" in problem.message


@pytest.mark.parametrize("kind", ["robot", ""])
def test_a_record_of_an_unknown_type_is_a_problem(folder: Path, kind: str) -> None:
    [problem] = File(folder, f"kind,id,name,mail\n{kind},7,x,\n", type_column="kind").problems()
    assert (problem.type, problem.error_type, problem.external_id) == (kind, "unknown_type", "")
    assert f"column “kind”: “{kind}” is not a selected type" in problem.message


@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_all_records_with_the_same_external_id_are_problems_on_whichever_pages(
    folder: Path, page_size: int
) -> None:
    file = File(folder, "id,name,mail\n7,Ada,\n8,Bob,\n 7 ,Eve,\n9,Joe,\n7,Max,\n")
    objects, problems, _ = file.read(page_size=page_size)
    assert [each.external_id for each in objects] == ["8", "9"]
    assert {(each.error_type, each.external_id) for each in problems} == {("duplicate_object", "7")}
    assert [each.message.partition(";")[0] for each in problems] == [
        "line 2: “7” is also in line 4",
        "line 4: “7” is also in line 2",
        "line 6: “7” is also in line 2",
    ]


def test_every_record_of_a_file_that_was_appended_to_itself_is_a_problem(folder: Path) -> None:
    rows = "".join(f"{n},x,\n" for n in range(500))
    objects, problems, _ = File(folder, "id,name,mail\n" + rows + rows).read(page_size=100)
    assert (objects, len(problems)) == ([], 1000)


# What is a reason to refuse the file


REFUSED: list[tuple[bytes, dict[str, Any], str]] = [
    (b"", {}, "hr.csv is empty"),
    (b"\xef\xbb\xbf", {}, "hr.csv is empty"),
    (b"\nid,name,mail\n", {}, "has no header"),
    (b" , \n1,2\n", {}, "has no header"),
    (b"id,,mail\n", {}, "column 2 has no name in the header"),
    (b"id;name;mail\n7;Ada;\n", {}, "has only one column, “id;name;mail”; set the delimiter to ;"),
    (b"id\tname\n", {}, "set the delimiter to tab"),
    (b"id,name\n", {"delimiter": ";"}, "set the delimiter to ,"),
    (b"id,name\n", {}, "has no column “mail”; its header is: id, name"),
    (b"id,name,name,mail\n", {}, "has 2 columns “name”, but this attribute has one value"),
    (b"id,id,name,mail\n", {}, "has 2 columns “id”"),
    (b"id,name,mail\n", {"change_column": "when"}, "has no column “when”"),
    (b"id,name,mail\n", {"type_column": "kind"}, "has no column “kind”"),
    (b"id,name,mail\n", {"external_id": "name"}, "external_id is “name”, but .* identified by “id”"),
    (b"id,name,mail\n", {"object_type": "group"}, "objects of the type “group”, which is not selected"),
    (b"id,name,mail\n7,Ada,\n8,B", {}, "is cut off: its last line has 2 of 3 fields"),
    (b'id,name,mail\n7,Ada,\n8,"Bob,\n', {}, "line 3: a quotation mark is not closed before the end"),
    (b'id,name,mail\n7,Ada,\n8,"B"ob,\n', {}, "line 3: a closing quotation mark is followed by other text"),
    (b"id,name,mail\r7,Ada,\r", {}, "line 1: a line ends with a carriage return only"),
    (b"id,name,mail\n7,A\0da,\n", {}, "line 2, byte 17: contains NUL. The file is damaged"),
    (b"id,name,mail\n7,Zo\xeb,\n", {}, "line 2, byte 18: the byte 0xEB .* utf-8. .* probably cp1252"),
    (b"id,name,mail\n7,Zo\xeb\x81,\n", {}, "probably latin-1"),
    (b"id,name,mail\n7,Zo\x81,\n", {"encoding": "cp1252"}, "Set encoding to the one in which"),
    (b"id,name,mail\n7,Ada,a@\xc3", {}, "line 2, byte 22: the file is cut off in a character"),
    ("id,name,mail\n7,Ada,\n".encode("utf-16-le"), {}, "byte 2: contains NUL. .* set encoding to utf-16-le"),
    ("id,name,mail\n7,Ada,\n".encode("utf-16-be"), {}, "byte 1: contains NUL. .* set encoding to utf-16-be"),
    ("id,name,mail\n7,Ada,\n".encode("utf-16")[:-1], {}, "line 2, byte 41: the file is cut off"),
]


@pytest.mark.parametrize(("content", "config", "message"), REFUSED)
def test_a_file_that_cannot_be_read_for_sure_is_refused(
    folder: Path, content: bytes, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConnectorError, match=message) as caught:
        File(folder, content, **config).read()
    assert not caught.value.is_transient


@given(
    pieces=st.lists(
        st.sampled_from(
            [b"id,name,mail", b"\n", b"\r\n", b"\r", b'"', b",", b"7", b"\0", b"\xc3", b"\xef\xbb\xbf"]
        )
        | st.binary(max_size=4)
    ),
    has_header=st.booleans(),
    encoding=st.sampled_from(["auto", "cp1252", "shift_jis", "utf-16-le"]),
)
def test_whatever_a_file_contains_is_read_or_refused(
    pieces: list[bytes], has_header: bool, encoding: str
) -> None:
    content = (b"id,name,mail\n" if has_header else b"") + b"".join(pieces)
    with tempfile.TemporaryDirectory() as name, override_settings(JIM_IDENTITY_FOLDERS=[Path(name)]):
        file = File(Path(name), content, encoding=encoding)
        try:
            objects, problems, mark = file.read(page_size=2)
        except ConnectorError:
            return
        assert (mark["size"], mark["problems"]) == (len(content), len(problems))
        assert len({each.external_id for each in objects}) == len(objects)


@pytest.mark.parametrize("rows", [1, 5_000])
def test_nothing_is_imported_from_a_file_that_is_damaged_at_its_end(folder: Path, rows: int) -> None:
    content = "id,name,mail\n" + "".join(f"{n},x,\n" for n in range(rows)) + "cut"
    pages: list[Page] = []
    with (
        pytest.raises(ConnectorError, match="cut off"),
        File(folder, content).connector.open(by_name(), page_size=1) as reading,
    ):
        pages += reading.pages()
    assert pages == []


@pytest.mark.parametrize(
    ("begin", "piece", "times", "message"),
    [
        (
            "id,name,mail\n",
            "x" * 1024,
            11 * 1024,
            r"line 2, byte 14: the line is longer than 10 MiB; .* no line end",
        ),
        (
            "",
            "1,x,\r",
            3 * 1024**2,
            "line 1, byte 1: the line is longer than 10 MiB; .* a carriage return only",
        ),
        ("id,name,mail\n7,", "x" * 1024, 1025, "line 2: a value is longer than 1 MiB"),
        ('id,name,mail\n7,"', "x" * 99 + "\n", 11_000, "line 2: a value is longer than 1 MiB; .* not closed"),
        (
            "id,name,mail\n7,",
            '"x\n",',
            2_300_000,
            "line 2: the record that begins here is longer than 10 MiB",
        ),
    ],
)
def test_lines_records_and_values_have_a_largest_size(
    folder: Path, begin: str, piece: str, times: int, message: str
) -> None:
    with pytest.raises(ConnectorError, match=message):
        File(folder, begin + piece * times).read()


def test_the_largest_value_is_read(folder: Path) -> None:
    name = "x" * 1024**2
    assert File(folder, f"id,name,mail\n7,{name},\n").objects()["7"]["name"] == name


def test_a_count_file_counts_all_records_but_no_empty_lines(folder: Path) -> None:
    (folder / "hr.count").write_text("2\n")
    objects, problems, _ = File(folder, "id,name,mail\n7,Ada,\n\nragged\n", count_file="hr.count").read()
    assert (len(objects), len(problems)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", r"hr\.csv has 2 records, but hr\.count says 3"),
        ("1", r"hr\.csv has 2 records, but hr\.count says 1"),
        ("two", r"hr\.count must contain the number of records, but contains “two”"),
        ("", r"hr\.count must contain the number of records"),
    ],
)
def test_a_count_file_that_disagrees_refuses_the_file(folder: Path, text: str, message: str) -> None:
    (folder / "hr.count").write_text(text)
    with pytest.raises(ConnectorError, match=message):
        File(folder, "id,name,mail\n7,Ada,\n8,Bob,\n", count_file="hr.count").read()


def test_a_missing_count_file_may_be_delivered_later(folder: Path) -> None:
    with pytest.raises(ConnectorError, match=r"hr\.count does not exist") as caught:
        File(folder, "id,name,mail\n", count_file="hr.count").read()
    assert caught.value.is_transient


def test_a_file_is_read_when_it_is_complete(folder: Path) -> None:
    file = File(folder, "id,name,mail\n7,Ada,\n", stable_seconds=3600)
    with pytest.raises(ConnectorError, match="JIM waits until it has not changed for 3600 s"):
        file.read()
    file = File(folder, "id,name,mail\n7,Ada,\n", stable_seconds=3600, marker="hr.done")
    (folder / "hr.done").touch()
    assert list(file.objects()) == ["7"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.with_name("real.csv"))])
def test_only_a_file_is_read(folder: Path, make: Callable[[Path], None]) -> None:
    file = File(folder)
    (folder / "real.csv").write_text("id,name,mail\n")
    file.path.unlink()
    make(file.path)
    with pytest.raises(ConnectorError, match=r"symbolic link|a pipe"):
        file.read()


# What happens if the file is changed while it is read


def grow(path: Path) -> None:
    with path.open("a") as file:
        file.write("9999,new,\n")


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


def replace(path: Path) -> None:
    new = path.with_name("new.csv")
    new.write_bytes(path.read_bytes())
    new.replace(path)


def remove(path: Path) -> None:
    path.unlink()


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


def rewrite_in_secret(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.write(path.read_bytes().replace(b"x", b"y"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (grow, "it had 4,013 bytes and now has 4,023"),
        (shrink, "it had 4,013 bytes and now has 4,003"),
        (replace, "another file took its place"),
        (remove, "it was removed"),
        (touch, "it was written to"),
        (rewrite_in_secret, "was changed while it was read"),
    ],
)
def test_a_file_that_is_changed_while_it_is_read_is_refused(
    folder: Path, change: Callable[[Path], None], message: str
) -> None:
    file = File(folder, "id,name,mail\n" + "".join(f"{n:04},x,\n" for n in range(500)))
    with file.connector.open(by_name(), page_size=100) as reading:
        change(file.path)
        with pytest.raises(ConnectorError, match=message) as caught:
            list(reading.pages())
    assert caught.value.is_transient


# Delta imports


def test_without_a_change_column_a_delta_import_reads_everything(folder: Path) -> None:
    file = File(folder, "id,name,mail\n7,Ada,\n")
    _, _, mark = file.read()
    assert file.objects(since=mark) == {"7": {"id": "7", "name": "Ada"}}
    assert file.objects(since={}) == {"7": {"id": "7", "name": "Ada"}}


@pytest.mark.parametrize(
    ("seen", "now", "read"),
    [
        (["5", "9"], ["5", "9", "10", "9"], ["1", "2", "3"]),
        (["1.5"], ["1.25", "1.50", "01.6"], ["1", "2"]),
        (["2026-01-31"], ["2026-01-30", "2026-02-01T00:00:00Z"], ["1"]),
        (["2026-01-31T09:00:00"], ["2026-01-31T09:00:00.5", "2026-01-31T09:30:00+01:00"], ["0"]),
        (["5"], ["5", "", "later", "2026-01-31"], ["0", "1", "2", "3"]),
    ],
)
def test_with_a_change_column_a_delta_import_reads_what_is_not_older(
    folder: Path, seen: list[str], now: list[str], read: list[str]
) -> None:
    shape = person(AttributeShape("id"))
    file = File(folder, rows_with(seen), change_column="when")
    _, _, mark = file.read(shape)
    file.path.write_text(rows_with(now))
    assert list(file.objects(shape, since=mark)) == read


def rows_with(moments: list[str]) -> str:
    return "id,when\n" + "".join(f"{n},{at}\n" for n, at in enumerate(moments))


@pytest.mark.parametrize(
    ("seen", "now"),
    [
        (["9"], ["8"]),
        (["9"], []),
        (["9"], ["2026-01-31"]),
        (["2026-01-31"], ["2026-01-30"]),
        ([], ["9"]),
        (["never"], ["9"]),
    ],
)
def test_a_change_column_that_went_back_needs_a_full_import(
    folder: Path, seen: list[str], now: list[str]
) -> None:
    shape = person(AttributeShape("id"))
    file = File(folder, rows_with(seen), change_column="when")
    _, _, mark = file.read(shape)
    file.path.write_text(rows_with(now))
    with pytest.raises(NeedsFullImport, match="run a full import"):
        file.read(shape, since=mark)


def test_a_watermark_of_another_change_column_needs_a_full_import(folder: Path) -> None:
    content = "id,when,then\n7,1,1\n"
    _, _, mark = File(folder, content, change_column="when").read(person(AttributeShape("id")))
    with pytest.raises(NeedsFullImport, match="column “then”"):
        File(folder, content, change_column="then").read(person(AttributeShape("id")), since=mark)


def test_deleted_objects_are_left_out_of_full_imports_and_told_by_deltas(folder: Path) -> None:
    file = File(
        folder,
        "id,name,mail,state\n7,Ada,,active\n8,Bob,, left \n8,Bob,,left\n9,Joe,,left\n",
        delete_column="state",
        delete_value="left",
    )
    objects, problems, mark = file.read()
    assert ([each.external_id for each in objects], problems) == (["7"], [])
    objects, problems, _ = file.read(since=mark)
    assert [(each.external_id, each.is_deleted) for each in objects] == [("7", False), ("9", True)]
    assert [each.external_id for each in problems] == ["8", "8"]


def test_the_watermark_tells_the_content_and_how_many_records_are_unread(folder: Path) -> None:
    file = File(folder, rows_with(["1", "3", "2"]) + "ragged\n", change_column="when")
    shape = person(AttributeShape("id"))
    _, _, mark = file.read(shape)
    assert mark["size"] == file.path.stat().st_size
    assert (mark["change_column"], mark["newest"], mark["problems"]) == ("when", "3", 1)
    assert file.read(shape)[2] == mark
    file.path.write_text(rows_with(["1", "3", "4"]))
    _, _, later = file.read(shape, since=mark)
    assert later["digest"] != mark["digest"]
    assert (later["newest"], later["problems"]) == ("4", 1)
    assert file.read(shape)[2]["problems"] == 0


def test_the_watermark_is_that_of_the_state_before_the_first_page(folder: Path) -> None:
    file = File(folder, rows_with(["1"]), change_column="when")

    def first_page(reading: Reading) -> dict[str, Any]:
        next(reading.pages())
        file.path.write_text(rows_with(["2"]))
        return reading.watermark()

    with file.connector.open(by_name(person(AttributeShape("id"))), page_size=1) as reading:
        assert first_page(reading)["newest"] == "1"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (" 12 ", Decimal(12)),
        ("-1.5", Decimal("-1.5")),
        ("NaN", None),
        ("Infinity", None),
        ("", None),
        ("soon", None),
        ("0001-01-01T00:00:00+14:00", None),
    ],
)
def test_moments_are_numbers_or_times(cell: str, expected: object) -> None:
    assert moment(cell) == expected
