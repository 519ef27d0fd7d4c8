from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms, template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()


@register.inclusion_tag("web/editor/_field.html", takes_context=True)
def typed(context: Any, bound: forms.BoundField) -> dict[str, Any]:
    """Draw a field with its value, help and errors."""
    errors, name, widget = context["shown"].errors_of(bound.html_name), bound.html_name, bound.field.widget
    return {
        "name": name,
        "label": bound.label,
        "help": bound.help_text,
        "hidden": bound.as_hidden(only_initial=True) if bound.field.show_hidden_initial else "",
        "control": bound.as_widget() if widget.use_fieldset else control(bound, is_wrong=bool(errors)),
        "id": bound.auto_id,
        "errors": errors,
        "is_group": widget.use_fieldset,
        "is_tick": isinstance(widget, forms.CheckboxInput),
        "is_needed": bool(widget.attrs.get("data-needed")) or name == "name",
    }


@register.inclusion_tag("web/editor/_errors.html", takes_context=True)
def complaints(context: Any, name: str) -> dict[str, Any]:
    """Render the errors that concern a part of the form as a whole, such as a step."""
    return {"name": name, "errors": context["shown"].errors_of(name)}


def control(bound: forms.BoundField, *, is_wrong: bool) -> SafeString:
    """Draw a widget without its template, which is too slow for the hundreds of fields of a plan."""
    described = [f"help-{bound.html_name}"] if bound.help_text else []
    attrs: dict[str, Any] = {
        "name": bound.html_name,
        "id": bound.auto_id,
        **bound.field.widget.attrs,
        "aria-invalid": "true" if is_wrong else "false",
        "aria-describedby": " ".join([*described, f"error-{bound.html_name}"]),
    }
    value = bound.value()
    match bound.field.widget:
        case forms.CheckboxInput():
            return format_html('<input type="checkbox"{}>', _attributes(attrs | {"checked": bool(value)}))
        case forms.Textarea():
            return format_html("<textarea{}>\n{}</textarea>", _attributes(attrs), value or "")
        case forms.Select() as select:
            return format_html("<select{}>{}</select>", _attributes(attrs), _options(select.choices, value))
        case _:
            shown = {"type": "text", "value": "" if value is None else value}
            return format_html("<input{}>", _attributes(attrs | shown))


def _options(choices: Any, value: Any) -> SafeString:
    parts = []
    for key, label in choices:
        if isinstance(label, list | tuple):
            parts.append(format_html('<optgroup label="{}">{}</optgroup>', key, _options(label, value)))
        else:
            selected = SafeString(" selected" if str(key) == str(value or "") else "")
            parts.append(format_html('<option value="{}"{}>{}</option>', key, selected, label))
    return format_html_join("", "{}", ((part,) for part in parts))


def _attributes(attrs: Mapping[str, Any]) -> SafeString:
    """Render attributes: one that is True without a value, one that is False or None not at all."""
    named = [(name, value) for name, value in attrs.items() if not isinstance(value, bool | None)]
    alone = [(name,) for name, value in attrs.items() if value is True]
    return format_html("{}{}", format_html_join("", ' {}="{}"', named), format_html_join("", " {}", alone))
