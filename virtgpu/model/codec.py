"""JSON and YAML in and out of the model, strict on the way in."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from virtgpu.errors import Config, VirtgpuError
from virtgpu.model.pci import PciAddress

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """The value as compact JSON; an address is its text."""
    return msgspec.json.encode(value, enc_hook=_encode_hook)


def encode_pretty(value: Any) -> str:
    """The value as indented JSON with a final newline."""
    return msgspec.json.format(encode(value), indent=2).decode() + "\n"


def builtins(value: Any) -> Any:
    """The value as plain dicts, lists, numbers and texts."""
    return msgspec.to_builtins(value, enc_hook=_encode_hook)


def decode(raw: bytes | str, kind: type[T], source: str) -> T:
    """Read JSON as *kind*; raises `Config` that names *source* and the place."""
    try:
        return msgspec.json.decode(raw, type=kind, dec_hook=_decode_hook)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, VirtgpuError) as error:
        raise Config(f"{source}: {error}") from error


def convert(value: Any, kind: type[T], source: str) -> T:
    """Plain values as *kind*; raises `Config` that names *source* and the place."""
    try:
        return msgspec.convert(value, type=kind, dec_hook=_decode_hook)
    except (msgspec.ValidationError, RecursionError, VirtgpuError) as error:
        raise Config(f"{source}: {error}") from error


def _encode_hook(value: Any) -> Any:
    if isinstance(value, str):  # a PciAddress
        return str.__str__(value)
    raise NotImplementedError(type(value).__name__)


def _decode_hook(kind: type, value: Any) -> Any:
    if issubclass(kind, PciAddress) and isinstance(value, str):
        return kind.parse(value)
    raise NotImplementedError(kind.__name__)
