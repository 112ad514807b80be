"""libdevice's functions against wider floats of numpy, in units of the last place, and bit for bit
against Python where they are exact."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tilec import knobs
from tilec.frontend.function import Function
from tilec.language.extra import libdevice

WIDE = np.longdouble
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1]


TEXT = """
@tilec.jit
def k({pointers}, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.extra.libdevice.{name}({loads}))
"""


@functools.cache
def kernel_of(name, count):
    pointers = [f"p{i}" for i in range(count)]
    return from_text(TEXT.format(name=name, pointers=", ".join(pointers), loads=", ".join(
        f"tl.load({p} + at)" for p in pointers)))


def run(name, *given, level="tile", dtype=None):
    out = np.full(len(given[0]), 77).astype(dtype or given[0].dtype)
    with knobs.scope(run=level):
        kernel_of(name, len(given))[1](*given, out, N=len(out))
    return out


def check(got, want, bound):
    """Within `bound` ulp of the wide values, infinities, NaN and the signs of zeros as they are."""
    with np.errstate(all="ignore"):
        near = want.astype(got.dtype)
        ulp = np.spacing(np.maximum(np.abs(near), np.finfo(got.dtype).tiny))
        wrong = np.abs(got.astype(WIDE) - want) / ulp
    finite = np.isfinite(near) & np.isfinite(got)
    same = (got == near) | np.isnan(got) & np.isnan(near)
    assert (finite | same).all(), (got[~finite & ~same], want[~finite & ~same])
    assert (wrong[finite] <= bound).all(), wrong[finite].max()
    zero = (near == 0) & (got == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(near[zero]))


# -- functions of one float -------------------------------------------------------------------

def magnitudes(rng, dtype, n):
    """Of every size that there is, subnormal numbers included, of both signs."""
    low, high = (math.log10(x) for x in (np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max))
    return 10.0 ** rng.uniform(low, high, n).astype(WIDE) * rng.choice([-1, 1], n)


def mixed(rng, dtype, n, lo, hi):
    """From lo to hi, and as many close to 0."""
    small = 10.0 ** rng.uniform(-10, 0, n) * rng.choice([-1, 1], n)
    return np.where(rng.random(n) < 0.5, rng.uniform(lo, hi, n), small)


def around_one(rng, dtype, n):
    return np.where(rng.random(n) < 0.5, np.abs(magnitudes(rng, dtype, n)),
                    rng.uniform(0.5, 2, n))


def exponents(rng, dtype, n):
    most = 1.01 * math.log(float(np.finfo(dtype).max))
    return mixed(rng, dtype, n, -most, most)


def halves(rng, dtype, n):
    edge = 2.0 ** (np.finfo(dtype).nmant - 2)
    return np.where(rng.random(n) < 0.5, rng.integers(-99, 99, n) / 2, rng.uniform(-edge, edge, n))


def away_from_zero(x):
    return np.copysign(np.floor(np.abs(x) + WIDE(0.5)), x)


def of_each(function):
    return lambda x: np.array([function(float(v)) for v in x], WIDE)


# name: (function of wide floats, where to look, ulp for float32, for float64)
ONE = {
    "log": (np.log, around_one, 2, 2), "log10": (np.log10, around_one, 1, 3),
    "log1p": (np.log1p, lambda *a: np.maximum(mixed(*a, -1.1, 4), -1), 2, 2),
    "expm1": (np.expm1, exponents, 2, 3),
    "exp10": (lambda x: WIDE(10) ** x, lambda *a: exponents(*a) / 2.302585, 1, 3),
    "cbrt": (np.cbrt, magnitudes, 1, 2), "tan": (np.tan, lambda *a: mixed(*a, -99, 99), 1, 4),
    "atan": (np.arctan, magnitudes, 1, 8),
    "asin": (np.arcsin, lambda *a: mixed(*a, -1.05, 1.05), 1, 8),
    "acos": (np.arccos, lambda *a: mixed(*a, -1.05, 1.05), 1, 8),
    "sinh": (np.sinh, exponents, 1, 4), "cosh": (np.cosh, exponents, 1, 4),
    "asinh": (np.arcsinh, magnitudes, 1, 4), "acosh": (np.arccosh, around_one, 1, 4),
    "atanh": (np.arctanh, lambda *a: mixed(*a, -1.05, 1.05), 1, 4),
    "erfc": (of_each(math.erfc), lambda *a: mixed(*a, -6, 12), 1, 1 << 26),
    "normcdf": (of_each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
                lambda *a: mixed(*a, -14, 6), 1, 1 << 26),
    "rint": (np.rint, halves, 0, 0), "nearbyint": (np.rint, halves, 0, 0),
    "round": (away_from_zero, halves, 0, 0), "trunc": (np.trunc, halves, 0, 0),
}


def given_to(name, dtype, n=1017):
    rng = np.random.default_rng([*map(ord, name), dtype().itemsize])
    with np.errstate(over="ignore"):
        x = ONE[name][1](rng, dtype, n).astype(dtype)
    info = np.finfo(dtype)
    return np.concatenate([x, np.array([*SPECIAL, info.tiny, -info.tiny, info.max, -info.max,
                                        info.smallest_subnormal], dtype)])


@pytest.mark.sample(20)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_float(name, dtype):
    function, _, *bounds = ONE[name]
    x = given_to(name, dtype)
    with np.errstate(all="ignore"):
        want = function(x.astype(WIDE))
    if name == "tan":
        x, want = x[np.abs(x) < 65536], want[np.abs(x) < 65536]
    check(run(name, x), want, bounds[dtype is np.float64])


@pytest.mark.sample(9)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_float_below(name, dtype):
    """As on a GPU: a division and exp2 may cost two ulp of float32, 2**-48 of float64."""
    function, _, *bounds = ONE[name]
    x = given_to(name, dtype, 52)
    x = x[np.abs(x) < 65536] if name == "tan" else x
    with np.errstate(all="ignore"):
        want = function(x.astype(WIDE))
    slack = 0 if bounds[0] == 0 else 32 if dtype is np.float64 else 1
    check(run(name, x, level="ptx"), want, bounds[dtype is np.float64] + slack)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["log1p", "expm1", "rint", "round", "tan", "atan"])
def test_narrow_floats_are_rounded_once(name, dtype, rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = rng.uniform(-0.9, 9, 64).astype(kind)
    want = ONE[name][0](x.astype(np.float64)).astype(np.float32).astype(kind)
    assert np.array_equal(run(name, x).astype(np.float32), want.astype(np.float32))


# -- functions of two floats ------------------------------------------------------------------

POW = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e30]


def c_pow(x, y):
    """pow of C99, which Python's differs from where it raises."""
    odd = math.isfinite(y) and y == math.floor(y) and y % 2 == 1
    if x == 0 and y < 0:
        return math.copysign(math.inf, x) if odd else math.inf
    try:
        return math.pow(x, y)
    except ValueError:
        return math.nan
    except OverflowError:
        return -math.inf if x < 0 and odd else math.inf


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow_of_special_values(dtype, level):
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid(POW, POW))
    want = np.array([c_pow(float(a), float(b)) for a, b in zip(x, y)], WIDE)
    check(run("pow", x, y, level=level), want, 1 if dtype is np.float32 else 1 << 12)


def test_pow(rng):
    x = np.concatenate([np.abs(magnitudes(rng, np.float32, 500)), rng.uniform(0.9, 1.1, 500)])
    y = rng.uniform(-1, 1, 1000) * 88 / np.maximum(np.abs(np.log(x)), 1e-4)
    x, y = x.astype(np.float32), y.astype(np.float32)
    check(run("pow", x, y), x.astype(WIDE) ** y.astype(WIDE), 1)
    whole = rng.integers(-9, 9, 1000, np.int32)
    negative = -x * np.float32(1)
    small = np.where(np.abs(np.log(x)) < 9, negative, np.float32(-1.5))
    check(run("pow", small, whole), small.astype(WIDE) ** whole.astype(WIDE), 1)
    x, y = x.astype(np.float64), y.astype(np.float64)
    got, want = run("pow", x, y), x.astype(WIDE) ** y.astype(WIDE)
    assert (np.abs(got / want - 1) < 2.0 ** -40).all()


TWO = {
    "atan2": (np.arctan2, 1, 8), "hypot": (np.hypot, 1, 4), "fmod": (np.fmod, 0, 0),
    "fdim": (lambda x, y: np.where(x <= y, 0.0, x - y), 1, 1), "copysign": (np.copysign, 0, 0),
    "div_rn": (np.divide, 0.5, 0.5), "fast_dividef": (np.divide, 0.5, 0.5),
    "fmin": (np.fmin, 0, 0), "fmax": (np.fmax, 0, 0),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_floats(name, dtype, rng):
    function, *bounds = TWO[name]
    with np.errstate(over="ignore"):
        a, b = (magnitudes(rng, dtype, 900).astype(dtype) for _ in range(2))
        b[:500] = (a[:500] * rng.uniform(0.1, 2, 500)).astype(dtype)
    x, y = (s.ravel().astype(dtype) for s in np.meshgrid(SPECIAL, SPECIAL))
    x, y = np.concatenate([a, x]), np.concatenate([b, y])
    with np.errstate(all="ignore"):
        wide = [v if name == "fmod" else v.astype(WIDE) for v in (x, y)]
        want = np.asarray(function(*wide)).astype(WIDE)
    zeros = (x == 0) & (y == 0) if name in ("fmin", "fmax") else np.zeros(len(x), bool)
    check(run(name, x, y)[~zeros], want[~zeros], bounds[dtype is np.float64])


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_floats_below(name, rng):
    x, y = (rng.uniform(-9, 9, 64).astype(np.float32) for _ in range(2))
    want = TWO[name][0](x.astype(WIDE), y.astype(WIDE))
    if name == "fmod":
        assert np.allclose(run(name, x, y, level="ptx"), want.astype(float), atol=1e-5)
    else:
        check(run(name, x, y, level="ptx"), want, TWO[name][1] + 2 * (name == "fast_dividef"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ldexp(dtype, rng):
    for name in ("ldexp", "scalbn"):
        x = rng.uniform(-2, 2, 300).astype(dtype)
        n = rng.integers(-120, 120, 300, np.int32)
        n[:4] = 3000, -3000, 0, 1
        with np.errstate(all="ignore"):
            want = np.ldexp(x, n).astype(WIDE)
        check(run(name, x, n), want, 0)


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quotients_toward_zero(dtype, level, rng):
    x, y = (rng.uniform(-9, 9, 128).astype(dtype) for _ in range(2))
    x[:32] = (y[:32] * rng.integers(1, 9, 32)).astype(dtype)
    x[-3:], y[-3:] = [3, -3, 0], [0, math.inf, 0]
    got, exact = run("div_rz", x, y, level=level), 0
    for a, b, q in zip(x[:-3].tolist(), y[:-3].tolist(), got.tolist()):
        want = abs(Fraction(a) / Fraction(b))
        beyond = Fraction(float(np.nextafter(dtype(abs(q)), dtype(math.inf))))
        assert abs(Fraction(q)) <= want < beyond and (q < 0) == (a / b < 0)
        exact += abs(Fraction(q)) == want
    assert exact and np.array_equal(got[-3:], [math.inf, -0.0, math.nan], equal_nan=True)
    near = run("rcp_rn", y[:-3], level=level)
    assert np.array_equal(near, dtype(1) / y[:-3])


# -- fast ones and names of the language -------------------------------------------------------

FAST = {
    "fast_expf": np.exp, "fast_exp10f": lambda x: 10 ** x, "fast_logf": np.log,
    "fast_log2f": np.log2, "fast_log10f": np.log10, "fast_sinf": np.sin, "fast_cosf": np.cos,
    "fast_tanf": np.tan, "fast_tanhf": np.tanh, "abs": np.abs, "fabs": np.abs, "exp": np.exp,
    "exp2": np.exp2, "log2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "sqrt": np.sqrt, "sqrt_rn": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "floor": np.floor,
    "ceil": np.ceil, "saturatef": lambda x: np.clip(x, 0, 1),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", FAST)
def test_names_of_the_language(name, rng):
    x = rng.uniform(0.1, 1.4, 100).astype(np.float32)
    assert np.allclose(run(name, x), FAST[name](x.astype(np.float64)), rtol=1e-6, atol=2e-7)


def test_others(rng):
    x, y = (rng.uniform(0.1, 3, 100).astype(np.float32) for _ in range(2))
    assert np.allclose(run("fast_powf", x, y), x.astype(float) ** y, rtol=1e-5)
    assert libdevice.erf is tl.erf and libdevice.fma is tl.fma
    assert libdevice.min is tl.minimum and libdevice.max is tl.maximum
    odd = np.array([-1, 2, math.nan, 0.25], np.float32)
    assert run("saturatef", odd).tolist() == [0, 1, 0, 0.25]


# -- bits -------------------------------------------------------------------------------------

def reversed_bits(x, width):
    return int(f"{x & (1 << width) - 1:0{width}b}"[::-1], 2)


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_bits_of_integers(dtype, level, rng):
    info, width = np.iinfo(dtype), 8 * dtype().itemsize
    x = rng.integers(info.min, info.max, 128, dtype, endpoint=True)
    x[:64] >>= np.arange(64).astype(dtype) % width
    x[:5] = 0, 1, info.max, info.min, info.max - 1
    bits = [int(v) & (1 << width) - 1 for v in x]
    assert run("popc", x, level=level, dtype=np.int32).tolist() == [b.bit_count() for b in bits]
    assert run("ffs", x, level=level, dtype=np.int32).tolist() == [
        (b & -b).bit_length() for b in bits]
    assert run("clz", x, level=level, dtype=np.int32).tolist() == [
        width - b.bit_length() for b in bits]
    turned = run("brev", x, level=level).view(f"u{width // 8}")
    assert turned.tolist() == [reversed_bits(b, width) for b in bits]


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_upper_halves_of_products(dtype, level, rng):
    info = np.iinfo(dtype)
    x, y = (rng.integers(info.min, info.max, 64, dtype, endpoint=True) for _ in range(2))
    x[:2], y[:2] = info.min, [info.min, info.max]
    want = [(a * b) >> 32 for a, b in zip(x.tolist(), y.tolist())]
    for name in ("mulhi", "umulhi"):
        assert run(name, x, y, level=level).tolist() == want


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kinds_of_floats(dtype, level):
    x = np.array([*SPECIAL, -math.nan, 1e-40, -3.5], dtype)
    for name, want in (("isnan", np.isnan), ("isinf", np.isinf), ("finitef", np.isfinite),
                       ("isfinited", np.isfinite), ("signbit", np.signbit)):
        known = slice(None) if name != "signbit" else ~np.isnan(x)  # no NaN has a sign to speak of
        assert np.array_equal(run(name, x, level=level, dtype=bool)[known], want(x)[known])


@pytest.mark.parametrize("level", ["tile", "ptx"])
def test_bits_of_floats_and_conversions(level):
    x = np.array([1.5, -2.5, 3.5, -0.5, 1e-40, 2.49, -7.51, 3e9], np.float32)
    for name, dtype in (("float_as_int", np.int32), ("float_as_uint", np.uint32)):
        assert np.array_equal(run(name, x, level=level, dtype=dtype), x.view(dtype))
    for name, dtype in (("int_as_float", np.int32), ("uint_as_float", np.uint32)):
        assert np.array_equal(run(name, x.view(dtype), level=level, dtype=np.float32), x)
    wide = x.astype(np.float64)
    assert np.array_equal(run("double_as_longlong", wide, level=level, dtype=np.int64),
                          wide.view(np.int64))
    assert np.array_equal(run("longlong_as_double", wide.view(np.int64), level=level,
                              dtype=np.float64), wide)
    for name, function in (("float2int_rn", np.rint), ("float2int_rz", np.trunc),
                           ("float2int_rd", np.floor), ("float2int_ru", np.ceil)):
        want = np.clip(function(wide), -2**31, 2**31 - 1).astype(np.int32)
        assert np.array_equal(run(name, x, level=level, dtype=np.int32), want)
    for name, function in (("llrint", np.rint), ("llround", away_from_zero)):
        assert np.array_equal(run(name, x, level=level, dtype=np.int64),
                              function(wide).astype(np.int64))


# -- the module -------------------------------------------------------------------------------

def test_every_name_is_tested():
    own = {*libdevice.__all__}
    assert own == {name for name, f in vars(libdevice).items() if isinstance(f, Function) or
                   getattr(f, "__tilec_builtin__", False)} - {"maximum", "minimum"}
    elsewhere = {"pow", "fast_powf", "ldexp", "scalbn", "erf", "fma", "min", "max", "popc", "ffs",
                 "clz", "brev", "isnan", "isinf", "finitef", "isfinited", "signbit", "llrint",
                 "llround", "div_rz", "rcp_rn", "mulhi", "umulhi"}
    casts = {n for n in own if "_as_" in n or n.startswith("float2int")}
    assert own == {*ONE, *TWO, *FAST, *elsewhere, *casts}


def test_where_it_is_found():
    assert tl.extra.libdevice is tl.extra.cuda.libdevice is tl.libdevice is libdevice
    assert tl.math.log1p is libdevice.log1p and tl.math.exp is tl.exp


@pytest.mark.parametrize("call, message", [
    ("tl.extra.libdevice.log1p(n)", "this function takes floats"),
    ("tl.extra.libdevice.rint(n)", "this function takes floats"),
    ("tl.extra.libdevice.pow(f)", "needs a value for `y`"),
    ("tl.extra.libdevice.lgamma(f)", "has no `lgamma`"),
    ("tl.extra.libdevice.log1q(f)", "has no `log1q`"),
])
def test_mistakes(call, message):
    kernel = from_text(f"@tilec.jit\ndef k(n, f):\n    x = {call}\n")
    with pytest.raises(tilec.CompilationError, match=message) as caught:
        kernel[1](5, 2.5)
    site = caught.value.loc.chain()[-1]
    assert site.file == kernel.file and site.line == 3
