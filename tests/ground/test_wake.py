"""Sleeping loops hear of a change soon after its commit, and of nothing before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from activities.models import Activity
from database.wake import Channel, Watch, wake
from tests.base import NOW
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def watching(channel: Channel = "jim_tasks") -> Iterator[threading.Event]:
    """An event that every change sets; not set at first."""
    heard = threading.Event()
    watch = Watch(channel, heard.set)
    watch.start()
    try:
        # It calls once when it begins to listen, because something may have changed before.
        assert heard.wait(PATIENCE_SECONDS)
        heard.clear()
        yield heard
    finally:
        watch.stop()
        watch.thread.join(PATIENCE_SECONDS)
        assert not watch.thread.is_alive()


def change() -> None:
    Activity.objects.create(target_name="x", initiator_name="test", created_at=NOW)
    wake("jim_tasks")


def test_it_is_heard_again_and_again() -> None:
    with watching() as heard:
        for _ in range(3):
            change()
            assert heard.wait(PATIENCE_SECONDS)
            wait_until(lambda: not _settles(heard))


def test_nothing_is_heard_before_the_commit_and_nothing_of_what_is_rolled_back() -> None:
    with watching() as heard:
        with transaction.atomic():
            change()
            transaction.set_rollback(True)
        assert not heard.wait(0.2)
        with transaction.atomic():
            change()
            assert not heard.wait(0.2)
        assert heard.wait(PATIENCE_SECONDS)


def test_on_postgresql_each_channel_has_its_own_listeners() -> None:
    with watching("jim_schedules") as heard:
        change()
        # SQLite only knows that something was committed: one probe too many, never one too few.
        is_sqlite = connection.vendor == "sqlite"
        assert heard.wait(PATIENCE_SECONDS if is_sqlite else 0.3) is is_sqlite


def _settles(heard: threading.Event) -> bool:
    heard.clear()
    return heard.wait(0.05)
