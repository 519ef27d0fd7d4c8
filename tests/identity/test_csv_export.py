"""What an export writes to CSV files, and when it refuses to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from identity.connectors.connector import Change, ConnectorError, Export, ReadObject, Result
from identity.connectors.csv_connector import CsvConnector
from identity.shape import AttributeShape, TypeShape
from identity.values import Kind

PERSON = TypeShape.of(
    "person",
    AttributeShape("id"),
    AttributeShape("name"),
    AttributeShape("mail", is_multi=True),
    AttributeShape("active", Kind.BOOLEAN),
    external_id="id",
)
ADA = ReadObject("person", "7", {"id": "7", "name": "Ada", "mail": ["a@x", "b@x"], "active": True})
BOB = ReadObject("person", "8", {"id": "8", "name": "Bob"})
HEADER = "id,name,mail,active\n"
WHOLE = HEADER + "7,Ada,a@x|b@x,true\n8,Bob,,\n"


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.JIM_IDENTITY_FOLDERS = [tmp_path]
    return tmp_path


def connector(export: str = "whole", **config: Any) -> CsvConnector:
    return CsvConnector(CsvConnector.clean({"path": "ad.csv", "export": export, **config}))


def run(
    connector: CsvConnector,
    *objects: ReadObject,
    changes: list[Change] | None = None,
    watermark: Mapping[str, Any] | None = None,
    run_key: str = "run-1",
    types: tuple[TypeShape, ...] = (PERSON,),
) -> tuple[list[Result], dict[str, Any]]:
    by_name = {shape.name: shape for shape in types}
    return connector.export(Export(by_name, changes or [], objects, run_key, watermark or {}))


def imported(
    connector: CsvConnector, *types: TypeShape, since: Mapping[str, Any] | None = None
) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, Any]]:
    """Return the attributes of each object, and the watermark."""
    by_name = {shape.name: shape for shape in types or (PERSON,)}
    with connector.open(by_name, page_size=100, since=since) as reading:
        objects = [each for page in reading.pages() for each in page.objects]
        return {(each.type, each.external_id): each.attributes for each in objects}, reading.watermark()


def seen(folder: Path, content: str | bytes, **config: Any) -> dict[str, Any]:
    """Write the file, and return the watermark of its import."""
    (folder / "ad.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return imported(connector(stable_seconds=0, **config))[1]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# All objects


def test_a_new_file_has_the_external_id_and_the_attributes_in_their_order(folder: Path) -> None:
    results, mark = run(connector(), ADA, BOB, changes=[Change(1, "create", "person", "7", ADA.attributes)])
    assert (folder / "ad.csv").read_text() == WHOLE
    assert results == [Result(1)]
    assert mark["size"] == len(WHOLE)
    assert mark == seen(folder, WHOLE)


def test_what_was_exported_can_be_imported_at_once(folder: Path) -> None:
    system = connector(stable_seconds=3600)
    _, mark = run(system, ADA, BOB)
    objects, read = imported(system)
    assert objects == {("person", "7"): ADA.attributes, ("person", "8"): BOB.attributes}
    assert read == mark


def test_several_types_are_told_apart_by_their_column(folder: Path) -> None:
    group = TypeShape.of("group", AttributeShape("name"), AttributeShape("gid"), external_id="gid")
    admins = ReadObject("group", "7", {"name": "Admins", "gid": "7"})
    run(connector(type_column="kind"), ADA, admins, types=(PERSON, group))
    assert (folder / "ad.csv").read_text() == (
        "id,gid,kind,name,mail,active\n7,,person,Ada,a@x|b@x,true\n,7,group,Admins,,\n"
    )
    objects, _ = imported(connector(type_column="kind"), PERSON, group)
    assert objects == {("person", "7"): ADA.attributes, ("group", "7"): admins.attributes}


@pytest.mark.parametrize(
    ("old", "config", "new"),
    [
        ("name,id\nOld,7\n", {}, "name,id,mail,active\nAda,7,a@x|b@x,true\nBob,8,,\n"),
        (
            "mail,id,name,active,mail\n",
            {},
            "mail,id,name,active,mail\na@x,7,Ada,true,b@x\n,8,Bob,,\n",
        ),
        ("id,room\n", {}, "id,room,name,mail,active\n7,,Ada,a@x|b@x,true\n8,,Bob,,\n"),
        (
            "id;name\r\n7;Old\r\n",
            {"delimiter": ";"},
            "id;name;mail;active\r\n7;Ada;a@x|b@x;true\r\n8;Bob;;\r\n",
        ),
        ("\ufeffid\n7\n", {}, "\ufeff" + WHOLE),
        ("", {}, WHOLE),
        (
            "id,state\n9,left\n",
            {"delete_column": "state", "delete_value": "left"},
            "id,state,name,mail,active\n7,,Ada,a@x|b@x,true\n8,,Bob,,\n",
        ),
    ],
)
def test_the_columns_and_the_style_of_the_file_are_kept(
    folder: Path, old: str, config: dict[str, Any], new: str
) -> None:
    (folder / "ad.csv").write_bytes(old.encode())
    known = TypeShape.of("person", AttributeShape("id"), external_id="id")
    mark = imported(connector(stable_seconds=0, **config), known)[1] if old else {}
    run(connector(**config), ADA, BOB, watermark=mark)
    assert (folder / "ad.csv").read_bytes() == new.encode()


@pytest.mark.parametrize(
    ("encoding", "old", "new"),
    [
        ("latin-1", b"", "id,name,mail,active\n7,Zoë,,\n".encode("latin-1")),
        ("utf-8-sig", b"", "id,name,mail,active\n7,Zoë,,\n".encode("utf-8-sig")),
        ("auto", "id\n".encode("utf-16"), "id,name,mail,active\n7,Zoë,,\n".encode("utf-16")),
    ],
)
def test_the_encoding_is_that_of_the_file_or_of_the_settings(
    folder: Path, encoding: str, old: bytes, new: bytes
) -> None:
    (folder / "ad.csv").write_bytes(old)
    run(connector(encoding=encoding), ReadObject("person", "7", {"name": "Zoë"}))
    assert (folder / "ad.csv").read_bytes() == new


def test_a_file_that_would_not_change_is_not_replaced(folder: Path) -> None:
    mark = seen(folder, WHOLE)
    before = (folder / "ad.csv").stat()
    _, after = run(connector(), ADA, BOB, watermark=mark)
    now = (folder / "ad.csv").stat()
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert after == mark


def test_the_file_keeps_its_mode(folder: Path) -> None:
    mark = seen(folder, HEADER)
    (folder / "ad.csv").chmod(0o640)
    run(connector(), ADA, watermark=mark)
    assert (folder / "ad.csv").stat().st_mode & 0o777 == 0o640


def test_the_count_and_then_the_marker_are_written(folder: Path) -> None:
    system = connector(marker="ad.done", count_file="ad.count")
    _, mark = run(system, ADA, BOB)
    assert ((folder / "ad.count").read_text(), (folder / "ad.done").read_text()) == ("2\n", "")
    assert (folder / "ad.done").stat().st_mtime_ns >= (folder / "ad.csv").stat().st_mtime_ns
    assert len(imported(system)[0]) == 2
    (folder / "ad.done").unlink()
    run(system, ADA, BOB, watermark=mark)
    assert (folder / "ad.done").exists()


def test_a_change_column_is_still_known_after_an_export(folder: Path) -> None:
    shape = TypeShape.of("person", AttributeShape("id"), AttributeShape("when"), external_id="id")
    system = connector(change_column="when", stable_seconds=0)
    (folder / "ad.csv").write_text("id,when\n7,5\n8,6\n")
    _, mark = imported(system, shape)
    later = ReadObject("person", "7", {"id": "7", "when": "9"})
    earlier = ReadObject("person", "8", {"id": "8", "when": "2"})
    _, mark = run(system, later, earlier, watermark=mark, types=(shape,))
    assert list(imported(system, shape, since=mark)[0]) == [("person", "7")]


# Changes that cannot be written


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"mail": ["a|b"]}, {}, "column “mail”: a value contains “|”, which separates values"),
    ({"mail": ["a", "b~"]}, {"separator": "~"}, "a value contains “~”"),
    ({"mail": ["a~", "b"]}, {"separator": "~~"}, "a value contains “~~”"),
    ({"name": ["Ada", "Eve"]}, {}, "column “name”: has 2 values, but the attribute has one value"),
    ({"name": "Łódź"}, {"encoding": "latin-1"}, "“Ł” cannot be written in the encoding iso8859-1"),
    ({"name": "x" * (1024**2 + 1)}, {}, "a value is longer than 1 MiB"),
    ({"id": "9"}, {}, "an external id cannot change, here from “7” to “9”"),
]


@pytest.mark.parametrize(("attributes", "config", "message"), REFUSED)
def test_a_change_that_cannot_be_written_is_refused_and_its_object_stays_as_it_was(
    folder: Path, attributes: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    after = ReadObject("person", "7", {**ADA.attributes, **attributes})
    changes = [
        Change(1, "update", "person", "7", attributes, held={"id": "7", "name": "Ada"}),
        Change(2, "update", "person", "8", {"name": "Bob"}, held={}),
    ]
    [refused, done], _ = run(connector(**config), after, BOB, changes=changes)
    assert (refused.key, refused.error_type, refused.is_transient) == (1, "bad_value", False)
    assert message in refused.message
    assert done == Result(2)
    assert (folder / "ad.csv").read_text() == HEADER + "7,Ada,,\n8,Bob,,\n"


def test_a_record_that_an_import_could_not_read_is_not_written(folder: Path) -> None:
    columns = [AttributeShape(f"c{number}") for number in range(11)]
    shape = TypeShape.of("person", *columns, external_id="id")
    large = ReadObject("person", "7", {each.name: "x" * 1024**2 for each in columns})
    changes = [Change(1, "create", "person", "7", large.attributes)]
    [result], _ = run(connector(), large, changes=changes, types=(shape,))
    assert result.message == "the values are longer than 10 MiB together"


@pytest.mark.parametrize(
    ("external_id", "attributes"),
    [
        ("9", {"mail": ["a|b"]}),
        ("", {"id": "9", "mail": ["a|b"]}),
        ("", {"name": "Eve"}),
        (" 9", {"name": "Eve"}),
    ],
)
def test_an_object_that_cannot_be_created_is_left_out(
    folder: Path, external_id: str, attributes: dict[str, Any]
) -> None:
    new = ReadObject("person", external_id, attributes)
    other = ReadObject("person", "", {"id": "10"})
    changes = [
        Change(1, "create", "person", external_id, attributes),
        Change(2, "create", "person", "", other.attributes),
        Change(3, "delete", "person", "8", {}),
    ]
    results, _ = run(connector(), ADA, new, other, changes=changes)
    assert [(result.key, result.error_type) for result in results] == [(1, "bad_value"), (2, ""), (3, "")]
    assert (folder / "ad.csv").read_text() == HEADER + "7,Ada,a@x|b@x,true\n10,,,\n"


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (ReadObject("person", "9", {"mail": ["a|b"]}), "person “9” cannot be written to ad.csv"),
        (ReadObject("group", "9", {}), "objects of the type “group” cannot be written"),
    ],
)
def test_nothing_is_exported_if_an_object_cannot_be_written_that_does_not_change(
    folder: Path, each: ReadObject, message: str
) -> None:
    mark = seen(folder, HEADER)
    with pytest.raises(ConnectorError, match=message):
        run(connector(), ADA, each, watermark=mark)
    assert (folder / "ad.csv").read_text() == HEADER


# Files that are not overwritten


def test_a_file_that_was_changed_since_the_last_import_is_not_overwritten(folder: Path) -> None:
    mark = seen(folder, WHOLE)
    (folder / "ad.csv").write_text(WHOLE.replace("Bob", "Eve"))
    with pytest.raises(ConnectorError, match="was changed since JIM last read it; run an import first"):
        run(connector(), ADA, watermark=mark)
    assert "Eve" in (folder / "ad.csv").read_text()


def test_records_that_were_never_imported_are_not_overwritten(folder: Path) -> None:
    (folder / "ad.csv").write_text(WHOLE)
    with pytest.raises(ConnectorError, match="contains records that JIM has never read; run an import first"):
        run(connector(), ADA)
    assert (folder / "ad.csv").read_text() == WHOLE


def test_records_that_could_not_be_read_are_not_removed(folder: Path) -> None:
    mark = seen(folder, WHOLE + "9,Joe\n")
    with pytest.raises(ConnectorError, match=r"records that JIM could not read \(1\)"):
        run(connector(), ADA, BOB, watermark=mark)
    assert (folder / "ad.csv").read_text() == WHOLE + "9,Joe\n"


def test_columns_that_are_not_selected_are_not_emptied(folder: Path) -> None:
    mark = seen(folder, "id,name,mail,active,room,floor\n7,Ada,,,12,3\n")
    with pytest.raises(ConnectorError, match="has columns that are not selected: room, floor"):
        run(connector(), ADA, watermark=mark)


def test_a_missing_file_is_written_anew(folder: Path) -> None:
    mark = seen(folder, WHOLE)
    (folder / "ad.csv").unlink()
    run(connector(), ADA, BOB, watermark=mark)
    assert (folder / "ad.csv").read_text() == WHOLE


def test_a_repeat_after_a_crash_finds_its_own_file(folder: Path) -> None:
    mark = seen(folder, HEADER)
    _, first = run(connector(), ADA, BOB, watermark=mark)
    assert run(connector(), ADA, BOB, watermark=mark)[1] == first


def test_a_file_that_is_changed_during_the_export_is_not_overwritten(folder: Path) -> None:
    mark = seen(folder, HEADER)

    class Objects:
        def __iter__(self) -> Iterator[ReadObject]:
            yield ADA
            (folder / "ad.csv").write_text("theirs")

    with pytest.raises(ConnectorError, match="was changed during the export; run an import first"):
        connector().export(Export({"person": PERSON}, [], Objects(), "run-1", mark))
    assert (folder / "ad.csv").read_text() == "theirs"
    assert names(folder) == [".ad.csv.lock", "ad.csv"]


def test_a_system_that_is_only_read_is_not_written(folder: Path) -> None:
    with pytest.raises(ConnectorError, match=r"exports to ad\.csv are off"):
        run(connector("none"), ADA)
    assert list(folder.iterdir()) == []


# A log of changes


CHANGES = [
    Change(1, "create", "person", "7", {"id": "7", "name": "Ada", "mail": ["a@x", "b@x"], "active": True}),
    Change(
        2, "update", "person", "8", {"name": "Rob", "active": None}, held={"name": "Bob", "active": False}
    ),
    Change(3, "delete", "person", "9", {}, held={"name": "Joe"}),
]
LOG = (
    "operation,changed,id,name,mail,active\n"
    "create,id|name|mail|active,7,Ada,a@x|b@x,true\n"
    "update,name|active,8,Rob,,\n"
    "delete,,9,,,\n"
)


def test_a_log_has_the_changes_of_one_run(folder: Path) -> None:
    (folder / "ad.csv").write_text("not touched")
    results, mark = run(connector("log"), changes=CHANGES, watermark={"digest": "x"})
    assert (folder / "ad.run-1.csv").read_text() == LOG
    assert (folder / "ad.csv").read_text() == "not touched"
    assert results == [Result(1), Result(2), Result(3)]
    assert mark == {"digest": "x"}


def test_a_repeat_replaces_its_log_and_another_run_has_its_own(folder: Path) -> None:
    system = connector("log")
    run(system, changes=CHANGES[:1])
    run(system, changes=CHANGES)
    run(system, changes=CHANGES[2:], run_key="run-2")
    assert (folder / "ad.run-1.csv").read_text() == LOG
    assert (folder / "ad.run-2.csv").read_text() == "operation,changed,id,name,mail,active\ndelete,,9,,,\n"


def test_a_log_tells_its_columns_from_attributes_of_the_same_name(folder: Path) -> None:
    shape = TypeShape.of("person", AttributeShape("changed"), AttributeShape("operation"), external_id="id")
    change = Change(1, "update", "person", "7", {"changed": "today", "operation": "none"})
    run(connector("log"), changes=[change], types=(shape,))
    assert (folder / "ad.run-1.csv").read_text() == (
        "operation,changed,id,changed,operation\nupdate,changed|operation,7,today,none\n"
    )


def test_a_change_that_cannot_be_written_is_not_in_the_log(folder: Path) -> None:
    bad = Change(4, "update", "person", "9", {"mail": ["a|b"]})
    results, _ = run(connector("log"), changes=[*CHANGES, bad])
    assert [result.error_type for result in results] == ["", "", "", "bad_value"]
    assert (folder / "ad.run-1.csv").read_text() == LOG


@pytest.mark.parametrize("changes", [[], [Change(4, "update", "person", "9", {"mail": ["a|b"]})]])
def test_without_changes_there_is_no_log(folder: Path, changes: list[Change]) -> None:
    run(connector("log"), changes=changes)
    assert names(folder) == [".ad.csv.lock"]


@pytest.mark.parametrize("run_key", ["../../up", "a/b", ".hidden", "x" * 200, ""])
def test_no_run_key_leads_out_of_the_folder(folder: Path, run_key: str) -> None:
    run(connector("log"), changes=CHANGES, run_key=run_key)
    [_, name] = names(folder)
    assert name.startswith("ad.")
    assert len(name) == len("ad..csv") + 16
