"""Float arithmetic with the rounding that each instruction states, and the approximations.

An approximate instruction gives the correctly rounded result, which lies within the hardware's
stated error; tests of code that uses one must allow that error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tilec.sim import floats
from tilec.sim.assign import assign
from tilec.sim.decode import Decoder
from tilec.sim.instructions.common import bind, float_source
from tilec.sim.machine import Array, Code
from tilec.sim.ptx import Instr
from tilec.sim.rules import FLOAT_RULES, rule

_MODES = {"rn": "n", "rz": "z", "rm": "m", "rp": "p"}


def rounding(instr: Instr) -> str:
    """The rounding mode letter; to nearest even where none is written."""
    return next((_MODES[m] for m in instr.mods if m in _MODES), "n")


def encoder(instr: Instr, mode: str) -> Callable[[Array], Array]:
    """From values (exact, or rounded to odd) to what the destination view takes."""
    ty = _types(instr)[0]
    base = ty.removesuffix("x2")
    ftz, sat = "ftz" in instr.mods, "sat" in instr.mods
    relu = "relu" in instr.mods

    def encode(values: Array) -> Array:
        if base == "f64":
            return floats.encode(values, base).view(np.float64) if mode == "n" else values
        if sat:
            values = floats.saturate(values)
        if relu:
            values = floats.relu(values)
        if ftz:  # what is too small once it is rounded as if there were no subnormals
            values = floats.flush(floats.to_precision(values, base, mode), base)
        result = floats.typed(floats.narrow(values, base, mode), base)
        return result.view(f"u{2 * result.itemsize}") if ty.endswith("x2") else result

    return encode


def _types(instr: Instr) -> tuple[str, str]:
    """The types of the result and of the factors: they differ in add.f32.f16 and its kin."""
    named = [m for m in instr.mods if m.removesuffix("x2") in floats.FORMATS]
    return named[0], named[-1]


def _bind(decoder: Decoder, instr: Instr) -> tuple[Any, ...]:
    """The destination, and the sources as values; in mixed forms the last one has its type."""
    wide, narrow = _types(instr)
    first, *operands = instr.operands
    types = [narrow] * (len(operands) - 1) + [wide]
    return decoder.dst(first, wide), *(float_source(decoder, o, ty, "ftz" in instr.mods)
                                       for o, ty in zip(operands, types))


@rule("add", "sub", "mul", table=FLOAT_RULES)
def arithmetic(decoder: Decoder, instr: Instr) -> Code:
    """add, sub and mul of every float type."""
    ty, mode, ftz = _types(instr)[0], rounding(instr), "ftz" in instr.mods
    target, x, y = _bind(decoder, instr)
    encode = encoder(instr, mode)
    plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[instr.op]
    if mode == "n" and not (ftz and ty == "f32" and instr.op == "mul"):
        if ty == "f32" and not ftz and "sat" not in instr.mods:
            return assign(target, lambda: floats.canonical(plain(x(), y())))
        if ty.startswith("bf16") and instr.op == "mul":
            return assign(target, lambda: encode(_bf16_product(x(), y())))
        return assign(target, lambda: encode(plain(x(), y())))
    if instr.op == "mul" and ty == "f64":
        product = Fraction.__mul__
        return assign(target, lambda: floats.direct64(product, x(), y(), x() * y(), mode))
    if instr.op == "mul":
        return assign(target, lambda: encode(x().astype(np.float64) * y().astype(np.float64)))
    addend = y if instr.op == "add" else lambda: -y()
    if ty == "f64":
        total = Fraction.__add__
        return assign(target,
                      lambda: floats.direct64(total, x(), addend(), x() + addend(), mode))
    return assign(target, lambda: encode(_sum(x(), addend(), mode)))


def _sum(a: Array, b: Array, mode: str) -> Array:
    """a + b as float64 rounded to odd; in mode m a zero is -0 unless both addends are +0."""
    total = floats.exact_add(a, b)
    if mode == "m":
        return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)
    return total


def _bf16_product(a: Array, b: Array) -> Array:
    """Products of bf16 values: exact in float32 unless they underflow."""
    product = a * b
    if np.count_nonzero(np.abs(product) < np.float32(2.0**-126)):
        return a.astype(np.float64) * b.astype(np.float64)
    return product


@rule("fma")
@rule("mad", table=FLOAT_RULES)
def fused(decoder: Decoder, instr: Instr) -> Code:
    """d = a * b + c with one rounding."""
    ty, mode = _types(instr)[0], rounding(instr)
    target, x, y, z = _bind(decoder, instr)
    encode = encoder(instr, mode)
    if ty == "f64":
        return assign(target, lambda: floats.fma64(x(), y(), z(), mode))
    if mode == "n":
        base = ty.removesuffix("x2")
        return assign(target, lambda: encode(_fma_near(x(), y(), z(), base)))
    return assign(target, lambda: encode(_sum(x().astype(np.float64) * y(), z(), mode)))


def _fma_near(a: Array, b: Array, c: Array, fmt: str) -> Array:
    """float64 sums that round to nearest in `fmt` as the exact value does.

    The product is exact and the float64 sum rounded. Rounding again to `fmt` differs from rounding
    once only where the sum lies half way between two values of `fmt`, or is subnormal there.
    """
    total = a.astype(np.float64) * b + c
    info = floats.FORMATS[fmt]
    half = np.uint64(1 << (52 - info.precision))
    low = total.view(np.uint64) & np.uint64(2 * int(half) - 1)
    near_zero = (np.abs(total) < 2.0**info.emin) & (total != 0)
    if np.count_nonzero((low == half) | near_zero):
        return floats.exact_fma(a, b, c)
    return total


@rule("div", table=FLOAT_RULES)
def divide(decoder: Decoder, instr: Instr) -> Code:
    """div in all rounding modes, .approx and .full."""
    ty, mode = _types(instr)[0], rounding(instr)
    target, x, y = _bind(decoder, instr)
    encode = encoder(instr, mode)
    if "approx" in instr.mods:
        return assign(target, lambda: encode(_approximate_quotient(x(), y())))
    if mode == "n":
        return assign(target, lambda: encode(x() / y()))
    if ty == "f64":
        exact = Fraction.__truediv__
        return assign(target, lambda: floats.direct64(exact, x(), y(), x() / y(), mode))
    return assign(target, lambda: encode(floats.exact_div(x(), y())))


def _approximate_quotient(a: Array, b: Array) -> Array:
    """div.approx multiplies by a reciprocal that is zero for divisors above 2**126."""
    huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    return np.where(huge, a * np.copysign(np.float32(0), b), a / b)


@rule("rcp", "sqrt")
def function(decoder: Decoder, instr: Instr) -> Code:
    """1 / a and the square root, correctly rounded."""
    mode = rounding(instr)
    if instr.type == "f64" and "approx" in instr.mods:
        return _gross(decoder, instr, lambda v: 1.0 / v)
    target, x = _bind(decoder, instr)
    encode = encoder(instr, mode)
    near: Callable[[Array], Array] = np.sqrt if instr.op == "sqrt" else lambda v: 1.0 / v
    if mode == "n":
        return assign(target, lambda: encode(near(x())))
    if instr.type == "f64":
        return assign(target, lambda: _direct_function(instr.op, x(), near(x()), mode))
    if instr.op == "sqrt":
        return assign(target, lambda: encode(floats.exact_sqrt(x())))
    return assign(target, lambda: encode(floats.exact_div(np.ones_like(x()), x())))


def _direct_function(op: str, x: Array, near: Array, mode: str) -> Array:
    """float64 rcp and sqrt in a directed mode, from the sign of the nearest result's error."""
    if op == "rcp":
        return floats.direct64(Fraction.__truediv__, np.ones_like(x), x, near, mode)
    error = np.zeros_like(near)
    for i in np.flatnonzero(np.isfinite(near) & (near != 0)):
        difference = Fraction(float(x[i])) - Fraction(float(near[i])) ** 2
        error[i] = float((difference > 0) - (difference < 0))
    return floats.directed(near, error, mode)


def _gross(decoder: Decoder, instr: Instr, function: Callable[[Array], Array]) -> Code:
    """rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: the upper words of source and result alone."""
    target, x = bind(decoder, instr, "b64", "b64")
    upper = np.uint64(0xFFFFFFFF << 32)

    def compute() -> Array:
        values = floats.flush_bits(x & upper, "f64").view(np.float64)
        return floats.flush_bits(function(values).view(np.uint64) & upper, "f64")

    return assign(target, compute)


_APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "rsqrt": lambda v: 1.0 / np.sqrt(v), "ex2": np.exp2, "lg2": np.log2, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh,
}


@rule(*_APPROXIMATE)
def approximate(decoder: Decoder, instr: Instr) -> Code:
    """The special functions, computed in float64 and rounded once."""
    function = _APPROXIMATE[instr.op]
    if instr.type == "f64" and "ftz" in instr.mods:
        return _gross(decoder, instr, function)
    target, x = _bind(decoder, instr)
    encode = encoder(instr, "n")
    return assign(target, lambda: encode(function(x().astype(np.float64))))


@rule("min", "max", table=FLOAT_RULES)
def minmax(decoder: Decoder, instr: Instr) -> Code:
    """min and max: NaN loses unless .NaN is written, and -0 is less than +0."""
    target, *sources = _bind(decoder, instr)
    encode = encoder(instr, "n")
    spread, flip = "NaN" in instr.mods, "xorsign" in instr.mods
    largest = instr.op == "max"

    def pick(a: Array, b: Array) -> Array:
        x, y = (np.abs(a), np.abs(b)) if flip else (a, b)
        low = floats.extreme(x, y, largest)
        if spread:
            low = np.where(np.isnan(x) | np.isnan(y), x.dtype.type(np.nan), low)
        if flip:
            low = np.copysign(low, np.where(np.signbit(a) != np.signbit(b), -1, 1).astype(a.dtype))
        return low

    def compute() -> Array:
        return encode(functools.reduce(pick, (source() for source in sources)))

    return assign(target, compute)


@rule("abs", "neg", table=FLOAT_RULES)
def sign(decoder: Decoder, instr: Instr) -> Code:
    """abs and neg: the sign bit alone."""
    ty = instr.type
    raw = {"f32": "b32", "f64": "b64", "f32x2": "b64"}.get(ty, ty)
    target, x = bind(decoder, instr, raw, ty)
    base, ftz = ty.removesuffix("x2"), "ftz" in instr.mods
    kind = floats.FORMATS[base].bits
    sign = kind(1 << 8 * np.dtype(kind).itemsize - 1)

    def compute() -> Array:
        bits = np.ascontiguousarray(x).view(kind)
        bits = floats.flush_bits(bits, base) if ftz else bits
        return (bits & ~sign if instr.op == "abs" else bits ^ sign).view(target.dtype)

    return assign(target, compute)


@rule("copysign")
def copysign(decoder: Decoder, instr: Instr) -> Code:
    """d = |b| with the sign of a."""
    target, x, y = bind(decoder, instr, *[instr.type] * 3)
    return assign(target, lambda: np.copysign(y, x))
