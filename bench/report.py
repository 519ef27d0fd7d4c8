"""Prints the results as tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from .figures import FIGURES, Verdict
from .results import JIM, Key, Result, Results

NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}


def show_jim(results: Results, console: Console) -> None:
    """Print a table with a line for each metric of JIM and a column for each database."""
    mine = {key: result for key, result in results.items() if key.peer == JIM}
    databases = [name for name in NAMES if any(key.database == name for key in mine)]
    table = Table(title="JIM", title_justify="left")
    table.add_column("metric")
    table.add_column("unit")
    for database in databases:
        table.add_column(NAMES[database], justify="right")
    for metric in dict.fromkeys(key.metric for key in mine):
        found = [mine.get(Key(metric, database)) for database in databases]
        unit = next((result.unit for result in found if result and result.unit), "")
        table.add_row(metric, unit, *map(_cell, found))
    console.print(table)
    console.print(_noise(mine.values()), markup=False, highlight=False)


def show_peers(results: Results, console: Console) -> None:
    if not any(key.peer != JIM for key in results):
        return
    table = Table(title="Peers", title_justify="left")
    for heading in ("peer", "metric", "unit"):
        table.add_column(heading)
    table.add_column("value", justify="right")
    for key, result in results.items():
        if key.peer != JIM:
            table.add_row(key.peer, key.metric, result.unit, _cell(result))
    console.print(table)


def show_figures(results: Results, console: Console) -> None:
    """Print the target figures for which there are results, and whether JIM meets them."""
    verdicts = [verdict for figure in FIGURES if (verdict := figure.judge(results))]
    if not verdicts:
        return
    table = Table(title="Figures to reach", title_justify="left")
    table.add_column("figure")
    for heading in ("JIM", "beside", "JIM / beside", "to reach"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for verdict in verdicts:
        table.add_row(*_line(verdict, results))
    console.print(table)


def show_failures(results: Results, console: Console) -> None:
    for key, why in results.failures.items():
        console.print(
            f"[red]failed[/]: {key.peer or 'JIM'} {key.metric} on {key.database}: {why}", highlight=False
        )


def _line(verdict: Verdict, results: Results) -> tuple[str, ...]:
    figure = verdict.figure
    beside = ""
    if figure.of is not None:
        beside = f"{_number(verdict.other)} {figure.of.peer or figure.of.metric}"
    ratio = f"{verdict.ratio:,.2f} x" if verdict.ratio is not None else ""
    note = f" ({figure.note})" if figure.note else ""
    return (
        f"{figure.metric}, {NAMES[figure.database]}{note}",
        f"{_number(verdict.mine)} {results[figure.key].unit}",
        beside,
        ratio,
        _bound(verdict),
        _word(verdict),
    )


def _bound(verdict: Verdict) -> str:
    figure = verdict.figure
    if figure.limit is None:
        return ""
    sign = "≥" if figure.sense == "at least" else "≤"
    return f"{sign} {figure.limit:,g}{' x' if figure.of else ''}"


def _word(verdict: Verdict) -> str:
    if verdict.mine is None or (verdict.figure.of and verdict.other is None):
        return "[red]failed[/]"
    if verdict.is_met is None:
        return ""
    return "[green]met[/]" if verdict.is_met else "[red]not met[/]"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if result.value is None:
        return "[red]failed[/]"
    if len(result.values) == 1:
        return _number(result.value)
    return (
        f"{_number(result.value)} [dim]\\[{_number(min(result.values))} to {_number(max(result.values))}][/]"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _noise(results: Iterable[Result]) -> str:
    noise = [each for result in results for each in result.noise]
    if not noise:
        return ""
    busy = sorted(each.busy for each in noise)
    spin = sorted(each.spin for each in noise)
    return (
        f"Median [range] of the runs. Before a run, the machine was {busy[len(busy) // 2]:.0f} % busy, "
        f"at worst {busy[-1]:.0f} %; a core counted {spin[0]:.0f} to {spin[-1]:.0f} million a second."
    )
