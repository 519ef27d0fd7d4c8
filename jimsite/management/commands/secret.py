from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from django.core.management.base import CommandParser
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables

from jimsite.arguments import called
from jimsite.form_options import unseen
from jimsite.terminal import on_clock
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Secret
from schedules.secret_form import as_meant

NONE_YET = "“secret set” creates one"
SECRETS = Target(
    "SECRET",
    "name by which steps refer to the secret",
    partial(called, Secret.objects.all(), by="name", kind="secret", none_yet=NONE_YET),
)


class Command(VerbsCommand):
    help = "List, set and delete secrets: values that steps refer to by name. A value is never shown again."

    def verbs(self) -> Iterator[Verb]:
        yield Verb("list", "List the names of secrets, and when each was last set.", self.list_all)
        yield Verb(
            "set",
            "Create or change a secret. The value is read from standard input or a hidden prompt, never from "
            "an argument, because shells store arguments and other users can see them.",
            self.put,
            _ask_secret,
        )
        yield from self.operations_of(Secret, SECRETS)

    def list_all(self, options: dict[str, Any]) -> None:
        rows = list(Secret.objects.defer("token").order_by("name"))
        self.tell({"secrets": [_facts(row) for row in rows]}, lambda: self._show(rows))

    def _show(self, rows: Sequence[Secret]) -> None:
        if not rows:
            self.say(f"No secrets yet: {NONE_YET}.")
            return
        columns = {
            "Secret": [row.name for row in rows],
            "Changed (UTC)": [on_clock(row.changed_at) for row in rows],
            "Description": [row.description for row in rows],
        }
        self.columns(columns)

    @method_decorator(sensitive_variables())
    def put(self, options: dict[str, Any]) -> None:
        value = as_meant(unseen("Value"))
        secret = Secret.objects.put(
            options["name"], value, initiator=self.by, now=self.now, description=options["description"]
        )
        facts = {"name": secret.name, "description": secret.description}
        self.tell(facts, lambda: self.say(f"“{secret}” is set."))


def _ask_secret(parser: CommandParser) -> None:
    parser.add_argument(
        "name", metavar=SECRETS.metavar, help="name of the secret: lower-case letters, digits, - and _"
    )
    parser.add_argument(
        "--description", metavar="TEXT", help="purpose; if not given, the stored description is kept"
    )


def _facts(secret: Secret) -> dict[str, Any]:
    return {
        "name": secret.name,
        "description": secret.description,
        "created_at": secret.created_at,
        "changed_at": secret.changed_at,
    }
