"""Ports for servers of other processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """Hold a free port for a server that is about to listen on it, so that nothing else gets it.

    We do not listen ourselves: our options allow granian, which shares its ports, to bind this one as well.
    """
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(("127.0.0.1", 0))
        yield int(place.getsockname()[1])
