"""The store of secrets: what goes in, who gets it out, and what becomes of the keys."""

from __future__ import annotations

import logging
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from pytest_django import DjangoAssertNumQueries

from activities.models import Activity
from files import private_files
from jimsite import environment
from schedules import vault
from schedules.models import Refused, Schedule, Secret, Step
from schedules.models import secret as secret_module
from schedules.vault import Undecryptable, VaultError
from tests.admin_pages import PYTHON, member, stored, typed
from tests.base import NOW, SOMEBODY, fresh, make_schedule, seconds, step
from tests.conftest import subprocess_env
from tests.races.meeting import at_once, queue_up

pytestmark = pytest.mark.django_db

CANARY = "canary-9f3b7c21"
LATER = NOW + seconds(60)
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----\n"


@pytest.fixture(autouse=True)
def key_file(settings: Any, tmp_path: Path) -> Path:
    """A data folder without any key."""
    settings.JIM_DATA_DIR, settings.JIM_SECRETS_KEYS = tmp_path / "data", []
    return tmp_path / "data" / "secrets_keys"


def put(name: str = "token", value: str = CANARY, **rest: Any) -> Secret:
    return Secret.objects.put(name, value, initiator=SOMEBODY, now=NOW, **rest)


def put_three() -> dict[str, str]:
    """Their values by name."""
    values = {f"secret-{number}": f"value {number}" for number in range(3)}
    for name, value in values.items():
        put(name, value)
    return values


def value_of(name: str = "token") -> str | None:
    return Secret.objects.reveal([name]).get(name)


def keys_in(path: Path) -> list[str]:
    return path.read_text().split()


def rotate(**options: Any) -> list[str]:
    return list(Secret.objects.rotate(initiator=SOMEBODY, now=LATER, **options))


def refer_to(name: str, schedule: Schedule, text: str = "") -> Schedule:
    """Its step refers to this secret."""
    Step.objects.filter(schedule=schedule).update(config={"a": [text or f"Bearer {{{{ secrets.{name} }}}}"]})
    return schedule


class TestValues:
    def test_they_come_back_by_name(self, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        values = {"one": "abcd", "two": PRIVATE_KEY, "three": "  zażółć 🔑\t\r\n", "four": "x" * 65_536}
        for name, value in values.items():
            put(name, value)
        assert Secret.objects.names() == values.keys()
        with django_assert_num_queries(1):
            assert Secret.objects.reveal([*values, "five"]) == values
        with django_assert_num_queries(0):
            assert Secret.objects.reveal([]) == {}
        assert Secret.objects.reveal(["ONE", "a\0", "\ud800"]) == {}

    def test_a_second_value_replaces_the_first(self) -> None:
        first = put(description="Of the mail server")
        second = Secret.objects.put("token", "another one", initiator=SOMEBODY, now=LATER)
        assert (value_of(), Secret.objects.count()) == ("another one", 1)
        assert (second.pk, second.description) == (first.pk, "Of the mail server")
        assert (second.created_at, second.changed_at) == (NOW, LATER)

    def test_they_are_nowhere_to_be_read(
        self, caplog: pytest.LogCaptureFixture, settings: Any, key_file: Path
    ) -> None:
        settings.DEBUG = connection.force_debug_cursor = True
        try:
            with caplog.at_level(logging.DEBUG, logger="django.db.backends"):
                secret = put()
                secret.edit(value=f"{CANARY}-2", initiator=SOMEBODY, now=LATER)
                rotate()
                assert value_of() == f"{CANARY}-2"
                secret.remove(initiator=SOMEBODY, now=LATER)
        finally:
            connection.force_debug_cursor = False
        assert any("schedules_secret" in record.getMessage() for record in caplog.records)
        told = [stored(), caplog.text, repr(secret), str(secret), repr(vars(secret)), repr(vault.current())]
        assert CANARY not in "".join(told)
        assert not any(key in "".join(told) for key in keys_in(key_file))

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("abc", "at least 4 characters"),
            ("   \n \n", "at least 4 characters"),
            ("a\0bcd", "NUL or an unpaired surrogate"),
            ("ż" * 32_769, "65,538 bytes long: at most 65,536"),
        ],
        ids=["short", "blank", "NUL", "long in UTF-8"],
    )
    def test_what_is_refused(self, value: str, words: str) -> None:
        put("old")
        for name in ("old", "new"):
            with pytest.raises(ValidationError) as refused:
                put(name, value)
            assert words in refused.value.message_dict["value"][0]
        assert Secret.objects.names() == {"old"}
        assert (value_of("old"), Activity.objects.count()) == (CANARY, 1)


class TestNames:
    def test_good_and_bad(self) -> None:
        for name in ("a", "smtp_password", "api-key-2", "0", "x" * 64):
            assert put(name).name == name
        for name in ("", "A", "a b", "a.b", "ä", "a\n", " a", "x" * 65, "{{ a }}", "a/b", "a\0", "a\ud800"):
            with pytest.raises(ValidationError) as refused:
                put(name)
            assert list(refused.value.message_dict) == ["name"], name
        assert Secret.objects.count() == 5

    def test_one_of_each_whatever_its_case(self) -> None:
        put()
        with pytest.raises(ValidationError, match="A secret with this name already exists"):
            Secret.objects.define("token", "other", initiator=SOMEBODY, now=NOW)
        for name in ("token", "TOKEN"):
            with pytest.raises(IntegrityError), transaction.atomic():
                Secret.objects.create(name=name, token="x", created_at=NOW, changed_at=NOW)

    # (where settings are typed, the prefix of the form that they are in)
    FORMS = (
        ("/schedules/new", "steps-0-"),
        ("/admin/schedules/schedule/add/", "steps-0-"),
        ("/admin/schedules/schedule/step-settings/", "steps-0-"),
        ("/templates/new", ""),
        ("/admin/schedules/tasktemplate/add/", ""),
        ("/admin/schedules/tasktemplate/step-settings/", ""),
    )

    def test_no_form_suggests_them_to_people_who_may_not_use_them(self) -> None:
        put("till")
        writes = ("add_schedule", "change_schedule", "add_tasktemplate", "change_tasktemplate")
        url = "https://shop.example/{{ secrets.tll }}"
        typed_in = {"runs": "type:http", "drawn_for": "fields:type:http", "config-url": url}
        told: dict[str, list[str]] = {"coder": [], "author": []}
        for role, more in (("coder", ["define_code"]), ("author", [])):
            client = member(*writes, *more, name=role)
            for address, prefix in self.FORMS:
                step = {f"{prefix}{name}": value for name, value in (PYTHON | typed_in).items()}
                sent = typed(steps=[]) | {"steps-TOTAL_FORMS": "1", "prefix": prefix.removesuffix("-")} | step
                text = client.post(address, sent | {"do": "save"}).text
                told[role] += [address] if "did you mean till?" in text else []
        # The admin draws the settings of a step without looking at the plan.
        assert told == {
            "coder": [each for each, _ in self.FORMS if "schedule/step-" not in each],
            "author": [],
        }


class TestRecord:
    def test_every_change_is_an_activity(self) -> None:
        secret = put(description="For mails")
        secret.edit(value="new value", initiator=SOMEBODY, now=LATER)
        secret.edit(value="newer", description="For some", initiator=SOMEBODY, now=LATER)
        rotate()
        pk = secret.pk
        secret.remove(initiator=SOMEBODY, now=LATER)
        told = Activity.objects.order_by("pk").values_list("operation", "message", "initiator_name")
        assert list(told) == [
            ("create", "", "ada"),
            ("edit", "new value", "ada"),
            ("edit", "new description and value", "ada"),
            ("rotate", "", "ada"),
            ("delete", "", "ada"),
        ]
        kept = Activity.objects.values_list("target_type", "target_id", "target_name").distinct()
        assert list(kept) == [("secret", str(pk), "token")]

    def test_what_changes_nothing_leaves_no_trace_and_what_is_gone_cannot_be_changed(self) -> None:
        secret, same = put(description="As it is"), Secret.objects.get()
        secret.edit(description="As it is", initiator=SOMEBODY, now=LATER)
        secret.edit(initiator=SOMEBODY, now=LATER)
        assert Activity.objects.filter(operation="edit").count() == 0
        assert (fresh(secret).changed_at, value_of()) == (NOW, CANARY)
        secret.remove(initiator=SOMEBODY, now=NOW)
        for verb in (same.remove, same.edit):
            with pytest.raises(Refused, match="“token” was deleted in the meantime"):
                verb(initiator=SOMEBODY, now=NOW)


class TestRemoval:
    def test_is_refused_while_schedules_refer_to_it(
        self, django_assert_max_num_queries: DjangoAssertNumQueries
    ) -> None:
        secret = put()
        users = [refer_to("token", make_schedule(name=f"User {number}")) for number in range(7)]
        for number in range(6):
            make_schedule(step(), name=f"Other {number}")
        assert secret.used_by() == users
        words = r"is used by “User 0”, .*, “User 4” and 2 more"
        with django_assert_max_num_queries(5), pytest.raises(Refused, match=words):
            secret.remove(initiator=SOMEBODY, now=NOW)
        assert value_of() == CANARY

    def test_what_only_looks_like_it_does_not_count_nor_do_closed_schedules(self) -> None:
        secret, user = put(), make_schedule(step())
        for text in ("{{secrets.token}}", '{{ secrets."token" }}', "{{ secrets.other }}{{ secrets.token }}"):
            assert secret.used_by() == []
            refer_to("token", user, text)
            assert secret.used_by() == [user], text
            Step.objects.update(config={})
        for text in ("secrets.token", "{{ secrets.token_2 }}", "{{{{ secrets.token }}}}"):
            refer_to("token", user, text)
            assert secret.used_by() == [], text
        refer_to("token", user)
        user.close(initiator=SOMEBODY, now=NOW)
        assert secret.used_by() == []
        secret.remove(initiator=SOMEBODY, now=NOW)
        assert Secret.objects.names() == set()


class TestKeys:
    def test_the_file_is_made_with_the_first_secret_for_its_owner_alone(self, key_file: Path) -> None:
        assert Secret.objects.reveal(["token"]) == {}
        assert not key_file.exists()
        put()
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700
        assert [path.name for path in key_file.parent.iterdir()] == ["secrets_keys"]
        (key,) = keys_in(key_file)
        put("second")
        assert keys_in(key_file) == [key]
        assert Fernet(key).decrypt(Secret.objects.get(name="token").token) == CANARY.encode()

    def test_a_lost_key_is_told_by_name_with_the_way_out(self, key_file: Path) -> None:
        for name in ("one", "two"):
            put(name)
        key_file.write_text(Fernet.generate_key().decode())
        put("three")
        assert value_of("three") == CANARY
        with pytest.raises(Undecryptable, match=f"none of the keys in {key_file} fits") as lost:
            Secret.objects.reveal(["one", "two", "three", "four"])
        assert lost.value.names == {"one", "two"}
        put("one", "as new")
        assert value_of("one") == "as new"

    def test_a_host_without_the_keys_of_the_others_makes_none_of_its_own(self, key_file: Path) -> None:
        secret = put()
        key_file.unlink()
        for change in (
            put,
            lambda: put("second"),
            lambda: secret.edit(value="new value", initiator=SOMEBODY, now=NOW),
        ):
            with pytest.raises(
                VaultError, match=f"Nothing can be encrypted on .+: {key_file} does not exist"
            ):
                change()
        with pytest.raises(Undecryptable, match=f"{key_file} does not exist"):
            value_of()
        assert not key_file.exists()

    def test_a_broken_file_is_told_without_the_key(self, key_file: Path) -> None:
        put()
        good, bad = keys_in(key_file)[0], "k" * 43
        key_file.write_text(f"{good}\n{bad}\n")
        for use in (value_of, put, rotate):
            with pytest.raises(VaultError, match=f"Line 2 of {key_file} is not a Fernet key") as broken:
                use()
            assert good not in str(broken.value)
            assert bad not in str(broken.value)
        with pytest.raises(CommandError, match=f"Line 2 of {key_file} is not a Fernet key") as one_line:
            call_command("rotatesecrets")
        assert one_line.value.returncode == 2

    def test_a_bad_key_in_the_environment_is_refused_without_repeating_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good = Fernet.generate_key().decode()
        for bad in ("k" * 43, "ключ"):
            monkeypatch.setenv("JIM_SECRETS_KEYS", f"{good}, {bad},{good}")
            with pytest.raises(ImproperlyConfigured, match="key 2 of 3 is not a Fernet key") as refused:
                environment.secrets_keys("JIM_SECRETS_KEYS")
            assert good not in str(refused.value)
            assert bad not in str(refused.value)
        monkeypatch.setenv("JIM_SECRETS_KEYS", f" {good} ,{good},")
        assert environment.secrets_keys("JIM_SECRETS_KEYS") == [good, good]

    @pytest.mark.live
    def test_without_secrets_a_worker_never_loads_the_library(self) -> None:
        code = (
            "import django, sys; django.setup(); import execution.loops.scheduler, execution.loops.worker; "
            "from schedules.models import Secret; Secret.objects.reveal([]); "
            "print([name for name in sys.modules if name.startswith('cryptography')])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=subprocess_env(),
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.stderr) == ("[]\n", "")

    @pytest.mark.parametrize(
        ("folder", "words"),
        [
            ("/proc/jim", "cannot be saved in /proc/jim/secrets_keys: No such file or directory."),
            ("/dev/null/jim", "in /dev/null/jim/secrets_keys cannot be read: Not a directory."),
        ],
    )
    def test_a_folder_that_takes_no_file_is_told(self, settings: Any, folder: str, words: str) -> None:
        settings.JIM_DATA_DIR = folder
        with pytest.raises(VaultError, match=words):
            put()


class TestRotation:
    def test_a_new_key_takes_over(self, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(secret_module, "BATCH", 2)
        values = put_three()
        (old,) = keys_in(key_file)
        assert rotate() == [
            f"Added a new key to the beginning of {key_file}.",
            "Secrets checked and, where necessary, re-encrypted: 2 of 3.",
            "Secrets checked and, where necessary, re-encrypted: 3 of 3.",
            "1 older key was removed.",
        ]
        (new,) = keys_in(key_file)
        assert new != old
        assert Secret.objects.reveal(values) == values
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        assert [path.name for path in key_file.parent.iterdir()] == ["secrets_keys"]
        assert set(Secret.objects.values_list("changed_at", flat=True)) == {NOW}

    def test_old_keys_can_be_kept(self, key_file: Path) -> None:
        put()
        (old,) = keys_in(key_file)
        rotate(keep_old=True)
        new, kept = keys_in(key_file)
        assert (kept, Secret.objects.survey()) == (old, (1, 0, []))
        assert Fernet(new).decrypt(Secret.objects.get().token) == CANARY.encode()

    def test_killed_after_any_step_it_has_lost_nothing(
        self, key_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(secret_module, "BATCH", 1)
        values = put_three()
        steps = len(rotate())
        assert steps == 5
        for done in range(steps + 1):
            list(islice(Secret.objects.rotate(initiator=SOMEBODY, now=LATER), done))
            assert Secret.objects.reveal(values) == values, f"killed after {done} steps"
        rotate()
        assert Secret.objects.reveal(values) == values
        assert len(keys_in(key_file)) == 1

    @pytest.mark.parametrize("place", ["_write", "_sync_folder", "replace"])
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("turn", [1, 2], ids=["adding the new key", "removing the old"])
    def test_killed_while_it_writes_the_file_it_has_lost_nothing(
        self, key_file: Path, monkeypatch: pytest.MonkeyPatch, place: str, when: str, turn: int
    ) -> None:
        put()
        with monkeypatch.context() as patch:
            patch.setattr(private_files, place, killing(getattr(private_files, place), when=when, turn=turn))
            patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # the dead do not tidy up
            with pytest.raises(Killed):
                rotate()
        assert value_of() == CANARY
        assert rotate()[-1].endswith("removed.")
        assert value_of() == CANARY
        assert len(keys_in(key_file)) == 1
        assert [path.name for path in key_file.parent.iterdir()] == ["secrets_keys"]

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("turn", [1, 2, 3])
    def test_killed_within_a_batch_it_has_lost_nothing(
        self, monkeypatch: pytest.MonkeyPatch, turn: int
    ) -> None:
        values = put_three()
        with monkeypatch.context() as patch:
            patch.setattr(Secret, "_renew", killing(Secret._renew, when="after", turn=turn))
            with pytest.raises(Killed):
                rotate()
        assert Secret.objects.survey() == (0, 3, [])
        assert Activity.objects.filter(operation="rotate").count() == 0
        rotate()
        assert Secret.objects.reveal(values) == values

    def test_a_rotation_that_begins_meanwhile_is_not_cut_short(self, key_file: Path) -> None:
        """The first one ends last: it must not drop the second one's key, nor what it needs."""
        put()
        first = Secret.objects.rotate(initiator=SOMEBODY, now=LATER)
        next(first)
        second = Secret.objects.rotate(initiator=SOMEBODY, now=LATER)
        next(second)
        newest = keys_in(key_file)[0]
        assert list(first)[-1] == "0 older keys were removed."
        assert keys_in(key_file)[0] == newest
        assert value_of() == CANARY
        assert list(second)[-1] == "2 older keys were removed."
        assert (keys_in(key_file), value_of()) == ([newest], CANARY)

    def test_no_key_goes_while_a_secret_needs_it(self, key_file: Path) -> None:
        """Such as one that was restored from a backup after its turn."""
        backup = put("restored", "old value")
        Secret.objects.all().delete()
        put()
        rotation = Secret.objects.rotate(initiator=SOMEBODY, now=LATER)
        assert next(rotation).startswith("Added a new key")
        assert next(rotation) == "Secrets checked and, where necessary, re-encrypted: 1 of 1."
        backup.save(force_insert=True)
        assert list(rotation) == [
            "Secrets checked and, where necessary, re-encrypted: 2 of 2.",
            "1 older key was removed.",
        ]
        assert value_of("restored") == "old value"

    def test_a_value_that_comes_meanwhile_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put()
        encrypt = vault.Keys.encrypt

        def after_somebody_else(keys: vault.Keys, value: str) -> str:
            monkeypatch.setattr(vault.Keys, "encrypt", encrypt)
            put(value="just typed")
            return encrypt(keys, value)

        monkeypatch.setattr(vault.Keys, "encrypt", after_somebody_else)
        rotate()
        assert value_of() == "just typed"
        assert not Activity.objects.filter(operation="rotate").exists()

    def test_a_rotation_that_ends_between_two_looks_is_not_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The row was read before it, the keys after it: the old one is gone."""
        put()
        current, looks = vault.current, iter(range(100))

        def rotated_at_first() -> vault.Keys:
            if next(looks) == 0:
                monkeypatch.setattr(vault, "current", current)
                rotate()
            return current()

        monkeypatch.setattr(vault, "current", rotated_at_first)
        assert value_of() == CANARY

    @pytest.mark.django_db(transaction=True)
    def test_it_waits_for_those_who_have_used_the_old_key(self, key_file: Path) -> None:
        """A value that is encrypted but not committed yet is seen by nobody."""
        put()
        (old,) = keys_in(key_file)
        (told,) = queue_up(rotate, behind=lambda: put("second", "in time"))
        assert told[-1] == "1 older key was removed."
        assert old not in keys_in(key_file)
        assert Secret.objects.reveal(["token", "second"]) == {"token": CANARY, "second": "in time"}

    @pytest.mark.django_db(transaction=True)
    def test_many_at_once_with_writers_and_readers(self, key_file: Path) -> None:
        put()

        def write(number: int) -> Callable[[], Any]:
            return lambda: [put(f"secret-{number}", f"value {turn}") for turn in range(5)][-1].name

        def read() -> set[str | None]:
            return {value_of() for _ in range(20)}

        *names, first, second, values = at_once(*(write(number) for number in range(4)), rotate, rotate, read)
        assert values == {CANARY}
        assert all(told[-1].endswith("removed.") for told in (first, second))
        assert Secret.objects.reveal(names) == dict.fromkeys(names, "value 4")
        rotate()
        assert (len(keys_in(key_file)), Secret.objects.survey()) == (1, (5, 0, []))

    @pytest.mark.django_db(transaction=True)
    def test_the_same_name_at_once_is_one_secret(self) -> None:
        put("warm", "a key exists")
        values = [f"value {number}" for number in range(6)]
        secrets = at_once(*(lambda value=value: put(value=value) for value in values))
        assert {secret.pk for secret in secrets} == {Secret.objects.get(name="token").pk}
        assert value_of() in values

    @pytest.mark.django_db(transaction=True)
    def test_first_secrets_at_once_share_one_key(self, key_file: Path) -> None:
        names = [f"secret-{number}" for number in range(6)]
        at_once(*(lambda name=name: put(name) for name in names))
        assert Secret.objects.reveal(names) == dict.fromkeys(names, CANARY)
        assert len(keys_in(key_file)) == 1


class TestCommand:
    def test_it_tells_what_it_does_and_a_dry_run_what_it_would_do(
        self, key_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call_command("rotatesecrets")
        assert capsys.readouterr().out == "Nothing is encrypted yet, so there is nothing to do.\n"
        assert not key_file.exists()
        put()
        before, tokens = key_file.read_text(), list(Secret.objects.values())
        call_command("rotatesecrets", dry_run=True)
        call_command("rotatesecrets", dry_run=True, keep_old=True)
        assert capsys.readouterr().out.splitlines() == [
            f"Would add a new key to {key_file}, encrypt 1 secret with the new key, and remove 1 old key.",
            f"Would add a new key to {key_file}, encrypt 1 secret with the new key, and keep 1 old key.",
        ]
        assert (key_file.read_text(), list(Secret.objects.values())) == (before, tokens)
        call_command("rotatesecrets")
        *_, dropped, last = capsys.readouterr().out.splitlines()
        assert dropped == "1 older key was removed."
        assert last.startswith(f"Back up {key_file}, and copy the file to every other host")
        assert Activity.objects.get(operation="rotate").initiator_name.startswith("rotatesecrets (")

    def test_with_keys_in_the_environment_it_says_which_can_go(
        self, settings: Any, capsys: pytest.CaptureFixture[str], key_file: Path
    ) -> None:
        """They come before the file."""
        old, new = (Fernet.generate_key().decode() for _ in range(2))
        settings.JIM_SECRETS_KEYS = [old]
        put()
        settings.JIM_SECRETS_KEYS = [new, old]
        put("second")
        settings.JIM_SECRETS_KEYS = [new]
        assert value_of("second") == CANARY
        with pytest.raises(Undecryptable, match="none of the keys in JIM_SECRETS_KEYS fits"):
            value_of()
        settings.JIM_SECRETS_KEYS = [new, old]
        call_command("rotatesecrets", dry_run=True)
        assert "Would encrypt 1 secret with the first key in JIM_SECRETS_KEYS." in capsys.readouterr().out
        call_command("rotatesecrets")
        told = capsys.readouterr().out
        assert "Only the first of the 2 keys in JIM_SECRETS_KEYS is still needed." in told
        assert not any(key in told for key in (old, new))
        settings.JIM_SECRETS_KEYS = [new]
        assert value_of() == CANARY
        call_command("rotatesecrets")
        assert "JIM_SECRETS_KEYS contains only one key" in capsys.readouterr().out
        assert not key_file.exists()

    def test_what_cannot_be_decrypted_stops_it_unless_it_is_told_otherwise(
        self, key_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put("lost")
        key_file.unlink()
        for dry_run in (False, True):
            with pytest.raises(CommandError, match="“lost” cannot be decrypted"):
                call_command("rotatesecrets", dry_run=dry_run)
        assert not key_file.exists()
        for dry_run in (True, False):
            call_command("rotatesecrets", skip_lost=True, dry_run=dry_run)
            assert "These secrets cannot be decrypted and need new values: lost." in capsys.readouterr().out
            assert key_file.exists() is not dry_run
        put("lost", "found again")
        assert value_of("lost") == "found again"

    @pytest.mark.live
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("", "run “manage.py migrate” first"),
            ("postgresql://x@/x?host=/no/where", "The database cannot be used"),
        ],
    )
    def test_a_database_that_is_in_its_way_is_one_line(self, tmp_path: Path, url: str, words: str) -> None:
        done = subprocess.run(
            [sys.executable, "manage.py", "rotatesecrets"],
            cwd=settings.BASE_DIR,
            env=subprocess_env(JIM_DATA_DIR=str(tmp_path), DATABASE_URL=url),
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr


class Killed(BaseException):
    """Nothing after it happens, as after kill -9."""


def killing(call: Callable[..., Any], *, when: str, turn: int) -> Callable[..., Any]:
    """The same call, which kills whoever makes it for the n-th time."""
    calls = iter(range(1, 1_000))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        is_last = next(calls) == turn
        if is_last and when == "before":
            raise Killed
        result = call(*args, **kwargs)
        if is_last:
            raise Killed
        return result

    return wrapped
