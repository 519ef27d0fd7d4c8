"""Connections that lead only to checked addresses and that another thread can cut off."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import Any

import httpcore2
import httpx2

from .addresses import address_complaint

Resolver = Callable[[str, int], list[str]]


class CallFailed(Exception):
    """An HTTP call failed. The message omits the path and query of the URL, which may contain secrets."""

    def __init__(self, message: str, *, can_retry: bool = True) -> None:
        super().__init__(message)
        self.can_retry = can_retry


@dataclass(frozen=True, kw_only=True)
class Limits:
    connect_seconds: float = 10
    idle_seconds: float = 60
    total_seconds: float = 3_600


def system_addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


class Network(httpcore2.NetworkBackend):
    """The network connections of one call: one at a time, and none after `cut_off`."""

    def __init__(self, limits: Limits, *, resolve: Resolver, tls: ssl.SSLContext | None) -> None:
        self.limits, self.tls = limits, tls
        self.lock = threading.Lock()
        self.is_cut_off = False
        self._resolve = resolve
        self._found: SimpleQueue[list[str] | Exception | None] = SimpleQueue()
        self._wire: Wire | None = None
        self._deadline = time.monotonic() + limits.total_seconds
        self._bytes_left = 0

    def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> Wire:
        """Return a connection to the first address of the host that accepts one.

        Raise CallFailed if no address accepts one, or if JIM must not call one of the addresses.
        """
        failure: OSError | None = None
        for address in self._addresses(host, port):
            self.close()
            try:
                self._wire = Wire(self, host, is_v6=":" in address)
                self._wire.connect(address, port)
            except OSError as error:
                failure = error
            else:
                return self._wire
        raise CallFailed(f"cannot connect to {host}: {told(failure)}")

    def cut_off(self) -> None:
        """End all waiting for the network immediately. This method can be called from any thread."""
        with self.lock:
            self.is_cut_off = True
            if self._wire is not None:
                self._wire.cut()
        self._found.put(None)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def allow(self, size: int) -> None:
        """Allow at most this many bytes to be read from now on."""
        self._bytes_left = size

    def check(self, *, heard: int = 0) -> None:
        self._bytes_left -= heard
        if self.is_cut_off:
            raise CallFailed("the call was interrupted")
        if self._bytes_left < 0:
            raise CallFailed("the response is too long", can_retry=False)

    def seconds_left(self, at_most: float) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise CallFailed(f"the call did not end within {self.limits.total_seconds:g} s")
        return min(left, at_most)

    def _addresses(self, host: str, port: int) -> list[str]:
        addresses = self._looked_up(host, port)
        for address in addresses:
            if complaint := address_complaint(host, ip_address(address)):
                raise CallFailed(f"refused: the URL {complaint}", can_retry=False)
        return addresses

    def _looked_up(self, host: str, port: int) -> list[str]:
        """Return the host's addresses, looked up in another thread because a look-up cannot be stopped."""
        self.check()
        threading.Thread(target=self._look_up, args=(host, port), name="look-up", daemon=True).start()
        try:
            found = self._found.get(timeout=self.seconds_left(self.limits.connect_seconds))
        except Empty:
            found = TimeoutError()
        self.check()
        if isinstance(found, Exception):
            raise CallFailed(f"the address of {host} cannot be found: {told(found)}")
        if not found:
            raise CallFailed(f"{host} has no address")
        return found

    def _look_up(self, host: str, port: int) -> None:
        try:
            self._found.put(self._resolve(host, port))
        except Exception as error:  # passed to the waiting thread
            self._found.put(error)


class Wire(httpcore2.NetworkStream):
    def __init__(self, network: Network, host: str, *, is_v6: bool) -> None:
        self._network, self._host = network, host
        self._socket = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
        # A second handle of the same connection, which remains when TLS takes over the socket.
        self._handle = self._socket.dup()

    def connect(self, address: str, port: int) -> None:
        self._socket.setblocking(False)
        # Under the lock, so that either `cut` finds the connection begun, or `check` finds the call cut off.
        with self._network.lock:
            self._network.check()
            error = self._socket.connect_ex((address, port))
        if error == errno.EINPROGRESS:
            error = self._connected(self._network.seconds_left(self._network.limits.connect_seconds))
        self._network.check()
        if error:
            raise OSError(error, os.strerror(error))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Wire:
        try:
            with self._within(self._network.limits.connect_seconds):
                tls = self._network.tls or _system_tls()
                self._socket = tls.wrap_socket(self._socket, server_hostname=server_hostname)
        except ssl.SSLCertVerificationError as error:
            raise CallFailed(
                f"the certificate of {self._host} is not accepted: {error.verify_message}", can_retry=False
            ) from None
        except (OSError, ValueError) as error:
            raise CallFailed(f"cannot open a secure connection to {self._host}: {told(error)}") from None
        return self

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            with self._within(self._network.limits.idle_seconds):
                data = self._socket.recv(max_bytes)
        except TimeoutError:
            raise self._waited_in_vain("sent nothing") from None
        except OSError as error:
            raise CallFailed(f"the connection to {self._host} broke: {told(error)}") from None
        self._network.check(heard=len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        try:
            while rest:
                with self._within(self._network.limits.idle_seconds):
                    rest = rest[self._socket.send(rest) :]
        except TimeoutError:
            raise self._waited_in_vain("accepted no data") from None
        except OSError as error:
            # On this error, the client reads what the server sent before it closed the connection.
            raise httpcore2.WriteError(error) from None

    def cut(self) -> None:
        with suppress(OSError):  # not connected yet, or no longer connected
            self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # Under the lock, so that `cut` cannot hit another connection that got the same file descriptor.
        with self._network.lock:
            self._handle.close()
            self._socket.close()

    def _connected(self, seconds: float) -> int:
        """Wait until the connection is made or fails; return its error number, or 0 if it was made."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if not poll.poll(seconds * 1_000):
            return errno.ETIMEDOUT
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def _waited_in_vain(self, what: str) -> CallFailed:
        idle = self._network.limits.idle_seconds
        self._network.seconds_left(idle)  # raises if the whole call is out of time
        return CallFailed(f"{self._host} {what} for {idle:g} s")

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        self._socket.settimeout(self._network.seconds_left(seconds))
        try:
            yield
        finally:
            self._network.check()


@lru_cache(maxsize=1)
def _system_tls() -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of SSL_CERT_FILE, SSL_CERT_DIR or the system."""
    return httpx2.create_ssl_context()


def told(error: BaseException | None) -> str:
    match error:
        case TimeoutError():
            return "no response in time"
        case OSError(strerror=str(words)):
            return words
    return str(error) or type(error).__name__
