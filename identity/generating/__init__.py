"""Example data: objects that a template describes, for trying out rules and for demonstrations.

A template is a JSON object with a `seed` (0 unless given), the `count` of objects, and their `attributes`:

    {"seed": 7, "count": 1000, "attributes": {
        "employee_id": {"sequence": "E001000"},
        "kind":        "employee",
        "first_name":  {"choose": "first_names"},
        "last_name":   {"choose": "last_names"},
        "nickname":    {"choose": "first_names", "fill": 20},
        "mail":        {"pattern": "{first_name:1}{last_name}@example.com", "plain": true, "unique": true},
        "department":  {"choose": {"Sales": 5, "IT": 2, "HR": 1}},
        "location":    {"by": "department", "values": {"IT": {"choose": ["Berlin", "Porto"]}, "HR": "Rome"}},
        "salary":      {"range": [30000, 90000], "step": 500},
        "hired":       {"date": ["2015-01-01", "2026-01-01"]},
        "active":      {"boolean": 95},
        "manager":     {"manager": "employee_id", "span": 8},
        "deputies":    {"references": "employee_id", "count": [0, 3]}}}

Text, a number, true, false or a list of these is the same for all objects. All else is an object with one of:

- `choose`: a list of values, an object of texts and their weights, or the name of a list in `word_lists`.
- `range`: a number from the first to the last, in steps of `step` (1, or 0.01 for decimal numbers).
- `date`, `datetime`: a day, or a second, from the first to the last.
- `boolean`: true for so many percent of the objects.
- `sequence`: the number or text of the first object; the number at the end grows by 1 for each object.
- `uuid`: true.
- `pattern`: a text into which values are inserted, `{name:3}` only the first 3 characters, and never more
  than 200. A missing value is inserted as nothing. `plain` leaves only the letters a to z, digits and `.-_@`
  of inserted values, as for user names. `unique` always appends a dot and the number of the object, counted
  from 1, before the first @ or at the end; so no two objects have the same value.
- `by`: a rule for each value of another attribute, in `values`; `otherwise` is the rule for all others.
- `manager`: what identifies the manager, who has up to `span` (8) reports. All objects form one tree.
- `references`: what identifies other objects, at least and at most so many as `count` says, or all others.

With `fill`, only so many percent of the objects have a value.

An object depends only on the template and its index, on any machine and in any version of Python. So a
generation that was interrupted continues at any index. Each attribute has random numbers of its own: adding
or removing one leaves the others as they are. Nothing here uses a database or a file.

The files, in reading order: `word_lists`, `draws` and `rules`; `checks`, `rule_forms` and `reading`, which
read templates; `turnover` and `template`.
"""

from __future__ import annotations

from .reading import TemplateError
from .template import Template

__all__ = ["Template", "TemplateError"]
