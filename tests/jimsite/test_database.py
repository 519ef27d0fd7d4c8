from __future__ import annotations

import subprocess
import sys

import pytest
from django.contrib.auth.models import User
from django.db import connection

from tests.conftest import subprocess_env
from tests.settings import TEST_DB


@pytest.mark.django_db(transaction=True)
def test_another_process_sees_this_tests_database() -> None:
    User.objects.create_user("ada")
    code = (
        "from django.contrib.auth.models import User; print(*User.objects.values_list('username', flat=True))"
    )
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-v0", "-c", code],
        env=subprocess_env(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["ada"]


@pytest.mark.django_db
def test_the_database_is_the_one_asked_for() -> None:
    assert connection.vendor == {"sqlite": "sqlite", "postgres": "postgresql"}[TEST_DB]
