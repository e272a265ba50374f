"""The standard streams: data on stdout, talk on stderr, and neither ever a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from virtgpu.errors import HostError


def prepare_output() -> None:
    """Make the standard streams fit to be written to, before anything is done.

    Raises `HostError` when standard output is closed: what was done could not be told.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Else the first file that we open would be taken for it.
            fd = os.open(os.devnull, os.O_RDWR)
            if number == 2:
                sys.stderr = os.fdopen(fd, "w")
            if number == 1:
                raise HostError("standard output is closed", hint="send it to a file") from None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks is shown as \\u....
            stream.reconfigure(errors="backslashreplace")


def put(text: str, *, nl: bool = True) -> None:
    """Print data: on stdout. Raises `HostError` when it cannot be written there."""
    with writing():
        click.echo(text, nl=nl)


def flush() -> None:
    """What was printed is out; raises `HostError` when it cannot be."""
    with writing():
        if sys.stdout is not None:
            sys.stdout.flush()


def drop_output() -> None:
    """Whatever is left to be written goes nowhere: or Python tries again when it ends, and
    complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def writing() -> Iterator[None]:
    """Whatever standard output refuses in the block becomes a `HostError`."""
    try:
        yield
    except BrokenPipeError:
        raise  # its reader has had enough
    except OSError as error:
        drop_output()
        raise HostError(
            f"standard output cannot be written: {error.strerror}",
            hint="what was asked for is done where nothing else was said; look with a list",
        ) from error


def say(sentence: str) -> None:
    """Talk: on stderr."""
    click.echo(sentence, err=True)
