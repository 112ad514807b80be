"""fdiv, div_rn and sqrt_rn at every level, on floats of any magnitude."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tests.support.levels import LEVELS, bits, check
from tilec.errors import CompilationError
from tilec.runtime.aot import specialized

FLOATS = [np.dtype(t) for t in ("f2", "f4", "f8", ml_dtypes.bfloat16)]


def floats(rng: np.random.Generator, n: int, dtype: np.dtype) -> np.ndarray:
    """Numbers of any bits, subnormal ones among them; none is zero, infinite or NaN."""
    x = bits(rng, (8 * n,), dtype)
    with np.errstate(invalid="ignore"):
        return x[np.isfinite(x) & (x != 0)][:n]


@tilec.jit
def quotients(x_ptr, y_ptr, exact, ieee, root, number, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(exact + at, tl.div_rn(x, y))
    tl.store(ieee + at, tl.math.fdiv(x, y, ieee_rounding=True))
    tl.store(root + at, tl.sqrt_rn(tl.abs(x)))
    tl.store(number + at, tl.div_rn(1.0, y))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: t.name)
@pytest.mark.parametrize("n", [64, 100])
def test_rounded_correctly(dtype: np.dtype, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = floats(rng, n, dtype), floats(rng, n, dtype)
    x[0], y[1] = np.inf, np.inf
    y[2] = 0  # and x is a number
    wide = np.dtype("f8") if dtype == np.dtype("f8") else np.dtype("f4")
    with np.errstate(all="ignore"):
        quotient = x.astype(wide) / y.astype(wide)
        root = np.sqrt(np.abs(x.astype(wide))).astype(dtype)
        check(quotients, [x, y], [quotient, quotient, root, (1 / y.astype(wide)).astype(wide)],
              {"N": n})


@tilec.jit
def plain(x_ptr, y_ptr, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.fdiv(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@pytest.mark.parametrize("level", LEVELS)
def test_fdiv_is_division(level: str) -> None:
    rng = np.random.default_rng(4)
    x, y = (rng.standard_normal(100).astype(np.float32) for _ in range(2))
    out = np.full(100, np.nan, np.float32)
    made = plain.warmup(x, y, out, N=100, grid=(1,), target="sm_90a")
    made.run([x, y, out], 1, level=level)
    exact = x.astype(np.float64) / y
    assert (np.abs(out - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32))).all()


def test_the_instructions_that_division_becomes() -> None:
    def ptx(kernel: tilec.JITFunction, **more: str) -> str:
        types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out": "*fp32", **more}
        return tilec.compile(kernel, signature={p.name: types.get(p.name, "*fp32") for p in
                                                kernel.params if not p.is_constexpr},
                             constexprs={"N": 128}, target="sm_80").asm["ptx"]
    assert re.findall(r"div\.\w+\.f32", ptx(plain)) == ["div.full.f32"]
    assert set(re.findall(r"(?:div|rcp)\.\w+\.f32", ptx(quotients))) <= {"div.rn.f32", "rcp.rn.f32"}


MISTAKES = {
    "tl.fdiv(x, 2)": ("tl.fdiv takes floats, found int32", "//"),
    "tl.div_rn(x, x)": ("tl.div_rn takes floats", "tl.float32"),
    "tl.div_rn(f.to(tl.float8e5), f.to(tl.float8e5))": ("`/` is not defined on fp8e5", "tl.float"),
    "tl.div_rn(f, None)": ("`/` does not apply", "None"),
    "tl.div_rn(f)": ("missing a required argument: 'y'", "signature"),
    "tl.sqrt_rn(x)": ("tl.sqrt_rn takes floats", "tl.float32"),
    "tl.fdiv(f, f, ieee_rounding=n)": ("ieee_rounding of tl.fdiv has to be known", "constexpr"),
}


@pytest.mark.parametrize("expression", MISTAKES)
def test_mistakes_name_line_place_and_cure(expression: str) -> None:
    message, advice = MISTAKES[expression]
    kernel = from_text("\n@tilec.jit\ndef k(n):\n    x = tl.arange(0, 16)\n"
                       f"    f = x.to(tl.float32)\n    y = {expression}\n")
    with pytest.raises(CompilationError) as caught:
        specialized(kernel, {"n": "i32"}, {}).build()
    error = caught.value
    assert re.search(message, error.message), error.message
    assert re.search(advice, error.advice), error.advice
    line, caret = str(error).splitlines()[1:3]
    assert line[caret.index("^"):caret.rindex("^") + 1] == expression, str(error)
