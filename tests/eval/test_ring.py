"""TILEC_EVAL=ring: exact sums and products, functions nobody knows; programs that differ by the
order of sums agree to the last bit, and others do not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilec
from tests.runtime.support import from_text
from tilec import knobs
from tilec.errors import TilecError
from tilec.eval import ring
from tilec.eval.dtypes import BF16, E4M3, E5M2, F16, F32, F64

P = int(ring.PRIME)


def elements(rng, *shape):
    """Elements of the ring, the ends of it among them."""
    x = rng.integers(0, P, shape, dtype=np.uint64)
    x.reshape(-1)[:4] = 0, 1, P - 1, P - 2
    return x


def test_arithmetic_is_that_of_integers_modulo_a_prime(rng):
    a, b = elements(rng, 200), elements(rng, 200)[::-1]
    for x, y, total, product, minus in zip(a, b, ring.add(a, b), ring.mul(a, b), ring.neg(a)):
        assert int(total) == (int(x) + int(y)) % P
        assert int(product) == int(x) * int(y) % P
        assert int(minus) == -int(x) % P


def test_products_of_matrices(rng):
    a, b = elements(rng, 2, 3, 2100), elements(rng, 2, 2100, 4)
    got = ring.matmul(a, b)
    for n, i, j in itertools.product(range(2), range(3), range(4)):
        assert int(got[n, i, j]) == sum(int(x) * int(y) for x, y in zip(a[n, i], b[n, :, j])) % P


@pytest.mark.parametrize("dtype", [F16, BF16, F32, E4M3, E5M2, F64])
def test_floats_keep_their_sums_and_products(rng, dtype):
    x, y = (rng.integers(-7, 8, 100).astype(np.float32) / 4 for _ in range(2))
    a, b = (ring.embed(v.astype(dtype)) for v in (x, y))
    assert (ring.add(a, b) == ring.embed(x + y)).all()
    assert (ring.mul(a, b) == ring.embed(x * y)).all()
    assert (ring.neg(a) == ring.embed(-x)).all()
    assert (ring.encode(a, dtype) == x.astype(dtype)).all()
    value, holds = ring.known(a)
    assert holds.all() and (value == x).all()


def test_numbers_are_told_from_hashes(rng):
    x = np.concatenate([rng.normal(size=1000), [np.inf, -np.inf, 0.0, 1e6]]).astype(np.float32)
    value, holds = ring.known(ring.embed(x))
    assert holds.all() and (value == x).all()
    assert np.isnan(ring.known(ring.embed(np.array([np.nan])))[0]).all()
    assert not ring.known(elements(rng, 1000)[4:])[1].any()
    assert len(set(ring.encode(elements(rng, 1000), F32).tolist())) > 990


def test_extremes_are_of_one_order(rng):
    xs = np.concatenate([elements(rng, 8)[4:], ring.embed(np.array([1.5, -0.25, np.inf, -np.inf]))])
    a, b, c = np.meshgrid(xs, xs, xs)

    def most(x, y):
        return ring._extreme(x, y, ring._less(y, x), False)

    assert (most(a, b) == most(b, a)).all()
    assert (most(most(a, b), c) == most(a, most(b, c))).all()
    assert (most(xs, xs) == xs).all() and (most(xs, ring.embed(np.float64(-np.inf))) == xs).all()
    least = ring._extreme(a, b, ring._less(a, b), False)
    assert (ring.neg(most(a, b)) == ring._extreme(
        ring.neg(a), ring.neg(b), ring._less(ring.neg(a), ring.neg(b)), False)).all()
    assert (np.where(ring.compare(a, b, "ge"), a, b) == most(a, b)).all()
    assert (np.where(ring.compare(a, b, "gt"), b, a) == least).all()
    nan = ring.embed(np.full(len(xs), np.nan))
    assert (most(xs, nan) == xs).all() and (most(nan, xs) == xs).all()
    for predicate in ("lt", "le", "gt", "ge", "eq", "ne"):
        assert (ring.compare(xs, nan, predicate) == (predicate == "ne")).all()
        assert (ring.compare(nan, nan, predicate) == (predicate == "ne")).all()


@pytest.mark.parametrize("bits", ring.MANTISSA.values())
def test_rounding_is_a_function_that_rounds_once(rng, bits):
    x = elements(rng, 2000)[4:]
    y = ring.narrowed(x, bits, "rtne")
    assert (ring.narrowed(y, bits, "rtne") == y).all()
    assert (ring.narrowed(ring.neg(x), bits, "rtne") == ring.neg(y)).all()
    assert bits == 53 or (y != x).all()
    assert bits >= 11 or len(set(y.tolist())) > 16
    exact = ring.embed(np.array([1.5, -3.0, 0.0, np.inf, np.nan]))
    assert (ring.narrowed(exact, bits, "rtne") == exact).all()
    assert bits == 53 or (ring.narrowed(x, bits, "rtz") != y).mean() > 0.9


def function(body, arguments="x_ptr, y_ptr, out_ptr"):
    return from_text(f"""
@tilec.jit
def k({arguments}, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    {body}
""")


def result(body, rng_seed=0, dtype="fp32", level="tile", eval="ring", grid=1, n=128):
    rng = np.random.default_rng(rng_seed)
    kinds = {"fp32": np.float32, "fp16": np.float16, "bf16": BF16, "i32": np.int32}
    x, y = ((rng.normal(size=4096) * 9).astype(kinds[dtype]) for _ in range(2))
    out = np.zeros(4096, np.float32)
    kernel = tilec.compile(function(body), {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}",
                                            "out_ptr": "*fp32"}, {"N": n})
    with knobs.scope(eval=eval):
        kernel.run([x, y, out], grid, level)
    return out


SAME = {
    "the order of a sum": ("tl.store(out_ptr + i, (x + y) + 3.7)",
                           "tl.store(out_ptr + i, x + (3.7 + y))"),
    "one rounding for two": ("tl.store(out_ptr + i, tl.fma(x, y, y))",
                             "tl.store(out_ptr + i, y * (x + 1.0))"),
    "a sum in halves": ("tl.store(out_ptr, tl.sum(tl.exp(x), 0))",
                        "e = tl.exp(x); tl.store(out_ptr, tl.sum(tl.where(i < 33, e, 0.0), 0) + "
                        "tl.sum(tl.where(i < 33, 0.0, e), 0))"),
    "extremes": ("tl.store(out_ptr + i, tl.maximum(x, y))",
                 "tl.store(out_ptr + i, -tl.minimum(-y, -x))"),
    "choices": ("tl.store(out_ptr + i, tl.maximum(tl.exp(x), y))",
                "tl.store(out_ptr + i, tl.where(tl.exp(x) > y, tl.exp(x), y))"),
    "there and back": ("tl.store(out_ptr + i, (x * y).to(tl.float16).to(tl.float32))",
                       "h = (y * x).to(tl.float16); tl.store(out_ptr + i, h.to(tl.float64)"
                       ".to(tl.float16).to(tl.float32))"),
    "memory": ("tl.store(out_ptr + i, tl.exp(x) + 1.0)",
               "tl.store(out_ptr + i, tl.exp(x)); tl.debug_barrier(); "
               "tl.store(out_ptr + i, 1.0 + tl.load(out_ptr + i))"),
    "halves of numbers": ("tl.store(out_ptr + i, x / 2.0)", "tl.store(out_ptr + i, x * 0.5)"),
    "a folded constant": ("tl.store(out_ptr + i, x * tl.sqrt(tl.full((N,), 2.25, tl.float32)))",
                          "tl.store(out_ptr + i, x * 1.5)"),
}
OTHER = {
    "another sum": ("tl.store(out_ptr + i, x + y)", "tl.store(out_ptr + i, x + y + 1e-7)"),
    "a rounding": ("tl.store(out_ptr + i, x * y)",
                   "tl.store(out_ptr + i, (x * y).to(tl.float16).to(tl.float32))"),
    "another function": ("tl.store(out_ptr + i, tl.exp(x))",
                         "tl.store(out_ptr + i, tl.exp2(x * 1.442695))"),
    "another divisor": ("tl.store(out_ptr + i, x / 3.0)",
                        "tl.store(out_ptr + i, x * (1.0 / 3.0))"),
    "operands": ("tl.store(out_ptr + i, x / y)", "tl.store(out_ptr + i, y / x)"),
    "a sum of fewer": ("tl.store(out_ptr, tl.sum(x, 0))",
                       "tl.store(out_ptr, tl.sum(tl.where(i < 127, x, 0.0), 0))"),
}


@pytest.mark.parametrize("what", SAME)
def test_what_is_the_same_but_for_roundings_agrees(what):
    a, b = (result(body) for body in SAME[what])
    assert a.tobytes() == b.tobytes() and a.any()


@pytest.mark.parametrize("what", OTHER)
def test_what_is_something_else_does_not(what):
    a, b = (result(body) for body in OTHER[what])
    assert (a != b).any()


def test_ints_and_what_is_known_are_plain():
    body = ("tl.store(out_ptr + i, (tl.load(x_ptr + (x & 127)) // 3 + y).to(tl.float32) * 0.5 + "
            "tl.floor(y.to(tl.float32) / 4.0))")
    assert result(body, dtype="i32").tobytes() == result(body, dtype="i32", eval="").tobytes()


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_levels_agree_and_atomics_have_no_order(dtype):
    body = ("p = (x + y).to(tl.float32) * tl.program_id(0); a = tl.reshape(x, (16, 16)); "
            "d = tl.dot(a, tl.trans(tl.reshape(y, (16, 16)))); "
            "tl.atomic_add(out_ptr + i, tl.exp(p)); "
            "tl.atomic_add(out_ptr + 1000 + i % 7, p); "
            "tl.store(out_ptr + 2000 + i, tl.reshape(d, (N,)))")
    want = result(body, dtype=dtype, grid=5, n=256)
    assert want[:256].all() and want[1000:1007].all() and want[2000:2256].all()
    for level in ("gpu", "lowered"):
        assert result(body, dtype=dtype, grid=5, n=256, level=level).tobytes() == want.tobytes()
    with knobs.scope(seed=5):
        assert result(body, dtype=dtype, grid=5, n=256).tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", ["max", "min"])
def test_the_greatest_and_the_least_have_no_order(kind):
    """Of rounded sums, which the ring holds as hashes, and of numbers that it can tell."""
    body = (f"tl.atomic_{kind}(out_ptr + i % 7, tl.exp(x * y + tl.program_id(0))); "
            f"tl.atomic_{kind}(out_ptr + 100 + i % 5, (tl.program_id(0) * 3 - i).to(tl.float32))")
    want = result(body, grid=5, n=256)
    for level in ("gpu", "lowered"):
        assert result(body, grid=5, n=256, level=level).tobytes() == want.tobytes()
    with knobs.scope(seed=5):
        assert result(body, grid=5, n=256).tobytes() == want.tobytes()
    numbers = [p * 3 - i for p in range(5) for i in range(256)]
    most = {"max": max, "min": min}[kind]
    known = [most(0, *(n for n, i in zip(numbers, [*range(256)] * 5) if i % 5 == slot))
             for slot in range(5)]
    assert want[100:105].tolist() == known


def test_a_swap_compares_elements():
    body = ("tl.store(out_ptr + i, x + y); tl.debug_barrier(); "
            "tl.atomic_cas(out_ptr + i, y + x, 2.0); tl.atomic_cas(out_ptr + i, 3.0 * x, 5.0)")
    assert (result(body)[:64] == 2.0).all()
    assert (result(body.replace("2.0", "3.0 * x"))[:64] == 5.0).all()


def test_a_load_of_nothing():
    body = ("z = tl.load(x_ptr + 5000 + i, mask=i > 500, other=1.5); "
            "tl.store(out_ptr + i, z + tl.exp(y))")
    want = result(body.replace("z + ", "1.5 + "))
    assert result(body).tobytes() == want.tobytes() == result(body, level="gpu").tobytes()


def test_there_is_no_other_arithmetic():
    with pytest.raises(TilecError, match="ring"):
        knobs.scope(eval="field")
