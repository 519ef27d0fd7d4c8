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
    """A tag of a schedule, copied from the schedule's list of tags so that searches can use an index."""

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
    """Return the tags sorted, without duplicates. A value that is not a list of strings is not changed."""
    if not _are_words(tags):
        return tags
    return sorted({unicodedata.normalize("NFC", tag.strip()) for tag in tags} - {""})


def wrong_with_tags(tags: Any) -> str:
    """Return what is wrong with cleaned tags, or an empty string if they are valid."""
    if not _are_words(tags):
        return 'Enter a list of tags, such as ["finance", "nightly"].'
    if len(tags) > MOST_TAGS:
        return f"{len(tags)} tags are too many; at most {MOST_TAGS} are allowed."
    if wrong := [tag for tag in tags if len(tag) > LONGEST_TAG or "," in tag or not tag.isprintable()]:
        allowed = f"use at most {LONGEST_TAG} characters, without commas or control characters"
        return f"{wrong[0][:60]!r} is not a valid tag: {allowed}."
    return ""


def wrong_with_topics(topics: Any) -> str:
    """Return what is wrong with cleaned topics, or an empty string; do not check that the topics exist."""
    if not _are_words(topics):
        return 'Enter a list of topics, such as ["orders"].'
    if len(topics) > MOST_TOPICS:
        return f"{len(topics)} topics are too many; at most {MOST_TOPICS} are allowed."
    return ""


def wrong_with_memo(memo: Any) -> str:
    """Return what is wrong with a memo, or an empty string if the memo is valid."""
    if not isinstance(memo, dict) or not all(isinstance(text, str) for text in memo.values()):
        return 'Enter names with text values, such as {"owner": "Ada", "ticket": "OPS-7"}.'
    if len(memo) > MOST_ENTRIES:
        return f"{len(memo)} entries are too many; at most {MOST_ENTRIES} are allowed."
    for name, text in memo.items():
        if not name.strip() or len(name) > LONGEST_NAME or len(text) > LONGEST_TEXT:
            allowed = f"a name can have 1 to {LONGEST_NAME} characters, and a value at most {LONGEST_TEXT:,}"
            return f"{name[:60]!r}: {allowed}."
        if clean_text(name + text) != name + text:
            return f"{name[:60]!r}: remove NUL characters and unpaired surrogates, which cannot be stored."
    return ""


def _are_words(tags: Any) -> bool:
    return isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
