"""JIM's own settings on a database of its own: SQLite, or with JIM_TEST_DB=postgres a real PostgreSQL."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def remove(folder: Path, *, maker: int) -> None:
    """A forked child that ends in an ordinary way must not take the folder along."""
    if os.getpid() == maker:
        shutil.rmtree(folder, ignore_errors=True)


# One folder for the whole run; the processes of pytest-xdist inherit it. Directly under /tmp, because the
# path of a PostgreSQL socket may not be longer than 107 bytes.
if "JIM_TEST_DIR" in os.environ:
    TEST_DIR = Path(os.environ["JIM_TEST_DIR"])
else:
    TEST_DIR = Path(tempfile.mkdtemp(prefix="jim-test-", dir="/tmp"))
    atexit.register(remove, TEST_DIR, maker=os.getpid())
TEST_DB = os.environ.get("JIM_TEST_DB") or "sqlite"
DATABASE_URLS = {
    "sqlite": f"sqlite:///{TEST_DIR}/unused.sqlite3",
    "postgres": f"postgresql://postgres@/jim?host={TEST_DIR}/pg",
}
if TEST_DB not in DATABASE_URLS:
    raise ImproperlyConfigured(f"JIM_TEST_DB={TEST_DB} must be one of {', '.join(DATABASE_URLS)}.")

# Nothing of the developer's own set-up may reach the tests.
FOR_TESTS = {"JIM_CHROMIUM", "JIM_TEST_PATIENCE", "JIM_KEYLESS"}
for name in [name for name in os.environ if name.startswith("JIM_") and name not in FOR_TESTS]:
    del os.environ[name]
os.environ["JIM_TEST_DIR"] = str(TEST_DIR)
os.environ["JIM_TEST_DB"] = TEST_DB
os.environ["DATABASE_URL"] = DATABASE_URLS[TEST_DB]
os.environ["JIM_DATA_DIR"] = str(TEST_DIR / os.environ.get("PYTEST_XDIST_WORKER", "data"))

from jimsite.settings import *  # noqa: E402, F403
from jimsite.settings import CALLS_PER_MINUTE, DATABASES  # noqa: E402

if TEST_DB == "sqlite":
    # In a file: an in-memory database cannot be shared by threads and processes.
    DATABASES["default"]["TEST"] = {"NAME": str(TEST_DIR / "jim.sqlite3")}

# Looking for all static files takes longer than most requests, and each client would do it anew.
WHITENOISE_AUTOREFRESH = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# All tests of a process are one stranger, and rolled back tokens have the same ids again.
CALLS_PER_MINUTE = dict.fromkeys(CALLS_PER_MINUTE, 100_000)
