"""Files in allowed folders: found without detours, taken when complete, and replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from identity.connectors.connector import ConnectorError
from identity.connectors.handover import FileState, NotThere, path_complaint, reached


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    allowed = tmp_path / "allowed"
    (allowed / "deep").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    settings.JIM_IDENTITY_FOLDERS = [allowed, tmp_path / "second"]
    return allowed


def content_of(path: str) -> bytes:
    with reached(path) as file, file.opened() as opened:
        return opened.read()


def check(path: str, *, marker: str = "", stable_seconds: float = 5) -> None:
    with reached(path) as file:
        file.check_complete(marker=marker, stable_seconds=stable_seconds)


def write(path: str, content: bytes, *, run_key: str = "run-1") -> None:
    with reached(path) as file, file.locked(run_key) as handover, handover.draft(file) as draft:
        draft.write(content)
        draft.replace(file.state())
        handover.note()


def age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(path, (at, at))


# Where files may be


@pytest.mark.parametrize("path", ["hr.csv", "deep/hr.csv", "{allowed}/hr.csv", "{allowed}/deep/hr.csv"])
def test_a_file_below_an_allowed_folder_is_found(folder: Path, path: str) -> None:
    (folder / "hr.csv").write_bytes(b"here")
    (folder / "deep" / "hr.csv").write_bytes(b"here")
    assert content_of(path.format(allowed=folder)) == b"here"


def test_an_allowed_folder_can_be_a_link_itself(folder: Path, settings: Any) -> None:
    (folder / "hr.csv").write_bytes(b"here")
    link = folder.parent / "link"
    link.symlink_to(folder)
    settings.JIM_IDENTITY_FOLDERS = [link]
    for path in ("hr.csv", f"{link}/hr.csv", f"{folder}/hr.csv"):
        assert content_of(path) == b"here"


@pytest.mark.parametrize(
    "path", ["{outside}/hr.csv", "../outside/hr.csv", "deep/../hr.csv", "{allowed}", "."]
)
def test_other_paths_are_refused_and_the_setting_is_named(folder: Path, path: str) -> None:
    path = path.format(outside=folder.parent / "outside", allowed=folder)
    assert "JIM_IDENTITY_FOLDERS" in path_complaint(path)
    with pytest.raises(ConnectorError, match="JIM_IDENTITY_FOLDERS"), reached(path):
        pass


def test_without_allowed_folders_no_path_is_allowed(settings: Any) -> None:
    settings.JIM_IDENTITY_FOLDERS = []
    assert "JIM_IDENTITY_FOLDERS names no folder" in path_complaint("hr.csv")


def link_the_file(folder: Path) -> str:
    (folder / "hr.csv").symlink_to(folder / "deep" / "hr.csv")
    return "hr.csv"


def link_a_folder(folder: Path) -> str:
    (folder / "shortcut").symlink_to(folder / "deep")
    return "shortcut/hr.csv"


def make_a_pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def name_a_folder(folder: Path) -> str:
    return "deep"


def leave_out_a_folder(folder: Path) -> str:
    return "missing/hr.csv"


def take_a_file_for_a_folder(folder: Path) -> str:
    return "deep/hr.csv/more.csv"


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (link_the_file, "leads over a symbolic link"),
        (link_a_folder, "leads over a symbolic link"),
        (make_a_pipe, "is a folder, a pipe or a device"),
        (name_a_folder, "is a folder, a pipe or a device"),
        (leave_out_a_folder, "the folder missing does not exist"),
        (take_a_file_for_a_folder, "cannot be opened"),
    ],
)
def test_only_the_file_itself_is_opened(folder: Path, arrange: Callable[[Path], str], message: str) -> None:
    (folder / "deep" / "hr.csv").write_bytes(b"elsewhere")
    with pytest.raises(ConnectorError, match=message):
        content_of(arrange(folder))


def test_a_file_that_does_not_exist_may_be_delivered_later(folder: Path) -> None:
    for look in (content_of, check):
        with pytest.raises(NotThere) as caught:
            look("hr.csv")
        assert caught.value.is_transient


# When files are complete


def test_a_file_is_complete_when_it_has_not_changed_for_a_while(folder: Path) -> None:
    (folder / "hr.csv").write_bytes(b"x")
    age(folder / "hr.csv", 100)
    check("hr.csv", stable_seconds=90)
    with pytest.raises(ConnectorError, match=r"hr.csv was changed 1\d\d s ago; .* for 1000 s") as caught:
        check("hr.csv", stable_seconds=1000)
    assert caught.value.is_transient


def test_a_time_of_change_in_the_future_is_told(folder: Path) -> None:
    (folder / "hr.csv").write_bytes(b"x")
    age(folder / "hr.csv", -1000)
    with pytest.raises(ConnectorError, match="at a time that is in the future"):
        check("hr.csv")


def test_with_a_marker_a_file_is_complete_when_the_marker_exists(folder: Path) -> None:
    (folder / "hr.csv").write_bytes(b"just written")
    (folder / "linked.done").symlink_to(folder / "hr.csv")
    for marker in ("hr.csv.done", "linked.done"):
        with pytest.raises(ConnectorError, match=f"the marker {marker} does not exist") as caught:
            check("hr.csv", marker=marker)
        assert caught.value.is_transient
    (folder / "hr.csv.done").touch()
    check("hr.csv", marker="hr.csv.done")


def test_what_jim_wrote_itself_is_complete_until_it_is_changed(folder: Path) -> None:
    write("hr.csv", b"all of it")
    check("hr.csv", stable_seconds=1000)
    with (folder / "hr.csv").open("ab") as file:
        file.write(b" and more")
    with pytest.raises(ConnectorError, match="was changed"):
        check("hr.csv", stable_seconds=1000)


@pytest.mark.parametrize("note", [b"", b"[]", b"[1, 2, 3]", b"{", b"\xff", b"7", b"[" * 300])
def test_a_damaged_note_is_not_believed(folder: Path, note: bytes) -> None:
    write("hr.csv", b"all of it")
    (folder / ".hr.csv.lock").write_bytes(note)
    with pytest.raises(ConnectorError, match="was changed"):
        check("hr.csv", stable_seconds=1000)


# How files are replaced


def test_a_file_is_replaced_with_its_mode_and_leaves_no_draft(folder: Path) -> None:
    target = folder / "hr.csv"
    target.write_bytes(b"old")
    target.chmod(0o604)
    before = target.stat().st_ino
    write("hr.csv", b"new")
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"new", 0o604)
    assert target.stat().st_ino != before
    assert sorted(path.name for path in folder.iterdir()) == [".hr.csv.lock", "deep", "hr.csv"]


def test_a_new_file_cannot_be_read_by_everyone(folder: Path) -> None:
    write("hr.csv", b"new")
    assert (folder / "hr.csv").stat().st_mode & 0o007 == 0


def test_a_draft_that_replaces_nothing_is_removed(folder: Path) -> None:
    with reached("hr.csv") as file, file.locked("run-1") as handover:
        with handover.draft(file) as draft:
            draft.write(b"half")
        assert [path.name for path in folder.iterdir() if path.name.endswith(".draft")] == []
    assert not (folder / "hr.csv").exists()


def test_the_next_export_removes_the_drafts_of_killed_ones_but_no_other_files(folder: Path) -> None:
    left = [".hr.csv.0123456789abcdef.draft", ".hr.csv.aaaaaaaaaaaaaaaa.draft"]
    others = [".hr.csv.more.0123456789abcdef.draft", ".hr.csv.draft", "hr.csv.0123456789abcdef.draft"]
    for name in left + others:
        (folder / name).touch()
    write("hr.csv", b"new")
    names = {path.name for path in folder.iterdir()}
    assert names & {*left, *others} == set(others)


def test_one_export_at_a_time(folder: Path) -> None:
    with reached("hr.csv") as file, file.locked("run-1"):
        with pytest.raises(ConnectorError, match="being written by another export") as caught:
            write("hr.csv", b"new", run_key="run-2")
        assert caught.value.is_transient
        write("deep/hr.csv", b"another file")
    write("hr.csv", b"new", run_key="run-2")
    assert (folder / "hr.csv").read_bytes() == b"new"


def test_a_lock_that_another_program_holds_counts_too(folder: Path) -> None:
    with (folder / ".hr.csv.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConnectorError, match="being written"):
            write("hr.csv", b"new")


def test_a_file_that_was_changed_in_the_meantime_is_not_replaced(folder: Path) -> None:
    (folder / "hr.csv").write_bytes(b"old")
    before = FileState.of((folder / "hr.csv").stat())
    (folder / "hr.csv").write_bytes(b"by somebody else")
    with (
        reached("hr.csv") as file,
        file.locked("run-1") as handover,
        handover.draft(file) as draft,
        pytest.raises(ConnectorError, match="was changed during the export"),
    ):
        draft.replace(before)
    assert (folder / "hr.csv").read_bytes() == b"by somebody else"


def test_a_link_that_appears_in_the_place_of_the_file_is_not_followed(folder: Path) -> None:
    outside = folder.parent / "outside" / "secret"
    outside.write_bytes(b"theirs")
    with reached("hr.csv") as file, file.locked("run-1") as handover, handover.draft(file) as draft:
        draft.write(b"ours")
        (folder / "hr.csv").symlink_to(outside)
        draft.replace(file.state())
    assert outside.read_bytes() == b"theirs"
    assert (folder / "hr.csv").read_bytes() == b"ours"


def test_a_folder_that_is_moved_away_meanwhile_does_not_lead_elsewhere(folder: Path) -> None:
    outside = folder.parent / "outside"
    with reached("deep/hr.csv") as file, file.locked("run-1") as handover, handover.draft(file) as draft:
        (folder / "deep").rename(folder / "moved")
        (folder / "deep").symlink_to(outside)
        draft.write(b"ours")
        draft.replace(file.state())
    assert (folder / "moved" / "hr.csv").read_bytes() == b"ours"
    assert list(outside.iterdir()) == []


def test_a_full_disk_is_told_and_may_pass(folder: Path) -> None:
    with (
        reached("hr.csv") as file,
        file.locked("run-1") as handover,
        handover.draft(file) as draft,
        Path("/dev/full").open("wb") as full,
    ):
        os.dup2(full.fileno(), draft._file.fileno())
        with pytest.raises(ConnectorError, match="cannot be written: No space left") as caught:
            draft.write(b"x" * 100_000)
    assert caught.value.is_transient
    assert [path.name for path in folder.iterdir() if path.name != "deep"] == [".hr.csv.lock"]
