"""A real server on the database of the test, as `manage.py up` starts it, and somebody who may call it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

from django.conf import settings
from django.contrib.auth.models import Group, User

from api.models import ApiToken
from database import clock
from operations.initiator import Initiator
from tests.conftest import subprocess_env
from tests.ports import kept_port
from tests.waiting import PATIENCE_SECONDS, wait_until

ASGI, WSGI = ("asginl", "jimsite.asgi:application"), ("wsgi", "jimsite.wsgi:application")


@contextmanager
def serving(interface: tuple[str, str] = ASGI, **env: str) -> Iterator[str]:
    """The address of the server."""
    with kept_port() as port, tempfile.TemporaryFile("a+") as said:
        address = f"http://127.0.0.1:{port}"
        server = subprocess.Popen(
            server_command(port, interface),
            cwd=settings.BASE_DIR,
            env=subprocess_env(**env),
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: is_up(address) or server.poll() is not None)
            assert server.poll() is None
            yield address
        finally:
            server.terminate()
            server.wait(PATIENCE_SECONDS)
            said.seek(0)
            sys.stdout.write(said.read())


def server_command(port: int, interface: tuple[str, str] = ASGI) -> list[str]:
    kind, application = interface
    options = ["--interface", kind, "--no-ws", "--log-level", "warning", "--host", "127.0.0.1"]
    return [sys.executable, "-m", "granian", *options, "--port", str(port), application]


def token_of(role: str, *, scopes: Sequence[str] = ("admin",)) -> str:
    """Of a new user with this role."""
    user, _ = User.objects.get_or_create(username=role.lower())
    user.groups.add(Group.objects.get(name=role))
    by = Initiator.user(user)
    return ApiToken.objects.issue(name="test", scopes=scopes, user=user, initiator=by, now=clock.now())[1]


def is_up(address: str) -> bool:
    try:
        with urlopen(f"{address}/api/v1/health/live", timeout=PATIENCE_SECONDS) as answer:
            return int(answer.status) == 200
    except (URLError, OSError):
        return False
