"""Float formats and rounding once more, in Python integers and fractions, to check against."""

from __future__ import annotations

import math
from fractions import Fraction

FORMATS = {  # bits, significant bits, exponent bits, has infinity
    "f16": (16, 11, 5, True), "bf16": (16, 8, 8, True), "f32": (32, 24, 8, True),
    "f64": (64, 53, 11, True), "tf32": (32, 11, 8, True), "e5m2": (8, 3, 5, True),
    "e4m3": (8, 4, 4, False),
}  # fmt: skip
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "e5m2": 0x7F, "e4m3": 0x7F}


def decode(bits: int, fmt: str) -> float | Fraction:
    """The value of a float's bits: a Fraction, or a float for zeros, infinities and NaN."""
    width, precision, exponent_bits, infinite = FORMATS[fmt]
    fraction_bits = width - 1 - exponent_bits
    sign = -1 if bits >> (width - 1) else 1
    exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    top = (1 << exponent_bits) - 1
    if infinite and exponent == top:
        return math.nan if fraction else sign * math.inf
    if not infinite and exponent == top and fraction == (1 << fraction_bits) - 1:
        return math.nan
    if exponent == 0:
        if fraction == 0:
            return sign * 0.0
        return sign * Fraction(fraction) * Fraction(2) ** (1 - bias - fraction_bits)
    return sign * (1 + Fraction(fraction, 1 << fraction_bits)) * Fraction(2) ** (exponent - bias)


def encode(value: float | Fraction, fmt: str, mode: str = "rn", satfinite: bool = False) -> int:
    """Bits of a value rounded to a format once."""
    width, precision, exponent_bits, infinite = FORMATS[fmt]
    fraction_bits = width - 1 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    if isinstance(value, float) and math.isnan(value):
        return NAN[fmt] if fmt != "f64" else 0x7FF8000000000000
    negative = math.copysign(1, value) < 0 if isinstance(value, float) else value < 0
    sign = int(negative) << (width - 1)
    largest = (((1 << exponent_bits) - 1) << fraction_bits) - 1
    if not infinite:
        largest = (1 << (width - 1)) - 2
    keep = satfinite or not infinite
    if fmt == "tf32":
        largest = (0xFE << 23) | (0x3FF << 13)
    infinity = largest if keep else ((1 << exponent_bits) - 1) << fraction_bits
    if isinstance(value, float) and math.isinf(value):
        return sign | infinity
    if value == 0:
        return sign
    size = abs(Fraction(value))
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, 1 - bias) - (precision - 1))
    whole, rest = divmod(size / quantum, 1)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    result = (whole + up) * quantum
    limit = decode(largest, fmt if fmt != "tf32" else "f32")
    assert isinstance(limit, Fraction)
    if result > limit:
        toward_zero = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        return sign | (largest if toward_zero else infinity)
    if result == 0:
        return sign
    exponent = result.numerator.bit_length() - result.denominator.bit_length()
    if exponent < 1 - bias:
        return sign | int(result / Fraction(2) ** (1 - bias - fraction_bits))
    fraction = (result / Fraction(2) ** exponent - 1) * (1 << fraction_bits)
    return sign | ((exponent + bias) << fraction_bits) | int(fraction)


def _float(value: float | Fraction) -> float:
    """A stand-in with the value's sign for special-case rules (zeros, infinities, NaN)."""
    return value if isinstance(value, float) else (1.5 if value > 0 else -1.5)


def add(a: float | Fraction, b: float | Fraction, mode: str = "rn") -> float | Fraction:
    """a + b exactly, with IEEE's special cases."""
    for x in (a, b):
        if isinstance(x, float) and not math.isfinite(x):
            return _float(a) + _float(b)
    if a == 0 and b == 0:
        same = math.copysign(1, a) == math.copysign(1, b)
        return float(a) if same else (-0.0 if mode == "rm" else 0.0)
    total = Fraction(a) + Fraction(b)
    return total if total else (-0.0 if mode == "rm" else 0.0)


def mul(a: float | Fraction, b: float | Fraction) -> float | Fraction:
    """a * b exactly, with IEEE's special cases."""
    if isinstance(a, float) or isinstance(b, float):
        x, y = _float(a), _float(b)
        return x * y
    return a * b


def div(a: float | Fraction, b: float | Fraction) -> float | Fraction:
    """a / b exactly, with IEEE's special cases."""
    if isinstance(a, float) or isinstance(b, float):
        x, y = _float(a), _float(b)
        if y == 0:
            if x == 0 or math.isnan(x):
                return math.nan
            return math.copysign(math.inf, x) * math.copysign(1, y)
        return x / y
    return a / b


def negative(a: float | Fraction) -> float | Fraction:
    """-a."""
    return -a
