"""Specs, which say when schedules run. Nothing here reads a clock or the database."""

from __future__ import annotations

from .spec import DST_MODES, NO_CALENDARS, Spec
from .wording import SpecError

__all__ = ["DST_MODES", "NO_CALENDARS", "Spec", "SpecError"]
