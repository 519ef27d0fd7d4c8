from __future__ import annotations

import pytest
from django.test import Client

from tests.admin_pages import sign_in


@pytest.fixture
def client(db: None) -> Client:
    """Somebody who may do everything."""
    return sign_in()
