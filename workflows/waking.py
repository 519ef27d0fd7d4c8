"""When a consumer may ask to be woken. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta


def clamp(asked: object, *, now: datetime, least: timedelta, most: timedelta) -> tuple[datetime | None, str]:
    """The time at which it is woken, and what to note of a wish that was not granted as it was."""
    if asked is None:
        return None, ""
    at = _instant(asked)
    if at is None:
        return None, f"wake_at {asked!r} is no instant with its zone: ignored"
    if at < now + least:
        return now + least, f"wake_at {at.isoformat()} is too soon: {least} from now instead"
    if at > now + most:
        return now + most, f"wake_at {at.isoformat()} is too late: {most} from now instead"
    return at, ""


def _instant(asked: object) -> datetime | None:
    if isinstance(asked, str):
        try:
            asked = datetime.fromisoformat(asked)
        except ValueError:
            return None
    return asked if isinstance(asked, datetime) and asked.utcoffset() is not None else None
