"""Send JSON messages and file descriptors over a Unix socket between the processes of a worker."""

from __future__ import annotations

import json
import socket
import struct
import threading
from array import array
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_FD_BYTES = array("i").itemsize
CHUNK = 65_536
FDS_ROOM = socket.CMSG_LEN(4 * _FD_BYTES)


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fds: list[int] = []  # those received with the messages, in order
        self.ended = False
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        body = json.dumps(message).encode()
        frame = memoryview(_LENGTH.pack(len(body)) + body)
        with self._sending:
            sent = socket.send_fds(self.sock, [frame], list(fds)) if fds else 0
            self.sock.sendall(frame[sent:])

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message and return it, or None once the other side has closed the socket."""
        while (message := self._take()) is None and not self.ended:
            self._fill(0)
        return message

    def received(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived, without waiting."""
        self._fill(socket.MSG_DONTWAIT)
        return list(iter(self._take, None))

    def _fill(self, flags: int) -> None:
        try:
            # Not socket.recv_fds: it takes flags and ignores them.
            data, extras, _, _ = self.sock.recvmsg(CHUNK, FDS_ROOM, flags | socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            data, extras = b"", []
        for level, kind, content in extras:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.fds += array("i", content[: len(content) - len(content) % _FD_BYTES])
        self._buffer += data
        self.ended = not data

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message: dict[str, Any] = json.loads(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return message
