"""Ops of the `gpu` and `lowered` levels: layout conversion, shared memory, barriers.

All are CTA-atomic: every thread of the CTA takes part at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Op, Value, attr, operand
from tilec.ir.ops.base import ExplicitType, ScratchOp
from tilec.ir.types import MemDesc, Tensor, Type


class ConvertLayout(ScratchOp, ExplicitType):
    """The same tile under another layout."""

    name = "gpu.convert_layout"
    x: Value = operand()

    def infer(self) -> Sequence[Type]:
        src, dst = self.x.type, self.given()
        if not (isinstance(src, Tensor) and isinstance(dst, Tensor)) or \
                (src.shape, src.element) != (dst.shape, dst.element):
            raise self.fail(f"cannot convert {src} to {dst}")
        return (dst,)


class Barrier(Op, effects={"barrier"}):
    """All threads of the CTA wait for each other; shared and global accesses before it are
    visible after it (bar.sync 0). The author's `debug_barrier` is this op too."""

    name = "gpu.barrier"

    def infer(self) -> Sequence[Type]:
        return ()


class AllocShared(ExplicitType, effects={"write_shared"}):
    """A buffer in shared memory; `offset` in bytes is set by allocate_shared."""

    name = "gpu.alloc_shared"
    offset: int = attr(int, -1)

    def infer(self) -> Sequence[Type]:
        t = self.given()
        if not isinstance(t, MemDesc):
            raise self.fail(f"result is {t}, expected a memdesc")
        return (t,)


class SharedLoad(ExplicitType, effects={"read_shared"}):
    """Read a whole buffer into a tile."""

    name = "gpu.shared_load"
    buffer: Value = operand()

    def infer(self) -> Sequence[Type]:
        src, dst = self.buffer.type, self.given()
        if not (isinstance(src, MemDesc) and isinstance(dst, Tensor)) or \
                (src.shape, src.element) != (dst.shape, dst.element):
            raise self.fail(f"cannot load {dst} from {src}")
        return (dst,)


class SharedStore(Op, effects={"write_shared"}):
    """Write a tile into a whole buffer."""

    name = "gpu.shared_store"
    buffer: Value = operand()
    value: Value = operand()

    def infer(self) -> Sequence[Type]:
        dst, src = self.buffer.type, self.value.type
        if not (isinstance(dst, MemDesc) and isinstance(src, Tensor)) or \
                (src.shape, src.element) != (dst.shape, dst.element):
            raise self.fail(f"cannot store {src} into {dst}")
        return ()
