"""Systems, identity types and rules are defined by documents; what is wrong is said by path."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.models import Limit
from identity.connectors import connector
from identity.documents import IDENTITY_TYPE, RULE, SYSTEM, checked
from identity.models import Account, ConnectedSystem, IdentityType, SyncRule
from schedules.models import Conflict, Refused
from tests.base import NOW, SOMEBODY

from .memory import MemoryConnector

pytestmark = pytest.mark.django_db
ATTRIBUTES = [{"name": "id"}, {"name": "mail"}, {"name": "phones", "multi": True}]
HR = {
    "name": "HR",
    "connector": "memory",
    "config": {"store": "hr"},
    "types": [{"name": "person", "external_id": "id", "attributes": ATTRIBUTES}],
    "profiles": [{"name": "Full import", "run_type": "full_import"}],
}
PERSON = {"name": "Person", "display": "mail", "attributes": ATTRIBUTES}
RULE_IN = {
    "name": "HR in",
    "direction": "in",
    "system": "HR",
    "object_type": "person",
    "identity_type": "Person",
    "scope": {"attribute": "mail", "operator": "is_set"},
    "joins": [[{"account": "id", "identity": "id"}]],
    "flows": [{"target": "id", "source": "id"}, {"target": "mail", "expression": "lower(mail)"}],
}


@pytest.fixture(autouse=True)
def _memory() -> None:
    connector.connectors.setdefault("memory", MemoryConnector)


def system(**fields: Any) -> ConnectedSystem:
    return ConnectedSystem.objects.define(checked(HR | fields, SYSTEM), initiator=SOMEBODY, now=NOW)


def person(**fields: Any) -> IdentityType:
    return IdentityType.objects.define(checked(PERSON | fields, IDENTITY_TYPE), initiator=SOMEBODY, now=NOW)


def rule(**fields: Any) -> SyncRule:
    return SyncRule.objects.define(checked(RULE_IN | fields, RULE), initiator=SOMEBODY, now=NOW)


def edit(row: Any, parts: Any, revision: int = 1, **fields: Any) -> bool:
    document = checked(row.definition() | fields, parts)
    changed: bool = row.edit(document, revision=revision, initiator=SOMEBODY, now=NOW)
    return changed


def refused(make: Any) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as error:
        make()
    return error.value.message_dict if hasattr(error.value, "error_dict") else {"": error.value.messages}


# What is defined


def test_a_definition_is_a_document_that_defines_the_same() -> None:
    made = system()
    made_type, made_rule = person(), rule()

    for row, parts in ((made, SYSTEM), (made_type, IDENTITY_TYPE), (made_rule, RULE)):
        document = row.definition()
        assert checked(document, parts) == document
        assert not row.edit(document, revision=1, initiator=SOMEBODY, now=NOW)
        row.refresh_from_db()
        assert row.revision == 1


def test_a_system_has_the_limit_of_one_run() -> None:
    made = system()

    keys = [f"resource:connected-system:{made.pk}", "resource:metaverse"]
    assert list(Limit.objects.filter(pk__in=keys).values_list("size", flat=True)) == [1, 1]


def test_an_edit_keeps_the_rows_that_have_the_same_name() -> None:
    made = system()
    before = dict(made.types.get().attributes.values_list("name", "pk"))
    attributes = [{"name": "ID"}, {"name": "mail", "kind": "text"}, {"name": "salary", "kind": "integer"}]

    assert edit(made, SYSTEM, types=[{"name": "person", "external_id": "ID", "attributes": attributes}])

    after = dict(made.types.get().attributes.values_list("name", "pk"))
    assert (after["ID"], after["mail"], set(after)) == (
        before["id"],
        before["mail"],
        {"ID", "mail", "salary"},
    )


def test_a_flow_without_a_priority_comes_last() -> None:
    system()
    person()

    first, second = rule(), rule(name="Second")

    assert [flow.priority for flow in first.flows.all()] == [100, 100]
    assert [flow.priority for flow in second.flows.all()] == [200, 200]


def test_each_change_is_recorded() -> None:
    made = system()
    stored = made.definition()
    edit(made, SYSTEM, name="Human resources")

    created, edited = Activity.objects.filter(target_type="connectedsystem").order_by("pk")
    assert (created.operation, edited.operation) == ("create", "edit")
    assert created.details == stored
    assert edited.details == {"before": stored, "after": stored | {"name": "Human resources"}}


# What is refused


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"name": ""}, "name", "This is required."),
        ({"name": 7}, "name", "Must be text, not 7."),
        ({"name": "x" * 101}, "name", "Has 101 characters; at most 100 are allowed."),
        ({"nam": "HR"}, "nam", "Unknown. Did you mean “name”?"),
        ({"types": {}}, "types", "Must be a list, not {}."),
        ({"types": [7]}, "types.0", "Must be an object, not 7."),
        ({"types": [{"name": "a"}]}, "types.0.external_id", "This is required."),
        (
            {"types": [{"name": "a", "external_id": "id", "attributes": [{"name": "x", "kind": "list"}]}]},
            "types.0.attributes.0.kind",
            "Must be one of text, integer, decimal, boolean, date, datetime, uuid, binary, reference, "
            "not 'list'.",
        ),
        (
            {"types": [{"name": "a", "external_id": "x", "attributes": [{"name": "x"}, {"name": "X"}]}]},
            "types.0.attributes.1.name",
            "Occurs twice. Use each name once.",
        ),
        (
            {"profiles": [{"name": "a", "run_type": "export", "page_size": 0}]},
            "profiles.0.page_size",
            "Must be from 1 to 10,000, not 0.",
        ),
        (
            {"profiles": [{"name": "a", "run_type": "export", "limits": {"deletes": {"percent": 101}}}]},
            "profiles.0.limits.deletes.percent",
            "Must be from 0 to 100, not 101.",
        ),
        (
            {"profiles": [{"name": "a", "run_type": "export", "limits": {"all": {}}}]},
            "profiles.0.limits.all",
            "Unknown. Known limits: absent, losses, deletes.",
        ),
    ],
)
def test_a_document_is_checked_by_path(fields: dict[str, Any], path: str, message: str) -> None:
    assert refused(lambda: checked(HR | fields, SYSTEM)) == {path: [message]}


@pytest.mark.parametrize("document", [None, 7, [], "HR"])
def test_what_is_no_object_is_refused(document: object) -> None:
    assert list(refused(lambda: checked(document, SYSTEM))) == ["document"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"connector": "ldap"}, "connector"),
        ({"config": {}}, "config.store"),
        ({"config": {"store": "x", "path": "y"}}, "config.path"),
        ({"types": [{"name": "person", "external_id": "no", "attributes": ATTRIBUTES}]}, "external_id"),
    ],
)
def test_a_system_that_cannot_work_is_refused(fields: dict[str, Any], path: str) -> None:
    assert list(refused(lambda: system(**fields))) == [path]
    assert not ConnectedSystem.objects.exists()


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"system": "AD"}, "system", "Unknown connected system “AD”."),
        ({"object_type": "group"}, "object_type", "“HR” has no type “group”."),
        ({"identity_type": "Group"}, "identity_type", "Unknown identity type “Group”."),
        ({"flows": [{"target": "id"}]}, "flows.0", "Needs either a source or an expression."),
        (
            {"flows": [{"target": "id", "source": "nr"}]},
            "flows.0",
            "Unknown attribute “nr”; known attributes: id, mail, phones.",
        ),
        (
            {"flows": [{"target": "id", "source": "id"}, {"target": "mail", "expression": "lower(mial)"}]},
            "flows.1",
            "Character 7: unknown attribute “mial”; did you mean mail?",
        ),
        ({"joins": [{}]}, "joins.0", None),
        ({"joins": [[{"account": "id"}]]}, "joins.0", None),
        ({"joins": [[{"account": "id", "identity": "nr"}]]}, "joins.0", None),
        ({"scope": {"attribute": "id", "operator": "like"}}, "scope", None),
        ({"disable_values": {"phones": "1", "status": "off"}}, "disable_values", None),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(
    fields: dict[str, Any], path: str, message: str | None
) -> None:
    system()
    person()

    errors = refused(lambda: rule(**fields))

    assert list(errors) == [path]
    assert message is None or errors[path] == [message]
    assert not SyncRule.objects.exists()


def test_a_rule_keeps_its_flows_if_an_edit_is_refused() -> None:
    system()
    person()
    made = rule()

    refused(lambda: edit(made, RULE, flows=[{"target": "nowhere", "source": "id"}]))

    assert [flow.target for flow in made.flows.all()] == ["id", "mail"]


def test_an_edit_of_an_older_revision_is_refused() -> None:
    system()
    for row, parts in ((system(name="AD"), SYSTEM), (person(), IDENTITY_TYPE), (rule(), RULE)):
        assert edit(row, parts, name="New name")
        with pytest.raises(Conflict):
            edit(row, parts, name="Newer name", revision=1)
        row.refresh_from_db()
        assert (row.name, row.revision) == ("New name", 2)
        edit(row, parts, name="Person" if row._meta.model_name == "identitytype" else "Old", revision=2)


def test_a_type_with_accounts_cannot_be_removed() -> None:
    made = system()
    Account.objects.create(system=made, type=made.types.get(), external_id="1")

    assert refused(lambda: edit(made, SYSTEM, types=[])) == {
        "": ["JIM knows objects of the type person. Clear the system before you remove this type."]
    }


def test_an_identity_type_with_identities_cannot_be_deleted() -> None:
    made = person()
    made.identities.create(uuid="12345678-1234-5678-1234-567812345678")

    with pytest.raises(Refused, match="There are identities of the type “Person”"):
        made.remove(initiator=SOMEBODY, now=NOW)


def test_names_are_unique_apart_from_case() -> None:
    system()

    assert list(refused(lambda: system(name="hr"))) == ["name"]
