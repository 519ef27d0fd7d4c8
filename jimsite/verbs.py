"""Commands with verbs, such as `limit set` and `limit delete`.

Most verbs are Operations: the fields of an Operation's form become options, and an Operation that is final
asks for confirmation.
"""

from __future__ import annotations

import argparse
import copy
import html
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db.models import Model
from django.http import QueryDict
from django.utils.html import strip_tags
from django.utils.safestring import SafeData

from operations.form_errors import complain
from operations.initiator import Initiator
from operations.operation import Declined, Done, Operation, offered_for
from schedules.models import Refused

from .form_options import FormOptions
from .terminal import WRONG, JimCommand, complaints, printable

# A question at the end of a text that says what the operation does.
_QUESTION = re.compile(r"(^|(?<=[.;] ))[^.;?]*\?\s*$")


@dataclass(frozen=True)
class Target:
    """What a verb acts on: its name and help text, and a function that finds it or raises Refused."""

    metavar: str
    help: str
    find: Callable[[str], Any]


@dataclass(frozen=True)
class Verb:
    name: str
    help: str
    run: Callable[[dict[str, Any]], None]
    ask: Callable[[CommandParser], None] = lambda parser: None


class OperatingCommand(JimCommand):
    """A command that performs Operations."""

    def ask_operation(self, parser: CommandParser, operation: Operation[Any], target: Target) -> None:
        parser.add_argument("targets", nargs="+", metavar=target.metavar, help=target.help)
        FormOptions(operation.form).ask(parser)
        if operation.is_final:
            parser.add_argument(
                "--dry-run", action="store_true", help="show what would happen without doing it"
            )
            parser.add_argument(
                "--yes", action="store_true", help="do not ask for confirmation; required in scripts"
            )

    def operate(self, operation: Operation[Any], target: Target, options: dict[str, Any]) -> None:
        named = _named(target, options["targets"])
        rows = list(named.values())
        form = FormOptions(operation.form).read(partial(operation.ask, rows, QueryDict()), options)
        if options.get("dry_run"):
            self._rehearse(operation, named)
            return
        if operation.is_final and not options["yes"]:
            self._confirm(operation, rows)
        done: dict[str, Done] = {}
        declined: dict[str, str] = {}
        for text, row in named.items():
            try:
                done[text] = self._perform(operation, row, form)
            except Declined as error:
                declined[text] = _plain(error.args[0])
        self._tell_done(done, declined)

    def _perform(self, operation: Operation[Any], row: Model, form: forms.Form) -> Done:
        try:
            return operation.perform(row, answers=form.cleaned_data, initiator=self.by, now=self.now)
        except ValidationError as error:
            complain(form, error)
            raise ValidationError(form.errors.as_data()) from None

    def _tell_done(self, done: Mapping[str, Done], declined: Mapping[str, str]) -> None:
        facts = {
            "done": [
                {"target": text, "message": each.message, "url": each.url} for text, each in done.items()
            ],
            "declined": [{"target": text, "message": why} for text, why in declined.items()],
        }
        self.tell(facts, lambda: self.say("\n".join(each.message for each in done.values())))
        if declined:
            raise CommandError(printable(" ".join(declined.values())), returncode=WRONG)

    def _rehearse(self, operation: Operation[Any], named: Mapping[str, Model]) -> None:
        rehearsed = [(text, row, operation.applies(row), operation.about(row)) for text, row in named.items()]
        would = [
            {"target": text, "is_possible": is_possible, "about": about}
            for text, _, is_possible, about in rehearsed
        ]
        lines = [
            f"Would {operation.label.lower()} “{row}”{f': {about}' if about else ''}."
            if is_possible
            else f"“{row}” would not change."
            for _, row, is_possible, about in rehearsed
        ]
        facts = {"dry_run": True, "would": would}
        self.tell(facts, lambda: self.say("\n".join(lines)))

    def _confirm(self, operation: Operation[Any], rows: Sequence[Model]) -> None:
        """Ask for confirmation in the terminal, on standard error; raise Refused unless the user agrees."""
        if not (sys.stdin is not None and sys.stdin.isatty()):
            raise Refused(
                "This cannot be undone. Use --yes to confirm, or --dry-run to see what would happen."
            )
        about = (f"{row} ({remark})" if (remark := operation.about(row)) else str(row) for row in rows)
        self.stderr.write(printable(f"{'; '.join(about)}."), str)
        self.stderr.write(f"{operation.question} [y/N] ", str, ending="")
        self.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Refused("Nothing was changed.")


class VerbsCommand(OperatingCommand):
    """A command whose first argument is a verb."""

    verb = ""

    @abstractmethod
    def verbs(self) -> Iterable[Verb]: ...

    def add_arguments(self, parser: CommandParser) -> None:
        self.parsers: dict[str, CommandParser] = {}
        chosen = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for verb in self.verbs():
            text = verb.help.replace("%", "%%")
            own = chosen.add_parser(
                verb.name,
                help=text,
                description=text,
                epilog=parser.epilog,
                formatter_class=parser.formatter_class,
            )
            verb.ask(own)
            own.add_argument("--json", action="store_true", help="print JSON")
            _also_take(own, parser)
            self.parsers[verb.name] = own

    def run(self, options: dict[str, Any]) -> None:
        self.verb = options["verb"]
        verb = next(each for each in self.verbs() if each.name == self.verb)
        try:
            verb.run(options)
        except ValidationError as error:
            raise Refused(complaints(error, self._named_here())) from None

    @property
    def by(self) -> Initiator:
        return Initiator.command(f"{type(self).__module__.rpartition('.')[2]} {self.verb}")

    def operations_of(
        self,
        model: type[Model],
        target: Target,
        *,
        but: Collection[str] = (),
    ) -> Iterable[Verb]:
        """Yield a verb for each of the model's Operations, except those named in `but`."""
        for operation in offered_for(model):
            if operation.name not in but:
                yield Verb(
                    operation.name,
                    _as_help(operation),
                    partial(self.operate, operation, target),
                    partial(self.ask_operation, operation=operation, target=target),
                )

    def _named_here(self) -> dict[str, str]:
        """Return a dict from field name to command-line option, for the verb of this call."""
        actions = self.parsers[self.verb]._actions
        return {each.dest: each.option_strings[0] for each in actions if each.option_strings}


def _as_help(operation: Operation[Any]) -> str:
    """Turn “Skip this event? It …” into “Skip this event. It …”, and leave out a question at the end."""
    question, _, effect = operation.question.partition("?")
    if not re.search("[.;] ", question):
        return f"{question}.{effect}"
    return _QUESTION.sub("", operation.question).strip() or f"{operation.label}."


def _named(target: Target, texts: Sequence[str]) -> dict[str, Any]:
    """Find the rows that the user named; return a dict from typed text to row, with each row only once."""
    found: dict[str, Any] = {}
    for text in texts:
        row = target.find(text)
        if row not in found.values():
            found[text] = row
    return found


def _also_take(own: CommandParser, parser: CommandParser) -> None:
    """Make the options that all commands share available after the verb too."""
    for action in parser._actions:
        if action.option_strings and action.dest not in ("help", "version"):
            again = copy.copy(action)
            again.default, again.help = argparse.SUPPRESS, argparse.SUPPRESS
            own._add_action(again)


def _plain(words: str) -> str:
    """Return the message as plain text, without the markup that it has for pages."""
    return html.unescape(strip_tags(words)) if isinstance(words, SafeData) else str(words)
