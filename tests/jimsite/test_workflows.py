"""The example that JIM brings along."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jimsite import workflows as example
from jimsite.management.commands.demo import put_files
from jimsite.workflows import Inbox
from tests.base import NOW, seconds
from tests.workflows.base import deployed, events, work
from workflows import discovery
from workflows.models import Event, Run, Workflow

pytestmark = pytest.mark.django_db
MIDNIGHT = NOW.replace(hour=0, minute=0) + timedelta(days=1)


@pytest.fixture
def data(tmp_path: Path, settings: Any) -> Path:
    settings.JIM_DATA_DIR = tmp_path
    return tmp_path


@pytest.fixture
def inbox(data: Path) -> Iterator[Path]:
    """The example is deployed, and has found nothing yet."""
    (data / "inbox").mkdir()
    with deployed(Inbox):
        work()
        yield data / "inbox"


def put(folder: Path, *names: str, at: datetime = NOW, text: str = "text") -> None:
    for name in names:
        (folder / name).write_text(text)
        os.utime(folder / name, (at.timestamp(), at.timestamp()))


def written(inbox: Path) -> dict[str, str]:
    """What each file of the outbox says after its mark."""
    files = sorted((inbox.parent / "outbox").glob("*"))
    return {file.name: file.read_text().partition("\n")[2] for file in files}


def test_it_is_not_there_without_its_folder() -> None:
    """Discovery finds the module everywhere: also where these tests run."""
    assert not example.inbox().exists()
    assert "inbox" not in discovery.definitions().workflows


def test_two_files_of_a_name_become_one_and_one_that_was_taken_away_holds_nobody_up(inbox: Path) -> None:
    put(inbox, "order-16.csv")
    put(inbox, "order-17.csv", text="paper,500\n")
    work(now=NOW + seconds(10))
    assert written(inbox) == {}
    (inbox / "order-16.csv").unlink()
    put(inbox, "order-16.json", at=NOW + seconds(10))
    put(inbox, "order-17.json", text="{}\n", at=NOW + seconds(10))
    put(inbox, "order-18.json")
    work(now=NOW + seconds(20))
    assert written(inbox) == {"order-17.txt": "paper,500\n\n{}\n\n"}
    assert sorted(events("inbox-files").values()) == ["consumed"] * 4 + ["pending"]


def test_a_file_is_published_once_and_again_when_it_was_changed(inbox: Path) -> None:
    put(inbox, "a.csv", at=NOW + seconds(19.5))
    (inbox / "folder").mkdir()
    (inbox / "link.csv").symlink_to(inbox / "a.csv")
    # It may still be written to.
    work(now=NOW + seconds(20))
    assert not Event.objects.exists()
    for after in (30, 40):
        work(now=NOW + seconds(after))
        assert [event.title for event in Event.objects.all()] == ["a.csv"]
    put(inbox, "a.csv", at=NOW + seconds(45))
    work(now=NOW + seconds(50))
    assert Event.objects.count() == 2


def test_a_crash_after_the_file_was_written_writes_it_once(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes after the fact: `reconcile` finds the file by its mark."""
    write, wrote = example.write_once, list[str]()

    def write_and_die(path: Path, text: str, key: str) -> str:
        wrote.append(write(path, text, key))
        raise RuntimeError("the power went off")

    monkeypatch.setattr(example, "write_once", write_and_die)
    put(inbox, "a.csv", "a.json")
    work(now=NOW + seconds(10))
    assert wrote == ["a.txt"]
    assert list(events("combined-files").values()) == ["pending"]
    assert Workflow.objects.get().runs.open().first() is None


def test_what_cannot_be_written_is_tried_again(inbox: Path) -> None:
    outbox = inbox.parent / "outbox"
    outbox.write_text("in the way")
    put(inbox, "a.csv", "a.json")
    work(now=NOW + seconds(10))
    stuck = Run.objects.open().get()
    assert stuck.status == "paused:transient"
    assert "cannot be written: " in stuck.error
    outbox.unlink()
    work(now=NOW + seconds(30))
    assert list(written(inbox)) == ["a.txt"]


def test_a_report_says_each_day_what_was_combined(inbox: Path) -> None:
    put(inbox, "a.csv", "a.json", "b.csv", "b.json")
    work(now=NOW + seconds(10))
    work(now=MIDNIGHT - seconds(1))
    assert set(written(inbox)) == {"a.txt", "b.txt"}
    work(now=MIDNIGHT)
    assert written(inbox)["report-2026-11-16.txt"] == "a.txt\nb.txt\n"
    assert set(events("combined-files").values()) == {"consumed"}
    work(now=MIDNIGHT + timedelta(days=1))
    assert len(list((inbox.parent / "outbox").glob("report-*"))) == 1, "nothing was combined on that day"


def test_the_demonstration_puts_files_there(data: Path) -> None:
    assert (put_files(), put_files()) == (5, 0)
