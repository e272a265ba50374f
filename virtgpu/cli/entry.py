"""Running a command line: the one place that turns errors into exit codes and sentences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise

import click

from virtgpu.cli.app import cli
from virtgpu.cli.streams import drop_output, flush, prepare_output
from virtgpu.errors import AccessDenied, HostError, VirtgpuError

_INTERNAL = 70
_INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line; nothing is raised."""
    wants_json = _wants_json(arguments)
    try:
        prepare_output()
        code = cli.main(list(arguments), prog_name="virtgpu", standalone_mode=False)
        flush()
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
        drop_output()
        return 0
    except OSError as error:
        return _say(_of_system(error), wants_json=wants_json)
    except Exception as error:
        return _defect(error, wants_json=wants_json)
    return code if isinstance(code, int) else 0


def _of_system(error: OSError) -> VirtgpuError:
    """What the system refused where nothing of ours has said so better."""
    what = f"{error.filename}: " if error.filename else ""
    kind = AccessDenied if isinstance(error, PermissionError) else HostError
    return kind(f"{what}{error.strerror or error}")


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be JSON; asked before the options can be trusted to parse."""
    if os.environ.get("VIRTGPU_OUTPUT") == "json":
        return True
    pairs = pairwise((*arguments, ""))
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
