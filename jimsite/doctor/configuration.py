"""Checks of this host's settings, files and folders."""

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
        remedy = "For access from other hosts, set JIM_ALLOWED_HOSTS and, behind a TLS proxy, JIM_HTTPS=1."
        yield Finding("note", "web", "JIM can be reached only by local names, such as localhost.", remedy)
    if "*" in public:
        remedy = "Set JIM_ALLOWED_HOSTS to the host names by which users reach JIM."
        yield Finding(
            "warning", "web", "Every host name is allowed, so attackers can forge links to JIM.", remedy
        )
    if public and not settings.JIM_HTTPS:
        remedy = "Put a TLS proxy in front of JIM, and set JIM_HTTPS=1."
        yield Finding(
            "warning",
            "web",
            "Other hosts can reach JIM without TLS: passwords and cookies are sent unencrypted.",
            remedy,
        )
    if settings.DEBUG:
        severity: Severity = "error" if public else "warning"
        remedy = "Unset JIM_DEBUG."
        yield Finding(
            severity,
            "web",
            "JIM_DEBUG is on: error pages show internal details, and memory use grows.",
            remedy,
        )
    if public and "*" not in public and settings.JIM_HTTPS and not settings.DEBUG:
        yield ok("web", f"JIM can be reached at {', '.join(public)}, over HTTPS.")


def administrator() -> Iterator[Finding]:
    try:
        is_there = get_user_model()._default_manager.filter(is_superuser=True, is_active=True).exists()
    except DatabaseError:
        return  # another check reports it
    if is_there:
        yield ok("users", "An administrator exists.")
    else:
        remedy = "Create an administrator with “manage.py createsuperuser”."
        yield Finding("warning", "users", "No active administrator exists.", remedy)


def data_folder() -> Iterator[Finding]:
    folder = Path(settings.JIM_DATA_DIR)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        remedy = (
            "Create the folder if it is missing, and make the user that runs JIM its owner; or set "
            "JIM_DATA_DIR to another folder."
        )
        yield Finding("error", "data folder", f"The current user cannot read and write {folder}.", remedy)
        return
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        remedy = f"chmod 700 {folder}"
        yield Finding("warning", "data folder", f"Other users have access to {folder}.", remedy)
    for name in PRIVATE_FILES:
        yield from private(folder / name)
    yield free_space(folder, shutil.disk_usage(folder).free)


def private(path: Path) -> Iterator[Finding]:
    if path.exists() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = f"{path} holds secrets, and other users have access to the file."
        yield Finding("error", "data folder", text, f"chmod 600 {path}")


def free_space(folder: Path, free: int) -> Finding:
    text = f"{free / 1024**3:.1f} GiB are free in {folder}."
    remedy = "Free up disk space: a full disk stops all work. To keep less history, lower JIM_RETENTION_DAYS."
    if free < FULL_BYTES:
        return Finding("error", "data folder", text, remedy)
    return Finding("warning", "data folder", text, remedy) if free < TIGHT_BYTES else ok("data folder", text)


def folders() -> Iterator[Finding]:
    """Check the folders of programs and scripts, because JIM runs the files in them."""
    named = (
        ("JIM_EXECUTABLE_FOLDERS", settings.JIM_EXECUTABLE_FOLDERS),
        ("JIM_SQL_FOLDERS", settings.JIM_SQL_FOLDERS),
    )
    for name, listed in named:
        for folder in map(Path, listed):
            if not folder.is_dir():
                yield Finding(
                    "note", name, f"{folder} does not exist.", "Create the folder if steps need it."
                )
            elif folder.stat().st_mode & stat.S_IWOTH:
                text = f"All users can write to {folder}, so any of them can make JIM run their code."
                yield Finding("error", name, text, f"chmod o-w {folder}")
            else:
                yield ok(name, f"{folder} exists.")


def powershell() -> Iterator[Finding]:
    found = shutil.which(settings.JIM_PWSH, path=programs.SEARCH_PATH)
    if found:
        yield ok("powershell", f"{found} is installed.")
        return
    try:
        is_needed = Step.objects.filter(step_type="powershell").exclude(schedule__status="closed").exists()
    except DatabaseError:
        is_needed = False
    severity: Severity = "warning" if is_needed else "note"
    needed = "but steps need it" if is_needed else "and no step needs it"
    remedy = "Install PowerShell 7 on the hosts that run workers, or set JIM_PWSH to its path."
    yield Finding(
        severity, "powershell", f"{settings.JIM_PWSH} is not installed on this host, {needed}.", remedy
    )


def heartbeat() -> Iterator[Finding]:
    if settings.JIM_HEARTBEAT_URL:
        yield ok("heartbeat", "The scheduler reports to an external monitoring service.")
    else:
        remedy = "Set JIM_HEARTBEAT_URL to the URL of a monitoring service (docs/operating.md)."
        yield Finding(
            "note",
            "heartbeat",
            "No external monitoring service is configured that would notice if JIM stops.",
            remedy,
        )


def system_checks() -> Iterator[Finding]:
    """Run Django's system checks."""
    found = [message for message in checks.run_checks() if not message.is_silenced()]
    for message in found:
        severity: Severity = "error" if message.level >= checks.ERROR else "warning"
        yield Finding(severity, f"check {message.id}", str(message.msg), str(message.hint or ""))
    if not found:
        yield ok("checks", "“manage.py check” reports no problems.")


CHECKS: tuple[Callable[[], Iterable[Finding]], ...] = (
    web,
    administrator,
    data_folder,
    folders,
    powershell,
    heartbeat,
    system_checks,
)
