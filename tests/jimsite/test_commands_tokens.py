"""`manage.py createtoken`: its text on standard output, once and alone."""

from __future__ import annotations

import io
import json

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from activities.models import Activity
from api.models import ApiToken
from database import clock
from operations.initiator import Initiator
from tests.base import NOW, seconds
from tests.commands import refusal

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def ada(monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    return User.objects.create_user("ada")


def create(*arguments: str) -> tuple[str, str]:
    """What it wrote to standard output and to standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command("createtoken", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_text_stands_alone_on_standard_output() -> None:
    out, err = create("ada", "--name", "backup", "--scopes", "view,run", "--expires", "90d")
    token = ApiToken.objects.named_by(out.removesuffix("\n"), now=NOW)
    assert token is not None
    assert (token.name, token.scopes) == ("backup", ["view", "run"])
    assert token.expires_at == NOW + seconds(90 * 86_400)
    assert "It is shown only once" in err
    record = Activity.objects.get(operation="create")
    assert record.initiator_name == Initiator.command("createtoken").name
    plain = json.loads(create("ada", "--name", "x", "--json")[0])
    assert (plain["scopes"], plain["expires_at"], plain["user"]) == (["view"], None, "ada")


def test_users_and_scopes_that_are_not_there() -> None:
    assert "User “adda” does not exist; did you mean ada?" in refusal("createtoken", "adda", "--name", "x")
    with pytest.raises(CommandError, match="scope “viw” does not exist; did you mean view"):
        create("ada", "--name", "x", "--scopes", "viw")
    User.objects.update(is_active=False)
    assert refusal("createtoken", "ada", "--name", "x") == "User “ada” is not active. Choose an active user."
    assert not ApiToken.objects.exists()
