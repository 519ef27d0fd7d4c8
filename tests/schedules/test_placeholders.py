"""`{{ … }}` in a step's config: how it is written, what it may refer to, and what it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from execution.steps.fields import Field, Kind
from execution.steps.step_type import get
from schedules.models import Secret
from schedules.models.step import check_steps
from schedules.permissions import DEFINE_CODE, lacking
from schedules.placeholders import (
    Filled,
    PlaceholderError,
    Reference,
    as_filled,
    fill,
    found,
    has_placeholders,
    is_placeholder,
    look_up,
    reference,
    references,
)
from schedules.registry import ConfigError
from tests.base import NOW, SOMEBODY, enqueue, fresh, make_schedule, step

VALUES = {
    "steps.fetch.result": {"rows": [1, {"id": "x"}], "none": None, "braces": "{{ attempt }}"},
    "steps.fetch.result.rows": [1, {"id": "x"}],
    "steps.fetch.result.count": 3,
    "steps.fetch.result.done": True,
    "steps.fetch.result.nothing": None,
    "attempt": 2,
}
OF_A_RUN = ("nominal_time", "nominal_date", "started_time", "schedule", "execution", "idempotency_key")


class TestWriting:
    @pytest.mark.parametrize(
        ("text", "kind", "name", "path", "canonical"),
        [
            ("{{\n steps.fetch.result\t}}", "step", "fetch", (), "steps.fetch.result"),
            ("{{ steps.fetch.result.a.0.b }}", "step", "fetch", ("a", "0", "b"), "steps.fetch.result.a.0.b"),
            ("{{ steps.'Import HR'.result }}", "step", "Import HR", (), 'steps."Import HR".result'),
            (r'{{ steps."a\"b\\c".result }}', "step", 'a"b\\c', (), r'steps."a\"b\\c".result'),
            ('{{ steps."}} {{".result }}', "step", "}} {{", (), 'steps."}} {{".result'),
            ('{{ steps.a.result."" }}', "step", "a", ("",), 'steps.a.result.""'),
            ("{{ steps.überprüfen-2.result }}", "step", "überprüfen-2", (), "steps.überprüfen-2.result"),
            ("{{ steps.'u\u0308'.result }}", "step", "ü", (), "steps.ü.result"),
            ("{{ secrets.smtp-password_2 }}", "secret", "smtp-password_2", (), "secrets.smtp-password_2"),
            *[(f"{{{{ {name} }}}}", "value", name, (), name) for name in OF_A_RUN],
        ],
    )
    def test_what_it_refers_to(
        self, text: str, kind: Any, name: str, path: tuple[str, ...], canonical: str
    ) -> None:
        assert references(text) == [Reference(kind, name, path, canonical)]
        assert reference(canonical) == references(text)[0]
        assert is_placeholder(text)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{{", "“{{” is not closed, or is not a placeholder; write {{{{ for a literal {{"),
            ("x {{ attempt } }", "“{{ attempt } }” is not closed"),
            ("{{ attempt {{ attempt }}", "is not closed"),
            ("{{ steps.it's.result }}", "is not closed, or is not a placeholder"),
            ("{{}}", "is not a placeholder: write names joined by dots"),
            ("{{ steps..result }}", "is not a placeholder"),
            (
                "{{ steps.Import HR.result }}",
                "quotes around names that contain characters other than letters",
            ),
            ("{{ steps }}", "“steps” must have the form steps.NAME.result"),
            ("{{ steps.'a b' }}", 'must have the form steps."a b".result'),
            ("{{ secrets.a.b }}", "“secrets.a.b” must have the form secrets.NAME"),
            ("{{ step.a.result }}", "unknown value “step”; did you mean steps?"),
            ("{{ weather }}", "unknown value “weather”; choose one of: steps, secrets, event, last"),
            (
                "{{ event.key }}",
                "“event.key” must be one of event.topic, event.message_id, event.title, event.payload",
            ),
            ("{{ event.topic.slug }}", "“event.topic.slug”: nothing can follow event.topic"),
            ("{{ attempt.number }}", "“attempt.number”: nothing can follow attempt"),
            ({"{{ attempt }}": 1}, "“{{ attempt }}” is a name: placeholders can be used only in values"),
            ("{{ " + "x" * 500, "…” is not closed"),
        ],
    )
    def test_what_cannot_be_read_is_refused_with_the_way_out(self, text: object, words: str) -> None:
        with pytest.raises(PlaceholderError) as raised:
            references(text)
        assert words in str(raised.value)
        assert len(str(raised.value)) < 400

    def test_each_is_listed_once_in_the_order_of_the_text(self) -> None:
        value = {"b": ["{{ attempt }} {{ schedule }}", {"a": "{{attempt}}{{ secrets.x }}"}], "c": 7}
        assert [ref.text for ref in references(value)] == ["attempt", "schedule", "secrets.x"]

    @pytest.mark.parametrize("value", ["", "a { b", "}}", "{ {x} }", 1, None, True, [], {"a": [{}]}, "{\n{"])
    def test_most_values_have_none(self, value: object) -> None:
        assert not has_placeholders(value)
        assert references(value) == []
        assert fill(value, {}) == value

    def test_it_is_quick_to_see_that_there_is_none_however_deep_it_would_be(self) -> None:
        nested: list[Any] = []
        for _ in range(20_000):
            nested = [nested]
        assert not has_placeholders(nested)
        assert list(found(nested)) == []

    def test_those_that_can_be_read_are_found_among_those_that_cannot(self) -> None:
        value = {"script": "{{ .Names }} {{", "env": {"T": "{{ secrets.token }}"}, "{{ attempt }}": "{{ x }}"}
        assert {ref.text for ref in found(value)} == {"secrets.token", "attempt"}


class TestFilling:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("{{ steps.fetch.result.done }}", True),
            ("{{ steps.fetch.result.nothing }}", None),
            ("{{steps.fetch.result}}", VALUES["steps.fetch.result"]),
            (" {{ steps.fetch.result.count }}", " 3"),
            ("{{ attempt }}{{ attempt }}", "22"),
            ("<{{ steps.fetch.result.nothing }}>", "<>"),
            ("<{{ steps.fetch.result.done }}>", "<true>"),
            ("x{{ steps.fetch.result.rows }}", 'x[1, {"id": "x"}]'),
            ("{{{{", "{{"),
            ("{{{{ attempt }}", "{{ attempt }}"),
            ("{{{ attempt }}}", "{2}"),
            ('{"n": {"m": {{ attempt }}}}', '{"n": {"m": 2}}'),
        ],
    )
    def test_a_text(self, text: str, value: object) -> None:
        filled = fill(text, VALUES)
        assert filled == value
        assert type(filled) is type(value) or isinstance(filled, Filled)

    def test_at_any_depth_but_not_in_names(self) -> None:
        value = {"a": [{"b": "{{ attempt }}"}, 7], "{{ attempt }}": "x"}
        assert fill(value, VALUES) == {"a": [{"b": 2}, 7], "{{ attempt }}": "x"}

    def test_one_without_a_value_is_an_error_not_an_empty_text(self) -> None:
        with pytest.raises(PlaceholderError, match=r"\{\{ schedule \}\} has no value here"):
            fill("{{ schedule }}", VALUES)

    @settings(max_examples=50)
    @given(st.text(alphabet="{} a\"'\\."))
    def test_any_text_can_be_written(self, text: str) -> None:
        escaped = text.replace("{{", "{{{{")
        assert references(escaped) == []
        assert fill(escaped, {}) == text
        assert not has_placeholders(fill(escaped, {}).strip())

    @settings(max_examples=50)
    @given(name=st.text(min_size=1), path=st.lists(st.text(), max_size=3))
    def test_any_name_can_be_quoted(self, name: str, path: list[str]) -> None:
        def quote(part: str) -> str:
            return "'" + part.replace("\\", "\\\\").replace("'", "\\'") + "'"

        written = ".".join(["steps", quote(name), "result", *map(quote, path)])
        (ref,) = references(f"{{{{ {written} }}}}")
        assert ref.path == tuple(path)
        assert reference(ref.text) == ref
        assert references(f"{{{{ {ref.text} }}}}") == [ref]

    @settings(max_examples=50)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(alphabet="{}a "),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("{}k"), inner, max_size=3),
        )
    )
    def test_a_whole_placeholder_takes_any_json_as_it_is(self, value: Any) -> None:
        filled = fill({"x": ["{{ steps.a.result }}"]}, {"steps.a.result": value})
        assert filled == {"x": [value]}
        assert not has_placeholders(filled)
        assert json.loads(json.dumps(filled)) == {"x": [value]}
        assert as_filled(value) == value


class TestPaths:
    RESULT = {"a": [{"b": 1}, 2], "0": "zero", "": "empty", "n": None}

    def test_what_lies_there(self) -> None:
        assert look_up(self.RESULT, ()) == self.RESULT
        assert look_up(self.RESULT, ("a", "0", "b")) == 1
        assert [look_up(self.RESULT, (name,)) for name in ("0", "", "n")] == ["zero", "empty", None]

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            (("b",), "b does not exist; available: a, 0, "),
            (("a", "2"), "a.2 does not exist; the list has a length of 2, and its first index is 0"),
            (("a", "-1"), "a.-1 does not exist; the list has a length of 2"),
            (("a", "9" * 5_000), "the list has a length of 2"),
            (("n", "x y"), 'n."x y" does not exist: “null” contains no values'),
        ],
    )
    def test_what_is_missing_is_named_with_what_there_is(self, path: tuple[str, ...], words: str) -> None:
        with pytest.raises(PlaceholderError) as raised:
            look_up(self.RESULT, path)
        assert words in str(raised.value)

    def test_of_a_big_result_only_a_few_names_are_told(self) -> None:
        with pytest.raises(PlaceholderError) as raised:
            look_up({f"key {number}": 1 for number in range(1_000)}, ("x",))
        assert str(raised.value).endswith("key 19, …")


class TestFields:
    @pytest.mark.parametrize("kind", ["text", "textarea", "list", "mapping", "bool", "number"])
    def test_one_passes_in_any_field_but_only_as_a_whole_where_text_would_not_do(self, kind: Kind) -> None:
        field = Field("name", "Label", kind=kind)
        assert field.clean("{{ attempt }}") == "{{ attempt }}"
        with pytest.raises(ValueError, match=r"did you mean attempt\?"):
            field.clean("{{ attemp }}")
        for text in ("1{{ attempt }}", " {{ attempt }}", "{{{{") if "text" not in kind else ():
            with pytest.raises(ValueError, match="must be "):
                field.clean(text)

    @pytest.mark.parametrize("field", [Field("f", "F", fixed=True), Field("f", "F", kind="list", fixed=True)])
    def test_a_fixed_field_takes_none_and_other_braces_as_they_are(self, field: Field) -> None:
        def of(text: str) -> Any:
            return [text] if field.kind == "list" else text

        with pytest.raises(ValueError, match="cannot contain placeholders, because it decides what runs"):
            field.clean(of("SELECT {{ steps.a.result }}"))
        for text in ("'{{0}}' -f 'x'", "{{ .Names }}", "{{{{"):
            assert field.clean(of(text)) == of(text)
            assert field.fill(of(text), {}) == of(text)

    def test_a_choice_cannot_be_filled(self) -> None:
        with pytest.raises(ValueError, match="must be one of a"):
            Field("f", "F", kind="choice", choices=(("a", "A"),)).clean("{{ attempt }}")

    def test_where_others_could_read_it_no_secret_may_stand(self) -> None:
        field = Field("argv", "Arguments", kind="list", secrets=False)
        assert field.clean(["{{ attempt }}"]) == ["{{ attempt }}"]
        with pytest.raises(
            ValueError, match="cannot contain a secret: it would be visible in the process list"
        ):
            field.clean(["x", "--password={{ secrets.token }}"])

    @pytest.mark.parametrize(
        ("field", "value", "filled"),
        [
            (Field("f", "F"), "{{ steps.fetch.result.count }}", "3"),
            (Field("f", "F"), "{{ steps.fetch.result.nothing }}", ""),
            (Field("f", "F", kind="number"), "{{ steps.fetch.result.count }}", 3),
            (Field("f", "F", kind="bool"), "{{ steps.fetch.result.done }}", True),
            (Field("f", "F", kind="mapping"), "{{ steps.fetch.result }}", VALUES["steps.fetch.result"]),
            (Field("f", "F", kind="list"), ["{{ attempt }}", "{{ attempt }}x"], [2, "2x"]),
            (Field("f", "F", kind="list", text_only=True), ["a", "{{ attempt }}"], ["a", "2"]),
            (Field("f", "F", kind="mapping", text_only=True), {"A": "{{ attempt }}"}, {"A": "2"}),
        ],
    )
    def test_filled_it_has_the_type_that_the_field_wants(
        self, field: Field, value: Any, filled: object
    ) -> None:
        assert field.clean(value) == value
        assert field.clean(field.fill(value, VALUES)) == filled

    @pytest.mark.parametrize("value", [{"braces": "{{ attempt }}", "{{": 1}, "{{ attempt }}", ["{{ x }}"]])
    def test_filled_with_braces_it_is_checked_as_any_other_value(self, value: Any) -> None:
        filled = Field("f", "F").fill("{{ steps.a.result }}", {"steps.a.result": value})
        assert not has_placeholders(Field("f", "F").clean(filled))
        number = Field("f", "F", kind="number")
        with pytest.raises(ValueError, match="must be a number"):
            number.clean(number.fill("{{ steps.a.result }}", {"steps.a.result": value}))

    def test_the_program_of_an_executable_is_fixed(self) -> None:
        for argv in (["{{ attempt }}"], ["/bin/{{ attempt }}", "x"], "{{ steps.a.result }}"):
            with pytest.raises(ConfigError) as raised:
                get("executable").clean({"argv": argv})
            assert "cannot contain placeholders" in raised.value.errors["argv"]

    def test_the_function_of_a_python_step_is_fixed_its_arguments_are_not(self) -> None:
        with pytest.raises(ConfigError) as raised:
            get("python").clean({"function": "a.{{ attempt }}", "args": ["{{ attempt }}"]})
        assert list(raised.value.errors) == ["function"]
        config = {"function": "a.b", "args": "{{ steps.a.result }}", "kwargs": "{{ steps.ctx.result }}"}
        assert get("python").clean(config) == config | {"isolation": "process"}


@pytest.mark.django_db
class TestSaving:
    @pytest.fixture(autouse=True)
    def own_keys(self, settings: Any, tmp_path: Path) -> None:
        settings.JIM_DATA_DIR = tmp_path

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{{ steps.b.result }}", "a step cannot use its own result"),
            ("{{ steps.x.result }}", "unknown step “x”; choose one of: a, b, side, later"),
            ("{{ steps.A.result }}", "unknown step “A”; did you mean a?"),
            ("{{ steps.side.result }}", "“side” is in the same group, so both steps run side by side"),
            ("{{ steps.later.result }}", "“later” runs later: move “later” to an earlier group"),
            ("{{ secrets.tokn }}", "unknown secret “tokn”; did you mean token?"),
            ("{{ secrets.else }}", "unknown secret “else”; define it first"),
            ("{{ steps.a.reslt }}", "“steps.a.reslt” must have the form steps.a.result"),
        ],
    )
    def test_what_would_find_nothing_is_refused_by_step_and_field(self, text: str, words: str) -> None:
        Secret.objects.define("token", "hunter2", initiator=SOMEBODY, now=NOW)
        using = step("b", 1, kwargs={"x": text})
        with pytest.raises(ValidationError) as raised:
            make_schedule(step("a"), using, step("side", 1), step("later", 2))
        [(path, [complaint])] = raised.value.message_dict.items()
        assert path == "steps.1.config.kwargs"
        assert (words in complaint, text.strip("{} ") in complaint) == (True, True)

    def test_everything_is_told_at_once_even_where_other_things_are_wrong(self) -> None:
        with pytest.raises(ValidationError) as raised:
            make_schedule(
                step("a", kwargs={"x": "{{ steps.b.result }}"}),
                step("b", index="second"),
                step("c", 1, pool="", kwargs={"x": "{{ steps.x.result }} {{ steps.y.result }}"}),
            )
        told = raised.value.message_dict
        assert set(told) == {"steps.1.index", "steps.2.pool", "steps.2.config.kwargs"}
        assert [f"step “{name}”" in " ".join(told["steps.2.config.kwargs"]) for name in "xy"] == [True, True]

    def test_a_step_that_another_refers_to_can_be_neither_renamed_nor_removed(self) -> None:
        using = step("b", 1, kwargs={"x": "{{ steps.'a'.result.count }} {{ nominal_time }}"})
        schedule = make_schedule(step("a"), using)
        for after in ([step("renamed"), using], [using]):
            with pytest.raises(ValidationError, match="unknown step “a”"):
                schedule.edit(token=schedule.token, initiator=SOMEBODY, now=NOW, changes={}, steps=after)
        assert fresh(schedule).steps.count() == 2

    def test_secrets_are_looked_up_once_and_only_if_a_step_uses_one(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        with django_assert_num_queries(0):
            assert check_steps([step("a", kwargs={"x": "{{ attempt }}"}), step("b")]) == []
        with django_assert_num_queries(1):
            complaints = check_steps([step(name, kwargs={"x": "{{ secrets.gone }}"}) for name in "abc"])
        assert len(complaints) == 3

    def test_a_single_job_knows_secrets_its_attempt_and_its_key(self) -> None:
        Secret.objects.define("token", "hunter2", initiator=SOMEBODY, now=NOW)
        text = "{{ secrets.token }} {{ attempt }} {{ idempotency_key }}"
        (task,) = enqueue(step(kwargs={"value": text}))
        assert task.step["refs"] == ["secrets.token", "attempt", "idempotency_key"]
        assert task.step["config"]["kwargs"] == {"value": text}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{{ steps.a.result }}", "a single job has no earlier steps"),
            ("{{ nominal_time }}", "a single job has only the values attempt and idempotency_key"),
            ("{{ secrets.token }}", "unknown secret “token”; define it first"),
            ("{{ attemp }}", "did you mean attempt?"),
        ],
    )
    def test_a_single_job_has_no_other(self, text: str, words: str) -> None:
        with pytest.raises(ValidationError) as raised:
            enqueue(step(kwargs={"x": text}))
        [complaint] = raised.value.message_dict["config.kwargs"]
        assert words in complaint


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        ({"url": "{{ attempt }} {{ steps.a.result }}"}, False),
        ({"headers": {"deep": ["x {{ secrets.token }}"]}}, True),
        ({"url": "{{ secrets.token }}", "body": "{{ {broken"}, True),
        ({"url": "{{{{ secrets.token }}"}, False),
    ],
)
def test_using_a_secret_takes_the_permission_to_define_code(config: Any, needed: bool) -> None:
    harmless = {"name": "a", "step_type": "http", "config": config}
    assert lacking([], [harmless], lambda _: False) == ({DEFINE_CODE: ["a"]} if needed else {})
    assert lacking([harmless], [harmless], lambda _: False) == {}
