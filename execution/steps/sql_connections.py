"""The databases that `sql` steps can use, read from URLs in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

FORM = "must look like postgresql://user:password@host:port/name or sqlite:////path/to/file"


@dataclass(frozen=True)
class SqlConnection:
    """A database that sql steps can use.

    `options` are those of libpq, or the `file` of an SQLite database. The repr leaves them out, because they
    can contain a password.
    """

    engine: Literal["postgresql", "sqlite"]
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def from_url(cls, url: object) -> SqlConnection:
        """Return the connection for a URL; if it is invalid, raise ValueError without repeating the URL."""
        scheme, separator, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
        if scheme in ("postgresql", "postgres") and separator:
            return cls("postgresql", _postgresql(str(url)))
        if scheme == "sqlite" and separator:
            return cls("sqlite", {"file": _sqlite(str(url))})
        raise ValueError(FORM)

    def is_jims_own(self, database: Mapping[str, Any]) -> bool:
        """Return whether these Django settings name the same file, or the same host, port and database.

        The same server is not recognised under a different host name.
        """
        engine = str(database["ENGINE"]).rpartition(".")[2].removesuffix("3")
        if engine != self.engine:
            return False
        if engine == "sqlite":
            return _is_same_file(Path(self.options["file"]), Path(str(database["NAME"])))
        own = {
            "host": database.get("HOST"),
            "port": database.get("PORT"),
            **database.get("OPTIONS", {}),
            "dbname": database["NAME"],
        }
        return bool(_places(self.options) & _places(own))


def _postgresql(url: str) -> dict[str, str]:
    # Imported here, because the driver takes 16 MB, which a process without PostgreSQL databases saves.
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        options = conninfo_to_dict(url)
    except (Error, ValueError):
        raise ValueError(FORM) from None
    if not options.get("dbname"):
        raise ValueError(f"does not name a database: it {FORM}")
    return {name: str(value) for name, value in options.items() if value is not None}


def _sqlite(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(FORM) from None
    path = unquote(parts.path[1:])
    if parts.netloc or parts.query or parts.fragment or not Path(path).is_absolute() or "\0" in path:
        raise ValueError("must name a file by its absolute path, with four slashes: sqlite:////path/to/file")
    return path


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve() or one.samefile(other)
    except (OSError, RuntimeError):  # a link that leads to itself
        return False


def _places(options: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Return (host, port, database) for each host of the options."""
    hosts = str(options.get("hostaddr") or options.get("host") or "").split(",")
    ports = str(options.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return {
        (_host(host), port or "5432", str(options["dbname"]))
        for host, port in zip(hosts, ports, strict=False)
    }


def _host(host: str) -> str:
    if host.startswith("/"):
        return str(Path(host).resolve())
    return "localhost" if host in ("", "127.0.0.1", "::1") else host.lower()
