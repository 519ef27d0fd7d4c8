"""The page of the settings and versions of this installation."""

from __future__ import annotations

import platform
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.conf import settings as django_settings
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from database.statements import fetch
from web.page import page

PACKAGES = (
    *("Django", "djangorestframework", "drf-spectacular", "django-htmx", "granian", "psycopg", "httpx2"),
    *("cryptography", "holidays", "tzdata", "whitenoise"),
)
# Headings, and the prefixes of the settings below each; the first prefix that matches counts.
GROUPS = (
    ("Data and port", ("JIM_DATA_DIR", "DATABASE", "JIM_DATABASE", "JIM_PORT")),
    ("Access", ("JIM_ALLOWED", "JIM_TRUSTED", "JIM_HTTPS", "JIM_API", "JIM_DEBUG")),
    ("Steps", ("JIM_EXECUTABLE", "JIM_PWSH", "JIM_SQL", "JIM_HTTP")),
    ("Keys", ("JIM_SECRET",)),
    ("Scheduler", ("JIM_BUFFER", "JIM_MINIMUM", "JIM_BACKFILL", "JIM_OVERDUE", "JIM_HEARTBEAT")),
    ("Workers", ("JIM_LEASE", "JIM_POLL", "JIM_GRACE", "JIM_KILL", "JIM_OUTPUT", "JIM_CONCURRENCY")),
    ("Workflows", ("JIM_WAKE", "JIM_WORKFLOW")),
    ("Retention and logging", ("JIM_",)),
)


@page("web.view_settings")
def settings(request: HttpRequest) -> HttpResponse:
    context = {
        "title": "Settings",
        "groups": _grouped(django_settings.JIM_CONFIGURATION),
        "versions": _versions(),
        "database": _database(),
    }
    return render(request, "web/settings.html", context)


def _grouped(known: Any) -> list[tuple[str, list[Any]]]:
    groups: dict[str, list[Any]] = {heading: [] for heading, _ in GROUPS}
    for setting in known:
        heading = next(heading for heading, starts in GROUPS if setting.name.startswith(starts))
        groups[heading].append(setting)
    return [(heading, found) for heading, found in groups.items() if found]


def _versions() -> list[tuple[str, str]]:
    declared = tomllib.loads((django_settings.BASE_DIR / "pyproject.toml").read_text())
    own = ("JIM", declared["project"]["version"])
    python = ("Python", f"{platform.python_version()} ({sys.implementation.name}, {platform.machine()})")
    return [own, python, *((name, _version(name)) for name in PACKAGES)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _database() -> list[tuple[str, str]]:
    """Return the version, name and size of the database as a list of (label, value)."""
    if connection.vendor == "postgresql":
        [[said, name, size]] = fetch(
            "SELECT version(), current_database(), pg_database_size(current_database())", []
        )
        return [("Server", said.split(" on ")[0]), ("Database", name), ("Size", _megabytes(size))]
    [[said]] = fetch("SELECT sqlite_version()", [])
    [[size]] = fetch("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", [])
    return [
        ("Server", f"SQLite {said}"),
        ("Database", str(connection.settings_dict["NAME"])),
        ("Size", _megabytes(size)),
    ]


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"
