from __future__ import annotations

import argparse
import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from execution import direct
from files.strict_json import loads
from operations.initiator import Initiator
from schedules.management.usable_database import require_migrated, usable_database

FAILED, WRONG, BUSY, INTERRUPTED = 1, 2, 3, 130


class Command(BaseCommand):
    help = (
        "Run one step ahead of the queued tasks, as soon as its pool has a free seat (room for one more "
        "task). Ctrl-C stops the step. Exit codes: 0 succeeded, 1 failed, 2 invalid step, 3 no free seat in "
        "time, 130 interrupted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("step_type", metavar="TYPE", help="the step type, such as python or executable")
        parser.add_argument(
            "config", type=config, metavar="CONFIG", help="the settings of the step, as a JSON object"
        )
        parser.add_argument(
            "--name", default="direct request", help="the name under which the step is recorded"
        )
        parser.add_argument(
            "--pool",
            default="default",
            help="the pool in which the step runs (default: default)",
        )
        parser.add_argument(
            "--wait",
            type=seconds,
            default=direct.WAIT_SECONDS,
            metavar="SECONDS",
            help=f"how many seconds to wait for a free seat (default {direct.WAIT_SECONDS:g})",
        )
        parser.add_argument(
            "--timeout", type=seconds, metavar="SECONDS", help="how many seconds the step may run"
        )
        parser.add_argument("--json", action="store_true", help="print the outcome as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated("execution_reservation")
        step = {name: options[name] for name in ("name", "step_type", "config", "pool")}
        if options["timeout"] is not None:
            step["timeout_seconds"] = math.ceil(options["timeout"])
        try:
            with usable_database(), term_as_ctrl_c():
                answer = direct.run(
                    step, initiator=Initiator.command("rundirect"), timeout_seconds=options["wait"]
                )
        except ValidationError as error:
            raise CommandError(complaints(error), returncode=WRONG) from None
        except (direct.Busy, direct.TimedOut) as error:
            raise CommandError(f"The step was not run: {error}.", returncode=BUSY) from None
        except direct.Lost as error:
            raise CommandError(f"The direct request failed: {error}.", returncode=FAILED) from None
        except KeyboardInterrupt:
            raise CommandError("The step was interrupted.", returncode=INTERRUPTED) from None
        if options["json"]:
            self.stdout.write(json.dumps(_facts(answer), indent=2, ensure_ascii=False))
        self._tell(answer, quietly=options["json"])

    def _tell(self, answer: direct.DirectResult, *, quietly: bool) -> None:
        outcome = answer.outcome
        words = outcome.error or outcome.message
        told = outcome.status.replace("_", " ") + (f": {words}" if words else "")
        if answer.has_failed:
            raise CommandError(f"{told} (activity {answer.activity_id})", returncode=FAILED)
        if quietly:
            return
        self.stdout.write(f"{told} (activity {answer.activity_id})")
        if outcome.result is not None:
            self.stdout.write(json.dumps(outcome.result, ensure_ascii=False))


def _facts(answer: direct.DirectResult) -> dict[str, Any]:
    outcome = answer.outcome
    return {
        "activity": answer.activity_id,
        "status": outcome.status,
        "message": outcome.message,
        "error": outcome.error,
        "result": outcome.result,
    }


@contextmanager
def term_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def config(text: str) -> Any:
    try:
        return loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 86_400:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 to 86400, not {text!r}")
    return number


def complaints(error: ValidationError) -> str:
    by_field = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
    return " ".join(
        f"{name}: {' '.join(texts)}" if name else " ".join(texts) for name, texts in by_field.items()
    )
