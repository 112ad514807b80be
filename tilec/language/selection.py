"""Choosing between values: where, minimum, maximum, clamp."""

from __future__ import annotations

import enum
from typing import Any

from tilec.errors import shown
from tilec.ir import ops
from tilec.ir.core import Op
from tilec.language.casting import common_shape, spread
from tilec.language.context import error
from tilec.language.semantic import (
    coerce,
    common_operands,
    emit,
    moved_dtype,
    refuse_fp8,
    shapes_of,
    to_bool,
)
from tilec.language.values import builtin, const_value, tensor


class PropagateNan(enum.Enum):
    """Whether NaN wins in minimum and maximum: NONE (a number wins) or ALL."""

    NONE = 0
    ALL = 0xFFFF


@builtin
def where(condition: Any, x: Any, y: Any) -> tensor:
    """`x` where `condition` holds, else `y`, lane by lane; all three broadcast.

    condition: int1, or any number compared with 0. x, y: promoted like the operands of `+`, or
    pointers of one type. The arm not picked has no effect, be it NaN or poison.
    """
    cond = to_bool(condition, "the condition of tl.where")
    shape = common_shape("tl.where", cond.shape, *shapes_of((x, y)))
    t = moved_dtype("tl.where", x, y)
    return emit(ops.Select(spread(cond, shape).handle, coerce(x, t, shape).handle,
                           coerce(y, t, shape).handle))


def _nan_wins(propagate_nan: Any, what: str) -> bool:
    value = const_value(propagate_nan, f"propagate_nan of {what}")
    if not isinstance(value, (bool, PropagateNan)):
        raise error(f"{what}: propagate_nan is {shown(value)}, expected a tl.PropagateNan",
                    "tl.PropagateNan.NONE lets a number win over NaN, tl.PropagateNan.ALL the NaN")
    return value is True or value is PropagateNan.ALL


def _extremum(what: str, op_class: type[Op], x: Any, y: Any, propagate_nan: Any) -> tensor:
    a, b = common_operands(what, x, y)
    refuse_fp8(what, a.dtype)
    nan_wins = _nan_wins(propagate_nan, what) and a.dtype.is_floating()
    return emit(op_class(a.handle, b.handle, propagate_nan=nan_wins))


@builtin
def minimum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """The smaller of `x` and `y`, promoted and broadcast like the operands of `+`.

    A number wins over NaN, unless propagate_nan is PropagateNan.ALL (or True); -0.0 < 0.0.
    """
    return _extremum("tl.minimum", ops.Minimum, x, y, propagate_nan)


@builtin
def maximum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """The larger of `x` and `y`; see `minimum`."""
    return _extremum("tl.maximum", ops.Maximum, x, y, propagate_nan)


@builtin
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """`x` limited to `min` .. `max`: minimum(maximum(x, min), max); all three promoted and
    broadcast like the operands of `+`."""
    value, low, high = common_operands("tl.clamp", x, min, max)
    refuse_fp8("tl.clamp", value.dtype)
    nan_wins = _nan_wins(propagate_nan, "tl.clamp") and value.dtype.is_floating()
    raised = emit(ops.Maximum(value.handle, low.handle, propagate_nan=nan_wins))
    return emit(ops.Minimum(raised.handle, high.handle, propagate_nan=nan_wins))
