"""The matrix product."""

from __future__ import annotations

from math import prod
from typing import Any

from tilec.errors import shown
from tilec.ir import ops
from tilec.language import dtypes as dt
from tilec.language.casting import as_dtype
from tilec.language.context import error
from tilec.language.semantic import emit
from tilec.language.shape import require_tile, reshape
from tilec.language.values import builtin, const_int, const_value, constant, describe, tensor

PRECISIONS = ("tf32", "tf32x3", "ieee")
_OPERANDS = (dt.int8, dt.float16, dt.bfloat16, dt.float32, dt.float64)


def _check_operands(a: tensor, b: tensor) -> None:
    if a.rank != b.rank or a.rank < 2:
        raise error(f"tl.dot: the operands are {a} and {b}, expected two of 2 dimensions, or more "
                    "of which the first are a batch",
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
    if t.is_int():
        return dt.int32  # whatever is asked for, as in Triton
    if t.is_fp64():
        own: tuple[dt.dtype, ...] = (dt.float64,)
    else:
        own = (dt.float32, dt.float16) if t.is_fp16() or t.is_fp8() else (dt.float32,)
    want = as_dtype(dt.float32 if out_dtype is None else out_dtype, "out_dtype of tl.dot")
    if want in own:
        return want
    # The default stands for the only type there is.
    if want == dt.float32:
        return own[0]
    raise error(f"tl.dot: out_dtype is {want} for operands of {t}, expected "
                f"{' or '.join(x.name for x in own)}", "cast the result by `.to(...)`")


def _precision(input_precision: Any, allow_tf32: Any) -> str:
    precision = const_value(input_precision, "input_precision")
    tf32 = const_value(allow_tf32, "allow_tf32")
    if tf32 is not None and not isinstance(tf32, (bool, int)):
        raise error(f"tl.dot: allow_tf32 is {shown(tf32)}, expected True or False",
                    "input_precision says more: 'tf32', 'tf32x3' or 'ieee'")
    if precision is None:
        return "tf32" if tf32 is None or tf32 else "ieee"
    if tf32 is not None:
        raise error("tl.dot: both input_precision and allow_tf32 are given",
                    "drop allow_tf32, the older way to say 'tf32' or 'ieee'")
    if precision not in PRECISIONS:
        raise error(f"tl.dot: input_precision is {shown(precision)}, expected one of "
                    f"{', '.join(map(repr, PRECISIONS))}", "leave it out for the default, 'tf32'")
    return str(precision)


def _accumulator(acc: Any, shape: tuple[int, ...], t: dt.dtype) -> tensor:
    if acc is None:
        return constant(0, t, shape)
    if not isinstance(acc, tensor) or acc.shape != shape or acc.dtype != t:
        advice = f"make it by tl.zeros({shape}, tl.{t.numpy_name})"
        if isinstance(acc, tensor) and acc.shape == shape and acc.dtype.is_fp16():
            advice += ", or say out_dtype=tl.float16"
        raise error(f"tl.dot: found {describe(acc)} as accumulator, expected {t}"
                    f"[{', '.join(map(str, shape))}] tile", advice)
    return acc


@builtin
def dot(input: Any, other: Any, acc: Any = None, input_precision: str | None = None,
        allow_tf32: bool | None = None, max_num_imprecise_acc: int | None = None,
        out_dtype: Any = dt.float32) -> tensor:
    """input @ other + acc, of [M, K] and [K, N] tiles, or with equal leading batch extents.

    Both have one dtype: int8, float16, bfloat16, float32, float64 or fp8. The result is int32 for
    int8 (whatever out_dtype is), float64 for float64, else out_dtype (float32; float16 only for
    float16 and fp8); acc has the result's shape and dtype. input_precision, for float32: "tf32"
    (default), "tf32x3" or "ieee"; allow_tf32 is the older way to say "tf32" or "ieee".
    max_num_imprecise_acc changes nothing.
    """
    a, b = require_tile(input, "tl.dot"), require_tile(other, "tl.dot")
    _check_operands(a, b)
    t = _result_dtype(a.dtype, out_dtype)
    c = _accumulator(acc, (*a.shape[:-1], b.shape[-1]), t)
    if max_num_imprecise_acc is not None:
        const_int(max_num_imprecise_acc, "max_num_imprecise_acc")
    precision, whole = _precision(input_precision, allow_tf32), c.shape
    if a.rank > 3:
        a, b, c = (reshape(x, (prod(x.shape[:-2]), *x.shape[-2:])) for x in (a, b, c))
    product = emit(ops.Dot(a.handle, b.handle, c.handle, input_precision=precision))
    return reshape(product, whole) if len(whole) > 3 else product
