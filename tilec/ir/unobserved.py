"""Rows or columns of tiles that nobody sees: what is made of them is stored, and masked off there.
"""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.boxes import bounds_of
from tilec.ir.core import Op, Value
from tilec.ir.forms import Forms, NoForm, Wrap, plus


def unobserved(value: Value, wrap: Wrap, forms: Forms) -> bool:
    """Whether elements of a tile whose indices begin anew are seen by nobody. They go, element by
    element, and row by row or column by column through dots, into stores alone, whose masks leave
    out those places."""
    work, seen = [(value, wrap.dim)], {(value, wrap.dim)}
    while work:
        here, dim = work.pop()
        for op, index in here.uses:
            found = _made(op, index, dim)
            if isinstance(op, ops.Store) and index == 1:  # the value
                found = [] if _left_out(op, dim, wrap, forms) else None
            loop = op.parent.parent_op if isinstance(op, ops.Yield) and op.parent else None
            if found is None or isinstance(loop, ops.For) and (
                    forms.varies(wrap.start, loop) or forms.varies(wrap.extent, loop)):
                return False  # what the mask tests next time is something else
            new = [at for at in found if at not in seen]
            seen.update(new)
            work += new
    return True


def _made(op: Op, index: int, dim: int) -> list[tuple[Value, int]] | None:
    """What an op makes of dimension `dim` of an operand, which result and which dimension there.
    None for other ops."""
    if isinstance(op, ops.Dot):
        kept = (0, 1, dim)[index]  # a keeps its rows, b its columns, c both
        return [(op.result, dim)] if dim == kept else None
    if isinstance(op, ops.Elementwise):
        return [(op.result, dim)]
    if isinstance(op, ops.Trans):
        return [(op.result, op.order.index(dim))]
    if isinstance(op, ops.For):
        at = index - 3
        return [(op.results[at], dim), (op.body.args[at + 1], dim)]
    around = op.parent.parent_op if op.parent is not None else None
    if isinstance(op, ops.Yield) and isinstance(around, ops.For | ops.If):
        carried = [(around.body.args[index + 1], dim)] if isinstance(around, ops.For) else []
        return [(around.results[index], dim), *carried]
    return None


def _left_out(store: ops.Store, dim: int, wrap: Wrap, forms: Forms) -> bool:
    """Whether a store leaves out what lies at start + index >= extent along `dim`."""
    own = Forms()
    try:
        bounds = bounds_of(own, store.mask)
    except NoForm:
        return False
    want = forms.named(plus(wrap.start, wrap.extent, -1))
    side = forms.named(wrap.start)
    return any(b.dim == dim and not b.lower and own.named(b.start) == want
               and own.named(b.side) == side for b in bounds)
