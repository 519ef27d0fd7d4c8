"""Passwords and tokens cannot be guessed: every door slows down, says when to go on, and leaves a record."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client

from activities.models import Activity
from api.guessing import FORGOTTEN_AFTER, Guess, Kind, is_recorded, lock_of
from api.models import FailedSignIn
from api.rates import Meter
from database import clock
from operations.initiator import Initiator
from tests.api.calling import Caller
from tests.base import NOW, seconds

pytestmark = pytest.mark.django_db
RIGHT, WRONG = "correct horse 7", "battery staple 8"
FREE = 5


class Time:
    now = NOW

    def pass_by(self, length: timedelta) -> None:
        self.now += length


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock, "now", lambda: time.now)
    monkeypatch.setattr(clock, "estimate", lambda: time.now)
    monkeypatch.setattr("api.throttling.meter", Meter())
    return time


@pytest.fixture(autouse=True)
def ada() -> User:
    user = User.objects.create_user("ada", password=RIGHT, is_staff=True)
    user.groups.add(Group.objects.get(name="Administrator"))
    return user


class Person:
    """A browser at an address."""

    def __init__(self, address: str = "203.0.113.9") -> None:
        self.client = Client(REMOTE_ADDR=address)

    def login(self, password: str, name: str = "ada", door: str = "/login") -> Any:
        return self.client.post(door, {"username": name, "password": password})

    def admin(self, password: str) -> Any:
        return self.login(password, door="/admin/login/?next=/admin/")

    def password(self, password: str) -> Any:
        self.client.force_login(User.objects.get(username="ada"))
        new = {"new_password1": "a new one 99", "new_password2": "a new one 99"}
        return self.client.post("/password", {"old_password": password, **new})


@pytest.mark.parametrize("door", ["login", "admin", "password"])
def test_every_form_slows_down_and_says_when_to_go_on(door: str, time: Time) -> None:
    person = Person()
    tries = [getattr(person, door)(WRONG) for _ in range(FREE)]
    assert {answer.status_code for answer in tries} == {200}
    locked = getattr(person, door)(RIGHT)
    assert (locked.status_code, locked["Retry-After"]) == (429, "30")
    assert "Try again in 30 s" in locked.text
    time.pass_by(seconds(30))
    assert getattr(person, door)(WRONG).status_code == 200
    assert getattr(person, door)(RIGHT)["Retry-After"] == "60", "each further one takes twice as long"
    time.pass_by(seconds(60))
    assert getattr(person, door)(RIGHT).status_code == 302
    assert not FailedSignIn.objects.filter(kind__in=[Kind.PAIR, Kind.BROWSER]).exists()


def test_the_admin_has_no_other_form_for_passwords(ada: User) -> None:
    client = Client()
    client.force_login(ada)
    assert client.get("/admin/password_change/")["Location"] == "/password"


def test_a_record_says_which_account_from_where_and_how_often_but_nothing_that_was_typed() -> None:
    person = Person()
    for name in ("ada", "a-secret-in-the-wrong-field"):
        for _ in range(FREE + 3):
            person.login(WRONG, name)
    told = Activity.objects.filter(operation="lock").order_by("pk")
    assert [(each.target_type, each.target_name) for each in told] == [
        ("user", "ada"),
        ("failedsignin", "sign-ins from 203.0.113.9"),
    ]
    details: Any = told[0].details
    assert (details["failures"], details["address"]) == (FREE, "203.0.113.9")
    kept = repr([list(model.objects.values()) for model in (Activity, FailedSignIn)])
    assert not any(secret in kept for secret in (WRONG, "wrong-field"))


def test_an_attack_cannot_fill_the_table_of_records() -> None:
    for number in range(70):
        row = FailedSignIn(kind=Kind.PAIR, failures=FREE, account=str(number), first_at=NOW)
        FailedSignIn.objects.record(Guess("203.0.113.9", counted=[row]), now=NOW)
    assert Activity.objects.filter(operation="lock").count() == 60


def test_accounts_that_do_not_exist_are_answered_alike() -> None:
    def answers(name: str, address: str) -> list[tuple[int, str]]:
        person = Person(address)
        given = [person.login(WRONG, name) for _ in range(FREE + 1)]
        return [(each.status_code, "".join(each.context["form"].non_field_errors())) for each in given]

    assert answers("ada", "203.0.113.1") == answers("nobody", "203.0.113.2")


def test_whoever_tries_many_accounts_is_stopped_by_address(time: Time) -> None:
    person = Person()
    codes = [person.login(WRONG, f"user-{number}").status_code for number in range(21)]
    assert codes == [200] * 20 + [429]
    assert Person("203.0.113.10").login(RIGHT).status_code == 302
    time.pass_by(FORGOTTEN_AFTER + seconds(1))
    assert person.login(WRONG).status_code == 200
    assert FailedSignIn.objects.get(kind=Kind.ADDRESS, address="203.0.113.9").failures == 1


def test_an_account_attacked_from_everywhere_stays_open_to_its_own_browser(settings: Any) -> None:
    own = Person("203.0.113.200")
    assert own.login(RIGHT).status_code == 302
    own.client.post("/logout")
    codes = [Person(f"198.51.100.{number}").login(WRONG).status_code for number in range(51)]
    assert codes == [200] * 50 + [429]
    assert own.login(RIGHT).status_code == 302
    forged = Person()
    forged.client.cookies[settings.BROWSER_COOKIE_NAME] = "forged"
    assert forged.login(RIGHT).status_code == 429


@pytest.mark.parametrize(
    ("proxies", "headers", "address"),
    [
        (0, {"X-Forwarded-For": "192.0.2.1"}, "203.0.113.9"),
        (1, {"X-Forwarded-For": "forged, 192.0.2.1"}, "192.0.2.1"),
        (2, {"X-Forwarded-For": "forged, 192.0.2.1, 10.0.0.1"}, "192.0.2.1"),
        (1, {}, "203.0.113.9"),
        (1, {"X-Forwarded-For": "2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::"),
        (1, {"X-Forwarded-For": "::ffff:192.0.2.1"}, "192.0.2.1"),
        (1, {"X-Forwarded-For": "nonsense"}, "unknown"),
    ],
)
def test_proxies_are_believed_as_far_as_there_are_any(
    proxies: int, headers: dict[str, str], address: str, settings: Any
) -> None:
    settings.JIM_PROXIES = proxies
    Client(REMOTE_ADDR="203.0.113.9", headers=headers).post("/login", {"username": "x", "password": "y"})
    assert FailedSignIn.objects.get(kind=Kind.ADDRESS).address == address


def test_unknown_tokens_are_throttled_by_address_and_known_ones_are_not() -> None:
    bad = Client(headers={"Authorization": "Bearer jim_0_none"}, REMOTE_ADDR="203.0.113.9")
    answers = [bad.get("/api/v1/limits") for _ in range(31)]
    assert [each.status_code for each in answers] == [401] * 30 + [429]
    assert answers[-1]["Retry-After"] == "10"
    assert Activity.objects.get(operation="lock").target_name == "API calls from 203.0.113.9"
    assert Caller().client.get("/api/v1/limits", REMOTE_ADDR="203.0.113.9").status_code == 200


def test_strangers_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.CALLS_PER_MINUTE, "stranger", 2)
    answers = [Client(REMOTE_ADDR="203.0.113.9").get("/api/v1/limits") for _ in range(3)]
    assert [each.status_code for each in answers] == [401, 401, 429]
    assert answers[-1]["Retry-After"] == str(60 - NOW.second)
    assert Client(REMOTE_ADDR="203.0.113.10").get("/api/v1/limits").status_code == 401
    assert Client(REMOTE_ADDR="203.0.113.9").get("/api/v1/health/live").status_code == 200


def test_a_right_guess_takes_back_its_own_count_only() -> None:
    guesses = [Guess("203.0.113.9", "account") for _ in range(FREE + 1)]
    waits = [FailedSignIn.objects.charge(guess, now=NOW) for guess in guesses]
    assert waits == [timedelta(0)] * FREE + [seconds(30)]
    FailedSignIn.objects.refund(guesses[0])
    shared = FailedSignIn.objects.exclude(kind=Kind.PAIR)
    assert set(shared.values_list("failures", flat=True)) == {FREE - 1}


def test_what_is_locked_costs_one_question(django_assert_num_queries: Any) -> None:
    guess = Guess("203.0.113.9", "account")
    for _ in range(FREE):
        FailedSignIn.objects.charge(guess, now=NOW)
    with django_assert_num_queries(1):
        assert FailedSignIn.objects.charge(guess, now=NOW)


@pytest.mark.parametrize("arguments", [["ada"], ["203.0.113.9"], ["--all"]])
def test_a_lock_is_lifted(arguments: list[str]) -> None:
    person = Person()
    for _ in range(FREE):
        person.login(WRONG)
    call_command("unlock", *arguments)
    assert person.login(RIGHT).status_code == 302
    record = Activity.objects.get(operation="unlock")
    assert record.initiator_name == Initiator.command("unlock").name


def test_old_failures_are_pruned() -> None:
    for now in (NOW - timedelta(days=2), NOW):
        FailedSignIn.objects.charge(Guess("203.0.113.9", str(now)), now=now)
    FailedSignIn.objects.prune_old(NOW)
    assert not FailedSignIn.objects.filter(last_at__lt=NOW).exists()


@pytest.mark.parametrize("kind", Kind.values)
def test_locks_grow_to_a_limit_and_are_told_ever_less_often(kind: str) -> None:
    locks = [lock_of(kind, failures) for failures in range(1, 2_000)]
    assert (locks[0], locks) == (timedelta(0), sorted(locks))
    assert max(locks) == (timedelta(minutes=1) if kind == Kind.ACCOUNT else timedelta(minutes=15))
    told = [failures for failures in range(1, 2_000) if is_recorded(kind, failures)]
    assert told[0] == next(number for number, lock in enumerate(locks, 1) if lock)
    assert len(told) <= 10
