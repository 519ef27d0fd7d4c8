"""Verbs that pages and the admin offer. Each asks on a page of its own before it does anything."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, QueryDict
from django.utils.module_loading import autodiscover_modules

from database import clock

from .form_errors import complain
from .initiator import Initiator

M = TypeVar("M", bound=Model)
MOST_AT_ONCE = 100
UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Declined(Exception):
    """It cannot be done; says why, as text or safe markup."""


@dataclass(frozen=True)
class Done:
    """What was done, and the page that shows it.

    `reveal` is safe markup that is shown once, in the answer itself: it must not be kept until the next page.
    """

    message: str
    url: str = ""
    reveal: str = ""


class OnceForm(forms.Form):
    """Asks for the same thing however often it is sent, as by a double click: `key` tells."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput, initial=uuid.uuid4)


class Operation(ABC, Generic[M]):
    name: ClassVar[str]
    label: ClassVar[str]
    permission: ClassVar[str]
    question: ClassVar[str]
    form: type[forms.Form] = forms.Form
    is_final: ClassVar[bool] = False
    is_rehearsed: ClassVar[bool] = False

    @abstractmethod
    def perform(self, target: M, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        """May raise Declined, or ValidationError about the answers."""

    def rehearse(self, target: M, *, answers: dict[str, Any], now: datetime) -> str:
        """What it would do, as safe markup, for those that show it first; may raise as `perform` does."""
        return ""

    def ask(self, targets: Sequence[M], asked: QueryDict, given: QueryDict | None = None) -> forms.Form:
        """The form of its page, whose address is `asked`; with the answers, once they are given."""
        return self.form(given)

    def about(self, target: M) -> str:
        """What to know about one of them before it is done."""
        return ""

    def applies(self, target: M) -> bool:
        """Whether its button is shown; `perform` decides anew."""
        return True

    def is_allowed(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.permission)


_offered: dict[str, list[Operation[Any]]] = {}


def offer(model: type[Model], *operations: Operation[Any], first: bool = False) -> None:
    """Offer them for rows of a model, after those of other apps or before. Modules `operations` call it."""
    known = _offered.setdefault(model._meta.label, [])
    known[0 if first else len(known) :] = [*operations, *(known if first else ())]


def offered_for(model: type[Model]) -> Sequence[Operation[Any]]:
    load_operations()
    return _offered.get(model._meta.label, ())


@cache
def load_operations() -> None:
    """Load the module `operations` of each app, when a page first needs it: workers have no use for forms."""
    autodiscover_modules("operations")


def perform_each(
    request: HttpRequest, operation: Operation[Any], targets: Sequence[Model], form: forms.Form
) -> list[Done] | None:
    """One after the other, each on its own, and each told; None if the answers turned out to be wrong."""
    assert request.user.is_authenticated
    by, now, done = Initiator.user(request.user), clock.now(), []
    for target in targets:
        try:
            result = operation.perform(target, answers=form.cleaned_data, initiator=by, now=now)
        except Declined as declined:
            messages.error(request, declined.args[0])
        except ValidationError as error:
            complain(form, error)
            return None
        else:
            messages.success(request, result.message)
            done.append(result)
    return done


def answers_of(request: HttpRequest) -> str:
    """What was typed, to tell whether it is still what was rehearsed."""
    return urlencode(
        sorted((n, v) for n, v in request.POST.items() if n not in ("csrfmiddlewaretoken", "rehearsed"))
    )
