from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.inclusion_tag("web/editor/_field.html", takes_context=True)
def typed(context: Any, bound: Any, wide: bool = False) -> dict[str, Any]:
    """A field with what was typed, its help, and a place for what is wrong with it."""
    errors = context["shown"].errors_of(bound.html_name)
    widget = bound.field.widget
    described = [f"help-{bound.html_name}"] if bound.help_text else []
    attrs = {
        "aria-invalid": "true" if errors else "false",
        "aria-describedby": " ".join([*described, f"error-{bound.html_name}"]),
    }
    is_group = bound.field.widget.use_fieldset
    return {
        "bound": bound,
        "control": bound.as_widget(attrs={} if is_group else attrs),
        "errors": errors,
        "is_group": is_group,
        "is_tick": getattr(widget, "input_type", "") == "checkbox" and not is_group,
        "is_needed": bool(widget.attrs.get("data-needed")) or bound.html_name == "name",
        "wide": wide,
    }


@register.inclusion_tag("web/editor/_errors.html", takes_context=True)
def complaints(context: Any, name: str) -> dict[str, Any]:
    """The place for what is wrong with a part as a whole."""
    return {"name": name, "errors": context["shown"].errors_of(name)}


@register.filter
def get(texts: dict[str, str], name: str) -> str:
    return texts.get(name, "")
