"""Signatures as Standard Webhooks has them."""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence

PREFIX = "whsec_"
NEW_BYTES = 32
LEAST_BYTES, MOST_BYTES = 24, 64


def headers(signing: Sequence[str], *, webhook_id: str, at: int, body: str) -> dict[str, str]:
    """Signed with each of the secrets, so that a receiver may know the old one or the new one."""
    signed = f"{webhook_id}.{at}.{body}".encode()
    signatures = [b64encode(hmac.digest(_key(secret), signed, "sha256")).decode() for secret in signing]
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def new_secret() -> str:
    return PREFIX + b64encode(secrets.token_bytes(NEW_BYTES)).decode()


def secret_complaint(text: str) -> str:
    """What is wrong with a secret that somebody typed; never repeats it."""
    how = f"it is {PREFIX} and the base64 of {LEAST_BYTES} to {MOST_BYTES} random bytes"
    if not text.startswith(PREFIX):
        return f"A secret begins with {PREFIX}: {how}. Leave it empty to have one made."
    try:
        size = len(_key(text))
    except ValueError:
        return f"What follows {PREFIX} is not base64: {how}. Leave it empty to have one made."
    if not LEAST_BYTES <= size <= MOST_BYTES:
        length = "short" if size < LEAST_BYTES else "long"
        return f"The secret is too {length}, {size} bytes: {how}. Leave it empty to have one made."
    return ""


def _key(secret: str) -> bytes:
    return b64decode(secret.removeprefix(PREFIX), validate=True)
