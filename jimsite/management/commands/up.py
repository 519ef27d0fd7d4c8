from __future__ import annotations

import secrets
import socket
import sys
from argparse import ArgumentParser
from http.client import HTTPConnection, HTTPException
from itertools import count
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connections

from jimsite.supervisor import Child, Supervisor
from schedules.models import Schedule

HOST = "127.0.0.1"


class Command(BaseCommand):
    help = "Run all of JIM on this machine: a scheduler, a worker, and the web server on http://127.0.0.1:JIM_PORT."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--no-demo", action="store_true", help="do not create the example schedules")

    def handle(self, *args: Any, no_demo: bool, **options: Any) -> None:
        refuse_taken_port(settings.JIM_PORT)
        try:
            call_command("migrate", verbosity=0, interactive=False)
        except OperationalError as error:
            words = " ".join(str(error).split())
            raise CommandError(f"The database cannot be used: {words}", returncode=2) from None
        if not no_demo and not Schedule.objects.exists():
            call_command("demo")
        connections.close_all()
        Supervisor([scheduler(), worker()], [web(settings.JIM_PORT)]).run(
            is_ready=lambda: answers(settings.JIM_PORT), when_ready=self.welcome
        )

    def welcome(self) -> None:
        """Create the administrator and print how to sign in, after JIM has started."""
        name, password = ensure_administrator()
        connections.close_all()
        unchanged = f"unchanged (to reset it: {sys.executable} manage.py changepassword {name})"
        self.stdout.write(
            "\n"
            f"  JIM is running:  http://{HOST}:{settings.JIM_PORT}/\n"
            f"  Administrator:   {name}\n"
            f"  Password:        {f'{password}   (shown only once)' if password else unchanged}\n"
            "  Press Ctrl-C to stop JIM; its data is kept.\n"
        )
        self.stdout.flush()


def refuse_taken_port(port: int) -> None:
    with socket.socket() as probe:
        # Ignore connections of an earlier run that are still closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise CommandError(
                f"Port {port} on {HOST} cannot be used ({error.strerror}). Use another port: JIM_PORT=…",
                returncode=2,
            ) from None


def ensure_administrator() -> tuple[str, str | None]:
    """Create an administrator unless one exists; return the name, and the password if the account is new."""
    existing = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if existing:
        return existing.get_username(), None
    password = secrets.token_urlsafe(12)
    names = ("admin" if n == 1 else f"admin{n}" for n in count(1))
    free = next(name for name in names if not User.objects.filter(username=name).exists())
    return User.objects.create_superuser(free, password=password).get_username(), password


def scheduler() -> Child:
    return Child("scheduler", _manage("runscheduler"), stop_seconds=_drain_seconds())


def worker() -> Child:
    return Child("worker", _manage("runworker"), stop_seconds=_drain_seconds())


def web(port: int) -> Child:
    options = ["--interface", "asginl", "--no-ws", "--log-level", "warning", "--workers-kill-timeout", "5"]
    address = ["--host", HOST, "--port", str(port)]
    server = [sys.executable, "-m", "granian", *options, *address, "--working-dir", str(settings.BASE_DIR)]
    return Child("web", [*server, "jimsite.asgi:application"], stop_seconds=10)


def answers(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _manage(command: str) -> list[str]:
    return [sys.executable, str(settings.BASE_DIR / "manage.py"), command]


def _drain_seconds() -> float:
    return float(settings.JIM_GRACE_SECONDS + settings.JIM_KILL_SECONDS + 5)
