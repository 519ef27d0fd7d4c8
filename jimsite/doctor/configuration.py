"""The settings of this host, and the files and folders that they name."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.db import DatabaseError

from execution.steps import programs
from schedules.models import Step

from .finding import Finding, Severity, ok

LOCAL = {"127.0.0.1", "localhost", "[::1]", "::1"}
PRIVATE_FILES = ("secret_key", "secrets_keys", "sql_connections.json")
FULL_BYTES, TIGHT_BYTES = 200 * 1024**2, 2 * 1024**3


def web() -> Iterator[Finding]:
    public = sorted(set(settings.ALLOWED_HOSTS) - LOCAL)
    if not public:
        remedy = "Name the public ones in JIM_ALLOWED_HOSTS, and set JIM_HTTPS=1 behind TLS."
        yield Finding("note", "web", "Only names of this very host are allowed.", remedy)
    if "*" in public:
        remedy = "Name the hosts in JIM_ALLOWED_HOSTS."
        yield Finding("warning", "web", "Every host name is allowed: links in it can be forged.", remedy)
    if public and not settings.JIM_HTTPS:
        remedy = "Put TLS in front of it, and set JIM_HTTPS=1."
        yield Finding(
            "warning", "web", "It is public, and passwords and cookies travel in the clear.", remedy
        )
    if settings.DEBUG:
        severity: Severity = "error" if public else "warning"
        remedy = "Unset JIM_DEBUG."
        yield Finding(severity, "web", "JIM_DEBUG is on: pages show internals, and memory grows.", remedy)
    if public and "*" not in public and settings.JIM_HTTPS and not settings.DEBUG:
        yield ok("web", f"Public as {', '.join(public)}, behind TLS.")


def administrator() -> Iterator[Finding]:
    try:
        is_there = get_user_model()._default_manager.filter(is_superuser=True, is_active=True).exists()
    except DatabaseError:
        return  # which has been told already
    if is_there:
        yield ok("users", "There is an administrator.")
    else:
        remedy = "“manage.py createsuperuser” makes one."
        yield Finding("warning", "users", "There is no active administrator.", remedy)


def data_folder() -> Iterator[Finding]:
    folder = Path(settings.JIM_DATA_DIR)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        remedy = "Create it, and give it to the user that JIM runs as; or set JIM_DATA_DIR."
        yield Finding("error", "data folder", f"{folder} cannot be written to by this user.", remedy)
        return
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        remedy = f"chmod 700 {folder}"
        yield Finding("warning", "data folder", f"Others may look into {folder}.", remedy)
    for name in PRIVATE_FILES:
        yield from private(folder / name)
    yield free_space(folder, shutil.disk_usage(folder).free)


def private(path: Path) -> Iterator[Finding]:
    if path.exists() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        told = f"{path} holds secrets, and its mode lets others read or change it."
        yield Finding("error", "data folder", told, f"chmod 600 {path}")


def free_space(folder: Path, free: int) -> Finding:
    told = f"{free / 1024**3:.1f} GiB are free in {folder}."
    remedy = "Make room: a full disk stops all work, though it loses none. JIM_RETENTION_DAYS keeps less."
    if free < FULL_BYTES:
        return Finding("error", "data folder", told, remedy)
    return Finding("warning", "data folder", told, remedy) if free < TIGHT_BYTES else ok("data folder", told)


def folders() -> Iterator[Finding]:
    """Whoever may write there runs code as JIM."""
    named = (
        ("JIM_EXECUTABLE_FOLDERS", settings.JIM_EXECUTABLE_FOLDERS),
        ("JIM_SQL_FOLDERS", settings.JIM_SQL_FOLDERS),
    )
    for name, listed in named:
        for folder in map(Path, listed):
            if not folder.is_dir():
                yield Finding("note", name, f"{folder} does not exist.", "Create it when it is needed.")
            elif folder.stat().st_mode & stat.S_IWOTH:
                told = f"Everybody may write to {folder}, and so run code as JIM."
                yield Finding("error", name, told, f"chmod o-w {folder}")
            else:
                yield ok(name, f"{folder} is there.")


def powershell() -> Iterator[Finding]:
    found = shutil.which(settings.JIM_PWSH, path=programs.SEARCH_PATH)
    if found:
        yield ok("powershell", f"{found} is there.")
        return
    try:
        is_needed = Step.objects.filter(step_type="powershell").exclude(schedule__status="closed").exists()
    except DatabaseError:
        is_needed = False
    severity: Severity = "warning" if is_needed else "note"
    needed = "though steps need it" if is_needed else "and no step needs it"
    remedy = "Install PowerShell 7 where workers run, or set JIM_PWSH."
    yield Finding(severity, "powershell", f"{settings.JIM_PWSH} is not installed here, {needed}.", remedy)


def heartbeat() -> Iterator[Finding]:
    if settings.JIM_HEARTBEAT_URL:
        yield ok("heartbeat", "A monitor outside is told while the scheduler ticks.")
    else:
        remedy = "Set JIM_HEARTBEAT_URL to the address of a dead man's switch (docs/operating.md)."
        yield Finding("note", "heartbeat", "Nobody outside notices if all of JIM stops.", remedy)


def system_checks() -> Iterator[Finding]:
    """What Django and the apps say about the settings themselves."""
    said = [message for message in checks.run_checks() if not message.is_silenced()]
    for message in said:
        severity: Severity = "error" if message.level >= checks.ERROR else "warning"
        yield Finding(severity, f"check {message.id}", str(message.msg), str(message.hint or ""))
    if not said:
        yield ok("checks", "“manage.py check” finds nothing.")


CHECKS: tuple[Callable[[], Iterable[Finding]], ...] = (
    web,
    administrator,
    data_folder,
    folders,
    powershell,
    heartbeat,
    system_checks,
)
