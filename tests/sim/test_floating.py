"""Every float instruction form against exact fractions, bit for bit; approximations by error."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.sim import exact
from tests.sim.harness import float_bits, run_lines, width
from tilec.sim import floats

Array = np.ndarray[Any, Any]
CONTAINER = {"f16": "b16", "bf16": "b16", "f32": "b32", "f64": "b64"}


def is_nan(bits: int, fmt: str) -> bool:
    value = exact.decode(bits, fmt)
    return isinstance(value, float) and math.isnan(value)


def check(got: int, want: int, fmt: str, context: Any) -> None:
    """Bits agree; a float64 NaN may have any payload."""
    if fmt == "f64" and is_nan(want, fmt):
        assert is_nan(got, fmt), context
    else:
        assert got == want, (hex(got), hex(want), context)


def flushed(bits: int) -> int:
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


def exact_result(op: str, mode: str, values: list[Any]) -> Any:
    if op == "add":
        return exact.add(values[0], values[1], mode)
    if op == "sub":
        return exact.add(values[0], exact.negative(values[1]), mode)
    if op == "mul":
        return exact.mul(values[0], values[1])
    if op == "div":
        return exact.div(values[0], values[1])
    if op == "rcp":
        return exact.div(Fraction(1), values[0])
    product = exact.mul(values[0], values[1])
    return exact.add(product, values[2], mode)


ARITHMETIC = [
    ("add", "rn", "f32"), ("add", "rz", "f32"), ("add", "rm", "f32"), ("add", "rp", "f32"),
    ("sub", "rn", "f32"), ("sub", "rm", "f32"), ("mul", "rn", "f32"), ("mul", "rz", "f32"),
    ("mul", "rp", "f32"), ("fma", "rn", "f32"), ("fma", "rz", "f32"), ("fma", "rm", "f32"),
    ("mad", "rn", "f32"), ("div", "rn", "f32"), ("div", "rz", "f32"), ("div", "rp", "f32"),
    ("rcp", "rn", "f32"), ("rcp", "rm", "f32"), ("add", "rn", "f64"), ("add", "rz", "f64"),
    ("mul", "rn", "f64"), ("mul", "rp", "f64"), ("fma", "rn", "f64"), ("fma", "rz", "f64"),
    ("div", "rn", "f64"), ("div", "rm", "f64"), ("rcp", "rn", "f64"), ("rcp", "rp", "f64"),
    ("add", "rm", "f64"),
    ("add", "rn", "f16"), ("sub", "rn", "f16"), ("mul", "rn", "f16"), ("fma", "rn", "f16"),
    ("add", "rn", "bf16"), ("sub", "rn", "bf16"), ("mul", "rn", "bf16"), ("fma", "rn", "bf16"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "mode", "fmt"), ARITHMETIC)
def test_arithmetic(op: str, mode: str, fmt: str) -> None:
    count = {"fma": 3, "mad": 3, "rcp": 1}.get(op, 2)
    arrays = [float_bits(fmt, 10 + i) for i in range(count)]
    sources = ", ".join(f"%{n}" for n in "abc"[:count])
    ty = CONTAINER[fmt]
    (got,) = run_lines(f"{op}.{mode}.{fmt} %d, {sources};", [ty], [(ty, a) for a in arrays])
    for lane in range(len(got)):
        bits = [int(a[lane]) for a in arrays]
        result = exact_result(op, mode, [exact.decode(b, fmt) for b in bits])
        check(int(got[lane]), exact.encode(result, fmt, mode), fmt, [hex(b) for b in bits])


@pytest.mark.parametrize("op", ["add", "mul", "fma"])
def test_flush_to_zero(op: str) -> None:
    count = 3 if op == "fma" else 2
    arrays = [float_bits("f32", 20 + i) for i in range(count)]
    # Products of small numbers give subnormal results.
    arrays[0][:64] = (arrays[0][:64] & 0x807FFFFF) | (64 << 23)
    arrays[1][:64] = (arrays[1][:64] & 0x807FFFFF) | (62 << 23)
    sources = ", ".join(f"%{n}" for n in "abc"[:count])
    (got,) = run_lines(f"{op}.rn.ftz.f32 %d, {sources};", ["b32"], [("b32", a) for a in arrays])
    for lane in range(len(got)):
        values = [exact.decode(flushed(int(a[lane])), "f32") for a in arrays]
        result = exact_result(op, "rn", values)
        # Too small once it has 24 bits, as if exponents went on; see "near the normals" in forms.
        if abs(result) < Fraction(2) ** -126 - Fraction(2) ** -151:
            result = math.copysign(0.0, result)
        check(int(got[lane]), exact.encode(result, "f32"), "f32", lane)


def test_saturate() -> None:
    a, b = float_bits("f32", 1), float_bits("f32", 2)
    (got,) = run_lines("add.sat.f32 %d, %a, %b;", ["b32"], [("b32", a), ("b32", b)])
    with np.errstate(all="ignore"):
        total = a.view(np.float32).astype(np.float64) + b.view(np.float32)
    want = np.where(np.isnan(total), 0, np.clip(total, 0, 1)).astype(np.float32)
    assert np.array_equal(got.view(np.float32), want)
    assert not np.signbit(got.view(np.float32)).any()


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma", "min", "max"])
def test_packed_equals_scalar(op: str, fmt: str) -> None:
    count = 3 if op == "fma" else 2
    low = [float_bits(fmt, 30 + i) for i in range(count)]
    high = [float_bits(fmt, 40 + i) for i in range(count)]
    packed = [(l.astype(np.uint32) | h.astype(np.uint32) << 16) for l, h in zip(low, high)]
    sources = ", ".join(f"%{n}" for n in "abc"[:count])
    mode = "" if op in ("min", "max") else ".rn"
    (got,) = run_lines(f"{op}{mode}.{fmt}x2 %d, {sources};", ["b32"], [("b32", p) for p in packed])
    for shift, half in ((0, low), (16, high)):
        (want,) = run_lines(f"{op}{mode}.{fmt} %d, {sources};", ["b16"], [("b16", h) for h in half])
        assert np.array_equal((got >> shift).astype(np.uint16), want)


def test_packed_f32() -> None:
    arrays = [float_bits("f32", 50 + i) for i in range(6)]
    packed = [
        arrays[i].astype(np.uint64) | arrays[i + 3].astype(np.uint64) << np.uint64(32)
        for i in range(3)
    ]
    (got,) = run_lines("fma.rn.f32x2 %d, %a, %b, %c;", ["b64"], [("b64", p) for p in packed])
    for first, shift in ((0, 0), (3, 32)):
        (want,) = run_lines("fma.rn.f32 %d, %a, %b, %c;", ["b32"],
                            [("b32", a) for a in arrays[first : first + 3]])  # fmt: skip
        assert np.array_equal((got >> np.uint64(shift)).astype(np.uint32), want)


def test_mixed_types() -> None:
    """The narrow factors widen exactly; the addend and the result are float32."""
    half, other, wide = float_bits("f16", 51), float_bits("f16", 52), float_bits("f32", 53)
    h, o = (x.view(np.float16).astype(np.float32).view(np.uint32) for x in (half, other))
    inputs = [("b16", half), ("b16", other), ("b32", wide)]
    (got,) = run_lines("fma.rn.f32.f16 %d, %a, %b, %c;", ["b32"], inputs)
    (want,) = run_lines("fma.rn.f32 %d, %a, %b, %c;", ["b32"],
                        [("b32", h), ("b32", o), ("b32", wide)])  # fmt: skip
    assert np.array_equal(got, want)
    (got,) = run_lines("sub.rz.f32.f16 %d, %a, %b;", ["b32"], [("b16", half), ("b32", wide)])
    (want,) = run_lines("sub.rz.f32 %d, %a, %b;", ["b32"], [("b32", h), ("b32", wide)])
    assert np.array_equal(got, want)


def test_fma_rounds_once() -> None:
    """The sum lies just beside half way between two floats: two roundings would go wrong."""
    a = np.array([1 + 2.0**-12, 1 + 2.0**-12], np.float32)
    b = np.array([1 + 2.0**-12, 1 + 2.0**-12], np.float32)
    c = np.array([2.0**-60, -(2.0**-60)], np.float32)
    (got,) = run_lines("fma.rn.f32 %d, %a, %b, %c;", ["b32"],
                       [("b32", np.tile(v, 128)) for v in (a, b, c)])  # fmt: skip
    assert got.view(np.float32)[0] == np.float32(1 + 2.0**-11 + 2.0**-23)
    assert got.view(np.float32)[1] == np.float32(1 + 2.0**-11)


@pytest.mark.parametrize("mode", ["rn", "rz", "rp"])
@pytest.mark.parametrize("fmt", ["f32", "f64"])
def test_sqrt(fmt: str, mode: str) -> None:
    bits = float_bits(fmt, 60)
    ty = CONTAINER[fmt]
    (got,) = run_lines(f"sqrt.{mode}.{fmt} %d, %a;", [ty], [(ty, bits)])
    for lane in range(len(bits)):
        value = exact.decode(int(bits[lane]), fmt)
        if isinstance(value, float):
            root: Any = math.nan if value < 0 else math.sqrt(value) if value else value
        elif value < 0:
            root = math.nan
        else:
            # An integer square root with 300 spare bits, and a sticky bit.
            scaled = value.numerator * value.denominator << 600
            whole = math.isqrt(scaled)
            root = Fraction(2 * whole + (whole * whole != scaled), value.denominator << 301)
        check(int(got[lane]), exact.encode(root, fmt, mode), fmt, hex(int(bits[lane])))


def reference_minmax(op: str, spread: bool, a: Any, b: Any) -> Any:
    nan_a = isinstance(a, float) and math.isnan(a)
    nan_b = isinstance(b, float) and math.isnan(b)
    if nan_a or nan_b:
        return math.nan if spread or (nan_a and nan_b) else b if nan_a else a
    if a == 0 and b == 0:
        negative = [math.copysign(1, x) < 0 for x in (a, b)]
        return -0.0 if (any(negative) if op == "min" else all(negative)) else 0.0
    return min(a, b) if op == "min" else max(a, b)


@pytest.mark.parametrize("lanes", [1, 3, 32, 37])
def test_a_number_wins_over_a_signalling_nan(lanes: int) -> None:
    """However many lanes are active: numpy's vector loops and their remainders differ about it."""
    signalling, number = np.full(lanes, 0x7F800001, np.uint32).view(np.float32), np.full(
        lanes, -20, np.float32)
    for largest in (False, True):
        assert np.array_equal(floats.extreme(signalling, number, largest), number)
        assert np.array_equal(floats.extreme(number, signalling, largest), number)


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("spread", ["", ".NaN"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_minmax(op: str, spread: str, fmt: str) -> None:
    if fmt == "f64" and spread:
        return
    a, b = float_bits(fmt, 70), float_bits(fmt, 71)
    ty = CONTAINER[fmt]
    (got,) = run_lines(f"{op}{spread}.{fmt} %d, %a, %b;", [ty], [(ty, a), (ty, b)])
    for lane in range(len(a)):
        values = [exact.decode(int(x[lane]), fmt) for x in (a, b)]
        want = exact.encode(reference_minmax(op, bool(spread), *values), fmt)
        check(int(got[lane]), want, fmt, values)


def test_three_operand_and_xorsign() -> None:
    arrays = [float_bits("f32", 80 + i) for i in range(3)]
    inputs = [("b32", a) for a in arrays]
    (got,) = run_lines("max.f32 %d, %a, %b, %c;", ["b32"], inputs)
    (step,) = run_lines("max.f32 %d, %a, %b; max.f32 %d, %d, %c;", ["b32"], inputs)
    assert np.array_equal(got, step)
    (got,) = run_lines("min.xorsign.abs.f32 %d, %a, %b;", ["b32"], inputs[:2])
    a, b = (x.view(np.float32) for x in arrays[:2])
    sign = np.where(np.signbit(a) != np.signbit(b), -1, 1).astype(np.float32)
    want = np.copysign(np.fmin(np.abs(a), np.abs(b)), sign)
    both = np.isnan(a) & np.isnan(b)
    assert np.array_equal(got.view(np.float32)[~both], want[~both])


@pytest.mark.parametrize(("form", "ty", "mask"), [
    ("neg.f32", "b32", "x ^ 0x80000000"), ("abs.f32", "b32", "x & 0x7fffffff"),
    ("neg.f64", "b64", "x ^ (1 << 63)"), ("abs.f64", "b64", "x & ((1 << 63) - 1)"),
    ("neg.f16", "b16", "x ^ 0x8000"), ("abs.bf16", "b16", "x & 0x7fff"),
    ("neg.bf16x2", "b32", "x ^ 0x80008000"), ("abs.f16x2", "b32", "x & 0x7fff7fff"),
    ("neg.ftz.f32", "b32", "flushed(x) ^ 0x80000000"),
])  # fmt: skip
def test_sign(form: str, ty: str, mask: str) -> None:
    bits = float_bits({"b16": "f16", "b32": "f32", "b64": "f64"}[ty], 90)
    (got,) = run_lines(f"{form} %d, %a;", [ty], [(ty, bits)])
    for x, result in zip(bits.tolist(), got.tolist()):
        assert result == eval(mask, {"x": x, "flushed": flushed})


def test_copysign() -> None:
    a, b = float_bits("f32", 91), float_bits("f32", 92)
    (got,) = run_lines("copysign.f32 %d, %a, %b;", ["b32"], [("b32", a), ("b32", b)])
    assert np.array_equal(got, (a & 0x80000000) | (b & 0x7FFFFFFF))


APPROXIMATE = [
    ("ex2.approx.f32", "f32", np.exp2, 2e-7), ("ex2.approx.ftz.f32", "f32", np.exp2, 2e-7),
    ("lg2.approx.f32", "f32", np.log2, 2e-7), ("sin.approx.f32", "f32", np.sin, 2e-7),
    ("cos.approx.f32", "f32", np.cos, 2e-7), ("tanh.approx.f32", "f32", np.tanh, 2e-7),
    ("rsqrt.approx.f32", "f32", lambda x: 1 / np.sqrt(x), 2e-7),
    ("rsqrt.approx.ftz.f32", "f32", lambda x: 1 / np.sqrt(x), 2e-7),
    ("rcp.approx.ftz.f32", "f32", lambda x: 1 / x, 2e-7),
    ("sqrt.approx.f32", "f32", np.sqrt, 2e-7),
    ("rsqrt.approx.f64", "f64", lambda x: 1 / np.sqrt(x), 1e-15),
    ("ex2.approx.f16", "f16", np.exp2, 1e-3), ("tanh.approx.f16", "f16", np.tanh, 1e-3),
    ("ex2.approx.ftz.bf16", "bf16", np.exp2, 8e-3), ("tanh.approx.bf16", "bf16", np.tanh, 8e-3),
]  # fmt: skip


@pytest.mark.parametrize(("form", "fmt", "function", "tolerance"), APPROXIMATE)
def test_approximation(form: str, fmt: str, function: Any, tolerance: float) -> None:
    values = np.random.default_rng(5).uniform(0.01, 8, 256)
    kind = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.float32}[fmt]
    data = values.astype(kind)
    bits = data.view(f"u{data.itemsize}")
    if fmt == "bf16":
        bits = (bits >> 16).astype(np.uint16)
        data = (bits.astype(np.uint32) << 16).view(np.float32)
    ty = CONTAINER[fmt]
    (got,) = run_lines(f"{form} %d, %a;", [ty], [(ty, bits)])
    if fmt == "bf16":
        got = got.astype(np.uint32) << 16
    result = got.view(kind).astype(np.float64)
    with np.errstate(all="ignore"):
        want = function(data.astype(np.float64))
    assert np.allclose(result, want, rtol=tolerance, atol=1e-7 if "sin" in form else 0)


def test_approximation_specials() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e-40, -1e-40], np.float32)
    bits = np.tile(x, 32).view(np.uint32)

    def run(form: str) -> Array:
        (got,) = run_lines(f"{form} %d, %a;", ["b32"], [("b32", bits)])
        return got.view(np.float32)[:8]

    nan, inf = np.nan, np.inf
    same = lambda a, b: np.testing.assert_array_equal(a, np.array(b, np.float32))  # noqa: E731
    same(run("ex2.approx.ftz.f32"), [1, 1, inf, 0, nan, 0.5, 1, 1])
    same(run("lg2.approx.ftz.f32"), [-inf, -inf, inf, nan, nan, nan, -inf, -inf])
    same(run("rcp.approx.ftz.f32"), [inf, -inf, 0, -0.0, nan, -1, inf, -inf])
    same(run("rsqrt.approx.ftz.f32"), [inf, -inf, 0, nan, nan, nan, inf, -inf])
    same(run("sqrt.approx.ftz.f32"), [0, -0.0, inf, nan, nan, nan, 0, -0.0])
    same(run("tanh.approx.f32")[:6], [0, -0.0, 1, -1, nan, np.tanh(-1.0)])


def test_division_forms() -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(256).astype(np.float32) for _ in range(2))
    inputs = [("b32", a.view(np.uint32)), ("b32", b.view(np.uint32))]
    for form in ("div.full.f32", "div.approx.f32", "div.approx.ftz.f32", "div.full.ftz.f32"):
        (got,) = run_lines(f"{form} %d, %a, %b;", ["b32"], inputs)
        assert np.allclose(got.view(np.float32), a / b, rtol=1e-6)
    huge = np.full(256, 2.0**127, np.float32)
    inputs[1] = ("b32", huge.view(np.uint32))
    (got,) = run_lines("div.approx.f32 %d, %a, %b;", ["b32"], inputs)
    assert not got.view(np.float32).any()


def test_relu_fma() -> None:
    arrays = [float_bits("bf16", 95 + i) for i in range(3)]
    inputs = [("b16", a) for a in arrays]
    (got,) = run_lines("fma.rn.relu.bf16 %d, %a, %b, %c;", ["b16"], inputs)
    (plain,) = run_lines("fma.rn.bf16 %d, %a, %b, %c;", ["b16"], inputs)
    assert np.array_equal(got, np.where((plain & 0x8000) != 0, 0, plain))


def test_testp() -> None:
    bits = float_bits("f32", 99)
    x = bits.view(np.float32)
    tests = {
        "finite": np.isfinite(x), "infinite": np.isinf(x), "number": ~np.isnan(x),
        "notanumber": np.isnan(x), "normal": np.isfinite(x) & ((np.abs(x) >= 2.0**-126) | (x == 0)),
        "subnormal": (x != 0) & (np.abs(x) < 2.0**-126),
    }  # fmt: skip
    for name, want in tests.items():
        (got,) = run_lines(f"testp.{name}.f32 %d, %a;", ["pred"], [("b32", bits)])
        assert np.array_equal(got.astype(bool), want), name
    assert width("pred") == 8
