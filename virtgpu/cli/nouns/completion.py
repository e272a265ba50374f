"""`virtgpu completion`."""

from __future__ import annotations

import click

from virtgpu.cli.streams import put
from virtgpu.cli.world import Verb, World


@click.command(
    cls=Verb, name="completion", example="virtgpu completion bash > /etc/bash_completion.d/virtgpu"
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(world: World, shell: str) -> None:  # noqa: ARG001 - every verb gets it
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from virtgpu.cli.app import cli

    kind = get_completion_class(shell)
    assert kind is not None
    put(kind(cli, {}, "virtgpu", "_VIRTGPU_COMPLETE").source())
