"""The admin looks like the pages, leads to them, and they lead back."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from activities import clock
from api.models import ApiToken
from execution.models import Limit
from tests.admin_pages import operation, page, sign_in
from tests.base import NOW, SOMEBODY, fresh, make_schedule

STYLES = settings.BASE_DIR / "static" / "jim"


def tokens(name: str) -> dict[str, str]:
    """The colours that a stylesheet gives names to."""
    text = (STYLES / name).read_text()
    return dict(re.findall(r"--([a-z-]+): (light-dark\([^;]+\));", text))


def test_both_stylesheets_have_the_same_colours() -> None:
    assert tokens("admin.css") == tokens("jim.css")
    assert len(tokens("jim.css")) > 10


@pytest.mark.django_db
def test_a_row_of_the_admin_and_its_page_lead_to_each_other() -> None:
    client, schedule = sign_in(), make_schedule()
    limit = Limit.objects.define("type:sql", 1, initiator=SOMEBODY, now=NOW)
    for row, name in ((schedule, "schedules_schedule_change"), (limit, "execution_limit_change")):
        url = page(name, row.pk.replace(":", "_3A") if isinstance(row.pk, str) else row.pk)
        assert f'href="{row.get_absolute_url()}"' in client.get(url).text
    assert page("execution_limit_change", "type_3Asql") in client.get(limit.get_absolute_url()).text
    User.objects.update(is_staff=False)
    assert "/admin/" not in client.get(limit.get_absolute_url()).text


@pytest.mark.django_db
def test_a_list_has_one_name_wherever_it_is_named_and_its_search_and_filters_speak_in_words() -> None:
    client = sign_in()
    shown = client.get(page("execution_workertask_changelist")).text
    assert "<h1>Queue</h1>" in shown
    assert "&rsaquo; Queue\n</div>" in shown
    assert re.search(rf"<a href=\"{page('execution_workertask_changelist')}\"[^>]*>Queue</a>", shown)
    shown = client.get(page("workflows_event_changelist")).text
    assert '<div class="help" id="searchbar_helptext">A whole message id.</div>' in shown
    shown = client.get(page("activities_activity_changelist")).text
    for query, words in (
        ("status__exact=complete_with_warning", "complete with warning"),
        ("target_type=sharedcalendar", "calendar"),
        ("target_type=apitoken", "API token"),
        ("target_type=python", "python"),
    ):
        assert f'<a href="?{query}">{words}</a>' in shown


@pytest.mark.django_db
def test_tokens_are_read_and_revoked_in_the_admin_and_nothing_else() -> None:
    client = sign_in()
    owner = User.objects.get()
    token, text = ApiToken.objects.issue(
        name="import", scopes=["view"], user=owner, initiator=SOMEBODY, now=clock.now()
    )
    shown = client.get(page("api_apitoken_change", token.pk)).text
    assert ("import" in shown, text in shown, token.digest in shown) == (True, False, False)
    assert client.get(page("api_apitoken_add")).status_code == 403
    client.post(operation("api_apitoken", "revoke", token.pk))
    assert fresh(token).revoked_at is not None
