from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from webhooks.signing import headers, new_secret, secret_complaint

BODY = '{"type":"endpoint.test","data":{"name":"Zoë “quoted”"}}'


def now() -> int:
    return int(datetime.now(UTC).timestamp())


def secret_of(size: int) -> str:
    return "whsec_" + b64encode(bytes(range(size))).decode()


@pytest.mark.parametrize("make", [new_secret, lambda: secret_of(24), lambda: secret_of(64)])
def test_what_is_signed_is_verified_by_the_standards_own_library(make: Callable[[], str]) -> None:
    secret = make()
    assert secret_complaint(secret) == ""
    signed = headers([secret], webhook_id="msg_1", at=now(), body=BODY)
    assert Webhook(secret).verify(BODY, signed) == {"type": "endpoint.test", "data": {"name": "Zoë “quoted”"}}


def test_while_a_secret_is_rotated_both_verify() -> None:
    old, new = new_secret(), new_secret()
    signed = headers([new, old], webhook_id="msg_1", at=now(), body=BODY)
    assert len(signed["webhook-signature"].split(" ")) == 2
    assert Webhook(old).verify(BODY, signed) == Webhook(new).verify(BODY, signed)


@pytest.mark.parametrize(
    "change",
    [{"webhook-id": "msg_2"}, {"webhook-timestamp": "1"}, {"webhook-signature": "v1,bm9uZQ=="}],
)
def test_nothing_of_what_is_signed_can_be_changed(change: dict[str, str]) -> None:
    secret = new_secret()
    signed = headers([secret], webhook_id="msg_1", at=now(), body=BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY, signed | change)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY.replace("quoted", "forged"), signed)


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("hunter2", "begins with whsec_"),
        ("whsec_not base64!", "is not base64"),
        ("whsec_", "too short, 0 bytes"),
        (secret_of(23), "too short, 23 bytes"),
        (secret_of(65), "too long, 65 bytes"),
    ],
)
def test_a_secret_that_nobody_should_use_is_refused(secret: str, complaint: str) -> None:
    words = secret_complaint(secret)
    assert complaint in words
    assert "24 to 64 random bytes" in words
    assert "Leave it empty to have one made" in words
    assert secret == "whsec_" or secret not in words
