from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from django.core import checks
from django.core.management import load_command_class

from execution.checks import ENGINE

LOADED = f"""
import sys, django
from django.core import checks
django.setup()
checks.run_checks(tags=[{ENGINE!r}])
print("jimsite.urls" in sys.modules)
"""


@pytest.mark.parametrize("name", ["runscheduler", "runworker"])
def test_a_loop_checks_what_is_its_own(name: str) -> None:
    assert load_command_class("execution", name).requires_system_checks == [ENGINE]


@pytest.mark.parametrize("policy", ["nowhere.Policy", "tests.base.NOW"])
def test_a_wrong_setting_stops_a_loop(settings: Any, policy: str) -> None:
    assert checks.run_checks(tags=[ENGINE]) == []
    settings.JIM_CONCURRENCY_POLICY = policy
    assert [each.id for each in checks.run_checks(tags=[ENGINE])] == ["execution.E001"]


def test_a_loop_does_not_load_the_pages() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
