"""`break`, `continue`, `return` in loops and `:=`, at every level against Python itself."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tilec import knobs

# Bodies of f(n, m), which are Python as well as kernels' code.
BODIES = {
    "break": """
        x = 0
        for i in range(n):
            if i == m:
                break
            x += i + 1
        return x
        """,
    "break at the end": """
        x = 0
        for i in range(1, 9, n):
            x = x * 10 + i
            if x > m * 50:
                break
        return x
        """,
    "backwards": """
        x = 0
        for i in range(n, -3, -2):
            if i == m:
                break
            x = x * 10 + i
        return x
        """,
    "continue": """
        x = 0
        for i in range(n):
            if i == m:
                continue
            x = x * 10 + i
        return x
        """,
    "both": """
        x, y = 0, 0
        for i in range(n + 3):
            y += 1
            if i % 2 == m:
                continue
            y += 10
            if i > 4:
                if x > m:
                    break
                y += 100
            x += i
        return x + y * 100
        """,
    "maybe, then more": """
        x = 0
        for i in range(6):
            if i > n:
                if i > m:
                    x += 1000
                    break
                x += 100
            elif i == 2:
                continue
            x += i
        return x
        """,
    "return": """
        for i in range(6):
            if i * n > m:
                return i
        return -7
        """,
    "return of nested loops": """
        x = 5
        for i in range(n):
            j = 0
            while j < 5:
                if i * j > m:
                    return x * 10 + j
                j += 1
                if j == 4:
                    break
            x += j
            if x > 12:
                return x
        return -x
        """,
    "while": """
        x = n
        while x < 20:
            x += 3
            if x % 5 == m:
                break
            if x % 2 == 0:
                continue
            x += 1
        return x
        """,
    "while True": """
        x = n
        while True:
            x += 1
            if x * x > m + 9:
                break
        return x
        """,
    "while assigns": """
        x, y = n, 0
        while (x := x + 2) < 12:
            y += x
            if y % 7 == m:
                break
        return x * 100 + y
        """,
    "walrus": """
        x = 0
        if (y := n * 2) > m and (z := n - m) > 0:
            x = y * 10
        return x + y + (w := 3) * 100 + w
        """,
    "never": """
        x = n
        while x < 0:
            break
        for i in range(5, 2):
            return 3
        return x
        """,
    "always": """
        x = m
        for i in range(n):
            x += i + 1
            break
        for i in range(n):
            return x * 2
        return x
        """,
    "the variable after": """
        i = 77
        for i in range(n):
            if i == m:
                break
        return i
        """,
}
# The same over unrolled loops.
UNROLLED = {f"unrolled {name}": text.replace("in range(6)", "in tl.static_range(6)")
            for name, text in BODIES.items() if "in range(6)" in text}
ALL = BODIES | UNROLLED | {
    "known when unrolled": """
        x = 0
        for i in tl.static_range(9):
            if i == 2:
                continue
            if i == 5:
                break
            x = x * 10 + i
            if i == m:
                return -x
        return x + n
        """,
    "unrolled in a loop": """
        x = 0
        for i in range(n):
            for j in tl.static_range(3):
                if i + j == m:
                    break
                x = x * 3 + j
                if x > 500:
                    return x
            x += 1
        return x
        """,
}


class Python:
    """Stands for `tl` where a body runs as Python."""

    static_range = range


def made(name):
    """f of a body as Python, and a kernel that stores it."""
    text = "def f(n, m):" + ALL[name]
    scope = {"tl": Python}
    exec(compile(text, name, "exec"), scope)
    kernel = from_text("@tilec.jit\n" + text + "\n@tilec.jit\ndef kernel(out, n, m):\n"
                       "    tl.store(out, f(n, m))\n")
    return scope["f"], kernel


@pytest.mark.parametrize("name", ALL)
@pytest.mark.sample(12)
def test_functions_against_python(name):
    f, kernel = made(name)
    for n in range(1, 6):
        for m in (-1, 0, 2, 3, 6):
            out = np.full(1, -99, np.int32)
            kernel[1](out, n, m)
            assert out[0] == f(n, m), (n, m)


@pytest.mark.sample(10)
@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
@pytest.mark.parametrize("name", ALL)
def test_functions_below(name, level):
    f, kernel = made(name)
    with knobs.scope(run=level, check="1"):
        for n, m in ((5, 2), (4, 0)):
            out = np.full(1, -99, np.int32)
            kernel[1](out, n, m)
            assert out[0] == f(n, m), (n, m)


@tilec.jit
def search(x_ptr, out, rows, columns, limit, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row >= rows:
        return
    total = tl.zeros([BLOCK], tl.float32)
    at = tl.arange(0, BLOCK)
    for start in tl.range(0, columns, BLOCK, num_stages=3):
        x = tl.load(x_ptr + row * columns + start + at, mask=start + at < columns, other=0.0)
        if tl.max(x, 0) < 0.3:
            continue
        total += x
        if tl.sum(total, 0) > limit:
            tl.store(out + row, start)
            return
    tl.store(out + row, -tl.sum(total, 0))


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered", "ptx"])
def test_tiles_are_carried_until_a_return(level, rng):
    rows, columns, block, limit = 5, 83, 16, 25.0
    x = rng.random((rows, columns), np.float32)
    x[1, 16:48] *= 0.25
    x[2] *= 0.5
    x[3] *= 0.28
    out = np.full(rows + 2, np.nan, np.float32)
    with knobs.scope(run=level, check="1"):
        search[rows + 1](x, out, rows, columns, limit, BLOCK=block)
    want = []
    for row in x.astype(np.float64):
        total = 0.0
        for start in range(0, columns, block):
            part = row[start:start + block]
            if part.max() < 0.3:
                continue
            total += part.sum()
            if total > limit:
                want.append(start)
                break
        else:
            want.append(-total)
    assert np.allclose(out[:rows], want, rtol=1e-5) and np.isnan(out[rows:]).all()
    assert sum(w > 0 for w in want) in range(1, rows)  # both ways out were taken


def test_a_loop_ends_at_the_greatest_number():
    @tilec.jit
    def k(out, lo, hi, step):
        count = 0
        for _i in range(lo, hi, step):
            count += 1
            if count > 9:
                break
        tl.store(out, count)

    for level in ("tile", "ptx"):
        for lo, hi, step, want in ((2**31 - 4, 2**31 - 1, 2, 2), (-2**31, 2**31 - 1, 2**30, 4),
                                   (5, 5, 3, 0), (0, 2**31 - 1, 2, 10)):
            out = np.full(1, -1, np.int32)
            with knobs.scope(run=level):
                k[1](out, lo, hi, step)
            assert out[0] == want
    with pytest.raises(tilec.InterpreterError, match="the step of a loop is 0 or less"):
        k[1](np.zeros(1, np.int32), 5, 0, -2)
    types = {"out": "*i32", "lo": "i32", "hi": "i32", "step": "i32"}
    assert "scf.while" in tilec.compile(k, types).asm["tile"]


def test_a_loop_with_a_return_is_remarked(capfd):
    with knobs.scope(remarks="1"):
        tilec.compile(search, {"x_ptr": "*fp32", "out": "*fp32", "rows": "i32", "columns": "i32",
                               "limit": "fp32"}, {"BLOCK": 16})
    assert f"{search.first_line + 7}:5: loop: it may end in the middle of a round" in \
        capfd.readouterr().err
