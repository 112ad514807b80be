"""Cut a dot whose operands lie in shared memory into steps along k, the next one read ahead."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.fragment import split_extent
from tilec.ir.layouts import DotOperand, Mma
from tilec.ir.mma import THREADS_ALONG_K, instruction_of
from tilec.ir.types import Tensor, layout_of, shape_of
from tilec.passes.base import Pass

FENCES = {"write_shared", "barrier"}


class Prefetch(Pass):
    """In a loop, for tensor cores: each step reads its slices of both operands, one step before
    they are multiplied, so that few of them are in registers at once. Sums are made in the order
    in which the whole dot makes them.

    x = shared_load(%a) ; y = shared_load(%b) ; dot(x, y, %c) -->
    x0 = shared_load(%a at 0) ; y0 = ... ; x1 = shared_load(%a at 1) ; y1 = ... ;
    d = dot(x0, y0, %c) ; dot(x1, y1, d)
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            for op in list(func.walk()):
                if isinstance(op, ops.Dot) and (step := k_step(op)):
                    _split(op, step)


def k_step(dot: ops.Dot) -> int:
    """How much of k one instruction takes; 0 for a dot that is to stay whole."""
    instruction = instruction_of(dot)
    sides = layout_of(dot.a.type), layout_of(dot.b.type)
    if ops.innermost_loop(dot) is None or instruction is None or \
            not isinstance(layout_of(dot.result.type), Mma) or \
            not all(_is_read_here(v, dot) for v in (dot.a, dot.b)):
        return 0
    widths = [side.k_width for side in sides if isinstance(side, DotOperand)]
    if len(widths) != 2 or widths[0] != widths[1]:
        return 0
    # With more neighbours a thread, an instruction's k would not be side by side.
    step = max(instruction.k, THREADS_ALONG_K * widths[0])
    extent = shape_of(dot.a.type)[-1]
    return step if extent > step and split_extent(extent)[0] == 1 and not extent % step else 0


def _is_read_here(value: Value, dot: Op) -> bool:
    """Whether the dot alone uses what is read of a whole buffer that nothing writes in between."""
    read = value.op
    if not isinstance(read, ops.SharedLoad) or read.offsets or len(value.uses) != 1 or \
            read.parent is not dot.parent:
        return False
    block = list(read.parent or ())
    between = block[block.index(read):block.index(dot)]
    return not any(inner.effects & FENCES for op in between for inner in op.walk())


def _split(dot: ops.Dot, step: int) -> None:
    builder = Builder(before=dot, loc=dot.loc)
    steps = range(0, shape_of(dot.a.type)[-1], step)
    total = dot.c
    ahead = _slices(dot, builder, 0, step)
    for k in steps:
        here, ahead = ahead, _slices(dot, builder, k + step, step) if k != steps[-1] else []
        total = builder.emit(dot.clone(dict(zip(dot.operands, [*here, total], strict=True))))
    reads = dot.a.op, dot.b.op
    dot.replace_by([total])
    for read in reads:
        assert read is not None
        read.erase()


def _slices(dot: ops.Dot, builder: Builder, k: int, step: int) -> list[Value]:
    """Both operands at k."""
    out = []
    for value, dim in ((dot.a, -1), (dot.b, -2)):
        read, t = value.op, value.type
        assert isinstance(read, ops.SharedLoad) and isinstance(t, Tensor)
        shape, offsets = list(t.shape), [0] * t.rank
        shape[dim], offsets[dim] = step, k
        part = Tensor(tuple(shape), t.element, t.layout)
        out.append(builder.emit(ops.SharedLoad(read.buffer, offsets=tuple(offsets), types=[part],
                                               loc=read.loc)))
    return out
