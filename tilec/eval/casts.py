"""Casts and bitcasts as docs/semantics.md section 5 defines them.

numpy and ml_dtypes differ from it on overflow: float to int is undefined there, fp8 gives NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.eval.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    FP8_MAX,
    Array,
    DType,
    dtype_of,
    is_float,
    uint_like,
)
from tilec.ir import types as ir


@np.errstate(all="ignore")
def cast(x: Array, dtype: DType, rounding: str = "rtne") -> Array:
    """`x` converted to `dtype`, any shape.

    rounding: "rtne" or "rtz", for a float becoming a narrower float. Raises ValueError for "rtz"
    to fp8, which has no such conversion.
    """
    if rounding not in ("rtne", "rtz"):
        raise ValueError(f"rounding is {rounding!r}, expected 'rtne' or 'rtz'")
    if rounding == "rtz" and dtype in FP8_MAX:
        raise ValueError(f"no round-toward-zero conversion to {dtype.name}")
    if x.dtype == dtype:
        return x
    if dtype == BOOL:
        return np.asarray(x != np.zeros((), x.dtype))
    if not is_float(x.dtype):
        return x.astype(dtype) if not is_float(dtype) else _int_to_float(x, dtype)
    if not is_float(dtype):
        return _float_to_int(x, dtype)
    if rounding == "rtz":
        return _toward_zero(x, dtype)
    return _float_to_float(x, dtype)


def rounded(value: Any, t: ir.Scalar) -> Any:
    """A Python number as a numpy scalar of type `t`, rounded as a cast from f64 rounds it."""
    kind = F64 if t.is_float else dtype_of(t)
    return cast(np.array(value, kind), dtype_of(t))[()]


def bitcast(x: Array, dtype: DType) -> Array:
    """The same bits read as `dtype`, which must be as wide."""
    if x.dtype.itemsize != dtype.itemsize or (x.dtype == BOOL) != (dtype == BOOL):
        raise ValueError(f"bitcast of {x.dtype.name} to {dtype.name}: widths differ")
    return x.view(dtype)


def _int_to_float(x: Array, dtype: DType) -> Array:
    if dtype in (F32, F64):
        return x.astype(dtype)
    # f32 holds every integer that f16 does not overflow on, so f16 still rounds once.
    return _float_to_float(x.astype(F32), dtype)


def _float_to_float(x: Array, dtype: DType) -> Array:
    if dtype == F64 or dtype == F32 or (x.dtype, dtype) == (F64, F16):
        return x.astype(dtype)
    wide = x.astype(F32)
    if dtype in FP8_MAX:
        wide = np.clip(wide, -FP8_MAX[dtype], FP8_MAX[dtype])
    return wide.astype(dtype)


def _toward_zero(x: Array, dtype: DType) -> Array:
    if x.dtype == F64 and dtype == BF16:
        x = _toward_zero(x, F32)
    near = np.asarray(_float_to_float(x, dtype))
    too_big = np.abs(near.astype(F64)) > np.abs(x.astype(F64))
    # Sign and magnitude: one less in the bits is a step toward zero, from infinity too.
    bits = near.view(uint_like(dtype))
    return np.asarray(bits - too_big.astype(bits.dtype)).view(dtype)


def _float_to_int(x: Array, dtype: DType) -> Array:
    limits = np.iinfo(dtype)
    t = np.trunc(x.astype(F64))
    above = t >= float(limits.max) if limits.bits == 64 else t > float(limits.max)
    below = t < float(limits.min)
    inside = np.where(above | below | np.isnan(t), 0.0, t).astype(dtype)
    out = np.where(above, limits.max, np.where(below, limits.min, inside))
    return out.astype(dtype)


def changed(before: Array, after: Array) -> Array | None:
    """Which values a cast has changed more than by rounding them; None if it never does."""
    old, new = before.dtype, after.dtype
    if BOOL in (old, new) or is_float(new) and new.itemsize >= max(4, old.itemsize):
        return None
    with np.errstate(all="ignore"):
        if not is_float(new):
            return np.asarray(after.astype(np.float64 if is_float(old) else old) != before)
        if new.itemsize > 1:
            return np.asarray(np.isinf(after) & np.isfinite(before))
        size = np.abs(before.astype(np.float64))  # casts to fp8 saturate
        return np.asarray((size > 1) & (size > 1.125 * np.abs(after.astype(np.float64))))
