from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from execution.children import nursery as nursery_module
from execution.children.nursery import Nursery
from tests.steps.web_server import WebServer, serving
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """How long a nursery may take for its start and its end, and when a child of it is no longer needed.

    Whoever does not end when he is asked to is killed soon.
    """
    for name in ("START_SECONDS", "END_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(nursery_module, name, PATIENCE_SECONDS)
    settings.JIM_KILL_SECONDS = 0.2


@pytest.fixture
def patience(no_hurry: None, settings: Any) -> None:
    """For who ends by himself, and has something to say before: a busy machine takes its time for it."""
    settings.JIM_KILL_SECONDS = PATIENCE_SECONDS


@pytest.fixture
def local(settings: Any) -> None:
    settings.JIM_HTTP_ALLOW, settings.JIM_HTTP_BYTES = ["127.0.0.1"], 1_000_000


@pytest.fixture
def server(local: None) -> Iterator[WebServer]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes a program in a folder that programs may come from."""

    def make(body: str, *, name: str = "program", interpreter: str = "/bin/sh") -> str:
        path = tmp_path / name
        path.write_text(f"#!{interpreter}\n{body}\n")
        path.chmod(0o755)
        return str(path)

    with override_settings(JIM_EXECUTABLE_FOLDERS=[tmp_path]):
        yield make
