from __future__ import annotations

import pytest

from activities import clock
from tests.base import NOW


@pytest.fixture(autouse=True)
def clock_at_now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the clock by itself sees the time that stories pass in, unless they measure real time."""
    if request.node.get_closest_marker("serial") is None:
        monkeypatch.setattr(clock, "now", lambda: NOW)
