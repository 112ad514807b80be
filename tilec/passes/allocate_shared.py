"""gpu -> lowered: give every shared buffer and every op's scratch an offset, by liveness."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilec.errors import OutOfResources
from tilec.ir import ops
from tilec.ir.core import Func, Module, Op, Value
from tilec.ir.ops.base import ScratchOp
from tilec.ir.scratch import scratch_bytes
from tilec.ir.types import MemDesc
from tilec.passes.base import Pass
from tilec.target import Target

ALIGN = 16
# Scratch below this total is not reused: overlap would cost barriers and save nothing.
NO_REUSE_BYTES = 8192


@dataclass(frozen=True)
class _Buffer:
    """Bytes that are live from op number `start` to op number `end`, both included."""

    op: Op
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class AllocateShared(Pass):
    """Sets `offset` on buffers and scratch ops and `shared` (bytes in all) on the module.

    reduce(%x) --> reduce(%x) {offset = 0}
    """

    name: ClassVar[str] = "allocate_shared"

    def run(self, module: Module) -> None:
        total = 0
        for func in module.funcs:
            buffers = _buffers(func)
            total = max(total, _place(buffers))
            target = module.attributes.get("target")
            limit = Target.parse(target).max_shared if target else None
            if limit is not None and total > limit:
                raise _too_much(buffers, total, limit)
        module.attributes["shared"] = total
        module.attributes["level"] = "lowered"


def _buffers(func: Func) -> list[_Buffer]:
    """All buffers, with live intervals in textual op numbers."""
    number: dict[Op, int] = {op: i for i, op in enumerate(func.walk())}
    out: list[_Buffer] = []
    for op in func.walk():
        if isinstance(op, ops.AllocShared):
            last = max((number[_at_level_of(op, user)] + _span(_at_level_of(op, user))
                        for user in op.result.users), default=number[op])
            out.append(_Buffer(op, buffer_bytes(op.result), number[op], last))
        elif isinstance(op, ScratchOp):
            size = scratch_bytes(op)
            if size:
                out.append(_Buffer(op, size, number[op], number[op] + _span(op)))
    return out


def _span(op: Op) -> int:
    """How many ops are nested in `op`."""
    return sum(1 for _ in op.walk()) - 1


def _at_level_of(alloc: Op, user: Op) -> Op:
    """The op around `user` that stands in the block of `alloc`: a use in a loop keeps the buffer
    for the whole loop."""
    while user.parent is not alloc.parent:
        outer = user.parent.parent_op if user.parent is not None else None
        assert outer is not None, "a buffer is used outside the region of its allocation"
        user = outer
    return user


def buffer_bytes(buffer: Value) -> int:
    """Bytes of a shared buffer."""
    t = buffer.type
    assert isinstance(t, MemDesc)
    return prod(t.shape) * t.element.bytes


def _place(buffers: list[_Buffer]) -> int:
    """First fit, largest first, among buffers that live at once; the total in bytes."""
    reuse = sum(b.size + ALIGN for b in buffers) > NO_REUSE_BYTES
    placed: list[tuple[_Buffer, int]] = []
    for b in sorted(buffers, key=lambda b: (-b.size, b.start)):
        taken = sorted((offset, offset + other.size) for other, offset in placed
                       if not reuse or (other.start <= b.end and b.start <= other.end))
        offset = 0
        for low, high in taken:
            if offset + b.size <= low:
                break
            offset = max(offset, -(-high // ALIGN) * ALIGN)
        placed.append((b, offset))
        b.op.offset = offset  # type: ignore[attr-defined]
    return max((offset + b.size for b, offset in placed), default=0)


def _too_much(buffers: list[_Buffer], total: int, limit: int) -> OutOfResources:
    """Names every buffer, its size and its line."""
    lines = [f"  {b.size} bytes for {b.op.name} at {b.op.loc}"
             for b in sorted(buffers, key=lambda b: -b.size)]
    return OutOfResources("shared memory", total, limit, "\n".join(lines),
                          max(buffers, key=lambda b: b.size).op.loc)
