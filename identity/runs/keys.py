"""Keep the keys by which accounts and identities are found in step with the join rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from database.statements import insert_each
from identity.models import Account, AccountKey, Attribute, Identity, IdentityAttribute, IdentityKey
from identity.rulebook import Rulebook
from identity.values import as_list, folded

from .run import Run

AT_ONCE = 5_000


def add_missing_keys(run: Run, book: Rulebook) -> None:
    """Add keys for the attributes by which a rule joins for the first time."""
    for kind in book.types.values():
        _add(run, kind.keys, Attribute, Account, AccountKey, "account", kind.id)
    for each in book.identity_types.values():
        _add(run, each.keys, IdentityAttribute, Identity, IdentityKey, "identity", each.id)


def _add(
    run: Run, keys: Mapping[str, int], attribute: Any, model: Any, key: Any, owner: str, type_id: int
) -> None:
    of_type = attribute.objects.filter(type=type_id, is_keyed=True)
    if unused := list(of_type.exclude(pk__in=keys.values()).values_list("pk", flat=True)):
        run.page(partial(_forget, unused, attribute, key))
    known = set(attribute.objects.filter(pk__in=keys.values(), is_keyed=True).values_list("pk", flat=True))
    new = {name: pk for name, pk in keys.items() if pk not in known}
    if not new:
        return
    key.objects.filter(attribute__in=new.values()).delete()
    last: int | None = 0
    while last is not None:
        objects = model.objects.filter(type=type_id, pk__gt=last).order_by("pk")
        last = run.page(partial(_add_some, objects, new, key, owner))
    run.page(lambda: attribute.objects.filter(pk__in=new.values()).update(is_keyed=True))


def _forget(unused: list[int], attribute: Any, key: Any) -> None:
    """Forget keys that no rule needs: imports do not keep them in step."""
    attribute.objects.filter(pk__in=unused).update(is_keyed=False)
    key.objects.filter(attribute__in=unused).delete()


def _add_some(objects: Any, keys: Mapping[str, int], key: Any, owner: str) -> int | None:
    some = list(objects[:AT_ONCE].values_list("pk", "attrs"))
    rows = [
        (pk, attribute, folded(value)[:255])
        for pk, attrs in some
        for name, attribute in keys.items()
        for value in as_list(attrs.get(name))
    ]
    if rows:
        insert_each(key, (owner, "attribute", "value"), rows)
    return some[-1][0] if some else None
