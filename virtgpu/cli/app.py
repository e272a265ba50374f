"""The command tree. Nouns are imported when they are used, so that --help stays cheap."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import click

from virtgpu.cli.world import World, world_options

# Each noun's or verb's line in the help, in the order of a person's work.
NOUNS = {
    "host": "This host: kernel, IOMMU, memory nodes, GPUs.",
    "gpu": "Physical GPUs and what they can do.",
    "type": "vGPU types, and how many more of each fit now.",
    "slice": "Slices: list, create, destroy.",
    "vm": "Guests: render, define, undefine, list, show.",
    "apply": "Do a saved plan.",
    "recover": "Finish or undo what was cut off.",
    "sim": "Simulated hosts, for those without a GPU.",
    "completion": "Shell completion.",
}


_NARROW, _WIDE = 50, 80  # what click writes its help in, whatever the terminal


class _Formatter(click.HelpFormatter):
    """Asks for the terminal's width itself: click imports shutil for it, and with it the modules
    of three compressions, a tenth of what printing the help takes."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        if width is None and click.formatting.FORCED_WIDTH is None:
            width = max(min(_columns(), max_width or _WIDE) - 2, _NARROW)
        super().__init__(indent_increment, width, max_width)


def _columns() -> int:
    """The terminal's width as shutil.get_terminal_size answers it."""
    with suppress(KeyError, ValueError):
        said = int(os.environ["COLUMNS"])
        if said > 0:
            return said
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _WIDE  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return _WIDE


class _Context(click.Context):
    formatter_class = _Formatter


class Nouns(click.Group):
    """The group of all nouns; a noun is the attribute `command` of its module."""

    context_class = _Context

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The nouns in the order of the help."""
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """One noun, imported."""
        if cmd_name not in NOUNS:
            return None
        module = import_module(f"virtgpu.cli.nouns.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in --help, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(NOUNS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the close ones for a noun that does not exist."""
        if args and args[0] not in NOUNS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], NOUNS, n=3)
            said = f"; did you mean {' or '.join(close)}?" if close else ""
            raise click.UsageError(f"there is no command {args[0]!r}{said}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Nouns,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "VIRTGPU"},
    epilog="Exit codes: 0 done, 2 usage, 3 config, 4 not found, 5 denied, 6 no room, 7 conflict, "
    "8 unsupported, 9 host, 12 rolled back, 13 recovery needed, 70 a defect of virtgpu.",
    invoke_without_command=False,
)
@world_options
@click.version_option(package_name="virtgpu", message="virtgpu %(version)s")
@click.pass_context
def cli(ctx: click.Context, /, **world: str | None) -> None:
    """Slices of GPUs for virtual machines.

    \b
    virtgpu gpu list                                what is here
    virtgpu slice create A40-12Q --for render01 --dry-run
    virtgpu vm define render01 --gpu A40-12Q        slice, XML and guest in one
    virtgpu --host sim:a40x2-mdev-vf type list      without a GPU
    """
    ctx.obj = World.of(world)


def names() -> Sequence[str]:
    """The nouns."""
    return tuple(NOUNS)
