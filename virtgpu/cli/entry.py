"""Running a command line: the one place that turns errors into exit codes and sentences."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from virtgpu.cli.app import cli
from virtgpu.errors import VirtgpuError

_INTERNAL = 70
_INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line; nothing is raised."""
    wants_json = _wants_json(arguments)
    try:
        code = cli.main(list(arguments), prog_name="virtgpu", standalone_mode=False)
        sys.stdout.flush()
    except VirtgpuError as error:
        return _say(error, wants_json=wants_json)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        from virtgpu.errors import Usage

        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context is not None else "virtgpu --help"
        return _say(Usage(error.format_message(), hint=hint), wants_json=wants_json)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return _INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader of our output has gone (click leaves by SystemExit then, and only then), and
        # had what it wanted. Python must not complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:
        return _defect(error, wants_json=wants_json)
    return code if isinstance(code, int) else 0


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be JSON; asked before the options can be trusted to parse."""
    if os.environ.get("VIRTGPU_OUTPUT") == "json":
        return True
    pairs = zip(arguments, (*arguments[1:], ""), strict=True)
    return any(
        one in ("-ojson", "--output=json", "-o=json")
        or (one in ("-o", "--output") and two == "json")
        for one, two in pairs
    )


def _say(error: VirtgpuError, *, wants_json: bool) -> int:
    if wants_json:
        from virtgpu.model import codec

        body = {
            "kind": error.kind,
            "message": error.message,
            "hint": error.hint,
            "transient": error.transient,
            "exit_code": error.exit_code,
        }
        click.echo(codec.encode({"version": 1, "error": body}).decode(), err=True)
    else:
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
    return error.exit_code


def _defect(error: Exception, *, wants_json: bool) -> int:
    """A defect of ours: one sentence, and the details in a file that only we can read."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile(
        "w", prefix="virtgpu-report-", suffix=".txt", delete=False
    ) as file:
        file.write(text)
    found = VirtgpuError(
        f"a defect of virtgpu: {type(error).__name__}",
        hint=f"please report it with the file {file.name}",
    )
    return _say(found, wants_json=wants_json) or _INTERNAL
