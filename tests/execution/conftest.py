from __future__ import annotations

import pytest

from activities import clock
from tests.base import NOW


@pytest.fixture
def clock_at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done after a commit reads the clock by itself: it shows the time that tests pass in."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
