"""Checks compiled into a kernel: what fails names the line and the program, and nothing ends.

Here in the simulator, whose own checks must find nothing left to complain about; on a GPU in
tests/gpu/test_checks.py.
"""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tilec import knobs
from tilec.errors import CheckError, Location, SimulatorError
from tilec.runtime import checks


@tilec.jit
def copy(x_ptr, o_ptr, first, n, BLOCK: tl.constexpr):
    at = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)  # load
    tl.store(o_ptr + at, x, mask=at < n)  # store


@tilec.jit
def columns(x_ptr, o_ptr, rows, ROWS: tl.constexpr):
    m, n = tl.arange(0, ROWS), tl.arange(0, 4)
    x = tl.load(x_ptr + m[:, None] * 4 + n[None, :])  # load
    tl.store(o_ptr + n[:, None] * rows + m[None, :], tl.trans(x))  # store


@tilec.jit
def count(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(o_ptr + x, 1)  # atomic
    tl.store(o_ptr + n, 5)  # scalar


@tilec.jit
def product(a_ptr, b_ptr, c_ptr, rounds, B: tl.constexpr):
    m, n = tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for i in range(rounds):
        a = tl.load(a_ptr + i * B * B + m[:, None] * B + n[None, :])  # load
        b = tl.load(b_ptr + m[:, None] * B + n[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * B + n[None, :], acc)


@tilec.jit
def promises(x_ptr, o_ptr, n, stride, repeat, B: tl.constexpr):
    tl.assume(n > 10)  # assume
    k = tl.multiple_of(n, 8)  # divisibility
    at = tl.max_contiguous(k + tl.arange(0, B) * stride, B)  # contiguity
    same = tl.max_constancy(tl.arange(0, B) // repeat, 4)  # constancy
    tl.device_assert(n < 100, "too many")  # assert
    tl.store(o_ptr + tl.program_id(0) * B + tl.arange(0, B), tl.load(x_ptr + at) + same)


@tilec.jit
def stuck(o_ptr, READY: tl.constexpr):
    done = tlg.mbarrier(count=1)
    tlg.barrier()
    if READY or tl.program_id(0) != 2:
        done.arrive()
    done.wait(0)  # wait
    tl.store(o_ptr + tl.program_id(0), 7)


def failing(kernel, mark, launch) -> str:
    """The message of the CheckError that `launch` raises, at the line that ends in `mark`."""
    with pytest.raises(CheckError) as failed:
        launch()
    lines, start = inspect.getsourcelines(kernel.fn)
    assert lines[failed.value.loc.line - start].rstrip().endswith(f"# {mark}")
    assert lines[failed.value.loc.line - start].strip() in str(failed.value)
    return failed.value.message


@pytest.fixture(autouse=True)
def checked():
    with knobs.scope(run="ptx", check="gpu"):
        yield


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
def test_accesses_outside(dtype):
    x = np.arange(1000).astype(dtype)

    def launch(out, first, n):
        return lambda: copy[(4,)](x, out, first, n, BLOCK=256)

    out = np.full(1000, 99, dtype)
    message = failing(copy, "load", launch(out, 0, 1003))
    assert re.fullmatch(r"program \(3, 0, 0\) reads x_ptr, [1-3] elements? past its end "
                        r"\(1000 elements\)", message)
    np.testing.assert_array_equal(out, x)  # what lay inside was copied
    small = np.full(700, 99, dtype)
    message = failing(copy, "store", launch(small, 0, 1000))
    assert message.startswith("program (2, 0, 0) writes o_ptr, ")
    assert message.endswith(" past its end (700 elements)")
    np.testing.assert_array_equal(small, x[:700])
    message = failing(copy, "load", launch(out, -2, 1000))
    assert message.startswith("program (0, 0, 0) reads x_ptr, ") and "before its start" in message
    out[:] = 99
    launch(out, 0, 1000)()
    np.testing.assert_array_equal(out, x)


def test_a_view_may_use_what_lies_behind_it():
    x, out = np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32)
    copy[(4,)](x[:600], out[:900], 0, 1000, BLOCK=256)
    np.testing.assert_array_equal(out, x)


def test_tiles_through_shared_memory():
    x, out = np.arange(256, dtype=np.float16), np.full((4, 64), 9, np.float16)
    columns[(1,)](x, out, 64, ROWS=64)
    np.testing.assert_array_equal(out, x.reshape(64, 4).T)
    message = failing(columns, "store", lambda: columns[(1,)](x, out, 65, ROWS=64))
    assert re.search(r"writes o_ptr, [1-3] elements? past its end \(256 elements\)", message)


def test_atomics_and_scalars():
    x = np.random.default_rng(1).integers(0, 50, 256).astype(np.int32)
    out = np.zeros(51, np.int32)
    count[(2,)](x, out, 50, BLOCK=128)
    np.testing.assert_array_equal(out, np.append(np.bincount(x, minlength=50), 5))
    x[200], out[:] = 51, 0
    message = failing(count, "atomic", lambda: count[(2,)](x, out, 50, BLOCK=128))
    assert message == "program (1, 0, 0) updates o_ptr, 1 element past its end (51 elements)"
    x[200] = 0
    failing(count, "scalar", lambda: count[(2,)](x, out, 51, BLOCK=128))


def test_a_pipelined_product():
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((2 * 32, 32)).astype(np.float16) for _ in range(2))
    c = np.full((32, 32), np.nan, np.float32)
    kernel = product[(1,)](a, b[:32], c, 2, B=32)
    assert "cp.async" in kernel.asm["ptx"]
    want = (a[:32] + a[32:].astype(np.float64)) @ b[:32]
    np.testing.assert_allclose(c, want, atol=1e-3)
    message = failing(product, "load", lambda: product[(1,)](a, b[:32], c, 3, B=32))
    assert message.startswith("program (0, 0, 0) reads a_ptr, ")
    np.testing.assert_allclose(c, want, atol=1e-3)  # zeros were read


@pytest.mark.parametrize(("mark", "n", "stride", "repeat", "says"), [
    ("assume", 8, 1, 4, "what this `assume` promises does not hold"),
    ("divisibility", 17, 1, 4, "this hint promises divisibility (8,)"),
    ("contiguity", 16, 2, 4, "this hint promises contiguity (64,)"),
    ("constancy", 16, 1, 1, "this hint promises constancy (4,)"),
    ("assert", 104, 1, 4, "assertion failed: too many")])
def test_promises(mark, n, stride, repeat, says):
    x, out = np.arange(256, dtype=np.int32), np.zeros(128, np.int32)
    promises[(2,)](x, out, 16, 1, 4, B=64, num_warps=1)
    np.testing.assert_array_equal(out, np.tile(x[16:80] + np.arange(64) // 4, 2))
    message = failing(promises, mark, lambda: promises[(2,)](x, out, n, stride, repeat, B=64,
                                                             num_warps=1))
    assert message.startswith(f"program (0, 0, 0): {says}")


def test_waits():
    out = np.zeros(4, np.int32)
    kernel = stuck[(4,)](out, True)
    np.testing.assert_array_equal(out, 7)
    assert "%globaltimer" in kernel.asm["ptx"]
    with pytest.raises(SimulatorError, match="deadlock"):  # it need not wait to know
        stuck[(4,)](out, False)


def test_without_the_flag_nothing_is_added():
    x = np.zeros(256, np.float32)
    with knobs.scope(check="0"):
        plain = copy[(1,)](x, x.copy(), 0, 256, BLOCK=256)
    with knobs.scope(check="1"):
        races = copy[(1,)](x, x.copy(), 0, 256, BLOCK=256)
    debug = copy[(1,)](x, x.copy(), 0, 256, BLOCK=256)
    parameters = re.compile(r"^\t\.param .* copy_param_", re.M)
    assert plain.asm["ptx"] == races.asm["ptx"]
    assert len(parameters.findall(plain.asm["ptx"])) == 4
    assert len(parameters.findall(debug.asm["ptx"])) == 4 + 1 + 2 * 2
    with knobs.scope(check="0"):
        again = copy[(1,)](x, x.copy(), 0, 256, BLOCK=256, debug=True)
    assert again.asm["ptx"] == debug.asm["ptx"]


def test_levels_above_run_without_reports():
    x, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    for level in ("tile", "gpu", "lowered"):
        with knobs.scope(run=level):
            copy[(1,)](x, out, 0, 256, BLOCK=256)
            np.testing.assert_array_equal(out, x)
            with pytest.raises(tilec.TilecError, match="reads 1 element past x_ptr"):
                copy[(2,)](x, out, 0, 257, BLOCK=256)


def test_checks_as_json():
    inner = Location("a.py", 3, 4, Location("b.py", 5), 9)
    kept = (checks.Check(inner, "reads x", "help", 4), checks.Check(Location("c", 1), "x", ""))
    assert checks.from_json(checks.to_json(kept)) == kept
