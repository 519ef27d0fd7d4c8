"""A separate PostgreSQL server with the same settings as the server of the peers."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import psycopg
from psycopg import sql

from tests.postgres import PostgresServer

# These settings are written after those for tests, and override them.
CONDITIONS = """
listen_addresses = '127.0.0.1'
port = {port}
shared_buffers = 512MB
max_wal_size = 4GB
checkpoint_timeout = 15min
fsync = on
synchronous_commit = on
full_page_writes = on
"""
ACCESS = """
local all all trust
host all all 127.0.0.1/32 scram-sha-256
"""


class BenchServer(PostgresServer):
    """A server reached over TCP, like that of the peers and of most users."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.password = secrets.token_urlsafe()

    @property
    def admin_url(self) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def url(self, database: str) -> str:
        return f"postgresql://postgres@:{self.port}/{database}?host={self.folder}"

    def start(self) -> None:
        super().start()
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER ROLE postgres PASSWORD {}").format(self.password))

    def _create(self) -> None:
        super()._create()
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write(CONDITIONS.format(port=self.port))
        (self.data / "pg_hba.conf").write_text(ACCESS)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
