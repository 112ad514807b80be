"""Which dtype an operator computes in: docs/semantics.md section 2, as functions of dtypes."""

from __future__ import annotations

from functools import lru_cache

from tilec.errors import shown
from tilec.language import dtypes as dt
from tilec.language.context import error
from tilec.language.literals import fits, int_range, literal_dtype


@lru_cache(4096)
def promote(a: dt.dtype, b: dt.dtype, divides: bool = False) -> dt.dtype | None:
    """The dtype of an operator on values of dtypes `a` and `b` (rules 1 to 6); None where there
    is none. divides: whether the operator is `/` or `%`, which float16 has not."""
    either = (a, b)
    if any(t.is_ptr() or t.is_void() for t in either):
        return None
    if any(t.is_fp8() for t in either) and any(t.is_int() for t in either):
        return None
    for t in (dt.float64, dt.float32):
        if t in either:
            return t
    if dt.float16 in either:
        return dt.float32 if divides else dt.float16
    if dt.bfloat16 in either:
        return dt.bfloat16 if a == b and not divides else dt.float32
    if a.is_fp8():
        return a if a == b else dt.float32 if divides else dt.float16
    return _promote_integers(a, b)


def _promote_integers(a: dt.dtype, b: dt.dtype) -> dt.dtype:
    """C's usual arithmetic conversions, without its promotion to int."""
    if a.is_int_signed() == b.is_int_signed():
        return a if a.primitive_bitwidth >= b.primitive_bitwidth else b
    unsigned, signed = (b, a) if a.is_int_signed() else (a, b)
    return unsigned if unsigned.primitive_bitwidth >= signed.primitive_bitwidth else signed


def number_kind(x: bool | int | float) -> int:
    """0 for a bool, 1 for an integer, 2 for a float: comparable to `dtype.kind()`."""
    return 0 if isinstance(x, bool) else 1 if isinstance(x, int) else 2


def number_dtype(x: bool | int | float, other: dt.dtype) -> dt.dtype:
    """The dtype that a Python number takes beside a tensor of dtype `other` (rule 0).

    CompilationError if the number has the other's kind but does not fit it.
    """
    kind = number_kind(x)
    if other.is_ptr() or kind > other.kind():
        return literal_dtype(x)
    if kind == 1 and other.is_int():
        check_fits(x, other)
    return other


def check_fits(x: bool | int | float, t: dt.dtype) -> None:
    """CompilationError if the integer `x` lies outside the range of the integer type `t`."""
    if fits(x, t):
        return
    assert t.ir is not None
    low, high = int_range(t.ir)  # type: ignore[arg-type]
    if x < 0 and low == 0:
        raise error(f"the number {shown(x)} is negative, but is used with {t}, which is unsigned",
                    f"cast the tensor to a signed type first, as by `.to(tl.{_signed(t)})`")
    raise error(f"the number {shown(x)} is out of range for {t}, which holds {low} to {high}",
                "cast the tensor to a wider type first, as by `.to(tl.int64)`")


def _signed(t: dt.dtype) -> str:
    return f"int{min(64, 2 * t.primitive_bitwidth)}"


def check_promotion(op: str, a: dt.dtype, b: dt.dtype) -> dt.dtype:
    """`promote` for the operator `op`; CompilationError, naming both, where it has no answer."""
    if op in ("//", "%") and a.is_int() and b.is_int() and \
            a.is_int_signed() != b.is_int_signed():
        raise error(f"`{op}` of {a} and {b}: one is signed, the other is not",
                    f"cast one side, as by `.to(tl.{a.name if a.is_int_signed() else b.name})`")
    result = promote(a, b, op in ("/", "%"))
    if result is None:
        advice = "cast the fp8 side, as by `.to(tl.float16)`" if a.is_fp8() or b.is_fp8() else \
            "a pointer takes only `+ int` and `- int`; `.to(tl.int64)` gives its address"
        raise error(f"`{op}` of {a} and {b} has no common type", advice)
    return result
