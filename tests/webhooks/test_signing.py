from __future__ import annotations

import json
import time
from base64 import b64encode

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from webhooks.signing import headers, new_secret, secret_error

BODY = '{"type":"endpoint.test","data":{"name":"Zoë “quoted”"}}'


def secret_of(size: int) -> str:
    return "whsec_" + b64encode(bytes(range(size))).decode()


@pytest.mark.parametrize("secret", [new_secret(), secret_of(24), secret_of(64)], ids=["new", "short", "long"])
def test_what_is_signed_is_verified_by_the_standards_own_library_unless_it_was_changed(secret: str) -> None:
    assert secret_error(secret) == ""
    signed = headers([new_secret(), secret], webhook_id="msg_1", at=int(time.time()), body=BODY)
    assert Webhook(secret).verify(BODY, signed) == json.loads(BODY)
    for change in ({"webhook-id": "msg_2"}, {"webhook-timestamp": "1"}, {"webhook-signature": "v1,bm9uZQ=="}):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(BODY, signed | change)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY.replace("quoted", "forged"), signed)


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("hunter2", "must begin with whsec_"),
        ("whsec_not base64!", "is not valid base64"),
        (secret_of(23), "too short (23 bytes)"),
        (secret_of(65), "too long (65 bytes)"),
    ],
)
def test_a_secret_that_nobody_should_use_is_refused(secret: str, complaint: str) -> None:
    assert complaint in secret_error(secret)
    assert secret not in secret_error(secret)
