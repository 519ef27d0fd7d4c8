"""Guesses at one password that arrive together: each counts before it is looked at."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from api.guessing import Guess
from api.models import FailedSignIn
from tests.base import NOW
from tests.races.meeting import at_once

pytestmark = pytest.mark.django_db(transaction=True)


def test_no_more_pass_than_may() -> None:
    tries = [partial(FailedSignIn.objects.charge, Guess("203.0.113.9", "ada"), now=NOW) for _ in range(8)]
    waits = at_once(*tries)
    assert all(isinstance(wait, timedelta) for wait in waits), waits
    assert waits.count(timedelta(0)) == 5
    assert set(FailedSignIn.objects.values_list("failures", flat=True)) == {5}
