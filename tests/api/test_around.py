"""Workers, pools, reservations, webhooks with their deliveries, and tokens."""

from __future__ import annotations

import uuid
from copy import copy
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher, make_password
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from activities.models import Activity
from api.models import ApiToken, KeyedAnswer
from database import clock
from execution.models import Limit, Reservation, Worker
from execution.models.adhoc import job_line
from operations.initiator import Initiator
from tests.api.calling import Caller, fields
from tests.base import NOW, SOMEBODY, claim, enqueue, make_worker, seconds, start, step
from webhooks.models import Delivery

pytestmark = pytest.mark.django_db
HOOK: dict[str, Any] = {"name": "Chat", "url": "https://chat.example/x", "events": ["execution.failed"]}


class TestWorkers:
    def test_they_tell_what_they_serve_and_how_busy_they_are(self) -> None:
        api, worker = Caller("Viewer"), make_worker()
        enqueue(step("a"), step("b"))
        claim(worker)
        worker.beat(NOW, clock_skew=seconds(-90))
        [row] = api.get("workers").json()["results"]
        assert (row["id"], row["seats"], row["busy"], row["pools"]) == (str(worker.pk), 100, 2, [])
        assert row["clock_skew_seconds"] == -90
        assert api.get(f"workers/{worker.pk}").json() == row
        worker.stop(NOW)
        assert api.get("workers", status="alive").json()["results"] == []

    def test_pools_tell_who_serves_them_and_what_waits(self, django_assert_max_num_queries: Any) -> None:
        api, now = Caller("Viewer"), clock.now()
        Worker.objects.register(id=uuid.uuid4(), pools=["ldap"], seats=3, now=now)
        Limit.objects.create(key="pool:hr", size=0)
        start(step("a", pool="ldap"), step("b", 1, pool="ldap"), now=now - seconds(60))
        api.get("pools")
        with django_assert_max_num_queries(7):
            pools = {pool["name"]: pool for pool in api.get("pools").json()}
        assert list(pools) == ["default", "hr", "ldap"]
        ldap = pools["ldap"]
        assert (ldap["workers"], ldap["seats"], ldap["queued"], ldap["waiting"]) == (1, 3, 1, 1)
        assert 60 <= ldap["oldest_wait_seconds"] < 120
        assert (pools["hr"]["limit"], pools["hr"]["seats"]) == (0, 0)


class TestReservations:
    def test_they_tell_who_has_which_seat_and_an_operator_releases_it(self) -> None:
        line = job_line(step("now", pool="ldap"), now=NOW)
        held = Reservation.objects.reserve(line, holder="here:1", now=NOW)
        waiting = Reservation.objects.reserve(line | {"pool": "hr"}, holder="there:2", now=NOW)
        assert held is not None
        assert waiting is not None
        assert held.take(line, initiator=SOMEBODY, now=NOW)
        viewer, operator = Caller("Viewer"), Caller("Operator", scopes=["run"])
        [row] = viewer.get("reservations", pool="ldap").json()["results"]
        assert (row["id"], row["state"], row["holder"]) == (str(held.pk), "running", "here:1")
        assert (row["activity"], row["limits"]) == (held.activity_id, ["global", "pool:ldap", "type:python"])
        assert viewer.post(f"reservations/{held.pk}/release").status_code == 403
        released = operator.post(f"reservations/{held.pk}/release", {"reason": "stuck"})
        assert (released.status_code, released.json()["state"]) == (200, "released")
        assert Activity.objects.get(operation="release").message == "stuck"
        assert operator.post(f"reservations/{held.pk}/release").status_code == 409
        states = {
            state: [row["id"] for row in viewer.get("reservations", state=state).json()["results"]]
            for state in ("waiting", "running", "released")
        }
        assert states == {"waiting": [str(waiting.pk)], "running": [], "released": [str(held.pk)]}


class TestWebhooks:
    def test_one_is_made_with_a_secret_that_is_shown_once_changed_disabled_and_removed(self) -> None:
        api = Caller()
        made = api.post("webhooks", HOOK)
        assert (made.status_code, made.json()["secret"].startswith("whsec_")) == (201, True)
        path = f"webhooks/{made.json()['id']}"
        read = api.get(path)
        assert "secret" not in read.json()
        assert api.post(f"{path}/rotate").json()["secret"] != made.json()["secret"]
        changed = api.patch(path, {"description": "the team's"}, if_match=api.get(path)["ETag"])
        assert (changed.status_code, changed.json()["description"]) == (200, "the team's")
        assert api.patch(path, {"name": "x"}).status_code == 428
        disabled = api.post(f"{path}/disable", {"note": "moving"}).json()
        assert (disabled["status"], disabled["status_note"]) == ("disabled", "moving")
        assert api.post(f"{path}/disable").status_code == 409
        assert api.post(f"{path}/test").status_code == 409
        assert api.post(f"{path}/enable").json()["status"] == "enabled"
        assert api.delete(path, if_match="*").status_code == 204
        assert api.get(path).status_code == 404

    def test_what_is_wrong_is_told_by_field(self) -> None:
        api = Caller()
        api.post("webhooks", HOOK | {"name": "taken"})
        odd: dict[str, Any] = {"url": "ftp://x", "events": [], "schedules": [5], "failures": 9}
        for field, value in (odd | {"name": "Taken", "secret": "short"}).items():
            wrong = api.post("webhooks", HOOK | {field: value})
            assert (wrong.status_code, fields(wrong)) == (400, [field])
        assert "918273645" not in api.post("webhooks", HOOK | {"secret": 918273645}).text

    def test_a_test_is_a_delivery_that_can_be_sent_again(self) -> None:
        api = Caller()
        hook = api.post("webhooks", HOOK).json()["id"]
        sent = api.post(f"webhooks/{hook}/test")
        assert sent.status_code == 202
        path = f"deliveries/{sent.json()['id']}"
        assert sent["Location"].endswith(path)
        told = api.get(path).json()
        assert (told["status"], told["event"], told["body"]["type"]) == ("pending", *["endpoint.test"] * 2)
        assert api.post(f"{path}/redeliver").status_code == 409
        Delivery.objects.all().give_up("no", now=NOW)
        assert api.post(f"{path}/redeliver").status_code == 202
        for query in ({"endpoint": hook + 1}, {"status": "failed"}, {"event": "execution.failed"}):
            assert api.get("deliveries", **query).json()["results"] == [], query
        assert len(api.get("deliveries", endpoint=hook, status="pending").json()["results"]) == 1


class TestTokens:
    def test_everybody_has_tokens_of_their_own_and_administrators_see_all(self) -> None:
        viewer, administrator = Caller("Viewer"), Caller()
        made = viewer.post("tokens", {"name": "Scraper", "scopes": ["view"]})
        assert (made.status_code, made.json()["text"][:4]) == (201, "jim_")
        own = viewer.get("tokens").json()["results"]
        assert [row["name"] for row in own] == ["Scraper", "test"]
        assert "text" not in own[0]
        assert len(administrator.get("tokens").json()["results"]) == 3
        assert len(administrator.get("tokens", user="viewer").json()["results"]) == 2
        # What nobody may see is answered as what is not there.
        theirs, nobodys = (viewer.get(f"tokens/{pk}") for pk in (administrator.token.pk, 999_999))
        assert (theirs.status_code, theirs.json()["detail"]) == (404, nobodys.json()["detail"])

    def test_a_new_one_works_and_a_revoked_one_does_not(self) -> None:
        api = Caller("Viewer")
        made = api.post("tokens", {"name": "Scraper", "scopes": ["view"]}).json()
        client = Client(headers={"Authorization": f"Bearer {made['text']}"})
        assert client.get("/api/v1/executions").status_code == 200
        revoked = api.post(f"tokens/{made['id']}/revoke")
        assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
        assert client.get("/api/v1/executions").status_code == 401
        assert api.post(f"tokens/{made['id']}/revoke").status_code == 409
        assert api.get("tokens", state="ended").json()["results"][0]["id"] == made["id"]
        body = {"name": "x", "scopes": ["run"], "expires_at": "2099-01-01T00:00:00Z"}
        client = Client()
        client.force_login(User.objects.create_user("ada"))
        assert client.post("/api/v1/tokens", body, content_type="application/json").status_code == 201

    def test_a_narrow_token_leads_to_no_others(self) -> None:
        narrow = Caller(scopes=["view", "run", "define"])
        assert narrow.get("tokens").status_code == 403
        assert narrow.post("tokens", {"name": "x", "scopes": ["admin"]}).status_code == 403

    def test_what_a_token_made_ends_with_it(self) -> None:
        api, end = Caller(), clock.now() + seconds(3600)
        ApiToken.objects.update(expires_at=end)
        wanted = {"name": "x", "scopes": ["admin"]}
        later = api.post("tokens", wanted | {"expires_at": "2099-01-01T00:00:00Z"})
        assert (later.status_code, fields(later)) == (400, ["expires_at"])
        callers = [api]
        for _ in range(2):
            made = callers[-1].post("tokens", wanted).json()
            assert ApiToken.objects.get(pk=made["id"]).expires_at == end
            callers.append(copy(api))
            callers[-1].client = Client(headers={"Authorization": f"Bearer {made['text']}"})
        api.token.revoke(initiator=Initiator.user(api.user), now=clock.now())
        assert [each.get("tokens").status_code for each in callers] == [401] * 3
        assert Activity.objects.filter(operation="revoke").count() == 3

    @pytest.mark.parametrize("how", ["page", "admin", "command", "hash"])
    def test_tokens_end_with_a_password_but_not_with_its_hash(
        self, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api, other, password = Caller(), Caller("Viewer"), "correct horse 7"
        User.objects.filter(pk=api.user.pk).update(
            password=make_password(password), is_superuser=True, is_staff=True
        )
        client, new = Client(), "battery staple 8"
        client.force_login(User.objects.get(pk=api.user.pk))
        match how:
            case "page":
                given = {"old_password": password, "new_password1": new, "new_password2": new}
                assert "your API token will need a new one" in client.get("/password").text
                assert client.post("/password", given).status_code == 302
            case "admin":
                given = {"password1": new, "password2": new, "usable_password": "true"}
                assert client.post(f"/admin/auth/user/{api.user.pk}/password/", given).status_code == 302
            case "command":
                monkeypatch.setattr("getpass.getpass", lambda prompt: new)
                call_command("changepassword", api.user.username, stdout=StringIO())
            case "hash":
                monkeypatch.setattr(MD5PasswordHasher, "must_update", lambda *_: True)
                assert client.login(username=api.user.username, password=password)
        assert api.get("limits").status_code == (200 if how == "hash" else 401)
        assert other.get("limits").status_code == 200

    def test_what_is_wrong_is_told_by_field(self) -> None:
        odd: list[dict[str, Any]] = [{"scopes": []}, {"expires_at": "2001-01-01T00:00:00Z"}]
        for changes in odd:
            wrong = Caller().post("tokens", {"name": "x", "scopes": ["view"]} | changes)
            assert (wrong.status_code, fields(wrong)) == (400, list(changes))

    def test_neither_texts_nor_secrets_are_kept_with_a_key(self) -> None:
        api = Caller()
        text = api.post("tokens", {"name": "x", "scopes": ["view"]}, idempotency_key="k").json()["text"]
        secret = api.post("webhooks", HOOK, idempotency_key="k").json()["secret"]
        assert not KeyedAnswer.objects.exists()
        assert not Activity.objects.filter(details__icontains=text).exists()
        assert not Activity.objects.filter(details__icontains=secret).exists()
        assert ApiToken.objects.filter(name="x").count() == 1
