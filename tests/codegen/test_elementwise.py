"""Every elementwise op, dtype by dtype, in the simulator against the eval rules."""

import operator

import numpy as np
import pytest

from tests.codegen.kernels import DTYPES, FLOATS, FP8, INTS, map_tiles, samples
from tilec.errors import CompilationError
from tilec.eval import numerics
from tilec.eval.casts import cast
from tilec.eval.fma import fma
from tilec.eval.mathfns import math_function

N = 256
BINARY = {"add": numerics.add, "sub": numerics.sub, "mul": numerics.mul, "div": numerics.c_div,
          "rem": numerics.c_rem, "minimum": numerics.minimum, "maximum": numerics.maximum,
          "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": numerics.shl,
          "shr": numerics.shr}
UNARY = {"neg": numerics.neg, "abs": numerics.abs_}


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, but for NaNs."""
    assert got.dtype == want.dtype
    a, b = got.view(f"u{got.itemsize}"), np.ascontiguousarray(want).view(f"u{got.itemsize}")
    nan = np.zeros(got.shape, bool)
    if got.dtype.kind not in "biu":
        with np.errstate(all="ignore"):
            nan = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
    wrong = (a != b) & ~nan
    assert not wrong.any(), (got[wrong][:5], want[wrong][:5], np.flatnonzero(wrong)[:5])


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("dtype", [*INTS, "i1"])
def test_integers(dtype: str, op: str) -> None:
    a, b = samples(dtype, N, 1), samples(dtype, N, 2)
    if op in ("div", "rem"):
        b = np.where(b == 0, np.ones_like(b), b)
        if dtype[0] == "i" and dtype != "i1":
            a[0], b[0] = np.iinfo(a.dtype).min, -1
    if op in ("shl", "shr") and dtype != "i1":
        b[:40] = np.arange(40)
        a[:40] = np.iinfo(a.dtype).max
    same(map_tiles(f"tile.{op}(%a0, %a1)", [dtype] * 2, dtype, [a, b]), BINARY[op](a, b))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "minimum", "maximum"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: str, op: str, target: str) -> None:
    a, b = samples(dtype, N, 1), samples(dtype, N, 2)
    same(map_tiles(f"tile.{op}(%a0, %a1)", [dtype] * 2, dtype, [a, b], target=target),
         BINARY[op](a, b))
    if op in ("minimum", "maximum"):
        same(map_tiles(f"tile.{op}(%a0, %a1) {{propagate_nan = true}}", [dtype] * 2, dtype, [a, b],
                       target=target), BINARY[op](a, b, True))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_fma_rounds_once(dtype: str, target: str) -> None:
    a, b, c = (samples(dtype, N, s) for s in (1, 2, 3))
    same(map_tiles("tile.fma(%a0, %a1, %a2)", [dtype] * 3, dtype, [a, b, c], target=target),
         fma(a, b, c))


def within(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        ok = (g == w) | np.isnan(g) & np.isnan(w) | (np.abs(g - w) <= bound)
    assert ok.all(), (got[~ok][:5], want[~ok][:5], np.flatnonzero(~ok)[:5])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_division(dtype: str) -> None:
    a, b = samples(dtype, N, 1), samples(dtype, N, 2)
    want = numerics.true_div(a, b)
    ulps = 2 if dtype == "f32" else 0
    within(map_tiles("tile.div(%a0, %a1)", [dtype] * 2, dtype, [a, b]), want,
           ulps * np.spacing(np.abs(want)).astype(np.float64))


@pytest.mark.parametrize("dtype,bits", [("f32", 22), ("f64", 50)])
def test_float_remainder(dtype: str, bits: int) -> None:
    rng = np.random.default_rng(6)
    a = (rng.standard_normal(N) * 1000).astype(DTYPES[dtype])
    b = rng.standard_normal(N).astype(DTYPES[dtype])
    inf, nan = np.inf, np.nan
    a[:8], b[:8] = [1, inf, 3, nan, -0.0, 5.5, -7, 7], [inf, 2, 0, 1, 3, -2, 3, -inf]
    got, want = map_tiles("tile.rem(%a0, %a1)", [dtype] * 2, dtype, [a, b]), numerics.c_rem(a, b)
    np.testing.assert_array_equal(got[:8], want[:8])
    g, w, y = got[8:].astype(float), want[8:].astype(float), np.abs(b[8:].astype(float))
    off = np.abs(g - w)
    assert (np.minimum(off, np.abs(off - y)) <= np.abs(a[8:]) * 2.0**-bits).all()


@pytest.mark.parametrize("src,dst", [("i32", "f32"), ("u32", "f32"), ("i64", "f32"),
                                     ("u64", "f64")])
def test_integers_round_to_the_nearest_float(src: str, dst: str) -> None:
    """Of integers around halves of the last place, on either side of zero."""
    bits = 24 if dst == "f32" else 53
    a = np.random.default_rng(5).integers(1 << bits, 1 << (bits + 3), N).astype(DTYPES[src])
    if src[0] == "i":
        a[::2] *= -1
    same(map_tiles("tile.cast(%a0)", [src], dst, [a]), a.astype(DTYPES[dst]))


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d[:2] != "f8"])
def test_comparisons(dtype: str, predicate: str) -> None:
    a, b = samples(dtype, N, 1), samples(dtype, N, 2)
    b[::4] = a[::4]
    with np.errstate(all="ignore"):
        want = getattr(operator, predicate)(a, b)
    same(map_tiles(f'tile.cmp(%a0, %a1) {{predicate = "{predicate}"}}', [dtype] * 2, "i1", [a, b]),
         want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_neg_abs_select_not(dtype: str) -> None:
    a, b, c = samples(dtype, N, 1), samples(dtype, N, 2), samples("i1", N, 3)
    for op, rule in UNARY.items():
        same(map_tiles(f"tile.{op}(%a0)", [dtype], dtype, [a]), rule(a))
    same(map_tiles("tile.select(%a0, %a1, %a2)", ["i1", dtype, dtype], dtype, [c, a, b]),
         np.where(c, a, b))
    if dtype[0] in "iu":
        same(map_tiles("tile.not(%a0)", [dtype], dtype, [a]), ~a)


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_has_no_arithmetic(dtype: str) -> None:
    a = samples(dtype, N, 1)
    with pytest.raises(CompilationError, match=f"add is not defined for {dtype}"):
        map_tiles("tile.add(%a0, %a1)", [dtype] * 2, dtype, [a, a])


@pytest.mark.parametrize("target", [pytest.param("sm_80", marks=pytest.mark.full), "sm_90a"])
@pytest.mark.parametrize("src", DTYPES)
@pytest.mark.sample(4)
def test_casts(src: str, target: str) -> None:
    a = samples(src, N, 1)
    for dst in DTYPES:
        for rounding in ("rtne", "rtz"):
            if rounding == "rtz" and (src[0] in "iu" or dst not in ("f16", "bf16", "f32")):
                continue
            got = map_tiles(f'tile.cast(%a0) {{rounding = "{rounding}"}}', [src], dst, [a],
                            target=target)
            same(got, cast(a, DTYPES[dst], rounding))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", FP8)
def test_fp8_all_bytes_and_all_halves(dtype: str, target: str) -> None:
    every = np.arange(256, dtype=np.uint8).view(DTYPES[dtype])
    same(map_tiles("tile.cast(%a0)", [dtype], "f16", [every], target=target),
         cast(every, DTYPES["f16"]))
    halves = np.arange(0, 65536, 16, dtype=np.uint16).view(np.float16)
    same(map_tiles("tile.cast(%a0)", ["f16"], dtype, [halves], target=target),
         cast(halves, DTYPES[dtype]))


def test_bitcasts() -> None:
    a = samples("f32", N, 1)
    same(map_tiles("tile.bitcast(%a0)", ["f32"], "i32", [a]), a.view(np.int32))
    b = samples("i16", N, 1)
    same(map_tiles("tile.bitcast(%a0)", ["i16"], "bf16", [b]), b.view(DTYPES["bf16"]))


def arguments(name: str, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(1024) * 10.0 ** rng.integers(-6, 4, 1024)
    x[:14] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 0.93, 0.58, -4.0, 1e-30, 88.0,
              -87.0]
    with np.errstate(all="ignore"):
        return x.astype(DTYPES[dtype])


def bound(name: str, dtype: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The tolerance that docs/semantics.md section 6 states."""
    x, size = np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64))
    if dtype == "f64":
        near = name in ("log", "log2", "sin", "cos")
        return np.maximum(size * 2.0**-48, 2.0**-48 if near else 0)
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(size, 2.0**-126))) - 23)
    tolerance = {
        "sqrt": 0 * ulp, "floor": 0 * ulp, "ceil": 0 * ulp, "rsqrt": 2 * ulp,
        "exp2": np.maximum(2 * ulp, 2.0**-126),
        "exp": np.maximum(size * (2.0**-22 + x * 2.0**-23), 2.0**-126),
        "log2": np.where((x >= 0.5) & (x <= 2), 2.0**-22, size * 2.0**-22),
        "log": np.where((x >= 0.5) & (x <= 2), 2.0**-22, size * 2.0**-21),
        "sin": 2.0**-22 + 0 * x, "cos": 2.0**-22 + 0 * x, "tanh": 4 * ulp, "erf": 4 * ulp}[name]
    if dtype != "f32":
        tolerance = tolerance + size * 2.0 ** -{"f16": 10, "bf16": 7}[dtype] + 2.0**-24
    return tolerance


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "sqrt",
                                  "rsqrt", "floor", "ceil"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.sample(12)
def test_math(dtype: str, name: str) -> None:
    x = arguments(name, dtype)
    with np.errstate(all="ignore"):
        want = math_function(name, x)
        tolerance = bound(name, dtype, x, want)
    got = map_tiles(f"tile.{name}(%a0)", [dtype], dtype, [x])
    within(got, want, tolerance)
    exact = (x == 0) | ~np.isfinite(want.astype(np.float64))
    same(got[exact], want[exact])


def below_two_pi(x: np.ndarray, bits: int = 2400) -> np.ndarray:
    """Each number less multiples of 2 pi, which is computed to so many bits (Machin's formula)."""
    def arctan(k: int) -> int:  # of 1 / k
        return sum((-1) ** n * (1 << bits) // k ** (2 * n + 1) // (2 * n + 1) for n in range(900))

    turn = 8 * (4 * arctan(5) - arctan(239))
    numbers = [float(v).as_integer_ratio() for v in x]
    return np.array([((m << bits) // d % turn) / (1 << bits) for m, d in numbers])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sines_of_large_arguments(dtype: str, rng) -> None:
    kind, highest = DTYPES[dtype], {"f32": 128, "f64": 1024}[dtype]
    x = (rng.uniform(0.5, 1, 512) * 2.0 ** rng.uniform(-3, highest, 512)).astype(kind)
    x[:6] = [np.finfo(kind).max, 65536, 65537, 65535, 1e22, 2**16 * np.pi]
    x *= rng.choice([-1, 1], 512).astype(kind)
    for name, exact in (("sin", np.sin), ("cos", np.cos)):
        got = map_tiles(f"tile.{name}(%a0)", [dtype], dtype, [x])
        within(got, exact(below_two_pi(x)).astype(kind), bound(name, dtype, x, got))
