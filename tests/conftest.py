from __future__ import annotations

import gc
import math
import os
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from database import clock
from tests.flushing import keep_what_an_empty_database_has
from tests.postgres import PostgresServer
from tests.settings import TEST_DB, TEST_DIR

LIVE_FOLDERS = {"races", "chaos", "browser"}
# What needs minutes or chance: `make test-all` runs it. Other files mark single tests.
LONG_FILES = {
    "api/test_fuzz.py",
    "browser/test_accessibility.py",
    "chaos/test_frozen_in_transaction.py",
    "chaos/test_kills.py",
    "chaos/test_outage.py",
    "chaos/test_storm.py",
    "races/test_load.py",
}
# What a database can make a difference to (locks, SQL, constraints, text): `make test` asks both databases.
# The rest it asks of SQLite; `make test-all` asks everything of both.
ON_BOTH_DATABASES = {
    "activities",
    "ground",
    "chaos",
    "execution",
    "races",
    "api/test_keys.py",
    "api/test_limits.py",
    "api/test_rates.py",
    "identity/test_clear_and_delete.py",
    "identity/test_confirm_cases.py",
    "identity/test_deletion_cases.py",
    "identity/test_documents.py",
    "identity/test_flow_cases.py",
    "identity/test_generate_data.py",
    "identity/test_import_cases.py",
    "identity/test_join_cases.py",
    "identity/test_killed_runs.py",
    "identity/test_limit_cases.py",
    "identity/test_machine.py",
    "identity/test_outbound_cases.py",
    "identity/test_preview.py",
    "identity/test_reference_cases.py",
    "identity/test_verbs.py",
    "identity/test_why.py",
    "jimsite/test_database.py",
    "jimsite/test_doctor.py",
    "jimsite/test_health.py",
    "schedules/test_as_code.py",
    "schedules/test_backfill.py",
    "schedules/test_generator.py",
    "schedules/test_schedule.py",
    "schedules/test_secrets.py",
    "schedules/test_shared_calendars.py",
    "stories/test_schedule_execution_7_nightly_hr_sync.py",
    "stories/test_schedule_execution_8_nightly_hr_sync_for_real.py",
    "stories/test_scheduler_archetype_2_invoker_overlap.py",
    "stories/test_scheduler_archetype_7_limits.py",
    "test_bad_lists.py",
    "test_bad_searches.py",
    "test_guessing.py",
    "test_looking.py",
    "web/test_polling.py",
    "webhooks/test_delivery.py",
    "webhooks/test_outbox.py",
    "workflows/test_deployment.py",
    "workflows/test_machine.py",
    "workflows/test_publishing.py",
    "workflows/test_retention.py",
    "workflows/test_triggers.py",
    "workflows/test_trouble.py",
}
# Live tests here start processes that make a database for themselves, of the kind that is tested.
FOLDERS_WITH_OWN_DATABASES = {"jimsite", "bench"}
FACES = {"api", "web"}
TESTS = Path(__file__).parent
server = PostgresServer(TEST_DIR / "pg")
# The same examples in every run, judged by what they show and not by how long a busy machine took for them.
hypothesis_settings.register_profile(
    "the same everywhere",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("the same everywhere")


def pytest_configure(config: pytest.Config) -> None:
    keep_what_an_empty_database_has()
    if TEST_DB == "postgres":
        keep_the_time()
    if TEST_DB == "postgres" and is_controller(config):
        server.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if TEST_DB == "postgres" and is_controller(config):
        server.stop()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `make test` asks of SQLite only: that took ten seconds per process."""
    is_left_out = config.option.markexpr == "not long" and is_for_sqlite(collection_path)
    return True if collection_path.is_file() and is_left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(TESTS)
        if path.parts[0] in LIVE_FOLDERS:
            item.add_marker(pytest.mark.live)
        if str(path) in LONG_FILES or is_for_sqlite(item.path):
            item.add_marker(pytest.mark.long)
    if TEST_DB == "postgres":
        known = {item for item in items if not may_use_database(item)}
        config.hook.pytest_deselected(items=list(known))
        items[:] = [item for item in items if item not in known]
    items.sort(key=turn)


def is_for_sqlite(file: Path) -> bool:
    """Whether this is PostgreSQL, and `make test` does not ask it these tests."""
    path = file.relative_to(TESTS)
    return TEST_DB == "postgres" and not {path.parts[0], str(path)} & ON_BOTH_DATABASES


def turn(item: pytest.Item) -> tuple[bool, bool]:
    """Begin with live tests, which wait more than they compute and leave the processors to the others.

    End with those in a browser: Playwright's loop goes on in their process, where no other could be started.
    """
    return "browser" in folders(item), item.get_closest_marker("live") is None


def pytest_collection_finish() -> None:
    """To look for garbage among thousands of tests, again and again, takes a fifth of their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def keep_the_time() -> None:
    """The clock of the database is this machine's: nobody has to look at it again every half minute.

    That would be one query more for whoever counts his at that moment.
    """
    clock.SYNC_SECONDS = math.inf
    clock._synced = (time.monotonic(), timezone.now())


@pytest.fixture(autouse=True)
def time_stands_still(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a face tells of ages and hours does not change while a test asks, unless a loop or server runs."""
    item = request.node
    if FACES & folders(item) and item.get_closest_marker("live") is None:
        now = clock.now()
        monkeypatch.setattr(clock, "now", lambda: now)


def folders(item: pytest.Item) -> set[str]:
    return set(item.path.relative_to(settings.BASE_DIR).parts)


def may_use_database(item: pytest.Item) -> bool:
    """A test that may not would say the same again on a second database: it runs on the first one only.

    So would a browser: what it is shown is asked of both databases without one.
    """
    if "browser" in folders(item):
        return False
    if item.get_closest_marker("live") and FOLDERS_WITH_OWN_DATABASES & folders(item):
        return True
    fixtures = set(getattr(item, "fixturenames", ()))
    return item.get_closest_marker("django_db") is not None or bool({"db", "transactional_db"} & fixtures)


def subprocess_env(**overrides: str) -> dict[str, str]:
    """The environment in which `manage.py …` runs with JIM's own settings on the database of this very test.

    Another process sees only what is committed: use it with `django_db(transaction=True)`.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("JIM_", "PYTEST_"))
    }
    return {
        **inherited,
        "DJANGO_SETTINGS_MODULE": "jimsite.settings",
        "DATABASE_URL": database_url(),
        "JIM_DATA_DIR": str(settings.JIM_DATA_DIR),
        "JIM_SECRET_KEY": settings.SECRET_KEY,
        **overrides,
    }


def database_url() -> str:
    name = quote(str(connection.settings_dict["NAME"]))
    return f"sqlite:///{name}" if connection.vendor == "sqlite" else server.url(name)


def is_controller(config: pytest.Config) -> bool:
    """Not one of the processes that pytest-xdist starts."""
    return not hasattr(config, "workerinput")
