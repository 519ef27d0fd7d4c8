"""The steps of a draft: the data of a formset, as a browser sends it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.forms import inlineformset_factory
from django.http import QueryDict

from files import strict_json
from schedules.forms.sent import Sent, put
from schedules.forms.steps import StepForm, StepFormSet
from schedules.models import MAX_STEPS, Schedule, Step
from text.numbers import whole_number

from .data import count_of, put_count

PREFIX = "steps"
# Forms of steps that were removed count as well.
MOST_FORMS = 2 * MAX_STEPS
# More steps than these are folded and opened one by one.
MOST_OPEN = 4


class FoldableStepForm(StepForm):
    can_be_folded = True


Steps = inlineformset_factory(
    Schedule, Step, form=FoldableStepForm, formset=StepFormSet, max_num=MAX_STEPS, absolute_max=MOST_FORMS
)


def data_of_steps(steps: Iterable[Mapping[str, Any]]) -> Sent:
    """Return the data of a formset with these steps, folded."""
    data: Sent = {}
    for number, step in enumerate(steps):
        rest = {name: value for name, value in step.items() if name != "index"}
        data[_index(number)] = [str(step.get("index", 0))]
        data[f"{PREFIX}-{number}-folded"] = [json.dumps(rest)]
    return data | {f"{PREFIX}-TOTAL_FORMS": [str(len(data) // 2)]}


def formset_of(data: QueryDict, schedule: Schedule | None, *, tells_secrets: bool) -> Any:
    """Return the checked formset; steps that are wrong, opened or few are unfolded in its data."""
    formset = _checked(data, schedule, tells_secrets=tells_secrets)
    is_short = len(formset.step_forms) <= MOST_OPEN
    folded = [form for form in formset.step_forms if form.is_folded]
    to_open = [form for form in folded if is_short or form.errors or data.get(f"{form.prefix}-open")]
    for form in to_open:
        data.pop(f"{form.prefix}-folded", None)
        put(data, form.unfolded())
    return _checked(data, schedule, tells_secrets=tells_secrets) if to_open else formset


def _checked(data: QueryDict, schedule: Schedule | None, *, tells_secrets: bool) -> Any:
    put_count(data, PREFIX, min(count_of(data, PREFIX), MOST_FORMS))
    instance = schedule or Schedule()
    formset: Any = Steps(data=data, instance=instance, prefix=PREFIX, form_kwargs={"empty_permitted": False})
    formset.tells_secrets = tells_secrets
    formset.is_valid()
    return formset


def indices_of(data: QueryDict) -> dict[int, int]:
    """Return the index of each step by the number of its form."""
    count = min(count_of(data, PREFIX), MOST_FORMS)
    numbers = [number for number in range(count) if not data.get(f"{PREFIX}-{number}-DELETE")]
    return {number: whole_number(data.get(_index(number), ""), digits=9) or 0 for number in numbers}


def put_indices(data: QueryDict, indices: Mapping[int, int]) -> None:
    put(data, {_index(number): [str(index)] for number, index in indices.items()})


def read_folded(text: str) -> dict[str, Any]:
    try:
        step = strict_json.loads(text)
    except ValueError:
        return {}
    return step if isinstance(step, dict) else {}


def _index(number: int) -> str:
    return f"{PREFIX}-{number}-index"
