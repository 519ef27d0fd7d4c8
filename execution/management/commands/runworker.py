from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from execution.checks import ENGINE
from execution.loops.running import run_until_signal
from execution.loops.worker import WorkerLoop
from schedules.management.usable_database import require_migrated
from text.numbers import whole_number

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    help = (
        "Run queued tasks. You can run several workers at the same time. On SIGTERM or Ctrl-C, the worker "
        "lets running steps end before it stops."
    )
    requires_system_checks = [ENGINE]

    def add_arguments(self, parser: CommandParser) -> None:
        cores = os.cpu_count() or 1
        parser.add_argument(
            "--processes",
            type=seats,
            default=cores,
            metavar="N",
            help=f"number of child processes for python steps (default {cores})",
        )
        parser.add_argument(
            "--threads",
            type=seats,
            default=8,
            metavar="M",
            help="number of threads for all other steps (default 8)",
        )
        parser.add_argument(
            "--pools",
            type=pools,
            default=(),
            metavar="A,B",
            help="serve only these pools (default: all pools)",
        )
        parser.add_argument(
            "--until-idle", action="store_true", help="stop as soon as no task is ready or running"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated("execution_worker")
        log_stray_messages()
        loop = WorkerLoop(
            processes=options["processes"],
            threads=options["threads"],
            pools=options["pools"],
            until_idle=options["until_idle"],
        )
        if run_until_signal(loop):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 restarts this command


def log_stray_messages() -> None:
    """Log what Python would otherwise write to stderr, because only the log hides secrets."""
    logging.captureWarnings(True)
    threading.excepthook = log_end_of_thread
    sys.unraisablehook = log_unraisable


def log_end_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        name = args.thread.name if args.thread else "unknown"
        logger.error("thread %s ended with an exception", name, exc_info=args.exc_value)


def log_unraisable(args: sys.UnraisableHookArgs) -> None:
    logger.error("%s %r", args.err_msg or "exception ignored in", args.object, exc_info=args.exc_value)


def seats(text: str) -> int:
    number = whole_number(text, least=1, most=1000)
    if number is None:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1000, not {text!r}")
    return number


def pools(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError("must be names of pools, separated by commas, such as default,ldap")
    return names
