"""Signatures of deliveries, as defined by Standard Webhooks."""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence

PREFIX = "whsec_"
NEW_BYTES = 32
LEAST_BYTES, MOST_BYTES = 24, 64


def headers(signing: Sequence[str], *, webhook_id: str, at: int, body: str) -> dict[str, str]:
    """Return the headers of a signed delivery, with one signature for each secret in `signing`."""
    signed = f"{webhook_id}.{at}.{body}".encode()
    signatures = [b64encode(hmac.digest(_key(secret), signed, "sha256")).decode() for secret in signing]
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def new_secret() -> str:
    return PREFIX + b64encode(secrets.token_bytes(NEW_BYTES)).decode()


def secret_error(text: str) -> str:
    """Return what is wrong with a signing secret, or an empty string. The text does not show the secret."""
    how = (
        f"Enter {PREFIX} followed by {LEAST_BYTES} to {MOST_BYTES} random bytes in base64, or leave the "
        "field empty to generate a secret."
    )
    if not text.startswith(PREFIX):
        return f"The secret must begin with {PREFIX}. {how}"
    try:
        size = len(_key(text))
    except ValueError:
        return f"The text after {PREFIX} is not valid base64. {how}"
    if not LEAST_BYTES <= size <= MOST_BYTES:
        length = "short" if size < LEAST_BYTES else "long"
        return f"The secret is too {length} ({size} bytes). {how}"
    return ""


def _key(secret: str) -> bytes:
    return b64decode(secret.removeprefix(PREFIX), validate=True)
