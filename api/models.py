"""API tokens, and stored responses to requests with an Idempotency-Key."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import Q

from activities.models import Activity
from database.statements import AWAY
from execution.loops.housekeeping import BATCH
from operations.initiator import Initiator
from schedules.models import Refused

from .guessing import FailedSignIn as FailedSignIn
from .rates import Usage as Usage
from .scopes import SCOPES, reach

MARK = "jim"
USE_IS_NOTED_EVERY = timedelta(minutes=1)
KEPT_AFTER_ITS_END = timedelta(days=30)
ANSWERS_ARE_KEPT = timedelta(hours=24)


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    def issue(
        self,
        *,
        name: str,
        scopes: Sequence[str],
        user: User,
        initiator: Initiator,
        now: datetime,
        expires_at: datetime | None = None,
        parent: ApiToken | None = None,
    ) -> tuple[ApiToken, str]:
        """Create a token and return it with its secret text, which is not stored.

        A token created with another token (`parent`) expires no later than that token.
        """
        prefix, text = _new_text()
        if parent is not None and expires_at is None:
            expires_at = parent.expires_at
        token = ApiToken(
            user=user,
            name=name.strip(),
            prefix=prefix,
            digest=_digest(text),
            scopes=sorted(set(scopes), key=list(scopes).index),
            created_at=now,
            expires_at=expires_at,
            parent=parent,
        )
        token.check_definition(now)
        with transaction.atomic():
            # The lock waits for a revocation in progress, so that a revoked token cannot create tokens.
            if (
                parent
                and not self.filter(pk=parent.pk, revoked_at=None).select_for_update(no_key=True).first()
            ):
                raise Refused(f"The token “{parent}” was revoked and cannot create tokens.")
            token.save(force_insert=True)
            details = {"prefix": prefix, "scopes": token.scopes, "user": str(user)}
            Activity.objects.record("create", token, initiator=initiator, now=now, details=details)
        return token, text

    def living(self, now: datetime) -> ApiTokenQuerySet:
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)

    def named_by(self, text: str, *, now: datetime) -> ApiToken | None:
        """Return the token with this text if it is valid and its user is active, else None."""
        living = self.living(now).filter(digest=_digest(text), user__is_active=True)
        return living.select_related("user").first()

    def revoke(self, *, initiator: Initiator, now: datetime, message: str = "") -> int:
        """Revoke these tokens and all tokens created with them. Return how many were revoked."""
        count, found = 0, self.all()
        with transaction.atomic():
            while tokens := list(found.filter(revoked_at=None).select_for_update(no_key=True).order_by("pk")):
                ids = [token.pk for token in tokens]
                count += ApiToken.objects.filter(pk__in=ids).update(revoked_at=now)
                Activity.objects.record_each("revoke", tokens, initiator=initiator, now=now, message=message)
                found = ApiToken.objects.filter(parent__in=ids)
        return count

    def prune_old(self, now: datetime) -> int:
        """Delete a batch of tokens that were revoked or expired long ago. Their activities are kept."""
        before = now - KEPT_AFTER_ITS_END
        old = self.filter(Q(revoked_at__lt=before) | Q(expires_at__lt=before))
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


class ApiToken(models.Model):
    """A credential with which a program acts for a user, limited by scopes. Only a digest is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    parent = models.ForeignKey(
        "self",
        models.CASCADE,
        null=True,
        blank=True,
        related_name="made",
        help_text="The token with which this token was created. If that token is revoked, this token is "
        "revoked, too.",
    )
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = ApiTokenQuerySet.as_manager()

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({MARK}_{self.prefix}…)"

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"

    def allows(self, permission: str) -> bool:
        return reach(self.scopes, permission)

    def check_definition(self, now: datetime) -> None:
        """Raise a ValidationError with messages by field if a value of the token is invalid."""
        errors: dict[str, str] = {}
        if not self.scopes or set(self.scopes) - set(SCOPES):
            errors["scopes"] = f"Choose at least one of these scopes: {', '.join(SCOPES)}."
        if self.expires_at is not None and self.expires_at <= now:
            errors["expires_at"] = "The expiry time must be in the future."
        elif self.parent and self.parent.expires_at and (self.expires_at or now) > self.parent.expires_at:
            until = self.parent.expires_at.isoformat()
            errors["expires_at"] = (
                f"Choose {until} or an earlier time, because the token used for this request expires then."
            )
        if errors:
            raise ValidationError(errors)
        self.full_clean(validate_unique=False)

    def note_use(self, now: datetime) -> None:
        """Store the time of use, at most once a minute. Do nothing if the database is unavailable."""
        if self.last_used_at is None or self.last_used_at < now - USE_IS_NOTED_EVERY:
            mine = ApiToken.objects.filter(pk=self.pk, last_used_at=self.last_used_at)
            with suppress(*AWAY):
                mine.update(last_used_at=now)

    def revoke(self, *, initiator: Initiator, now: datetime) -> bool:
        """Revoke this token and all tokens created with it. Return False if it was already revoked."""
        if not ApiToken.objects.filter(pk=self.pk).revoke(initiator=initiator, now=now):
            return False
        self.revoked_at = now
        return True


def _new_text() -> tuple[str, str]:
    prefix = secrets.token_hex(4)
    return prefix, f"{MARK}_{prefix}_{secrets.token_urlsafe(32)}"


def _digest(text: str) -> str:
    """Return the digest of a token. It needs no salt or stretching, because a token has 256 random bits."""
    return hashlib.sha256(text.encode()).hexdigest()


class KeyedAnswerQuerySet(models.QuerySet["KeyedAnswer"]):
    def prune_old(self, now: datetime) -> int:
        old = self.filter(created_at__lt=now - ANSWERS_ARE_KEPT)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


class KeyedAnswer(models.Model):
    """The stored response to a request with an Idempotency-Key, committed with the request's changes."""

    principal = models.CharField(max_length=64)
    route = models.CharField(max_length=200)
    key = models.CharField(max_length=200)
    request_digest = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    status = models.PositiveSmallIntegerField(null=True)
    headers = models.JSONField(default=dict)
    body = models.JSONField(null=True)

    objects = KeyedAnswerQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["principal", "route", "key"], name="answer_once_per_key"),
        ]
        indexes = [models.Index(fields=["created_at"], name="answer_by_age")]
