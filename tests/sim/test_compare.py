"""setp and set: every comparison, with NaN, booleans and two destinations."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest

from tests.sim import exact
from tests.sim.harness import float_bits, integers, run_lines

PLAIN = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
         "gt": operator.gt, "ge": operator.ge}  # fmt: skip
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


@pytest.mark.parametrize("ty", ["s32", "u32", "s64", "u64", "s16", "u16", "b32"])
@pytest.mark.parametrize("name", [*PLAIN, *UNSIGNED])
def test_integers(name: str, ty: str) -> None:
    if (name in UNSIGNED and ty[0] == "s") or (ty == "b32" and name not in ("eq", "ne")):
        return
    bits = int(ty[1:])
    a, b = integers(bits, 1), integers(bits, 2)
    b[::3] = a[::3]
    (got,) = run_lines(f"setp.{name}.{ty} %d, %a, %b;", ["pred"],
                       [(f"b{bits}", a), (f"b{bits}", b)])  # fmt: skip
    op = PLAIN[UNSIGNED.get(name, name)]
    for x, y, result in zip(a.tolist(), b.tolist(), got.tolist()):
        values = (signed(x, bits), signed(y, bits)) if ty[0] == "s" else (x, y)
        assert bool(result) == op(*values)


def float_reference(name: str, a: Any, b: Any) -> bool:
    unordered = any(isinstance(v, float) and math.isnan(v) for v in (a, b))
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if unordered:
        return name.endswith("u")
    return bool(PLAIN[name[:2]](a, b))


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", [*PLAIN, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"])
def test_floats(name: str, fmt: str) -> None:
    ty = {"f16": "b16", "bf16": "b16", "f32": "b32", "f64": "b64"}[fmt]
    a, b = float_bits(fmt, 3), float_bits(fmt, 4)
    b[::3] = a[::3]
    (got,) = run_lines(f"setp.{name}.{fmt} %d, %a, %b;", ["pred"], [(ty, a), (ty, b)])
    for x, y, result in zip(a.tolist(), b.tolist(), got.tolist()):
        want = float_reference(name, exact.decode(x, fmt), exact.decode(y, fmt))
        assert bool(result) == want, (hex(x), hex(y))


def test_boolean_and_two_destinations() -> None:
    a, b = integers(32, 5), integers(32, 6)
    c = (integers(8, 7) & 1).astype(np.uint8)
    inputs = [("b32", a), ("b32", b), ("pred", c)]
    less = a.view(np.int32) < b.view(np.int32)
    other = c.astype(bool)
    for name, op in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        got = run_lines(f"setp.lt.{name}.s32 %d|%e, %a, %b, %c;", ["pred", "pred"], inputs)
        assert np.array_equal(got[0].astype(bool), op(less, other))
        assert np.array_equal(got[1].astype(bool), op(~less, other))
    (got,) = run_lines("setp.lt.and.s32 %d, %a, %b, !%c;", ["pred"], inputs)
    assert np.array_equal(got.astype(bool), less & ~other)


def test_packed_and_flush() -> None:
    parts = [float_bits("f16", 8 + i) for i in range(4)]
    x = parts[0].astype(np.uint32) | parts[1].astype(np.uint32) << 16
    y = parts[2].astype(np.uint32) | parts[3].astype(np.uint32) << 16
    got = run_lines("setp.lt.f16x2 %d|%e, %a, %b;", ["pred"] * 2, [("b32", x), ("b32", y)])
    halves = [p.view(np.float16) for p in parts]
    assert np.array_equal(got[0].astype(bool), halves[0] < halves[2])
    assert np.array_equal(got[1].astype(bool), halves[1] < halves[3])
    (both,) = run_lines("set.ge.f16x2.f16x2 %d, %a, %b;", ["b32"], [("b32", x), ("b32", y)])
    low = np.where(halves[0] >= halves[2], 0x3C00, 0)
    assert np.array_equal(both & 0xFFFF, low)
    tiny = np.full(256, 1, np.uint32)
    zero = np.zeros(256, np.uint32)
    (got,) = run_lines("setp.eq.ftz.f32 %d, %a, %b;", ["pred"], [("b32", tiny), ("b32", zero)])
    assert got.all()


def test_set() -> None:
    a, b = float_bits("f32", 12), float_bits("f32", 13)
    inputs = [("b32", a), ("b32", b)]
    less = a.view(np.float32) < b.view(np.float32)
    (got,) = run_lines("set.lt.u32.f32 %d, %a, %b;", ["b32"], inputs)
    assert np.array_equal(got, np.where(less, 0xFFFFFFFF, 0))
    (got,) = run_lines("set.lt.f32.f32 %d, %a, %b;", ["b32"], inputs)
    assert np.array_equal(got.view(np.float32), less.astype(np.float32))
