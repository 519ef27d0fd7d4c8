from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client


@pytest.mark.django_db(transaction=True)
def test_healthz_is_503_when_the_database_is_away(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    response = client.get("/healthz")
    assert (response.status_code, response.content) == (200, b"ok")
    connection.close()
    with monkeypatch.context() as away:
        away.setitem(connection.settings_dict, "NAME", "/nowhere/at/all")
        away.setitem(connection.settings_dict, "HOST", "/nowhere")
        away.setitem(connection.settings_dict, "OPTIONS", {})
        response = client.get("/healthz")
    assert (response.status_code, response.content) == (503, b"database unreachable")
    connection.close()
