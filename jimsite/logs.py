from __future__ import annotations

import logging
import sys
from typing import Any

from execution.steps.masking import conceal

# Hide rich from structlog. Loading it, for tracebacks, would take a fifth of a worker's start-up time.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]
else:
    import structlog


def logging_config(*, json: bool, level: str) -> dict[str, Any]:
    """Return the configuration of logs: text (in colour on a terminal), or one JSON object per line."""
    shared = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso" if json else "%Y-%m-%d %H:%M:%SZ", utc=True),
        _without_request,
        _outage_in_a_line,
    ]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "jim": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": shared,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    *(_for_machines() if json else _for_people()),
                    _without_secrets,
                ],
            },
        },
        "filters": {"expected": {"()": WithoutExpectedTracebacks}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "jim", "filters": ["expected"]}
        },
        "root": {"handlers": ["stderr"], "level": level},
        # Django's own handlers would print each line twice, or send mail.
        "loggers": {
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "propagate": True},
            # At lower levels, these packages log URLs and headers, which may hold secrets.
            "httpx2": {"level": "WARNING"},
            "httpcore2": {"level": "WARNING"},
        },
    }


class WithoutExpectedTracebacks(logging.Filter):
    """A filter that removes the tracebacks that Django logs with refused requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_refused = getattr(record, "status_code", 500) < 500
        if is_refused and record.name.startswith(("django.request", "django.security")):
            record.exc_info = record.exc_text = None
        return True


def _without_request(logger: object, method: str, event: Any) -> Any:
    """Remove the request object that Django adds to log entries."""
    event.pop("request", None)
    return event


def _outage_in_a_line(logger: object, method: str, event: Any) -> Any:
    """Log a database outage in one line, without a traceback."""
    # Imported here, as settings are read before apps are loaded.
    from database.outage import in_a_line, is_outage

    error = event["exc_info"][1] if isinstance(event.get("exc_info"), tuple) else None
    if error is not None and is_outage(error):
        del event["exc_info"]
        event |= {"event": f"{event['event']}: {in_a_line(error)}", "level": "warning"}
    return event


def _without_secrets(logger: object, method: str, line: str) -> str:
    return conceal(line)


def _for_machines() -> list[Any]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _for_people() -> list[Any]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
