"""Reads the settings that come from environment variables. An empty variable counts as unset."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from activities.private_files import create_once
from execution.sql_connections import SqlConnection
from schedules.vault import KEY_IN_WORDS, is_key


def text(name: str, default: str) -> str:
    return os.environ.get(name) or default


def flag(name: str) -> bool:
    value = text(name, "0").lower()
    if value not in ("0", "1", "false", "true", "no", "yes"):
        raise ImproperlyConfigured(f"{name}={value} is neither 1 nor 0.")
    return value in ("1", "true", "yes")


def words(name: str, default: list[str]) -> list[str]:
    listed = [word.strip() for word in text(name, "").split(",") if word.strip()]
    return listed or default


def whole(name: str, default: int, *, least: int, most: int) -> int:
    value = text(name, str(default))
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value} is not a whole number.") from None
    return int(_within(name, number, least=least, most=most))


def seconds(name: str, default: float, *, least: float, most: float = 86_400) -> float:
    value = text(name, str(default))
    try:
        number = float(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value} is not a number of seconds.") from None
    return _within(name, number, least=least, most=most)


def folder(name: str, default: Path) -> Path:
    return Path(text(name, str(default))).expanduser().resolve()


def folders(name: str, default: list[Path]) -> list[Path]:
    listed = [Path(part).expanduser().resolve() for part in text(name, "").split(os.pathsep) if part]
    return listed or default


def choice(name: str, default: str, *, among: list[str]) -> str:
    value = text(name, default).upper()
    if value not in among:
        raise ImproperlyConfigured(f"{name}={value} must be one of {', '.join(among)}.")
    return value


def places(name: str) -> list[str]:
    """Names of hosts, addresses and networks."""
    listed = words(name, [])
    for place in listed:
        try:
            ip_network(place)
        except ValueError as error:
            if not re.fullmatch(r"(?=.*[a-zA-Z])[\w.-]+", place):
                raise ImproperlyConfigured(f"{name}: {error}; it is no name of a host either.") from None
    return listed


def ports(name: str) -> list[int]:
    listed = words(name, [])
    for port in listed:
        if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65_535:
            raise ImproperlyConfigured(f"{name}: {port} is not a port from 1 to 65535.")
    return [int(port) for port in listed]


def database(*, data_dir: Path, pooled: bool) -> dict[str, Any]:
    url = text("DATABASE_URL", "")
    if not url:
        return _sqlite(data_dir / "jim.sqlite3")
    try:
        parsed = dict(dj_database_url.parse(url))
    except ValueError:
        parsed = {}
    match parsed:
        case {"ENGINE": "django.db.backends.sqlite3", "NAME": name} if name != ":memory:":
            return _sqlite(Path(str(name)))
        case {"ENGINE": "django.db.backends.postgresql", "NAME": name} if name:
            return _postgresql(parsed, pooled=pooled)
    # The URL itself may hold a password, so the message does not repeat it.
    raise ImproperlyConfigured(
        "DATABASE_URL must look like postgresql://user:password@host:port/name or sqlite:////path/to/file."
    )


def secret_key(*, data_dir: Path) -> str:
    given = text("JIM_SECRET_KEY", "")
    if given:
        return given
    path = data_dir / "secret_key"
    make_folder(data_dir)
    try:
        create_once(path, secrets.token_urlsafe(50))
        key = path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"The secret key cannot be kept in {path}: {error.strerror}.") from None
    if not key:
        raise ImproperlyConfigured(f"{path} is empty: remove it to have a new secret key made.")
    return key


def secrets_keys(name: str) -> list[str]:
    keys = words(name, [])
    for number, key in enumerate(keys, 1):
        if not is_key(key):  # which the message does not repeat: it may be one with a typing error
            raise ImproperlyConfigured(f"{name}: key {number} of {len(keys)} is not {KEY_IN_WORDS}.")
    return keys


def sql_connections(name: str, *, data_dir: Path) -> dict[str, SqlConnection]:
    given, source = text(name, ""), name
    if not given and (path := data_dir / "sql_connections.json").exists():
        source = str(path)
        try:
            given = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ImproperlyConfigured(f"{source} cannot be read: {why}.") from None
    return _sql_connections(given, source) if given else {}


def make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(f"The folder {path} cannot be made: {error.strerror}.") from None


def _sql_connections(given: str, source: str) -> dict[str, SqlConnection]:
    """Only names are ever repeated in a message, and only when they are: the rest may hold a password."""
    try:
        urls = json.loads(given)
    except (ValueError, RecursionError):
        urls = None
    if not isinstance(urls, dict) or not all(re.fullmatch(r"[\w.-]{1,100}", name) for name in urls):
        raise ImproperlyConfigured(
            f'{source} must be a JSON object of names and URLs, such as {{"hr": "postgresql://…"}}; '
            "names have letters, digits, dots, - and _."
        )
    connections = {}
    for name, url in urls.items():
        try:
            connections[name] = SqlConnection.from_url(url)
        except ValueError as error:
            raise ImproperlyConfigured(f"{source}: the URL of {name} {error}.") from None
    return connections


def _within(name: str, number: float, *, least: float, most: float) -> float:
    if math.isnan(number) or not least <= number <= most:
        raise ImproperlyConfigured(f"{name}={number:g} must be between {least:g} and {most:g}.")
    return number


def _sqlite(path: Path) -> dict[str, Any]:
    make_folder(path.resolve().parent)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path.resolve()),
        "OPTIONS": {
            # A writer waits for another one instead of failing with "database is locked".
            "timeout": 20,
            # A transaction takes the write lock when it begins: one that upgrades midway cannot wait for it.
            "transaction_mode": "IMMEDIATE",
            # WAL: readers and the writer do not block each other. FULL: a commit survives a power cut.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
        },
    }


def _postgresql(parsed: dict[str, Any], *, pooled: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "application_name": "jim",
        # Values travel apart from statements, so that the loops' statements can be prepared.
        "server_side_binding": True,
        # A peer that vanished without a word is noticed within a lease, not after the kernel's two hours.
        "connect_timeout": 10,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        **parsed.get("OPTIONS", {}),
    }
    # A web request borrows a connection for a moment, which is what a pool is for. The threads of workers and
    # schedulers keep theirs for life: a pool would only cap how many threads can run, and break across forks.
    if pooled:
        options["pool"] = {"min_size": 1, "max_size": 16, "timeout": 10}
    return {
        **parsed,
        "OPTIONS": options,
        "CONN_MAX_AGE": 0 if pooled else 60,
        "CONN_HEALTH_CHECKS": True,
    }
