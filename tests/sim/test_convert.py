"""cvt in every direction and rounding, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.sim import exact
from tests.sim.harness import float_bits, integers, run_lines

CONTAINER = {"f16": "b16", "bf16": "b16", "f32": "b32", "f64": "b64", "tf32": "b32"}


def as_signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def integer(x: int, ty: str) -> int:
    """The value of the low bits of a register seen as an integer type."""
    bits = int(ty[1:])
    return as_signed(x, bits) if ty[0] == "s" else x & ((1 << bits) - 1)


@pytest.mark.parametrize("text", [
    "cvt.u64.u32", "cvt.s64.s32", "cvt.u32.u64", "cvt.s32.s16", "cvt.u16.u32", "cvt.u32.u8",
    "cvt.s32.s8", "cvt.u16.u8", "cvt.s16.s8", "cvt.u8.u32", "cvt.s64.s8", "cvt.s8.s32",
    "cvt.sat.s8.s32", "cvt.sat.u8.s32", "cvt.sat.s32.s64", "cvt.sat.u16.u64", "cvt.sat.s16.u32",
])  # fmt: skip
def test_integer_to_integer(text: str) -> None:
    to, source = text.split(".")[-2:]
    container = {8: "b16", 16: "b16", 32: "b32", 64: "b64"}
    out, into = container[int(to[1:])], container[int(source[1:])]
    bits = integers(int(into[1:]), 1)
    (got,) = run_lines(f"{text} %d, %a;", [out], [(into, bits)])
    low = -(1 << int(to[1:]) - 1) if to[0] == "s" else 0
    high = (1 << int(to[1:]) - (to[0] == "s")) - 1
    for x, result in zip(bits.tolist(), got.tolist()):
        value = integer(x, source)
        value = max(low, min(high, value)) if "sat" in text else integer(value, to)
        assert result == value & ((1 << int(out[1:])) - 1), hex(x)


@pytest.mark.parametrize("text", [
    "cvt.rn.f32.f64", "cvt.rz.f32.f64", "cvt.rm.f32.f64", "cvt.rp.f32.f64", "cvt.f64.f32",
    "cvt.f32.f16", "cvt.rn.f16.f32", "cvt.rz.f16.f32", "cvt.f32.bf16", "cvt.rn.bf16.f32",
    "cvt.rz.bf16.f32", "cvt.rn.f16.f64", "cvt.f64.f16", "cvt.rna.tf32.f32", "cvt.rn.f16.bf16",
    "cvt.rn.tf32.f32", "cvt.rz.tf32.f32", "cvt.rn.bf16.f16",
])  # fmt: skip
def test_float_to_float(text: str) -> None:
    to, source = text.split(".")[-2:]
    mode = text.split(".")[1] if text.count(".") == 3 else "rn"
    bits = float_bits(source, 2)
    (got,) = run_lines(f"{text} %d, %a;", [CONTAINER[to]], [(CONTAINER[source], bits)])
    for x, result in zip(bits.tolist(), got.tolist()):
        value = exact.decode(x, source)
        if isinstance(value, float) and math.isnan(value):
            assert math.isnan(float(exact.decode(result, to if to != "tf32" else "f32"))), hex(x)
        else:
            want = exact.encode(value, to, mode)
            assert result == want, (hex(x), hex(result), hex(want))


@pytest.mark.parametrize("text", [
    "cvt.rn.f32.s32", "cvt.rz.f32.u32", "cvt.rn.f32.u64", "cvt.rn.f32.s64", "cvt.rp.f32.s64",
    "cvt.rn.f64.s64", "cvt.rm.f64.u64", "cvt.rn.f64.u32", "cvt.rn.f16.s32", "cvt.rn.f16.u16",
    "cvt.rn.f32.u16", "cvt.rn.bf16.s32", "cvt.rn.f32.s8", "cvt.rz.f16.s64",
])  # fmt: skip
def test_integer_to_float(text: str) -> None:
    mode, to, source = text.split(".")[1:]
    into = {8: "b16", 16: "b16", 32: "b32", 64: "b64"}[int(source[1:])]
    bits = integers(int(into[1:]), 3)
    (got,) = run_lines(f"{text} %d, %a;", [CONTAINER[to]], [(into, bits)])
    for x, result in zip(bits.tolist(), got.tolist()):
        value = integer(x, source)
        want = exact.encode(Fraction(value) if value else 0.0, to, mode)
        assert result == want, (value, hex(result), hex(want))


def rounded(value: Fraction, mode: str) -> int:
    return {
        "rzi": math.trunc, "rni": round, "rmi": math.floor, "rpi": math.ceil,
    }[mode](value)  # fmt: skip


@pytest.mark.parametrize("text", [
    "cvt.rzi.s32.f32", "cvt.rni.s32.f32", "cvt.rmi.s32.f32", "cvt.rpi.u32.f32", "cvt.rzi.u64.f32",
    "cvt.rzi.s64.f64", "cvt.rzi.u32.f64", "cvt.rni.s64.f32", "cvt.rzi.s16.f32", "cvt.rzi.u16.f16",
    "cvt.rzi.s32.f16", "cvt.rzi.s8.f32", "cvt.rzi.s32.bf16",
])  # fmt: skip
def test_float_to_integer(text: str) -> None:
    mode, to, source = text.split(".")[1:]
    size = int(to[1:])
    out = {8: "b16", 16: "b16", 32: "b32", 64: "b64"}[size]
    bits = float_bits(source, 4)
    (got,) = run_lines(f"{text} %d, %a;", [out], [(CONTAINER[source], bits)])
    low = -(1 << size - 1) if to[0] == "s" else 0
    high = (1 << size - (to[0] == "s")) - 1
    for x, result in zip(bits.tolist(), got.tolist()):
        value = exact.decode(x, source)
        if isinstance(value, float) and math.isnan(value):
            want = 1 << size - 1 if size == 64 or source == "f64" else 0
            if source == "f64" and size == 32:
                want = 1 << 31
        elif isinstance(value, float):
            want = 0 if value == 0 else high if value > 0 else low
        else:
            want = max(low, min(high, rounded(value, mode)))
        assert result == want & ((1 << int(out[1:])) - 1), (hex(x), value)


@pytest.mark.parametrize("text", ["cvt.rni.f32.f32", "cvt.rmi.f32.f32", "cvt.rpi.f64.f64",
                                  "cvt.rzi.f16.f16"])  # fmt: skip
def test_round_to_integral(text: str) -> None:
    mode, fmt = text.split(".")[1:3]
    bits = float_bits(fmt, 5)
    ty = CONTAINER[fmt]
    (got,) = run_lines(f"{text} %d, %a;", [ty], [(ty, bits)])
    for x, result in zip(bits.tolist(), got.tolist()):
        value = exact.decode(x, fmt)
        if isinstance(value, Fraction):
            whole = rounded(value, mode)
            value = Fraction(whole) if whole else math.copysign(0.0, value)
        elif math.isnan(value):
            continue
        assert result == exact.encode(value, fmt), hex(x)


def test_saturate_and_flush() -> None:
    bits = float_bits("f32", 6)
    x = bits.view(np.float32)
    (got,) = run_lines("cvt.sat.f32.f32 %d, %a;", ["b32"], [("b32", bits)])
    want = np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(np.float32)
    assert np.array_equal(got.view(np.float32), want)
    (got,) = run_lines("cvt.ftz.f64.f32 %d, %a;", ["b64"], [("b32", bits)])
    flat = np.where(np.abs(x) < 2.0**-126, np.copysign(0, x), x)
    kept = ~np.isnan(x)
    assert np.array_equal(got.view(np.float64)[kept], flat[kept].astype(np.float64))
    (got,) = run_lines("cvt.rn.relu.bf16.f32 %d, %a;", ["b16"], [("b32", bits)])
    (plain,) = run_lines("cvt.rn.bf16.f32 %d, %a;", ["b16"], [("b32", bits)])
    assert np.array_equal(got, np.where((plain & 0x8000) != 0, 0, plain))


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_packed_halves(fmt: str) -> None:
    high, low = float_bits("f32", 7), float_bits("f32", 8)
    inputs = [("b32", high), ("b32", low)]
    (got,) = run_lines(f"cvt.rn.{fmt}x2.f32 %d, %a, %b;", ["b32"], inputs)
    for i, word in enumerate(got.tolist()):
        assert word & 0xFFFF == exact.encode(exact.decode(int(low[i]), "f32"), fmt)
        assert word >> 16 == exact.encode(exact.decode(int(high[i]), "f32"), fmt)
    (relu,) = run_lines(f"cvt.rn.relu.{fmt}x2.f32 %d, %a, %b;", ["b32"], inputs)
    assert not (relu & 0x80008000).any()


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_eight_bit(fmt: str) -> None:
    high, low = float_bits("f32", 9), float_bits("f32", 10)
    rng = np.random.default_rng(1)
    low[:128] = (rng.standard_normal(128) * 100).astype(np.float32).view(np.uint32)
    (got,) = run_lines(f"cvt.rn.satfinite.{fmt}x2.f32 %d, %a, %b;", ["b16"],
                       [("b32", high), ("b32", low)])  # fmt: skip
    for i, word in enumerate(got.tolist()):
        for bits, part in ((low, word & 0xFF), (high, word >> 8)):
            value = exact.decode(int(bits[i]), "f32")
            want = exact.encode(value, fmt, satfinite=True)
            assert part == want, (value, hex(part), hex(want))
    every = np.arange(256, dtype=np.uint16)
    pair = (every | (every[::-1] << 8)).astype(np.uint16)
    (wide,) = run_lines(f"cvt.rn.f16x2.{fmt}x2 %d, %a;", ["b32"], [("b16", pair)])
    for x, word in zip(pair.tolist(), wide.tolist()):
        assert word & 0xFFFF == exact.encode(exact.decode(x & 0xFF, fmt), "f16")
        assert word >> 16 == exact.encode(exact.decode(x >> 8, fmt), "f16")
    (back,) = run_lines(f"cvt.rn.satfinite.{fmt}x2.f16x2 %d, %a;", ["b16"], [("b32", wide)])
    for x, y in zip(pair.tolist(), back.tolist()):
        for shift in (0, 8):
            value = exact.decode((x >> shift) & 0xFF, fmt)
            want: Any = exact.encode(value, fmt, satfinite=True)
            assert (y >> shift) & 0xFF == want


def test_pack_integers() -> None:
    a, b, c = (integers(32, 11 + i) for i in range(3))
    inputs = [("b32", a), ("b32", b), ("b32", c)]
    (got,) = run_lines("cvt.pack.sat.s8.s32.b32 %d, %a, %b, %c;", ["b32"], inputs)
    (wide,) = run_lines("cvt.pack.sat.u16.s32 %d, %a, %b;", ["b32"], inputs)
    for i in range(len(a)):
        x, y = (as_signed(int(v[i]), 32) for v in (a, b))
        bytes_ = [max(-128, min(127, v)) & 0xFF for v in (y, x)]
        assert int(got[i]) == bytes_[0] | bytes_[1] << 8 | (int(c[i]) << 16) & 0xFFFFFFFF
        halves = [max(0, min(65535, v)) for v in (y, x)]
        assert int(wide[i]) == halves[0] | halves[1] << 16
