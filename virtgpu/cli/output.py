"""Printing results: data on stdout, as a table for people or as JSON or YAML for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from virtgpu.cli.streams import put, writing
from virtgpu.cli.world import World
from virtgpu.errors import Unsupported
from virtgpu.model import codec


class Table(NamedTuple):
    """Rows for people. A cell that is None is unknown and shown as a dash."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "none"


def show(world: World, data: dict[str, Any], table: Table | str) -> None:
    """Print *data* (with its version) for programs, else the table or text."""
    if world.format == "table":
        _print_table(table) if isinstance(table, Table) else put(table)
        return
    body = {"version": 1} | data
    if world.format == "json":
        put(codec.encode_pretty(body), nl=False)
    else:
        put(as_yaml(body), nl=False)


def as_yaml(body: object) -> str:
    """The value as YAML; raises `Unsupported` without PyYAML."""
    try:
        import yaml
    except ImportError as error:
        raise Unsupported(
            "YAML output needs PyYAML", hint="pip install 'virtgpu[yaml]', or take -o json"
        ) from error
    return str(yaml.safe_dump(codec.builtins(body), sort_keys=False, allow_unicode=True))


def cell(value: object) -> str:
    """One value as text: unknown is a dash, never a zero."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(one) for one in value) or "-"
    return str(value)


def _print_table(table: Table) -> None:
    if not table.rows:
        click.echo(table.empty, err=True)
        return
    cells = [[cell(value) for value in row] for row in table.rows]
    if sys.stdout.isatty():
        _print_rich(table.columns, cells)
        return
    widths = [max(len(row[i]) for row in (table.columns, *cells)) for i in range(len(cells[0]))]
    for row in (table.columns, *cells):
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        put(line.rstrip())


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(
        box=None, pad_edge=False, header_style="" if os.environ.get("NO_COLOR") else "bold"
    )
    for number, name in enumerate(columns):
        # Addresses and ids are for copying: prose gives way first.
        is_word = not any(" " in row[number] for row in cells)
        made.add_column(name, overflow="fold", no_wrap=is_word)
    for row in cells:
        made.add_row(*(Text(text) for text in row))
    with writing():
        Console().print(made)


def gib(mib: int | None) -> str | None:
    """Mebibytes as the gigabytes of a type's name."""
    return None if mib is None else f"{mib / 1024:g} GB"
