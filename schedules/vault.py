"""The encryption keys of secrets, from JIM_SECRETS_KEYS or from a file."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from files import given_files, private_files

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

FILE = "secrets_keys"
MOST_BYTES = 1024 * 1024
KEY_IN_WORDS = "a Fernet key, which is 44 characters of URL-safe base64"


class VaultError(Exception):
    """The error when secrets cannot be used on this host; the message says why and what to do."""


class Undecryptable(VaultError):
    def __init__(self, names: Collection[str], keys: Keys) -> None:
        self.names = frozenset(names)
        told = ", ".join(f"“{name}”" for name in sorted(names))
        what, those = ("The secrets", "each secret") if len(names) > 1 else ("The secret", "the secret")
        misfit = (
            f"none of the keys in {keys.source} fits. Restore the missing key from a backup, or copy it from "
            f"another host, or give {those} a new value."
        )
        why = misfit if keys.texts else _no_key(keys)
        super().__init__(f"{what} {told} cannot be decrypted on {socket.gethostname()}: {why}")


@dataclass(frozen=True)
class Keys:
    """Encryption keys, newest first. The first key encrypts; decryption tries all keys."""

    texts: tuple[str, ...] = field(repr=False)
    source: str

    def encrypt(self, value: str) -> str:
        return self._fernet.encrypt(value.encode()).decode()

    def decrypt(self, token: str) -> str | None:
        """Return the decrypted value, or None if no key fits."""
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(token.encode()).decode() if self.texts else None
        except InvalidToken:
            return None

    @cached_property
    def newest(self) -> Keys:
        return Keys(self.texts[:1], self.source)

    @cached_property
    def _fernet(self) -> MultiFernet:
        # Imported here to save memory in workers without secrets.
        from cryptography.fernet import Fernet, MultiFernet

        return MultiFernet([Fernet(text) for text in self.texts])


def current() -> Keys:
    """Return the keys; the file is read again if it has changed, as after a rotation."""
    if settings.JIM_SECRETS_KEYS is None:
        raise VaultError(
            "Code in a direct request cannot read or write secrets, because it does not have the encryption "
            "keys. Pass the value of a secret as an argument instead: {{ secrets.name }}."
        )
    if settings.JIM_SECRETS_KEYS:
        return _given(tuple(settings.JIM_SECRETS_KEYS))
    path = _path()
    try:
        stat = path.stat()
        return _read(path, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
    except FileNotFoundError:
        return Keys((), str(path))
    except OSError as error:
        raise VaultError(
            f"The encryption keys in {path} cannot be read: {error.strerror}. Check the path and the file's "
            "permissions."
        ) from None


def for_writing(*, may_make_one: bool) -> Keys:
    """Return the keys to encrypt with.

    If none exist, make one; without `may_make_one`, raise VaultError instead.
    """
    keys = current()
    if keys.texts:
        return keys
    if not may_make_one:
        raise VaultError(f"Nothing can be encrypted on {socket.gethostname()}: {_no_key(keys)}")
    _save(lambda path: private_files.create_once(path, _content(_new_key())))
    return current()


def add_key() -> Keys:
    """Add a new key in front of those in the file, and return all keys."""
    texts = (_new_key(), *current().texts)
    _save(lambda path: private_files.replace(path, _content(*texts)))
    return current()


def drop_old(keys: Keys) -> int:
    """Drop all keys but the first and return how many; drop none if another rotation has added a key."""
    found = current()
    if found.newest != keys.newest:
        return 0
    _save(lambda path: private_files.replace(path, _content(*found.newest.texts)))
    return len(found.texts) - 1


def is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, altchars=b"-_", validate=True)) == 32
    except ValueError:
        return False


def _no_key(keys: Keys) -> str:
    return (
        f"{keys.source} does not exist. Copy the file from a backup or from another host, or set "
        "JIM_SECRETS_KEYS. If the keys are permanently lost, run “manage.py rotatesecrets --skip-lost” to "
        "make a new key, and give every secret a new value."
    )


def _path() -> Path:
    return Path(settings.JIM_DATA_DIR, FILE)


@lru_cache(maxsize=1)
def _given(texts: tuple[str, ...]) -> Keys:
    return Keys(texts, "JIM_SECRETS_KEYS")


@lru_cache(maxsize=1)
def _read(path: Path, stamp: tuple[int, ...]) -> Keys:
    try:
        lines = given_files.read(path, most=MOST_BYTES).split("\n")
    except given_files.Unfit as error:
        raise VaultError(f"{path} {error}; or restore the file from a backup.") from None
    texts = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    if not texts:
        raise VaultError(
            f"{path} is empty: restore the file from a backup, or delete it, so that a new key is made."
        )
    for number, text in texts.items():
        if not is_key(text):
            raise VaultError(
                f"Line {number} of {path} is not {KEY_IN_WORDS}: restore the file from a backup."
            )
    return Keys(tuple(texts.values()), str(path))


def _save(write: Callable[[Path], None]) -> None:
    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        raise VaultError(
            f"The encryption keys cannot be saved in {path}: {error.strerror}. Make the folder writable for "
            "JIM, or set JIM_SECRETS_KEYS."
        ) from None


def _content(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts)


def _new_key() -> str:
    from cryptography.fernet import Fernet

    return Fernet.generate_key().decode()
