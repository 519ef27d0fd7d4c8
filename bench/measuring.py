"""Makes one measurement in a process of its own, on the installation that the environment names.

Usage: `python -m bench.measuring NAME SIZES`, with the sizes as JSON. The result is printed as JSON.
"""

from __future__ import annotations

import json
import sys
import traceback

import django

from bench.catalogue import Sizes


def main(name: str, sizes: str) -> None:
    django.setup()
    from bench import measures

    try:
        readings = getattr(measures, name)(Sizes.read(sizes))
    except Exception as error:
        traceback.print_exc()
        json.dump({"failed": f"{type(error).__name__}: {error}".partition("\n")[0]}, sys.stdout)
    else:
        json.dump({"readings": readings}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
