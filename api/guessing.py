"""Limits on guessing passwords and tokens, shared by all web processes.

Each guess is counted as wrong before it is checked, and the count is undone if the guess was right. This way,
guesses that arrive at the same time are all counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.db import models, transaction
from django.db.models import F
from django.http import HttpRequest
from django.utils.crypto import get_random_string, salted_hmac

from activities.models import Activity
from execution.loops.housekeeping import BATCH
from operations.initiator import Initiator
from text.words import exact

logger = logging.getLogger(__name__)
FORGOTTEN_AFTER = timedelta(hours=1)
KEPT = timedelta(days=1)
RECORDED_AS = "lock"
MOST_RECORDS_AN_HOUR = 60
BROWSER_SALT = "jim.browser"
BROWSER_IS_KNOWN = timedelta(days=365)
UNKNOWN = "unknown"


class Kind(models.TextChoices):
    BROWSER = "browser", "an account, in a browser that has signed in to it before"
    PAIR = "pair", "an account, from one address"
    ADDRESS = "address", "all accounts, from one address"
    ACCOUNT = "account", "an account, from any address"
    TOKEN = "token", "API tokens, from one address"


@dataclass(frozen=True)
class Allowance:
    """How many wrong guesses cause the first lock (`free`), and how long the locks are.

    The first lock lasts `first`. Each further wrong guess doubles the length, up to `longest`.
    """

    free: int
    first: timedelta
    longest: timedelta


# Account locks are short, because anyone can lock any account. A browser that has signed in before is counted
# separately and is not affected.
ALLOWANCES = {
    Kind.BROWSER: Allowance(5, timedelta(seconds=30), timedelta(minutes=15)),
    Kind.PAIR: Allowance(5, timedelta(seconds=30), timedelta(minutes=15)),
    Kind.ADDRESS: Allowance(20, timedelta(seconds=30), timedelta(minutes=15)),
    Kind.ACCOUNT: Allowance(50, timedelta(seconds=10), timedelta(minutes=1)),
    Kind.TOKEN: Allowance(30, timedelta(seconds=10), timedelta(minutes=15)),
}
# Counters that several people share. A successful sign-in removes only its own guess from them.
SHARED = (Kind.ADDRESS, Kind.ACCOUNT, Kind.TOKEN)


def lock_of(kind: str, failures: int) -> timedelta:
    """Return for how long further guesses are refused after this number of wrong guesses."""
    allowed = ALLOWANCES[Kind(kind)]
    over = failures - allowed.free
    return min(allowed.first * 2 ** min(over, 10), allowed.longest) if over >= 0 else timedelta(0)


def is_recorded(kind: str, failures: int) -> bool:
    """Return whether to record wrong guesses: at the first lock, then whenever their number has doubled."""
    times, rest = divmod(failures, ALLOWANCES[Kind(kind)].free)
    return rest == 0 and times > 0 and times & (times - 1) == 0


@dataclass
class Guess:
    """A guess at the password of an account or, if `account` is empty, at an API token."""

    address: str
    account: str = ""
    browser: str = ""
    counted: list[FailedSignIn] = field(default_factory=list)

    @classmethod
    def at_password(cls, request: HttpRequest, username: str) -> Guess:
        account = _digest("account", User.normalize_username(username.strip()))
        return cls(address_of(request), account, _browser(request, account))

    @classmethod
    def at_token(cls, request: Any) -> Guess:
        return cls(address_of(request))

    def rows(self, now: datetime) -> list[FailedSignIn]:
        """Return the counters for this guess, in the order in which every transaction locks them."""
        rows = [self._row(kind, now) for kind in self._kinds()]
        return sorted(rows, key=lambda row: row.subject)

    def known_browser(self) -> str:
        """Return a cookie value that marks the browser as one that has signed in to this account."""
        text = {"account": self.account, "browser": self.browser or get_random_string(16)}
        return signing.dumps(text, salt=BROWSER_SALT)

    def _kinds(self) -> tuple[Kind, ...]:
        if not self.account:
            return (Kind.TOKEN,)
        return (Kind.BROWSER,) if self.browser else (Kind.PAIR, Kind.ADDRESS, Kind.ACCOUNT)

    def _row(self, kind: Kind, now: datetime) -> FailedSignIn:
        address = "" if kind == Kind.ACCOUNT else self.address
        account = "" if kind in (Kind.ADDRESS, Kind.TOKEN) else self.account
        subject = _digest(kind, account, self.browser or address)
        return FailedSignIn(
            kind=kind, subject=subject, account=account, address=address, first_at=now, last_at=now
        )


class FailedSignInQuerySet(models.QuerySet["FailedSignIn"]):
    def charge(self, guess: Guess, *, now: datetime) -> timedelta:
        """If guessing is locked, return how long to wait. Otherwise, count a wrong guess and return zero.

        If the guess turns out to be right, call `refund`. During a lock, a guess costs one query and writes
        nothing.
        """
        rows = guess.rows(now)
        theirs = self.filter(subject__in=[row.subject for row in rows]).order_by("subject")
        if wait := _longest_wait(theirs, now):
            return wait
        with transaction.atomic():
            self.bulk_create(rows, ignore_conflicts=True)
            held = list(theirs.select_for_update(no_key=True))
            if wait := _longest_wait(held, now):
                return wait
            for row in held:
                row.count(now)
            self.bulk_update(held, ["failures", "first_at", "last_at", "locked_until"])
        guess.counted = held
        return timedelta(0)

    def refund(self, guess: Guess) -> None:
        """Undo the counting of a right guess: subtract 1 from shared counters, and delete the others."""
        with transaction.atomic():
            for row in guess.counted:
                mine = self.filter(pk=row.pk)
                if row.kind not in SHARED:
                    mine.delete()
                elif not mine.filter(failures=row.failures).update(
                    failures=F("failures") - 1, locked_until=None
                ):
                    mine.filter(failures__gt=0).update(failures=F("failures") - 1)

    def record(self, guess: Guess, username: str = "", *, now: datetime) -> None:
        """Record wrong guesses as activities for administrators, up to a limit per hour.

        Only the names of existing accounts are recorded, because people sometimes type a password into the
        field for the user name.
        """
        recorded = [row for row in guess.counted if is_recorded(row.kind, row.failures)]
        if not recorded or _has_enough_records(now):
            return
        user = User.objects.filter(username=User.normalize_username(username.strip())).first()
        for row in recorded:
            row.record(user if row.account else None, now=now)

    def lift(self, *, username: str = "", address: str = "", initiator: Initiator, now: datetime) -> int:
        """Delete the counters of an account or address, or all counters. Return how many locks ended."""
        rows = self.all()
        if username:
            rows = rows.filter(account=_digest("account", User.normalize_username(username)))
        if address:
            rows = rows.filter(address=_normal(address))
        with transaction.atomic():
            locked = list(rows.filter(locked_until__gt=now))
            rows.delete()
            Activity.objects.record_each("unlock", locked, initiator=initiator, now=now)
        return len(locked)

    def prune_old(self, now: datetime) -> int:
        old = self.filter(last_at__lt=now - KEPT)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


class FailedSignIn(models.Model):
    """A counter of wrong guesses for an account, address or browser. User names are stored as digests."""

    kind = models.CharField(max_length=8, choices=Kind.choices)
    subject = models.CharField(max_length=64, unique=True)
    account = models.CharField(
        max_length=64,
        blank=True,
        help_text="A digest of the user name. Empty if the counter is not for a single account.",
    )
    address = models.CharField(max_length=45, blank=True)
    failures = models.PositiveIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    locked_until = models.DateTimeField(null=True)

    objects = FailedSignInQuerySet.as_manager()

    class Meta:
        verbose_name = "failed sign-in"
        default_permissions = ("view",)
        indexes = [models.Index(fields=["last_at"], name="failed_sign_in_by_age")]

    def __str__(self) -> str:
        what = "API calls" if self.kind == Kind.TOKEN else "sign-ins"
        return f"{what} from {self.address or 'anywhere'}"

    def wait(self, now: datetime) -> timedelta:
        return max((self.locked_until or now) - now, timedelta(0))

    def count(self, now: datetime) -> None:
        if self.last_at < now - FORGOTTEN_AFTER:
            self.failures, self.first_at = 0, now
        self.failures, self.last_at = self.failures + 1, now
        lock = lock_of(self.kind, self.failures)
        self.locked_until = now + lock if lock else None

    def record(self, user: User | None, *, now: datetime) -> None:
        who = f"“{user}”" if user else ("an unknown account" if self.account else "any account")
        what = "Unknown API tokens" if self.kind == Kind.TOKEN else f"Wrong passwords for {who}"
        message = (
            f"{what} from {self.address or 'any address'}: {self.failures:,} since {exact(self.first_at)}."
        )
        logger.warning(
            "%s %s", message, f"Locked until {exact(self.locked_until)}." if self.locked_until else ""
        )
        details = {
            "counted_for": self.get_kind_display(),
            "address": self.address,
            "failures": self.failures,
            "since": self.first_at.isoformat(),
            "locked_until": self.locked_until.isoformat() if self.locked_until else None,
        }
        by = Initiator.system("sign-in")
        Activity.objects.record(
            RECORDED_AS, user or self, initiator=by, now=now, message=message, details=details
        )


def address_of(request: Any) -> str:
    """Return the client's address. X-Forwarded-For is trusted only for the configured number of proxies."""
    address = request.META.get("REMOTE_ADDR", "")
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    if settings.JIM_PROXIES and forwarded[0]:
        address = forwarded[-min(settings.JIM_PROXIES, len(forwarded))]
    return _normal(address)


def _normal(address: str) -> str:
    """Normalise an address. For IPv6, return the /64 network, because one customer has 2^64 addresses."""
    try:
        known = ip_address(address.strip())
    except ValueError:
        return UNKNOWN
    if not isinstance(known, IPv6Address):
        return str(known)
    return str(known.ipv4_mapped or IPv6Address(int(known) >> 64 << 64))


def _browser(request: HttpRequest, account: str) -> str:
    try:
        known = signing.loads(
            request.COOKIES.get(settings.BROWSER_COOKIE_NAME, ""), salt=BROWSER_SALT, max_age=BROWSER_IS_KNOWN
        )
    except signing.BadSignature:
        return ""
    return str(known["browser"]) if known["account"] == account else ""


def _digest(*parts: str) -> str:
    return salted_hmac("jim.sign-in", "\n".join(parts), algorithm="sha256").hexdigest()


def _longest_wait(rows: Iterable[FailedSignIn], now: datetime) -> timedelta:
    return max((row.wait(now) for row in rows), default=timedelta(0))


def _has_enough_records(now: datetime) -> bool:
    last = Activity.objects.administrative().filter(finished_at__gt=now - timedelta(hours=1))
    records = last.filter(operation=RECORDED_AS)[:MOST_RECORDS_AN_HOUR]
    return records.count() >= MOST_RECORDS_AN_HOUR
