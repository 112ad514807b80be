"""Layouts that are settled before any pass chooses: what ops want (`Anchor.wanted_layout`)."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Func, Value
from tilec.ir.layouts import Layout
from tilec.ir.ops.base import Anchor
from tilec.ir.types import Tensor
from tilec.ir.warps import warps_of

_HAND_ON = (ops.ControlFlow, ops.Wgmma, ops.WgmmaWait)


def pinned(func: Func, num_warps: int) -> dict[Value, Layout]:
    """The values whose layouts must be these. An accumulator keeps its layout wherever control flow
    and waits hand it on, since a product under way cannot be converted. IRError at an op that
    wants a layout that there is not, or another one of an accumulator."""
    wanted = {op.result: layout for op in func.walk() if isinstance(op, Anchor)
              if (layout := op.wanted_layout(warps_of(op, num_warps))) is not None}
    neighbours = _neighbours(func)
    for start in [v for v in wanted if isinstance(v.op, ops.Wgmma)]:
        layout, work = wanted[start], [start]
        while work:
            for value in neighbours.get(work.pop(), ()):
                if value not in wanted:
                    wanted[value] = layout
                    work.append(value)
                elif isinstance(value.op, ops.Wgmma) and wanted[value] != layout:
                    raise value.op.fail(f"the accumulator has the layout {layout}, this product "
                                        f"needs {wanted[value]}")
    return wanted


def _neighbours(func: Func) -> dict[Value, list[Value]]:
    """What holds the same accumulator, one step on or back."""
    found: dict[Value, list[Value]] = {}
    for op in func.walk():
        pairs = op.flow() if isinstance(op, ops.ControlFlow) else \
            list(zip(op.results, op.values, strict=True)) if isinstance(op, ops.WgmmaWait) else \
            [(op.result, op.c)] if isinstance(op, ops.Wgmma) else []
        for pair in pairs:
            for one, other in (pair, pair[::-1]):
                if isinstance(other.type, Tensor) and \
                        (other.op is None or isinstance(other.op, _HAND_ON)):
                    found.setdefault(one, []).append(other)
    return found
