#!/usr/bin/env python
from __future__ import annotations

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "jimsite.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(refuse(error))
    except KeyboardInterrupt:
        sys.exit(130)


def refuse(error: ImproperlyConfigured) -> int:
    """Print which setting is wrong, without a traceback, and return the exit code."""
    print(f"{sys.argv[0]}: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
