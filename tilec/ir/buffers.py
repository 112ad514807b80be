"""Buffers in shared memory: their size, and which layouts and copies suit them."""

from __future__ import annotations

from tilec.ir.core import Value
from tilec.ir.fragment import shared_tile
from tilec.ir.types import MemDesc


def buffer_bytes(buffer: Value) -> int:
    """Bytes of a shared buffer, all its stages together."""
    t = buffer.type
    assert isinstance(t, MemDesc)
    return t.stages * stage_bytes(t)


def stage_bytes(t: MemDesc) -> int:
    """Bytes from one buffer of an array to the next."""
    return shared_tile(t.tile_shape, t.layout).num_elements * t.element.bytes
