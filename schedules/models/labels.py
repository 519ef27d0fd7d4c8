"""Tags, memos and topics of a schedule, and their checks."""

from __future__ import annotations

import unicodedata
from typing import Any

from django.db import models

from text.clean import clean_text

MOST_TAGS = 50
LONGEST_TAG = 50
MOST_ENTRIES = 50
MOST_TOPICS = 20
LONGEST_NAME = 50
LONGEST_TEXT = 1_000


class Tag(models.Model):
    """A copy of one tag of a schedule, so that searches can use an index."""

    schedule = models.ForeignKey(
        "schedules.Schedule", models.CASCADE, related_name="tag_rows", db_index=False
    )
    name = models.CharField(max_length=LONGEST_TAG)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["schedule", "name"], name="tag_once")]
        indexes = [models.Index(fields=["name", "schedule"], name="tag_by_name")]

    def __str__(self) -> str:
        return self.name


def clean_tags(tags: Any) -> Any:
    """Return the tags sorted and without duplicates; return anything but a list of strings unchanged."""
    if not _are_words(tags):
        return tags
    return sorted({unicodedata.normalize("NFC", tag.strip()) for tag in tags} - {""})


def wrong_with_tags(tags: Any) -> str:
    """Return the error in cleaned tags, or an empty string if they are valid."""
    if not _are_words(tags):
        return 'Enter a list of tags, such as ["finance", "nightly"].'
    if len(tags) > MOST_TAGS:
        return f"{len(tags)} tags are too many; at most {MOST_TAGS} are allowed."
    if wrong := [tag for tag in tags if len(tag) > LONGEST_TAG or "," in tag or not tag.isprintable()]:
        allowed = f"use at most {LONGEST_TAG} characters, without commas or control characters"
        return f"{wrong[0][:60]!r} is not a valid tag: {allowed}."
    return ""


def wrong_with_topics(topics: Any) -> str:
    """Return the error in cleaned topics, or an empty string; their existence is checked elsewhere."""
    if not _are_words(topics):
        return 'Enter a list of topics, such as ["orders"].'
    if len(topics) > MOST_TOPICS:
        return f"{len(topics)} topics are too many; at most {MOST_TOPICS} are allowed."
    return ""


def wrong_with_memo(memo: Any) -> str:
    """Return the error in a memo, or an empty string if it is valid."""
    if not isinstance(memo, dict) or not all(isinstance(text, str) for text in memo.values()):
        return 'Enter names and texts, such as {"owner": "Ada", "ticket": "OPS-7"}.'
    if len(memo) > MOST_ENTRIES:
        return f"{len(memo)} entries are too many; at most {MOST_ENTRIES} are allowed."
    for name, text in memo.items():
        if not name.strip() or len(name) > LONGEST_NAME or len(text) > LONGEST_TEXT:
            allowed = f"a name can have 1 to {LONGEST_NAME} characters, and its text at most {LONGEST_TEXT:,}"
            return f"{name[:60]!r}: {allowed}."
        if clean_text(name + text) != name + text:
            return f"{name[:60]!r}: remove NUL characters and unpaired surrogates, which cannot be stored."
    return ""


def _are_words(tags: Any) -> bool:
    return isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
