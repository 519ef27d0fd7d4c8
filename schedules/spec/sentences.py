"""Describes calendars in English: which times, on which days."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product

from .wall_calendar import Calendar, Days, Listed, Product, TimesOfDay
from .wording import MONTHS, WEEKDAYS, counted, each, even_step, every_words, listed, time_of_day


def calendar_words(calendar: Calendar) -> str:
    time, days = _time_words(calendar.times), _day_words(calendar.days)
    return f"{time} {days or ('every day' if time.startswith('at ') and ':' in time else '')}".rstrip()


def excluded_words(calendar: Calendar) -> str:
    """Describe the calendar of an exclusion. A field that is not set matches everything."""
    times = calendar.times
    assert isinstance(times, Product)
    return f"{_open_words(times)} {_day_words(calendar.days)}".strip()


def _time_words(times: TimesOfDay) -> str:
    if isinstance(times, Listed):
        return _listed_words(times.times)
    assert isinstance(times, Product)
    return _minute_words(times) if times.seconds == (0,) else _second_words(times)


def _minute_words(times: Product) -> str:
    hours, minutes = times.hours, times.minutes
    span = f"from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[-1]:02}"
    minute_step, hour_step = even_step(minutes, 60), even_step(hours, 24)
    if minute_step and _is_run(hours):
        return f"every {each(minute_step, 'minute')}" + ("" if hour_step == 1 else f" {span}")
    if len(minutes) == 1 and hour_step and len(hours) > 3 and (minutes[0] == 0 or hour_step > 1):
        return f"every {each(hour_step, 'hour')}" + (f" from 00:{minutes[0]:02}" if minutes[0] else "")
    if len(minutes) == 1 and hour_step is None and _is_long_run(hours):
        return f"every hour {span}"
    return _few_words(times) or f"at {_numbers('minute', minutes)} past {_hour_words(hours)}"


def _second_words(times: Product) -> str:
    hours, minutes, seconds = times.hours, times.minutes, times.seconds
    step = even_step(seconds, 60)
    if step and len(minutes) == 60 and _is_run(hours):
        span = f" from {hours[0]:02}:00:00 to {hours[-1]:02}:59:{seconds[-1]:02}"
        return f"every {each(step, 'second')}" + ("" if len(hours) == 24 else span)
    if few := _few_words(times):
        return few
    if len(minutes) == 60:
        past = "" if len(hours) == 24 else f" past {_hour_words(hours)}"
        return f"at {_numbers('second', seconds)} of every minute{past}"
    return f"at {_numbers('second', seconds)} of {_numbers('minute', minutes)} past {_hour_words(hours)}"


def _few_words(times: Product) -> str:
    hours, minutes, seconds = times.hours, times.minutes, times.seconds
    if len(hours) * len(minutes) * len(seconds) > 6:
        return ""
    parts = product(hours, minutes, seconds)
    return f"at {listed([time_of_day(hour * 3600 + minute * 60 + second) for hour, minute, second in parts])}"


def _hour_words(hours: tuple[int, ...]) -> str:
    return "every hour" if len(hours) == 24 else _numbers("hour", hours)


def _listed_words(times: Sequence[int]) -> str:
    if isinstance(times, range) and len(times) > 1:
        window = f"from {time_of_day(times.start)} to {time_of_day(times.stop - 1)}"
        return f"{every_words(times.step)} {window}"
    hidden = [counted(len(times) - 10, "more time")] if len(times) > 10 else []
    return f"at {listed([time_of_day(time) for time in times[:10]] + hidden)}"


def _open_words(times: Product) -> str:
    hours, minutes, seconds = times.hours, times.minutes, times.seconds
    if times.is_all_day:
        return ""
    if len(minutes) == len(seconds) == 60:
        if _is_run(hours):
            return f"from {hours[0]:02}:00 to {hours[-1] + 1:02}:00"
        return f"during {_numbers('hour', hours)}"
    if len(seconds) == 60:
        return f"during {_numbers('minute', minutes)} past {_hour_words(hours)}"
    return _time_words(times)


def _day_words(days: Days) -> str:
    months = "" if len(days.months) == 12 else listed(_runs(days.months, MONTHS, first=1))
    within = f"{'from' if _is_long_run(days.months) else 'in'} {months}" if months else ""
    weekdays = _weekday_words(days, months or "the month")
    if len(days.days) == 31 and not days.either:
        words = weekdays if days.nth else f"{weekdays} {within}"
        return _joined(words, _year_words(days.years))
    dates = f"on {_dates(days)} of {months or 'the month'}"
    if days.either:
        either = f"{dates} or {weekdays or 'on any day'}"
        return _joined(either, "" if days.nth else within, _year_words(days.years))
    if weekdays:
        names = [WEEKDAYS[day] for day in days.weekdays] + _nth_words(days.nth)
        dates += f" if that is {listed(names, last='or')}"
    return _joined(dates, _year_words(days.years))


def _weekday_words(days: Days, month: str) -> str:
    weekdays = days.weekdays
    if days.nth and len(weekdays) < 7:
        return f"on {listed(_runs(weekdays, WEEKDAYS) + _nth_words(days.nth))} of {month}"
    known = {(0, 1, 2, 3, 4): "on weekdays", (5, 6): "at weekends", (0, 1, 2, 3, 4, 5, 6): ""}
    preposition = "from" if _is_long_run(weekdays) else "on"
    return known[weekdays] if weekdays in known else f"{preposition} {listed(_runs(weekdays, WEEKDAYS))}"


def _nth_words(nth: Sequence[tuple[int, int]]) -> list[str]:
    return [f"the {_NTH[count]} {WEEKDAYS[weekday]}" for weekday, count in nth]


_NTH = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last"}


def _year_words(years: tuple[int, ...]) -> str:
    if not years:
        return ""
    runs = _runs(years, [str(year) for year in range(years[0], years[-1] + 1)], first=years[0])
    if len(runs) > 6:
        runs = [*runs[:5], f"{counted(len(runs) - 5, 'more year')}"]
    return f"{'from' if _is_long_run(years) else 'in'} {listed(runs)}"


def _dates(days: Days) -> str:
    dates = days.days
    last = ["the last day"] if days.last_day else []
    if not dates:
        return last[0]
    step = dates[1] - dates[0] if len(dates) > 4 else 1
    if step > 1 and list(dates) == list(range(dates[0], dates[-1] + 1, step)):
        words = [f"every {_ordinal(step)} day from the {_ordinal(dates[0])} to the {_ordinal(dates[-1])}"]
    else:
        words = _runs(dates, [_ordinal(day) for day in range(1, 32)], first=1)
        words[0] = f"the {words[0]}"
    return listed(words + last)


def _joined(*words: str) -> str:
    return " ".join(" ".join(words).split())


def _is_run(values: Sequence[int]) -> bool:
    return values[-1] - values[0] == len(values) - 1


def _is_long_run(values: Sequence[int]) -> bool:
    return len(values) > 2 and _is_run(values)


def _runs(values: Sequence[int], names: Sequence[str], first: int = 0) -> list[str]:
    """Return the names of the values; three or more values in a row become one text such as "a to c"."""
    words: list[str] = []
    for _, group in groupby(enumerate(values), lambda pair: pair[1] - pair[0]):
        run = [names[value - first] for _, value in group]
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else run
    return words


def _numbers(noun: str, values: Sequence[int]) -> str:
    numbers = listed(_runs(values, [str(value) for value in range(60)]))
    return f"{noun if len(values) == 1 else f'{noun}s'} {numbers}"


def _ordinal(number: int) -> str:
    suffix = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
