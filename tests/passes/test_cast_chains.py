"""Two casts in a row become one only where that gives the bits of the two, for every value: over
all dtypes and roundings, all values of types of 16 bits and less."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.eval.casts import cast
from tilec.eval.dtypes import dtype_of, is_float
from tilec.eval.rules import evaluate
from tilec.ir import ops
from tilec.ir.core import Block, Builder
from tilec.ir.types import SCALARS, Scalar, Tensor
from tilec.passes.simplify.arith import cast_of_cast

FEW = 4000  # values of a type that has too many


def values(t: Scalar, rng: np.random.Generator) -> np.ndarray:
    """All values, or those near powers of two and random bits."""
    dtype = dtype_of(t)
    if t.is_bool:
        return np.array([False, True])
    if t.bits <= 16:
        return np.arange(1 << t.bits, dtype=f"u{t.bytes}").view(dtype)
    random = rng.integers(0, 1 << t.bits, FEW, dtype=f"u{t.bytes}").view(dtype)
    near = [sign * (2.0 ** e) * (1 + d) for e in range(-150, 65, 3) for d in (0, 2 ** -8, 2 ** -11)
            for sign in (1, -1)]
    if t.is_float:
        near += [0.0, -0.0, np.inf, -np.inf, np.nan]
        return np.concatenate([random, np.array(near, dtype)])
    whole = [(1 << e) + d for e in range(t.bits - 1) for d in (-1, 0, 1, 1 << e >> 9)]
    return np.concatenate([random, np.array(whole, np.int64).astype(dtype)])


def same(got: np.ndarray, want: np.ndarray) -> bool:
    if not is_float(want.dtype):
        return np.array_equal(got, want)
    x, y = got.astype(np.float64), want.astype(np.float64)
    return bool(((x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y)).all())


def roundings(src: Scalar, dst: Scalar) -> tuple[str, ...]:
    """Those that a cast may have."""
    narrows = src.is_float and dst.is_float and 8 < dst.bits < src.bits
    return ("rtne", "rtz") if narrows else ("rtne",)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("a", SCALARS.values(), ids=str)
def test_folded_chains_keep_every_value(a: Scalar, rng: np.random.Generator) -> None:
    x, folded = values(a, rng), 0
    for b, c in product(SCALARS.values(), repeat=2):
        for first, second in product(roundings(a, b), roundings(b, c)):
            block = Block([Tensor(x.shape, a)])
            builder = Builder(block)
            inner = builder.emit(ops.Cast(*block.args, types=[Tensor(x.shape, b)], rounding=first))
            outer = ops.Cast(inner, types=[Tensor(x.shape, c)], rounding=second)
            builder.insert(outer)
            found = cast_of_cast.rewrite(outer, Builder(before=outer))
            if found is None:
                continue
            folded += 1
            (short,) = found
            assert short.op is not None and short.op.operands == block.args
            want = cast(cast(x, dtype_of(b), first), dtype_of(c), second)
            assert same(evaluate(short.op, x), want), f"{a} -> {b} -> {c}, {first}, {second}"
    assert folded >= 15


@tilec.jit
def by_way_of(x, o, N: tl.constexpr, WIDE: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o + i, tl.load(x + i).to(WIDE).to(tl.float8e5))


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("wide", [tl.float16, tl.bfloat16, tl.float32, tl.float64], ids=str)
def test_an_infinity_of_e5m2_saturates_on_its_way_back(level: str, wide: tl.dtype) -> None:
    bits = np.arange(256, dtype=np.uint8)
    x = bits.view(dtype_of(SCALARS["f8e5m2"]))
    o = np.full(256, 7, np.uint8).view(x.dtype)
    with tilec.knobs.scope(run=level):
        by_way_of[(1,)](x, o, N=256, WIDE=wide)
    want = np.where(np.isinf(x.astype(np.float32)), np.sign(x.astype(np.float32)) * 57344,
                    x.astype(np.float32))
    np.testing.assert_array_equal(o.astype(np.float32), want)
