"""Which browser the tests drive."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Browser:
    program: Path
    env: dict[str, str] = field(default_factory=dict)


def find_browser() -> Browser:
    """$JIM_CHROMIUM, else one of this machine, else the one that `make test` fetches; never none."""
    if chosen := os.environ.get("JIM_CHROMIUM"):
        return Browser(Path(chosen))
    if installed := next(filter(None, map(shutil.which, NAMES)), None):
        return Browser(Path(installed))
    unpacked = settings.BASE_DIR / "node_modules" / ".chromium"
    if (unpacked / "chromium").exists():
        env = {"LD_LIBRARY_PATH": str(unpacked / "al2023" / "lib")}
        if not Path("/etc/fonts/fonts.conf").exists():
            env["FONTCONFIG_FILE"] = str(unpacked / "fonts" / "fonts.conf")
        return Browser(unpacked / "chromium", env)
    raise RuntimeError(
        "The browser tests need a Chromium: set JIM_CHROMIUM, install one, or “make node_modules/.chromium”."
    )
