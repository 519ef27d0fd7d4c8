from __future__ import annotations

import pytest
from django.db import connection

from tests.settings import TEST_DB


@pytest.mark.django_db
def test_the_database_is_the_one_asked_for() -> None:
    assert connection.vendor == {"sqlite": "sqlite", "postgres": "postgresql"}[TEST_DB]
