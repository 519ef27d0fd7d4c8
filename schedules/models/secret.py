"""Secrets: encrypted values, and the rotation of their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Q
from django.db.models.functions import Cast, Lower
from django.views.decorators.debug import sensitive_variables

from activities.models import Activity
from operations.initiator import Initiator
from schedules import vault
from schedules.vault import Keys, Undecryptable
from text.clean import clean_text

from .refusals import Refused, named
from .schedule import Schedule
from .step import Step, TaskFields
from .template import TaskTemplate

SHORTEST = 4
LONGEST_BYTES = 64 * 1024
LONGEST_DESCRIPTION = 1_000
BATCH = 100

# Columns of other apps whose values are encrypted with the same keys; an empty string means no value.
elsewhere: list[tuple[type[models.Model], str]] = []


class Survey(NamedTuple):
    """The numbers of values that are encrypted with the newest key and with older keys.

    `lost` has the names of the values that no key can decrypt.
    """

    newest: int
    older: int
    lost: list[str]


class SecretQuerySet(models.QuerySet["Secret"]):
    def is_anything_encrypted(self) -> bool:
        return self.exists() or any(_encrypted(*column).exists() for column in elsewhere)

    def names(self) -> set[str]:
        return set(self.values_list("name", flat=True))

    @sensitive_variables()
    def reveal(self, names: Iterable[str]) -> dict[str, str]:
        """Return a dict from name to value; omit unknown names. Raise Undecryptable if a key is missing."""
        values, locked = self._open(set(names))
        if locked:
            # Try once more: a rotation may have ended between reading the rows and reading the keys.
            opened, locked = self._open(locked)
            values |= opened
        if locked:
            raise Undecryptable(locked, vault.current())
        return values

    @sensitive_variables()
    def put(
        self, name: str, value: str, *, initiator: Initiator, now: datetime, description: str | None = None
    ) -> Secret:
        """Set the value of a secret, and create the secret if it does not exist."""
        check_value(value)
        same_name = self.filter(name=clean_text(name))
        with transaction.atomic():
            secret = same_name.first()
            if secret is None:
                try:
                    return self.define(
                        name, value, initiator=initiator, now=now, description=description or ""
                    )
                except (IntegrityError, ValidationError):
                    # Another process is creating it right now, or the name is wrong.
                    secret = same_name.first()
                    if secret is None:
                        raise
            secret.edit(value=value, initiator=initiator, now=now, description=description)
            return secret

    @sensitive_variables()
    def define(
        self, name: str, value: str, *, initiator: Initiator, now: datetime, description: str = ""
    ) -> Secret:
        """Create a secret; if anything is wrong, raise ValidationError with errors by field."""
        secret = Secret(name=name, description=description, created_at=now, changed_at=now)
        secret.full_clean(exclude=["token"])
        check_value(value)
        with transaction.atomic():
            secret.token = keys_to_write_with().encrypt(value)
            secret.save(force_insert=True)
            details = {"name": secret.name, "description": secret.description}
            Activity.objects.record("create", secret, initiator=initiator, now=now, details=details)
        return secret

    def rotate(
        self, *, initiator: Initiator, now: datetime, keep_old: bool = False, skip_lost: bool = False
    ) -> Iterator[str]:
        """Encrypt all values again with a newly generated key, and yield a message for each step.

        If JIM_SECRETS_KEYS is set, its first key is used instead, and no key is added or removed. A rotation
        that was interrupted can be started again: an older key is removed only when no value needs that key
        any more. `keep_old` keeps all older keys. Values that no key can decrypt stay as they are if
        `skip_lost`; otherwise Undecryptable is raised.
        """
        if (lost := self.survey().lost) and not skip_lost:
            raise Undecryptable(lost, vault.current())
        if settings.JIM_SECRETS_KEYS:
            yield from self._renew(initiator=initiator, now=now)
            return
        with _writers_locked_out():
            keys = vault.add_key()
        yield f"Added a new key to the beginning of {keys.source}."
        yield from self._renew(initiator=initiator, now=now)
        if keep_old:
            return
        while (dropped := self._drop_old(keys)) is None:
            yield from self._renew(initiator=initiator, now=now)
        yield f"{dropped} older {'key was' if dropped == 1 else 'keys were'} removed."

    def survey(self) -> Survey:
        keys, newest, older, lost = vault.current(), 0, 0, []
        for name, token in self._tokens():
            if keys.newest.decrypt(token) is not None:
                newest += 1
            elif keys.decrypt(token) is not None:
                older += 1
            else:
                lost.append(name)
        return Survey(newest, older, lost)

    def lock(self) -> SecretQuerySet:
        return self.select_for_update(of=("self",), no_key=True)

    def _open(self, names: set[str]) -> tuple[dict[str, str], set[str]]:
        """Return the decrypted values by name, and the names of the secrets that no key can decrypt."""
        wanted = [clean_text(name) for name in names]
        tokens = dict(self.filter(name__in=wanted).values_list("name", "token")) if wanted else {}
        if not tokens:
            return {}, set()
        keys = vault.current()
        values = {name: keys.decrypt(token) for name, token in tokens.items()}
        opened = {name: value for name, value in values.items() if value is not None}
        return opened, values.keys() - opened.keys()

    def _tokens(self) -> Iterator[tuple[str, str]]:
        yield from self.order_by("name").values_list("name", "token").iterator()
        for model, field in elsewhere:
            for row in _encrypted(model, field).order_by("pk"):
                yield str(row), getattr(row, field)

    def _renew(self, *, initiator: Initiator, now: datetime) -> Iterator[str]:
        done, total, last = 0, self.count(), 0
        while ids := list(self.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH]):
            done, last = done + len(ids), ids[-1]
            with transaction.atomic():
                keys = keys_to_write_with()
                for secret in self.filter(pk__in=ids).order_by("pk"):
                    secret._renew(keys, initiator=initiator, now=now)
            yield f"Secrets checked and, where necessary, re-encrypted: {done:,} of {max(done, total):,}."
        for model, field in elsewhere:
            if done := _renew_column(model, field):
                names = model._meta.verbose_name if done == 1 else model._meta.verbose_name_plural
                yield f"Re-encrypted the values of {done:,} {names}."

    def _drop_old(self, keys: Keys) -> int | None:
        """Remove the older keys and return how many. If a value still needs one, keep all and return None."""
        with _writers_locked_out():
            return None if self.survey().older else vault.drop_old(keys)


class Secret(models.Model):
    """An encrypted value that steps refer to by name. Once saved, the value is never shown."""

    name = models.CharField(
        max_length=64,
        validators=[
            RegexValidator(
                r"\A[a-z0-9_-]{1,64}\Z",
                "A name can have up to 64 lower-case letters, digits, - and _, such as smtp_password.",
            )
        ],
    )
    description = models.TextField(max_length=LONGEST_DESCRIPTION, blank=True)
    token = models.TextField(editable=False)
    created_at = models.DateTimeField(editable=False)
    changed_at = models.DateTimeField(editable=False)

    objects = SecretQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["name"],
                name="secret_name_once",
                violation_error_code="unique",
                violation_error_message="A secret with this name already exists: choose another name.",
            ),
            models.CheckConstraint(condition=Q(name=Lower("name")), name="secret_name_lower_case"),
        ]

    def __str__(self) -> str:
        return self.name

    @sensitive_variables()
    def edit(
        self, *, initiator: Initiator, now: datetime, value: str = "", description: str | None = None
    ) -> None:
        """Change the value, the description or both.

        An empty `value` keeps the current value, and None keeps the current description.
        """
        with transaction.atomic():
            self._take()
            changed = self._describe(description) + self._replace(value, now=now)
            if changed:
                self.save()
                message = f"new {' and '.join(changed)}"
                Activity.objects.record("edit", self, initiator=initiator, now=now, message=message)

    def remove(self, *, initiator: Initiator, now: datetime) -> None:
        """Delete the secret; raise Refused while an open schedule or an active template uses it."""
        with transaction.atomic():
            self._take()
            if users := self.used_by() or self._templates():
                raise Refused(
                    f"“{self}” is used by {named(users)}. Change, close or archive "
                    "everything that uses the secret, then delete the secret."
                )
            Activity.objects.record("delete", self, initiator=initiator, now=now)
            self.delete()

    def used_by(self) -> list[Schedule]:
        """Return the open schedules with a step that refers to the secret."""
        steps = (
            Step.objects.exclude(schedule__status=Schedule.Status.CLOSED)
            .annotate(text=Cast("config", models.TextField()))
            .filter(text__contains="secrets")
            .filter(text__contains=self.name)
            .select_related("schedule")
            .order_by("schedule__name")
        )
        return list({step.schedule_id: step.schedule for step in steps if self._is_named_in(step)}.values())

    def _templates(self) -> list[TaskTemplate]:
        templates = TaskTemplate.objects.active().order_by("name")
        return [template for template in templates if self._is_named_in(template)]

    def clean(self) -> None:
        self.description = clean_text(self.description.strip())
        if len(self.description) > LONGEST_DESCRIPTION:
            raise ValidationError(
                {"description": f"A description can be at most {LONGEST_DESCRIPTION:,} characters long."}
            )

    def _is_named_in(self, task: TaskFields) -> bool:
        return any(ref.kind == "secret" and ref.name == self.name for _, ref in task.references())

    def _take(self) -> None:
        """Lock and reload this secret; raise Refused if it has been deleted."""
        fresh = Secret.objects.lock().filter(pk=self.pk).first()
        if fresh is None:
            raise Refused(f"“{self}” was deleted in the meantime.")
        self.__dict__.update(
            {field.attname: getattr(fresh, field.attname) for field in self._meta.concrete_fields}
        )

    def _describe(self, description: str | None) -> list[str]:
        before = self.description
        if description is not None:
            self.description = description
            self.full_clean(exclude=["token"])
        return ["description"] if self.description != before else []

    def _replace(self, value: str, *, now: datetime) -> list[str]:
        if not value:
            return []
        check_value(value)
        self.token, self.changed_at = keys_to_write_with().encrypt(value), now
        return ["value"]

    @sensitive_variables()
    def _renew(self, keys: Keys, *, initiator: Initiator, now: datetime) -> None:
        """Encrypt the value with the newest key, unless an edit has replaced the value in the meantime."""
        value = keys.decrypt(self.token) if keys.newest.decrypt(self.token) is None else None
        if value is None:
            return
        unchanged = Secret.objects.filter(pk=self.pk, token=self.token)
        if unchanged.update(token=keys.encrypt(value)):
            Activity.objects.record("rotate", self, initiator=initiator, now=now)


def _encrypted(model: type[models.Model], field: str) -> models.QuerySet[Any]:
    return model._default_manager.exclude(**{field: ""})


@sensitive_variables()
def _renew_column(model: type[models.Model], field: str) -> int:
    done = 0
    with transaction.atomic():
        keys = keys_to_write_with()
        for pk, token in list(_encrypted(model, field).order_by("pk").values_list("pk", field)):
            value = keys.decrypt(token) if keys.newest.decrypt(token) is None else None
            if value is not None:
                unchanged = model._default_manager.filter(pk=pk, **{field: token})
                done += unchanged.update(**{field: keys.encrypt(value)})
    return done


def check_value(value: str) -> None:
    """Raise ValidationError if the value cannot be a secret; the message does not contain the value."""
    if clean_text(value) != value:
        complaint = "The value contains NUL or an unpaired surrogate: remove these characters."
    elif len(value.strip()) < SHORTEST:
        complaint = (
            f"A value must have at least {SHORTEST} characters: shorter values cannot be masked in output."
        )
    elif (size := len(value.encode())) > LONGEST_BYTES:
        complaint = f"The value is {size:,} bytes long: at most {LONGEST_BYTES:,} are allowed."
    else:
        return
    raise ValidationError({"value": complaint})


def keys_to_write_with() -> Keys:
    """Return the keys to encrypt with. Until the transaction ends, no rotation can remove any of them."""
    _lock_table("ROW EXCLUSIVE")
    return vault.for_writing(may_make_one=not Secret.objects.is_anything_encrypted())


@contextmanager
def _writers_locked_out() -> Iterator[None]:
    """Wait for all writers of encrypted values, and make new writers wait until the block ends.

    So the block sees all values that were written earlier, and later writers use the new keys.
    """
    with transaction.atomic():
        _lock_table("SHARE ROW EXCLUSIVE")
        yield


def _lock_table(mode: str) -> None:
    """Lock the table of secrets; on SQLite, the transaction itself is the lock."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {Secret._meta.db_table} IN {mode} MODE")
