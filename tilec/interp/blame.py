"""Explains a bad access in the author's words: which argument, which mask, which load.

All of it walks the IR backwards from the operand at fault; nothing is recorded while running.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from typing import Any

from tilec.interp.frame import Frame
from tilec.ir import ops
from tilec.ir.core import UNKNOWN, Func, Op, Value
from tilec.ir.ops.base import Rearrange
from tilec.ir.origins import pointer_roots, walk_back
from tilec.ir.printer import print_op
from tilec.ir.types import scalar_of, shape_of

VERBS = ("reads", "writes")  # by whether an access writes
_THROUGH = (Rearrange, ops.Cast, ops.Hint, ops.Bitcast)


def pointer_name(value: Value, func: Func) -> str:
    """The parameter's name if there is one candidate, else an empty string."""
    roots = pointer_roots(value, func)
    if roots is None or len(roots) != 1:
        return ""
    (root,) = roots
    return root.name or str(root.index)


def root_of(value: Value) -> Value:
    """The scalar or tile that a splat, broadcast or cast of it started from."""
    while isinstance(value.op, _THROUGH):
        value = value.op.operands[0]
    return value


def poison_origin(value: Value, frame: Frame) -> tuple[str, str]:
    """Where the poison in `value` was made, as the end of a sentence, and what would cure it."""
    def may_be_poison(v: Value) -> bool:
        data = frame.find(v)
        return data is None or (data[1] is not None and bool(data[1].any()))

    for v in walk_back(value, may_be_poison):
        op = v.op
        if op is None:
            continue
        if isinstance(op, ops.Load) and op.mask is not None and op.other is None:
            return (f"the load at {place(op)}, whose masked-off lanes have no `other`",
                    "give that load an `other` (with TILEC_STRICT=0 such lanes are 0)")
        if isinstance(op, (ops.Div, ops.Rem)) and not scalar_of(op.lhs.type).is_float:
            return f"the division by zero at {place(op)}", "divide by something else there"
        if isinstance(op, ops.Atomic) and op.mask is not None:
            return f"masked-off lanes of the atomic at {place(op)}", "use the others alone"
        if isinstance(op, (ops.SharedLoad, ops.RemoteLoad)):
            return f"shared memory that nobody wrote, read at {place(op)}", "write it before"
    return "an earlier op", "see what makes it"


def place(op: Op) -> str:
    """file:line of an op, or its name when it has none."""
    return f"{op.loc.file}:{op.loc.line}" if op.loc.line else f"`{op.name}`"


def where(op: Op) -> str:
    """An op's line, or in text without lines the op."""
    return place(op) if op.loc.line else f"`{print_op(op).strip().splitlines()[0]}`"


def mask_comment(mask: Value | None, elements: int, func: Func, scalars: dict[str, Any]) -> str:
    """What is wrong with the mask of an access past a buffer of `elements` elements."""
    fitting = [n for n, v in scalars.items() if type(v) is int and v == elements and v > 1]
    tests = [] if mask is None else _tests(mask)
    # What a pass adds, since it starts a load some rounds before its own, stands where the loop is.
    loops = {op.loc for op in func.walk() if isinstance(op, ops.For) and op.loc != UNKNOWN}
    own = [cmp for cmp in tests if cmp.loc not in loops]
    if mask is None or tests and not own:
        return "there is no mask"
    tested = list(dict.fromkeys(_tested(own)))
    if not tested:
        return "the mask lets them through"
    text = f"the mask tests {' and '.join(tested)}"
    if set(fitting) & set(tested):
        return text
    if fitting:
        return f"{text}, not {fitting[0]}"
    value = scalars.get(tested[0])
    return text if value is None or len(tested) > 1 else f"{text}, which is {value}"


def _tests(mask: Value) -> list[ops.Cmp]:
    """The comparisons that a mask is made of."""
    return [v.op for v in walk_back(mask) if isinstance(v.op, ops.Cmp)]


def _tested(tests: Sequence[ops.Cmp]) -> Iterator[str]:
    """Names of the bounds that comparisons test."""
    for cmp in tests:
        for side in (cmp.rhs, cmp.lhs):
            root = root_of(side)
            if isinstance(root.op, ops.Constant):
                yield root.name or _spelled(cmp, side is cmp.lhs) or str(root.op.value)
                break
            if root.name and not shape_of(root.type):
                yield root.name
                break


def _spelled(op: Op, left: bool) -> str:
    """The name that the author wrote on one side of a comparison; empty if it is no plain name."""
    line = linecache.getline(op.loc.file, op.loc.line).encode()
    try:
        node = ast.parse(line[op.loc.col:op.loc.end_col].decode(), mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return ""
    if not isinstance(node, ast.Compare):
        return ""
    side = node.left if left else node.comparators[-1]
    return side.id if isinstance(side, ast.Name) else ""
