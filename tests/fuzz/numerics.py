"""Numbers as docs/semantics.md means them, sections 1 to 6, in numpy: dtypes, promotion, casts and
arithmetic. Nothing here comes from tilec: the fuzzer compares tilec with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
FLOATS = ("float16", "bfloat16", "float32", "float64")
FP8 = ("float8e4nv", "float8e5")
ALL = ("int1", *INTS, *FLOATS, *FP8)
NUMPY = {name: np.dtype({"int1": np.bool_, "bfloat16": ml_dtypes.bfloat16,
                         "float8e4nv": ml_dtypes.float8_e4m3fn,
                         "float8e5": ml_dtypes.float8_e5m2}.get(name, name)) for name in ALL}
MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "float8e4nv": 4,
            "float8e5": 3}  # with the leading bit
LARGEST = {"float8e4nv": 448.0, "float8e5": 57344.0}
SMALLEST_F32, LARGEST_F32 = 2.0 ** -126, (2.0 - 2.0 ** -23) * 2.0 ** 127


class Reject(Exception):
    """A program that has no one meaning: undefined, or determined up to a tolerance only."""


def width(t: str) -> int:
    return 1 if t == "int1" else NUMPY[t].itemsize * 8


def kind(t: str) -> int:
    """0 for bool, 1 for integers, 2 for floats."""
    return 0 if t == "int1" else 1 if t in INTS else 2


def limits(t: str) -> tuple[int, int]:
    """The least and the greatest value of an integer type or bool."""
    bits = width(t)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t in SIGNED else (0, (1 << bits) - 1)


def is_float(t: str) -> bool:
    return t in MANTISSA


# -- promotion (section 2) ------------------------------------------------------------------------

def promote(a: str, b: str, divides: bool = False) -> str:
    """Rules 1 to 6; divides: for `/` and `%`."""
    both = {a, b}
    if both & {*FP8} and both & {"int1", *INTS}:
        raise Reject("fp8 with an integer")
    for t in ("float64", "float32"):
        if t in both:
            return t
    if "float16" in both:
        return "float32" if divides else "float16"
    if "bfloat16" in both:
        return "bfloat16" if a == b and not divides else "float32"
    if both & {*FP8}:
        return a if a == b else "float32" if divides else "float16"
    if (a in SIGNED) == (b in SIGNED):
        return a if width(a) >= width(b) else b
    unsigned, signed = (b, a) if a in SIGNED else (a, b)
    return unsigned if width(unsigned) >= width(signed) else signed


def index_type(bounds: Iterable[Any]) -> str:
    """The type of the variable of a loop with these bounds and this step, values and numbers."""
    return reduce(promote, (literal_type(int(x)) if isinstance(x, int) else x.dtype
                            for x in bounds))


def literal_type(x: Any) -> str:
    """The type of a number that nothing else types."""
    if isinstance(x, bool):
        return "int1"
    if isinstance(x, int):
        for t in ("int32", "uint32", "int64", "uint64"):
            if limits(t)[0] <= x <= limits(t)[1]:
                return t
        raise Reject("no type holds this integer")
    if x == 0 or not math.isfinite(x) or SMALLEST_F32 <= abs(x) <= LARGEST_F32:
        return "float32"
    return "float64"


def with_literal(t: str, x: Any, divides: bool = False) -> str:
    """Rule 0: the type of an operator on a tile of type `t` and the number `x`."""
    number = 0 if isinstance(x, bool) else 1 if isinstance(x, int) else 2
    if number > kind(t):
        return promote(t, literal_type(x), divides)
    if number == 1 and t in INTS and not limits(t)[0] <= x <= limits(t)[1]:
        raise Reject("the number does not fit")
    return "float32" if divides and t in ("float16", "bfloat16") else t


# -- casts (section 5) ----------------------------------------------------------------------------

def constant(x: Any, t: str) -> np.ndarray:
    """A Python number in type `t`."""
    if isinstance(x, int) and not isinstance(x, bool) and t in INTS:
        _, high = limits(t)
        wrapped = x & (1 << width(t)) - 1
        return np.array(wrapped - (1 << width(t)) if wrapped > high else wrapped, NUMPY[t])
    source = "int1" if isinstance(x, bool) else "int64" if isinstance(x, int) else "float64"
    return cast(np.array(x, NUMPY[source]), source, t)


def cast(x: np.ndarray, old: str, new: str, toward_zero: bool = False) -> np.ndarray:
    """`x` of type `old` converted by value; toward_zero: fp_downcast_rounding="rtz"."""
    if old == new:
        return x
    with np.errstate(all="ignore"):
        if new == "int1":
            return np.asarray(x != 0)
        if not is_float(old):
            return x.astype(NUMPY[new]) if not is_float(new) else _from_int(x, new)
        wide = x.astype(np.float64)
        if not is_float(new):
            return _to_int(wide, new)
        return _to_float(wide, old, new, toward_zero)


def _from_int(x: np.ndarray, new: str) -> np.ndarray:
    if new in ("float32", "float64"):
        return x.astype(NUMPY[new])
    if new == "float16":
        return x.astype(np.float64).astype(np.float16)  # what float64 rounds is infinite
    return _to_float(x.astype(np.float32).astype(np.float64), "float32", new, False)


def _to_int(x: np.ndarray, new: str) -> np.ndarray:
    low, high = limits(new)
    over, under, none = x >= float(high) + (width(new) < 64), x <= low, np.isnan(x)
    out = np.trunc(np.where(over | under | none, 0.0, x)).astype(NUMPY[new])
    out = np.where(over, NUMPY[new].type(high), out)
    return np.asarray(np.where(under, NUMPY[new].type(low), out)).astype(NUMPY[new])


def _to_float(x: np.ndarray, old: str, new: str, toward_zero: bool) -> np.ndarray:
    if old == "float64" and new in ("bfloat16", *FP8):
        x = _to_float(x, old, "float32", toward_zero).astype(np.float64)
    if new in FP8:
        x = np.where(np.isnan(x), x, np.clip(x, -LARGEST[new], LARGEST[new]))
    narrow = np.asarray(x.astype(np.float32) if new in ("bfloat16", *FP8) else x)
    out = np.asarray(narrow.astype(NUMPY[new]))
    if not toward_zero:
        return out
    bits = out.view(np.dtype(f"u{out.itemsize}"))
    away = np.abs(out.astype(np.float64)) > np.abs(x)
    return np.asarray(bits - away.astype(bits.dtype)).view(NUMPY[new])


# -- exactness ------------------------------------------------------------------------------------

def unit(x: np.ndarray) -> float:
    """A power of two that all finite elements are multiples of; 1 if all are zero."""
    some = np.abs(x[np.isfinite(x) & (x != 0)])
    if not some.size:
        return 1.0
    fraction, exponent = np.frexp(some)
    whole = (fraction * 2.0 ** 53).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return float(np.ldexp(1.0, int((lowest + exponent - 53).min())))


def exact_sum(x: np.ndarray, axis: Any, bits: int) -> np.ndarray:
    """Sums of float64 along an axis whose every order gives the same in floats of `bits` bits;
    Reject if there is none. A sum of nothing but -0.0 is -0.0."""
    finite = np.where(np.isfinite(x), x, 0.0)
    step = unit(x)
    if (np.abs(finite).sum(axis) / step > 2.0 ** bits).any():
        raise Reject("a sum depends on its order")
    if bits < 53 and (np.abs(finite).sum(axis) > LARGEST_F32).any():
        raise Reject("a sum may overflow")
    with np.errstate(all="ignore"):
        out = x.sum(axis)
    return np.where(np.all((x == 0) & np.signbit(x), axis), -0.0, out)


def rounded_product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether a product of floats is not exact, so that an fma of it would differ."""
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) * b.astype(np.float64)
        if out.dtype == np.float64:
            if math.log2(max(1.0, _span(a)) * max(1.0, _span(b))) > 53:
                return True
        wide = out.astype(np.float64)
        return bool(np.any((exact != wide) & ~(np.isnan(exact) & np.isnan(wide))))


def _span(x: np.ndarray) -> float:
    """The largest element in units of the smallest bit."""
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max(initial=0.0)) / unit(x)


# -- arithmetic (sections 3 and 4) ----------------------------------------------------------------

def arithmetic(symbol: str, a: np.ndarray, b: np.ndarray, t: str) -> np.ndarray:
    """`+`, `-` or `*` of type `t`."""
    if t == "int1":
        return a & b if symbol == "*" else a ^ b
    with np.errstate(all="ignore"):
        out = a + b if symbol == "+" else a - b if symbol == "-" else a * b
    return np.asarray(out).astype(NUMPY[t])


def divide(a: np.ndarray, b: np.ndarray, t: str) -> tuple[np.ndarray, np.ndarray]:
    """Quotient and remainder of integers, toward zero; of a zero divisor anything."""
    if t == "int1":
        return a, np.zeros_like(a)
    low, _ = limits(t)
    wraps = (a == low) & (b == -1) if t in SIGNED else np.zeros(a.shape, bool)
    safe = np.where((b == 0) | wraps, NUMPY[t].type(1), b)
    remainder = np.fmod(a, safe)
    quotient = (a - remainder) // safe
    return np.asarray(quotient).astype(NUMPY[t]), np.asarray(remainder).astype(NUMPY[t])


def shift(left: bool, x: np.ndarray, amount: np.ndarray, t: str) -> np.ndarray:
    """Total shifts: amounts are unsigned, of at least the width they shift all out."""
    bits = width(t)
    if t == "int1":
        by = amount.astype(np.int64)
        return np.asarray(np.where(by >= 1, False, x)).astype(np.bool_)
    by = amount.view(NUMPY[t.removeprefix("u") if t in UNSIGNED else "u" + t]) \
        if t in SIGNED else amount
    far = by >= bits
    safe = np.where(far, 0, by).astype(x.dtype)
    if left:
        return np.asarray(np.where(far, 0, x << safe)).astype(NUMPY[t])
    fill = np.where(x < 0, -1, 0) if t in SIGNED else np.zeros(x.shape, np.int64)
    return np.asarray(np.where(far, fill.astype(x.dtype), x >> safe)).astype(NUMPY[t])


def extreme(most: bool, a: np.ndarray, b: np.ndarray, t: str, nan_wins: bool = False) -> np.ndarray:
    """minimum or maximum: a number wins over a NaN or, with nan_wins, loses; -0.0 < +0.0."""
    if not is_float(t):
        return np.maximum(a, b) if most else np.minimum(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    first = x > y if most else x < y
    tie = (x == y) & (np.signbit(y) if most else np.signbit(x))
    none_x, none_y = np.isnan(x), np.isnan(y)
    takes = np.where(none_x | none_y, none_x if nan_wins else none_y, first | tie)
    return np.where(takes, a, b)


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    "==": np.equal, "!=": np.not_equal}


def compare(symbol: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "biuf":
        a, b = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(COMPARE[symbol](a, b))


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray, t: str) -> np.ndarray:
    """a * b + c, rounded once; Reject where float64 does not hold the exact result."""
    x, y, z = (v.astype(np.float64) for v in (a, b, c))
    with np.errstate(all="ignore"):
        product = x * y
        out = product + z
        back = out - product
        error = (product - (out - back)) + (z - back)
    if t == "float64" and rounded_product(a, b, product) or \
            (error[np.isfinite(out)] != 0).any() or (np.isinf(out) & np.isfinite(product)
                                                     & np.isfinite(z)).any():
        raise Reject("an fma that float64 rounds")
    return cast(out, "float64", t)


# -- functions with a tolerance (section 6) -------------------------------------------------------

_erf = np.frompyfunc(math.erf, 1, 1)
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "erf": lambda x: _erf(x).astype(np.float64),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "log1p": np.log1p, "expm1": np.expm1, "atan": np.arctan, "cbrt": np.cbrt}
EXACT = {"sqrt": np.sqrt, "sqrt_rn": np.sqrt, "floor": np.floor, "ceil": np.ceil,
         "rint": np.rint, "trunc": np.trunc}
LIBDEVICE = {"log1p", "expm1", "atan", "cbrt", "rint", "trunc"}  # the language has them there


def ulp32(y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        finite = np.clip(np.nan_to_num(np.abs(y)), 0, LARGEST_F32)
        return np.spacing(finite.astype(np.float32)).astype(np.float64)


def function(name: str, x: np.ndarray, t: str) -> tuple[np.ndarray, np.ndarray]:
    """(the exact values, how far a result of type `t` may be), in float64."""
    with np.errstate(all="ignore"):
        y = np.asarray(FUNCTIONS[name](x), np.float64)
        if t == "float64":
            near = name in ("sin", "cos") or name in ("log", "log2")
            bound = np.abs(y) * 2.0 ** (-46 if name in LIBDEVICE else -48) + near * 2.0 ** -48
        else:
            bound = _bound32(name, x, y)
        if name in ("exp", "exp2"):
            bound = bound + SMALLEST_F32
        if t in ("float16", "bfloat16"):
            bits, least = (11, 2.0 ** -24) if t == "float16" else (8, 2.0 ** -133)
            bound = bound + np.maximum(np.abs(y) * 2.0 ** (1 - bits), least)
    return y, np.nan_to_num(bound, nan=0.0, posinf=0.0)


def _bound32(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if name == "exp":
        return np.abs(y) * (2.0 ** -22 + np.abs(x) * 2.0 ** -23)
    if name in ("log", "log2"):
        relative = 2.0 ** (-21 if name == "log" else -22)
        return np.where((x >= 0.5) & (x <= 2), 2.0 ** -22, np.abs(y) * relative)
    if name in ("sin", "cos"):
        return np.full(y.shape, 2.0 ** -22)
    return ulp32(y) * (2 if name in ("rsqrt", "exp2") else 4)
