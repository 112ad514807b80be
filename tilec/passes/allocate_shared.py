"""gpu -> lowered: give every shared buffer and every op's scratch an offset, by liveness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilec.errors import CompilationError, OutOfResources
from tilec.ir import ops
from tilec.ir.buffers import (
    buffer_bytes,
    buffer_users,
    is_asynchronous,
    is_shared_around,
    stage_bytes,
)
from tilec.ir.core import Func, Module, Op, Value
from tilec.ir.descriptors import async_alignment
from tilec.ir.ops.base import ScratchOp
from tilec.ir.ops.descriptors import DescriptorOp
from tilec.ir.remarks import shown
from tilec.ir.scratch import ALIGN, align_up, scratch_bytes
from tilec.ir.types import MemDesc
from tilec.ir.warps import role_of
from tilec.passes.base import Pass
from tilec.target import Target

# Scratch below this total is not reused: overlap would cost barriers and save nothing.
NO_REUSE_BYTES = 8192


@dataclass(frozen=True)
class _Buffer:
    """Bytes that are live from op number `start` to op number `end`, both included. role: the warp
    role that they are used in, if only there."""

    op: Op
    size: int
    start: int
    end: int
    align: int = ALIGN
    role: ops.WarpRole | None = None

    def meets(self, other: _Buffer) -> bool:
        """Whether both may be live at once: roles run side by side, whatever their ops' numbers."""
        if self.role is not None and other.role is not None and self.role is not other.role and \
                self.role.parent is other.role.parent:
            return True
        return self.start <= other.end and other.start <= self.end


class AllocateShared(Pass):
    """Sets `offset` on buffers and scratch ops and `shared` (bytes in all) on the module.

    reduce(%x) --> reduce(%x) {offset = 0}
    """

    def run(self, module: Module) -> None:
        total = 0
        for op in module.walk():
            if isinstance(op, DescriptorOp):
                raise CompilationError(f"{op.name} is left, and has no place at level lowered",
                                       op.loc, "run the passes of level gpu first")
        for func in module.funcs:
            buffers = _buffers(func)
            total = max(total, _place(buffers))
            target = module.attributes.get("target")
            limit = Target.parse(target).max_shared if target else None
            if limit is not None and total > limit:
                raise too_much_shared({b.op: b.size for b in buffers}, total, limit)
        module.attributes["shared"] = total
        module.attributes["level"] = "lowered"


def _buffers(func: Func) -> list[_Buffer]:
    """All buffers, with live intervals in textual op numbers."""
    number: dict[Op, int] = {op: i for i, op in enumerate(func.walk())}
    out: list[_Buffer] = []
    for op in func.walk():
        if isinstance(op, ops.AllocShared):
            if is_asynchronous(op.result) or is_shared_around(op.result):
                # Something, or somebody, may use it after the last op that names it.
                t = op.result.type
                assert isinstance(t, MemDesc)
                out.append(_Buffer(op, buffer_bytes(op.result), 0, len(number),
                                   async_alignment(t)))
                continue
            users = list(buffer_users(op.result))
            products = [u for u in users if isinstance(u, ops.Wgmma)]
            last = max((_end(number, op, user) for user in users), default=number[op])
            copied = [_end(number, op, u) for u in users if isinstance(u, ops.AsyncCopy)]
            if copied:
                last = max(last, _landed(func, number, op, max(copied)))
            last = max([last, *(_computed(number, op, u) for u in products)])
            align = ALIGN
            if products:
                assert isinstance(op.result.type, MemDesc)
                align = async_alignment(op.result.type)
            out.append(_Buffer(op, buffer_bytes(op.result), number[op], last, align, role_of(op)))
        elif isinstance(op, ScratchOp):
            size = scratch_bytes(op)
            if size:
                out.append(_Buffer(op, size, number[op], number[op] + _span(op), role=role_of(op)))
    return out


def _end(number: dict[Op, int], alloc: Op, user: Op) -> int:
    """The number of the last op of what holds `user` in the block of `alloc`: a use in a loop keeps
    the buffer for the whole loop."""
    outer = next(op for op in (user, *user.ancestors()) if op.parent is alloc.parent)
    return number[outer] + _span(outer)


def _landed(func: Func, number: dict[Op, int], alloc: Op, copied: int) -> int:
    """Where copies that begin up to op number `copied` have surely ended: at a wait for all of
    them, or nowhere."""
    waits = (number[op] for op in func.walk() if isinstance(op, ops.AsyncWait) and
             op.parent is alloc.parent and not op.pending and number[op] > copied)
    return min(waits, default=len(number))


def _computed(number: dict[Op, int], alloc: Op, product: Op) -> int:
    """Where a product has surely ended: at a wait for all of them after it, in its own block or one
    around it, or nowhere."""
    for around in (product, *product.ancestors()):
        after: Op | None = around
        while after is not None:
            if isinstance(after, ops.WgmmaWait) and not after.pending:
                return _end(number, alloc, after)
            after = after.next
        if around.parent is alloc.parent:
            break
    return len(number)


def _span(op: Op) -> int:
    """How many ops are nested in `op`."""
    return sum(1 for _ in op.walk()) - 1


def _place(buffers: list[_Buffer]) -> int:
    """First fit, largest first, among buffers that live at once; the total in bytes."""
    reuse = sum(b.size + ALIGN for b in buffers) > NO_REUSE_BYTES
    placed: list[tuple[_Buffer, int]] = []
    for b in sorted(buffers, key=lambda b: (-b.size, b.start)):
        taken = sorted((offset, offset + other.size) for other, offset in placed
                       if not reuse or other.meets(b))
        offset = 0
        for low, high in taken:
            if offset + b.size <= low:
                break
            offset = max(offset, align_up(high, b.align))
        placed.append((b, offset))
        b.op.offset = offset  # type: ignore[attr-defined]
    return max((offset + b.size for b, offset in placed), default=0)


def too_much_shared(sizes: Mapping[Op, int], total: int, limit: int) -> OutOfResources:
    """Names every buffer, its size in bytes, its stages and its line."""
    rows = [("bytes", "stages", "buffer", "line")]
    largest_first = sorted(sizes, key=lambda op: -sizes[op])
    for op in largest_first:
        stages, name = 1, f"scratch of {op.name}"
        if isinstance(op, ops.AllocShared):
            t = op.result.type
            assert isinstance(t, MemDesc)
            stages, name = t.stages, shown(op.result)
        rows.append((str(sizes[op]), str(stages), name, str(op.loc)))
    wide = max(len(row[2]) for row in rows)
    lines = [f"{size:>10}{stages:>8}  {name:{wide}}  {line}" for size, stages, name, line in rows]
    return OutOfResources("shared memory", total, limit, "\n".join(lines), largest_first[0].loc)


def round_bytes(buffers: Sequence[Value], target: Target) -> int:
    """Bytes that arrive in one stage of the buffers together, which a layout may space out;
    OutOfResources where no CTA has room for them, which may be more than an mbarrier can count."""
    arriving = held = 0
    for buffer in buffers:
        t = buffer.type
        assert isinstance(t, MemDesc)
        arriving += prod(t.tile_shape) * t.element.bytes
        held += stage_bytes(t)
    if held > target.max_shared:
        sizes = {buffer.op: buffer_bytes(buffer) for buffer in buffers if buffer.op is not None}
        raise too_much_shared(sizes, sum(sizes.values()), target.max_shared)
    return arriving
