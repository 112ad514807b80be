"""The matrix product."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.language import dtypes as dt
from tilec.language.casting import as_dtype
from tilec.language.context import error
from tilec.language.semantic import emit
from tilec.language.shape import require_tile
from tilec.language.values import builtin, const_value, constant, describe, tensor

PRECISIONS = ("tf32", "tf32x3", "ieee")
_OPERANDS = (dt.int8, dt.float16, dt.bfloat16, dt.float32, dt.float64)


def _check_operands(a: tensor, b: tensor) -> None:
    if a.rank != b.rank or a.rank not in (2, 3):
        raise error(f"tl.dot: the operands are {a} and {b}, expected two of 2 (or 3) dimensions",
                    "x[:, None] and x[None, :] make a matrix of a tile of one dimension")
    if a.shape[-1] != b.shape[-2]:
        raise error(f"tl.dot: {a} has {a.shape[-1]} columns, {b} has {b.shape[-2]} rows",
                    "they must be equal; tl.trans swaps rows and columns")
    if a.shape[:-2] != b.shape[:-2]:
        raise error(f"tl.dot: the batch extents of {a} and {b} differ",
                    "the first extents must be equal; tl.broadcast_to repeats")
    if a.dtype != b.dtype or not (a.dtype in _OPERANDS or a.dtype.is_fp8()):
        raise error(f"tl.dot: the operands are {a} and {b}",
                    "both must have one dtype out of int8, float16, bfloat16, float32, float64 "
                    "and fp8; cast one of them")


def _result_dtype(t: dt.dtype, out_dtype: Any) -> dt.dtype:
    want = as_dtype(out_dtype, "out_dtype of tl.dot")
    if t.is_int():
        return dt.int32
    if t.is_fp64():
        return dt.float64
    allowed = (dt.float32, dt.float16) if t.is_fp16() or t.is_fp8() else (dt.float32,)
    if want not in allowed:
        raise error(f"tl.dot: out_dtype is {want} for operands of {t}, expected "
                    f"{' or '.join(x.name for x in allowed)}", "cast the result by `.to(...)`")
    return want


@builtin
def dot(input: Any, other: Any, acc: Any = None, input_precision: str | None = None,
        allow_tf32: bool | None = None, max_num_imprecise_acc: int | None = None,
        out_dtype: Any = dt.float32) -> tensor:
    """input @ other + acc, of [M, K] and [K, N] tiles, or with an equal leading batch extent.

    Both have one dtype: int8, float16, bfloat16, float32, float64 or fp8. The result is int32 for
    int8, float64 for float64, else out_dtype (float32; float16 only for float16 and fp8); acc
    has the result's shape and dtype. input_precision, for float32: "tf32" (default), "tf32x3" or
    "ieee"; allow_tf32 is the older way to say "tf32" or "ieee". max_num_imprecise_acc changes
    nothing.
    """
    a, b = require_tile(input, "tl.dot"), require_tile(other, "tl.dot")
    _check_operands(a, b)
    t = _result_dtype(a.dtype, out_dtype)
    shape = (*a.shape[:-1], b.shape[-1])
    c = constant(0, t, shape) if acc is None else acc
    if not isinstance(c, tensor) or c.shape != shape or c.dtype != t:
        raise error(f"tl.dot: found {describe(c)} as accumulator, expected {t}"
                    f"[{', '.join(map(str, shape))}] tile",
                    f"make it by tl.zeros({shape}, tl.{t.numpy_name})")
    precision = const_value(input_precision, "input_precision")
    if precision is None:
        loose = const_value(allow_tf32, "allow_tf32")
        precision = "ieee" if loose is False else "tf32"
    if precision not in PRECISIONS:
        raise error(f"tl.dot: input_precision is {precision!r}, expected one of "
                    f"{', '.join(map(repr, PRECISIONS))}", "leave it out for the default, 'tf32'")
    return emit(ops.Dot(a.handle, b.handle, c.handle, input_precision=precision))
