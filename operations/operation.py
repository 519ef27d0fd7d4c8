"""Operations that pages and the admin offer. Each has a confirmation page."""

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
    """The operation was refused; the message is text or safe markup."""


@dataclass(frozen=True)
class Done:
    """The message about a completed operation, and the page to show next.

    `reveal` is safe markup that is shown once, in the response itself, and never stored in the session.
    """

    message: str
    url: str = ""
    reveal: str = ""


class OnceForm(forms.Form):
    """A form with a hidden key by which a repeated submission, such as a double click, is recognised."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput, initial=uuid.uuid4)


class Operation(ABC, Generic[M]):
    """Something that a user can do with rows of a model, after confirming it."""

    name: ClassVar[str]
    label: ClassVar[str]
    permission: ClassVar[str]
    question: ClassVar[str]
    form: type[forms.Form] = forms.Form
    is_final: ClassVar[bool] = False
    is_rehearsed: ClassVar[bool] = False

    @abstractmethod
    def perform(self, target: M, *, answers: dict[str, Any], initiator: Initiator, now: datetime) -> Done:
        """Perform the operation; raise Declined, or ValidationError if an answer is invalid."""

    def rehearse(self, target: M, *, answers: dict[str, Any], now: datetime) -> str:
        """Describe what `perform` would do, as safe markup; raise the same errors as `perform`."""
        return ""

    def ask(self, targets: Sequence[M], asked: QueryDict, given: QueryDict | None = None) -> forms.Form:
        """Build the form of the confirmation page.

        `asked` has the query parameters of the page. `given` has the submitted answers, if there are any.
        """
        return self.form(given)

    def about(self, target: M) -> str:
        """Return a remark about one target for the confirmation page."""
        return ""

    def applies(self, target: M) -> bool:
        """Return whether to show the button for this target; `perform` checks again whether it applies."""
        return True

    def is_allowed(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.permission)


_offered: dict[str, list[Operation[Any]]] = {}


def offer(model: type[Model], *operations: Operation[Any], first: bool = False) -> None:
    """Offer operations on rows of a model, listed after those offered before; with `first`, ahead of them."""
    known = _offered.setdefault(model._meta.label, [])
    known[0 if first else len(known) :] = [*operations, *(known if first else ())]


def offered_for(model: type[Model]) -> Sequence[Operation[Any]]:
    load_operations()
    return _offered.get(model._meta.label, ())


@cache
def load_operations() -> None:
    """Load the module `operations` of each app. Workers never call this, as they need no forms."""
    autodiscover_modules("operations")


def perform_each(
    request: HttpRequest, operation: Operation[Any], targets: Sequence[Model], form: forms.Form
) -> list[Done] | None:
    """Perform the operation on each target, and show a message about each.

    Return the results of the operations that were not declined, or None if an answer is invalid.
    """
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
    """Encode the submitted answers, so that they can be compared with the answers given for the dry run."""
    return urlencode(
        sorted((n, v) for n, v in request.POST.items() if n not in ("csrfmiddlewaretoken", "rehearsed"))
    )
