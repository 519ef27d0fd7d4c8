"""What the guides name is there: pages they link to, settings, metrics, commands and their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from django.conf import settings

from jimsite.completion import OF_DJANGO, own_commands, parser_of, verbs_of

DOCS: Path = settings.BASE_DIR / "docs"
GUIDES = [*sorted(DOCS.glob("*.md")), settings.BASE_DIR / "README.md"]
COMMANDS = own_commands() | OF_DJANGO
# Of units and scripts, not of JIM.
OTHERS = {"JIM_OPTIONS", "JIM_TOKEN"}


def test_links_lead_somewhere() -> None:
    links = [
        (guide.name, target, guide.parent / target)
        for guide in GUIDES
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", guide.read_text())
    ]
    assert len(links) > 20
    assert [(name, target) for name, target, path in links if not path.exists()] == []


# What has no page of its own, and what holds everywhere.
ONLY_IN_THE_ADMIN = re.compile(
    r"(?i)secret|reservations|groups|users|pause all|\bpages\b|editor and the admin"
)


def test_only_what_has_no_page_of_its_own_is_said_to_be_in_the_admin() -> None:
    sentences = [
        (guide.name, sentence)
        for guide in GUIDES
        for sentence in re.split(r"(?<=[.:])\s|\n\n|\|", guide.read_text())
        if re.search(r"(?i)\bin the\s+admin\b", sentence)
    ]
    assert len(sentences) > 4
    assert [each for each in sentences if not ONLY_IN_THE_ADMIN.search(each[1])] == []


def test_settings_exist() -> None:
    places = (settings.BASE_DIR / "jimsite" / name for name in ("settings.py", "environment.py"))
    source = "".join(place.read_text() for place in places)
    text = "".join((DOCS / name).read_text() for name in ("operating.md", "tour.md", "commands.md"))
    named = set(re.findall(r"\bJIM_[A-Z_]+[A-Z]\b", text)) - OTHERS
    assert len(named) > 10
    assert [name for name in sorted(named) if f'"{name}"' not in source] == []


def test_metrics_exist() -> None:
    source = (settings.BASE_DIR / "api" / "metrics.py").read_text()
    named = set(re.findall(r"`(jim_\w+)", (DOCS / "operating.md").read_text()))
    assert len(named) > 5
    assert [name for name in sorted(named) if f'"{name}"' not in source] == []


@pytest.mark.parametrize("name", ["operating.md", "tour.md", "commands.md", "../README.md"])
def test_commands_and_their_options_exist(name: str) -> None:
    text = (DOCS / name).read_text()
    lines = re.findall(r"(?:manage\.py|jim) (\w+(?: [^`\n”]*)?)", text)
    called = [words for line in lines if (words := _words(line)) and words[0] in COMMANDS]
    assert called
    for command, *rest in called:
        parser = parser_of(COMMANDS[command], command)
        if verbs := verbs_of(parser):
            assert set(rest[:1]) & set(verbs), f"{command} {rest}"
            parser = verbs[rest[0]]
        for option in (word for word in rest if re.fullmatch(r"--[a-z-]+", word)):
            assert option in parser._option_string_actions, f"{command} {option}"


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line.partition(" && ")[0], comments=True)
    except ValueError:  # an apostrophe of a sentence
        return line.split()
