"""Read settings from environment variables. An empty variable counts as unset."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from execution.steps.sql_connections import SqlConnection
from files import given_files
from files.private_files import create_once
from schedules.vault import KEY_IN_WORDS, is_key
from text.numbers import whole_number

T = TypeVar("T")
MASK = "••••••••"
MOST_BYTES = 1024 * 1024


class Setting(NamedTuple):
    """A setting as shown to people, with secrets masked."""

    name: str
    value: str
    default: str
    source: str
    about: str


# All settings by name, in the order in which they were read.
known: dict[str, Setting] = {}


def text(name: str, default: str, *, about: str = "") -> str:
    return _noted(name, _given(name) or default, default, about)


def address(name: str, *, about: str = "") -> str:
    """Read a URL. The settings page shows only its host, because the rest may hold a password or a key."""
    url = _given(name)
    _noted(name, _discreet(url) if url else "", "", about)
    return url


def flag(name: str, *, about: str = "") -> bool:
    value = (_given(name) or "0").lower()
    if value not in ("0", "1", "false", "true", "no", "yes"):
        raise ImproperlyConfigured(f"{name}={value} must be 1 or 0.")
    return _noted(name, value in ("1", "true", "yes"), False, about)


def words(name: str, default: list[str], *, about: str = "") -> list[str]:
    return _noted(name, _words(name) or default, default, about)


def whole(name: str, default: int, *, least: int, most: int, about: str = "") -> int:
    value = _given(name) or str(default)
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value} must be a whole number.") from None
    return _noted(name, int(_within(name, number, least=least, most=most)), default, about)


def seconds(name: str, default: float, *, least: float, about: str = "") -> float:
    value = _given(name) or str(default)
    try:
        number = float(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value} must be a number of seconds.") from None
    return _noted(name, _within(name, number, least=least, most=86_400), default, about)


def folder(name: str, default: Path, *, about: str = "") -> Path:
    return _noted(name, Path(_given(name) or default).expanduser().resolve(), default, about)


def folders(name: str, default: list[Path], *, about: str = "") -> list[Path]:
    listed = [Path(part).expanduser().resolve() for part in _given(name).split(os.pathsep) if part]
    return _noted(name, listed or default, default, about)


def choice(name: str, default: str, *, among: list[str], about: str = "") -> str:
    value = (_given(name) or default).upper()
    if value not in among:
        raise ImproperlyConfigured(f"{name}={value} must be one of {', '.join(among)}.")
    return _noted(name, value, default, about)


def places(name: str, *, about: str = "") -> list[str]:
    """Read host names, addresses and networks."""
    listed = words(name, [], about=about)
    for place in listed:
        try:
            ip_network(place)
        except ValueError as error:
            if not re.fullmatch(r"(?=.*[a-zA-Z])[\w.-]+", place):
                raise ImproperlyConfigured(
                    f"{name}: {place!r} is neither a host name, an IP address nor a network: {error}."
                ) from None
    return listed


def ports(name: str, *, about: str = "") -> list[int]:
    return [_port(name, text) for text in words(name, [], about=about)]


def _port(name: str, text: str) -> int:
    port = whole_number(text, digits=5, least=1, most=65_535)
    if port is None:
        raise ImproperlyConfigured(f"{name}: {text!r} is not a port; use whole numbers from 1 to 65535.")
    return port


def database(*, data_dir: Path, pooled: bool, about: str = "") -> dict[str, Any]:
    url = _given("DATABASE_URL")
    _noted("DATABASE_URL", _discreet(url) if url else "", f"SQLite, {data_dir / 'jim.sqlite3'}", about)
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


def is_keyless() -> bool:
    """Return whether this process runs code of direct requests, and must therefore have no keys."""
    return bool(_given("JIM_KEYLESS"))


def secret_key(*, data_dir: Path, about: str = "") -> str:
    given = secrets.token_urlsafe(50) if is_keyless() else _given("JIM_SECRET_KEY")
    _noted("JIM_SECRET_KEY", MASK, f"generated once, stored in {data_dir / 'secret_key'}", about)
    if given:
        return given
    path = data_dir / "secret_key"
    make_folder(data_dir)
    try:
        create_once(path, secrets.token_urlsafe(50))
        key = given_files.read(path, most=MOST_BYTES).strip()
    except OSError as error:
        raise ImproperlyConfigured(
            f"The secret key cannot be stored in {path}: {error.strerror}. Give the user that runs JIM write "
            "access to the folder, or set JIM_SECRET_KEY."
        ) from None
    except given_files.Unfit as error:
        raise ImproperlyConfigured(
            f"{path} {error}. Alternatively, delete the file, and JIM generates a new secret key."
        ) from None
    if not key:
        raise ImproperlyConfigured(f"{path} is empty. Delete the file, and JIM generates a new secret key.")
    return key


def secrets_keys(name: str, *, about: str = "") -> list[str] | None:
    """Return the keys that encrypt secrets; None if this process must not use secrets."""
    if is_keyless():
        return None
    keys = _words(name)
    _noted(name, [MASK] * len(keys), "generated once, stored in the data folder", about)
    for number, key in enumerate(keys, 1):
        if not is_key(key):  # the message does not repeat the text, as it may be a mistyped key
            raise ImproperlyConfigured(f"{name}: key {number} of {len(keys)} is not {KEY_IN_WORDS}.")
    return keys


def sql_connections(name: str, *, data_dir: Path, about: str = "") -> dict[str, SqlConnection]:
    given, source, path = _given(name), name, data_dir / "sql_connections.json"
    if not given and path.exists() and not is_keyless():
        source = str(path)
        try:
            given = given_files.read(path, most=MOST_BYTES)
        except given_files.Unfit as error:
            raise ImproperlyConfigured(f"{source} {error}.") from None
    connections = _sql_connections(given, source) if given else {}
    # The settings page shows only the names of the connections, because URLs may hold passwords.
    _noted(name, sorted(connections), f"none, or those in {path}", about)
    return connections


def make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(
            f"The folder {path} cannot be created: {error.strerror}. Create it, and make the user that runs "
            "JIM its owner, or choose another folder."
        ) from None


def _given(name: str) -> str:
    return os.environ.get(name) or ""


def _words(name: str) -> list[str]:
    return [word.strip() for word in _given(name).split(",") if word.strip()]


def _noted(name: str, value: T, default: object, about: str) -> T:
    source = "environment" if _given(name) else "default"
    known[name] = Setting(name, _shown(value), _shown(default), source, about)
    return value


def _shown(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case list():
            return ", ".join(map(str, value))
    return str(value)


def _discreet(url: str) -> str:
    """Return the part of a URL that may be shown, without credentials."""
    try:
        parts = urlsplit(url)
        place = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return MASK
    if parts.scheme.startswith("postgres"):
        return f"{parts.scheme}://{place}{parts.path}"
    return url if parts.scheme.startswith("sqlite") else f"{parts.scheme}://{place}/…"


def _sql_connections(given: str, source: str) -> dict[str, SqlConnection]:
    """Parse the connections. Error messages repeat only valid names, because the rest may hold passwords."""
    try:
        urls = json.loads(given)
    except (ValueError, RecursionError):
        urls = None
    if not isinstance(urls, dict) or not all(re.fullmatch(r"[\w.-]{1,100}", name) for name in urls):
        raise ImproperlyConfigured(
            f'{source} must be a JSON object of names and URLs, such as {{"hr": "postgresql://…"}}; '
            "names can contain letters, digits, dots, - and _."
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
            # Wait up to 20 seconds for another writer instead of failing with "database is locked".
            "timeout": 20,
            # Take the write lock when a transaction begins: asking for it later fails instead of waiting.
            "transaction_mode": "IMMEDIATE",
            # WAL: readers and the writer do not block each other. FULL: a commit survives a power cut.
            # MEMORY: temporary data of statements is not written to files.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA temp_store=MEMORY;",
        },
    }


def _postgresql(parsed: dict[str, Any], *, pooled: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "application_name": "jim",
        # Send values separately from statements, so that statements can be prepared.
        "server_side_binding": True,
        # Notice a lost connection within the time of a lease, not after the kernel's two hours.
        "connect_timeout": 10,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        **parsed.get("OPTIONS", {}),
    }
    # Web requests borrow connections briefly, so they use a pool. Threads of workers and schedulers keep
    # their connections: a pool would only limit the number of threads, and would not survive a fork.
    if pooled:
        options["pool"] = {"min_size": 1, "max_size": 16, "timeout": 10}
    return {
        **parsed,
        "OPTIONS": options,
        "CONN_MAX_AGE": 0 if pooled else 60,
        "CONN_HEALTH_CHECKS": True,
    }
