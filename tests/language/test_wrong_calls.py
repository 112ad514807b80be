"""Every public function of the language called with wrong numbers and kinds of arguments: an error
at the author's line or a kernel, never a failure inside."""

from __future__ import annotations

import linecache
from collections import Counter

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tilec.errors import CompilationError, LaunchError
from tilec.language.values import tensor
from tilec.runtime.aot import specialized

VALUES = [
    "tl.arange(0, 16)", "tl.arange(0, 16).to(tl.float32)", "x + tl.arange(0, 16)", "n", "x", "B",
    "tl.zeros((16, 16), tl.float16)", "tl.arange(0, 16).to(tl.float8e5)", "tl.arange(0, 16) > 3",
    "tl.arange(0, 16).to(tl.uint64)", "2", "1.5", "-1", "True", "10**30", "10**400", "10**5000",
    "float('nan')", "'a'", "None", "()", "(4, 4)", "(n, 'a')", "tl.int8", "tl.void", "helper",
    "tl.pointer_type(tl.int32)", "tl.block_type(tl.int32, [4])", "tl.math", "tl.arange(0, 3)[None]",
]
TEXT = """
@tilec.jit
def helper(a, b):
    return a + b

@tilec.jit
def k(x, n, B: tl.constexpr):
    value = {call}
"""
MODULES = {"math", "extra", "core", "random", "standard"}


def functions() -> list[str]:
    """How a kernel calls everything that there is: functions, types, methods of tiles."""
    named = [f"tl.{name}" for name in tl.__all__ if name not in MODULES]
    named += [f"tl.math.{name}" for name in dir(tl.math)
              if getattr(getattr(tl.math, name), "__tilec_builtin__", False)]
    return named + [f"(n + tl.arange(0, 16)).{name}" for name in dir(tensor)
                    if not name.startswith("_") and callable(getattr(tensor, name))]


def build(call: str) -> str:
    """Takes a kernel with the call as far as tile IR; what came of it."""
    kernel = from_text(TEXT.format(call=call))
    try:
        specialized(kernel, {"x": "*fp32", "n": "i32"}, {"B": 8}).build()
    except CompilationError as e:
        assert e.loc is not None and len(str(e)) < 2000, call
        assert e.loc.file == kernel.file or e.loc.caller is not None, call
        return "error"
    finally:
        del linecache.cache[kernel.file]
    return "kernel"


def swept(per_function: int, seed: int) -> Counter[str]:
    rng = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for name in functions():
        calls = [f"{name}()", f"{name}(1, odd=3)", f"{name}({', '.join(VALUES[:12])})"]
        for i in range(per_function):
            args = rng.choice(VALUES, size=1 + i % 4)
            calls.append(f"{name}({', '.join(args)})")
        found.update(map(build, calls))
    return found


def test_wrong_calls(capfd):
    found = swept(6, seed=11)
    assert found["error"] > 800 and found["kernel"] > 30


@pytest.mark.full
def test_many_wrong_calls(capfd):
    found = swept(120, seed=12)
    assert found["error"] > 10000


CASES = {  # of bug reports
    "tl.cdiv(n)": "missing a required argument: 'div'", "tl.cdiv(n, (8,))": "`tl.cdiv`",
    "tl.cdiv(B, '8')": "`tl.cdiv`", "tl.cdiv(n * 1.0, tl.int8)": "`tl.cdiv`",
    "(n > tl.arange(0, 4)).logical_or()": "missing a required argument",
    "(n > tl.arange(0, 4)).logical_and(n, n)": "too many positional arguments",
    "tl.zeros_like(x + tl.arange(0, 4))": "no constants of type pointer<fp32>",
    "tl.full((4,), 0, tl.pi32_t)": "no constants of type pointer<int32>",
    "tl.zeros((), tl.void)": "void, which no value has",
    "tl.zeros((4,), tl.pointer_type(tl.int8))": "no constants of type",
    "n * 1.0 + 10**400": None, "n + 10**400": "out of range", "n + 10**5000": "more than 4096 bits",
}


@pytest.mark.parametrize("call", CASES)
def test_calls_of_reports(call):
    kernel = from_text(TEXT.format(call=call))
    compiled = specialized(kernel, {"x": "*fp32", "n": "i32"}, {"B": 8})
    if CASES[call] is None:
        compiled.build()
        return
    with pytest.raises(CompilationError, match=CASES[call]) as e:
        compiled.build()
    assert e.value.loc.file == kernel.file and e.value.loc.line == 8 and e.value.advice


COMBINE = """
@tilec.jit
def add(a, b):
    {statement}
    return a + b

@tilec.jit
def k(x, y):
    tl.store(y, tl.reduce(tl.load(x + tl.arange(0, 16)), 0, add))
"""


@pytest.mark.parametrize("statement, name", [
    ('tl.device_assert(a < 100, "big")', "tl.device_assert"), ('assert a < 100', "device_assert"),
    ('print("a", a)', "tl.device_print"), ("tl.assume(a > 0)", "tl.assume"),
    ("breakpoint()", "breakpoint"), ("tl.debug_barrier()", "barrier")])
@pytest.mark.parametrize("debug", [False, True])
def test_combine_functions_only_compute(statement, name, debug):
    kernel = from_text(COMBINE.format(statement=statement))
    y = np.full(1, -1, np.int32)
    with pytest.raises(CompilationError, match=f"{name}: stands in the combine function") as e:
        kernel[(1,)](np.arange(16, dtype=np.int32), y, debug=debug)
    assert e.value.loc.line == 4 and statement in str(e.value) and "help: put it" in str(e.value)
    assert y == -1


def test_what_combine_functions_may_do():
    for statement in ("tl.static_assert(True)", "a = tl.multiple_of(a, 1)", "if a > 500: a = b"):
        y = np.full(1, -1, np.int32)
        from_text(COMBINE.format(statement=statement))[(1,)](np.arange(16, dtype=np.int32), y)
        assert y == 120


def test_a_chain_of_many_functions():
    """Is no recursion, and the message says so."""
    text = "@tilec.jit\ndef f0(x):\n    return x\n" + "".join(
        f"@tilec.jit\ndef f{i}(x):\n    return f{i - 1}(x)\n" for i in range(1, 400))
    kernel = from_text(text + "@tilec.jit\ndef k(x):\n    tl.store(x, f399(1))\n")
    with pytest.raises(CompilationError, match="calls are nested 40 deep") as e:
        kernel[(1,)](np.zeros(1, np.int32))
    assert "recursion" not in str(e.value) and "call them in turn" in e.value.advice
    kernel = from_text("@tilec.jit\ndef f(x):\n    return f(x + 1)\n"
                       "@tilec.jit\ndef k(x):\n    tl.store(x, f(1))\n")
    with pytest.raises(CompilationError, match="calls are nested 40 deep") as e:
        kernel[(1,)](np.zeros(1, np.int32))
    assert "a recursion must end" in e.value.advice


def test_outside_of_a_kernel():
    assert tilec.cdiv(7, 2) == tl.cdiv(7, 2) == 4
    with pytest.raises(CompilationError, match="expected integers"):
        tl.cdiv(7, 0)
    with pytest.raises((CompilationError, LaunchError)):
        tl.arange(0, 4)
