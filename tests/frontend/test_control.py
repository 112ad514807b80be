"""Control flow, run in the interpreter against Python itself."""

import numpy as np
import pytest

import tilec.language as tl
from tests.frontend.harness import build, execute, from_text, out_of
from tilec.frontend.function import function
from tilec.ir import ops
from tilec.ir.printer import print_module


def grid_of(count):
    return [(n, m) for n in range(-1, count) for m in range(-1, count)]


@function
def branches(out, n, m):
    x = 0
    if n > 2:
        x = n
        y = 1
    elif m > 1:
        x = m * 10
        y = 2
    else:
        y = 3
        unused = x  # noqa: F841
    tl.store(out, x + y * 100)


@pytest.mark.parametrize("n, m", grid_of(4))
def test_if_elif_else(n, m):
    want = n + 100 if n > 2 else m * 10 + 200 if m > 1 else 300
    assert out_of(branches, n, m) == want


def test_static_if_visits_one_side():
    @function
    def k(out, n, A: tl.constexpr):
        if A is None:
            x = n
        elif A == "twice":
            x = n * 2
        else:
            x = undefined_name  # noqa: F821
        tl.store(out, x)

    assert out_of(k, 5, A=None) == 5 and out_of(k, 5, A="twice") == 10
    assert "scf.if" not in print_module(build(k, {"out": "*i32", "n": "i32"}, A=None))


def test_numbers_assigned_to_names_stay_known():
    @function
    def k(out, n):
        size = 4
        size = size * 2 + 1
        if size == 9:
            x = tl.sum(tl.arange(0, size), 0)
        tl.store(out, x + n)

    assert out_of(k, 5) == 41


def test_for_with_carried_names():
    @function
    def k(out, n, m):
        a, b = 0, 1
        last = -1
        for i in range(n):
            a, b = b, a + b
            t = i * m
            last = t
        tl.store(out, a)
        tl.store(out + 1, b)
        tl.store(out + 2, last)

    for n in range(7):
        a, b, last = 0, 1, -1
        for i in range(n):
            a, b, last = b, a + b, i * 3
        assert out_of(k, n, 3, size=3) == [a, b, last]
    loop = next(o for o in build(k, {"out": "*i32", "n": "i32", "m": "i32"}).walk()
                if isinstance(o, ops.For))
    assert len(loop.init) == 3


@pytest.mark.parametrize("lo, hi, step", [(0, 10, 3), (10, 0, -1), (10, 0, -3), (0, 5, -1),
                                          (5, 5, 1), (-4, 4, 2), (3, -9, -4)])
def test_ranges(lo, hi, step):
    @function
    def k(out, lo, hi, STEP: tl.constexpr):
        total = 0
        for i in tl.range(lo, hi, STEP):
            total = total * 5 + i
        tl.store(out, total)

    want = 0
    for i in range(lo, hi, step):
        want = want * 5 + i
    assert out_of(k, lo, hi, STEP=step) == want


def test_loop_variable_types():
    @function
    def k(out, n, m):
        for i in range(n.to(tl.int64)):
            tl.static_assert(i.dtype == tl.int64)
        for i in range(m, n):
            tl.static_assert(i.dtype == tl.int32)
        for i in range(0, 5000000000, 2500000000):
            tl.static_assert(i.dtype == tl.int64)
            tl.atomic_add(out, 1)

    assert out_of(k, 3, 1) == 2


def test_assigning_the_loop_variable_changes_no_iteration():
    @function
    def k(out, n):
        total = 0
        for i in range(n):
            i = i * 2
            total += i
        tl.store(out, total)

    assert out_of(k, 5) == 20


def test_unrolled_loops():
    @function
    def k(out, n, N: tl.constexpr):
        x = n
        for i in tl.static_range(N, 0, -1):
            x = x * 10 + tl.sum(tl.full([i], 1, tl.int32), 0)
        for s, t in ((1, 2), (3, 4)):
            x += s * t
        for y in [n, n + 1]:
            x += y
        tl.store(out, x)

    assert out_of(k, 7, N=3) == 7321 + 2 + 12 + 15
    assert "scf.for" not in print_module(build(k, {"out": "*i32", "n": "i32"}, N=3))


def test_loop_attributes():
    @function
    def k(out, n):
        for i in tl.range(n, num_stages=5, loop_unroll_factor=2):
            tl.store(out, i)

    (loop,) = [o for o in build(k, {"out": "*i32", "n": "i32"}).walk() if isinstance(o, ops.For)]
    assert (loop.num_stages, loop.unroll) == (5, 2)


def test_names_that_no_iteration_changes_are_not_carried():
    @function
    def k(out, n, A: tl.constexpr):
        x, y, kind = n, n + 1, "sum"
        z = 0
        for _ in range(n):
            if A:
                x = x + 1
            kind = "sum"  # noqa: F841
            z = x
            y = y
        while z < 3:
            y = y
            z += 1
        tl.store(out, x + y + z)

    module = build(k, {"out": "*i32", "n": "i32"}, A=False)
    loop = next(o for o in module.walk() if isinstance(o, ops.For))
    whl = next(o for o in module.walk() if isinstance(o, ops.While))
    assert len(loop.init) == 1 and len(whl.init) == 1
    assert out_of(k, 2, A=False) == 2 + 3 + 3
    assert out_of(k, 2, A=True) == 4 + 3 + 4


def test_while_and_nesting():
    @function
    def collatz(out, n):
        steps, top = 0, n
        while n != 1 and steps < 1000:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            top = tl.maximum(top, n)
            steps += 1
        tl.store(out, steps)
        tl.store(out + 1, top)

    for n in (1, 2, 7, 27):
        m, steps, top = n, 0, n
        while m != 1:
            m, steps = (m // 2 if m % 2 == 0 else 3 * m + 1), steps + 1
            top = max(top, m)
        assert out_of(collatz, n, size=2) == [steps, top]


def test_tuples_are_carried():
    @function
    def k(out, n):
        pair = (n, 1.5)
        for i in range(n):
            pair = (pair[0] + i, pair[1] * 2)
            if i == 2:
                pair = (pair[0], pair[1] + 1)
        tl.store(out, pair[0] + pair[1].to(tl.int32))

    a, b = 4, 1.5
    for i in range(4):
        a, b = a + i, b * 2
        if i == 2:
            b += 1
    assert out_of(k, 4) == a + int(b)


def test_a_branch_inside_a_loop_sees_the_previous_iteration():
    @function
    def k(out, n):
        prev = 0
        total = 0
        for i in range(n):
            if i % 2 == 1:
                total += prev
            prev = i
        tl.store(out, total)

    assert out_of(k, 6) == 0 + 2 + 4


def test_ternary_and_boolean_operators():
    @function
    def k(out, n, m, A: tl.constexpr):
        x = 1 if n > m else 2
        y = (n if n > m else 7) if A else undefined_name  # noqa: F821
        z = n if n > 0 and m > 0 or not n else -n
        w = A and n > 0
        tl.store(out, x)
        tl.store(out + 1, y)
        tl.store(out + 2, z)
        tl.store(out + 3, w)
        tl.store(out + 4, (0 < n) & (0 < n <= m < 3))
        tl.store(out + 5, A or undefined_name)  # noqa: F821

    for n, m in grid_of(4):
        assert out_of(k, n, m, A=True, size=6) == [
            1 if n > m else 2, n if n > m else 7, n if n > 0 and m > 0 or not n else -n,
            n > 0, 0 < n <= m < 3, 1]


def test_ternary_numbers_adopt_the_other_side():
    @function
    def k(out, n, f):
        x = f if n > 0 else 0
        tile = tl.full([4], 2.0, tl.float16) if n > 0 else 1
        tl.static_assert(tile.dtype == tl.float16)
        tl.store(out, x + tl.sum(tile, 0))

    assert out_of(k, 1, 3.0, dtype=np.float32) == 11.0
    assert out_of(k, 0, 3.0, dtype=np.float32) == 4.0


def test_chained_comparison_on_tiles_and_constants():
    @function
    def k(out, B: tl.constexpr):
        x = tl.arange(0, 8)
        tl.static_assert(1 < B < 10 == 10)
        tl.store(out + x, (2 <= x < B).to(tl.int32))

    assert out_of(k, B=5, size=8) == [int(2 <= i < 5) for i in range(8)]


@function
def guarded(out, n, m):
    if n < 0:
        return
    tl.store(out, 1)
    if m < 0:
        tl.store(out, 2)
        return
    elif m == 0:
        if n == 0:
            return
        tl.store(out, 3)
    tl.store(out + 1, 4)
    if n == 1:
        return
    tl.store(out + 2, 5)


def guarded_by_python(n, m):
    out = [0, 0, 0]
    if n < 0:
        return out
    out[0] = 1
    if m < 0:
        out[0] = 2
        return out
    elif m == 0:
        if n == 0:
            return out
        out[0] = 3
    out[1] = 4
    if n == 1:
        return out
    out[2] = 5
    return out


@pytest.mark.parametrize("n, m", grid_of(3))
def test_early_return(n, m):
    assert out_of(guarded, n, m, size=3) == guarded_by_python(n, m)


def test_a_guard_needs_no_flag():
    @function
    def k(out, n):
        if n < 0:
            return
        if n == 2:
            return
        tl.store(out, n)

    text = print_module(build(k, {"out": "*i32", "n": "i32"}))
    assert "returned" not in text and text.count("scf.if") == 2


@function
def classify(n, m):
    if n > 2:
        if m > 1:
            return n * 100
        n = n + 1
    elif m == 0:
        return -1
    else:
        k = 5
        if n == 1:
            return k
    if m == 2:
        return n * 10
    n = n * 2
    return n + m


@function
def classified(out, n, m):
    tl.store(out, classify(n, m))


@pytest.mark.parametrize("n, m", grid_of(5))
def test_early_return_with_values(n, m):
    assert out_of(classified, n, m) == classify.fn(n, m)


def test_return_of_tuples_and_tiles():
    @function
    def pick(x, n):
        if n > 0:
            return x, n
        return -x, 0

    @function
    def k(out, n):
        x, s = pick(tl.arange(0, 8), n)
        tl.store(out + tl.arange(0, 8), x + s)

    assert out_of(k, 3, size=8) == [i + 3 for i in range(8)]
    assert out_of(k, -3, size=8) == [-i for i in range(8)]


def test_return_of_pointers():
    @function
    def pick(p, q, n):
        if n > 5:
            if n > 7:
                return p
            n = 1
        return q + n

    @function
    def k(p, q, n):
        tl.store(pick(p, q, n), 9)
        tl.store(pick(p + tl.arange(0, 4), q + tl.arange(0, 4), n), 9)

    for n, i, j in ((8, 0, None), (6, None, 1), (0, None, 0)):
        p, q = np.zeros(8, np.int32), np.zeros(8, np.int32)
        execute(k, p, q, n)
        assert p.tolist() == ([9] * 4 + [0] * 4 if i == 0 else [0] * 8)
        assert q.tolist() == ([0] * 8 if j is None else [0] * j + [9] * 4 + [0] * (4 - j))


def test_static_return():
    @function
    def k(out, n, A: tl.constexpr):
        if A:
            tl.store(out, 1)
            return
        tl.store(out, undefined_name)  # noqa: F821

    assert out_of(k, 1, A=True) == 1


def test_static_return_in_an_unrolled_loop():
    @function
    def first(xs, y):
        for x in xs:
            if x == y:
                return x + 1
        return 0

    @function
    def k(out, Y: tl.constexpr):
        tl.store(out, first((3, 4, 5), Y))

    assert out_of(k, Y=4) == 5 and out_of(k, Y=9) == 0


def test_numbers_of_both_arms():
    @function
    def k(out, n):
        if n > 0:
            block = 4
            x = 2
        else:
            block = 4
            x = 3
        tl.store(out + tl.arange(0, block), x)

    assert out_of(k, 1, size=4) == [2] * 4 and out_of(k, 0, size=4) == [3] * 4


def test_names_nobody_reads_may_differ():
    @function
    def k(out, n):
        x = 1
        if n > 0:
            x = 1.0
        else:
            x = tl.zeros([4], tl.int32)
        for _ in range(n):
            x = n
            x = (x, 1)
        x = n
        tl.store(out, x)

    assert out_of(k, 2) == 2


def test_breakpoint_keeps_the_names():
    @function
    def k(out, n):
        x = n + 1
        if n > 0:
            y = x * 2
        else:
            y = x  # noqa: F841
        breakpoint()  # noqa: T100
        tl.store(out, x)

    (op,) = [o for o in build(k, {"out": "*i32", "n": "i32"}).walk()
             if isinstance(o, ops.Breakpoint)]
    assert op.names == ("out", "n", "x", "y") and len(op.values) == 4


def test_text_kernels_match_file_kernels():
    fn = from_text("@jit\ndef k(out, n):\n    if n > 0:\n        x = 1\n    else:\n"
                   "        x = 2\n    tl.store(out, x)\n")
    assert out_of(fn, 1) == 1 and out_of(fn, 0) == 2


@pytest.mark.parametrize("dtype, with_numbers", [
    ("uint8", "int32"), ("int8", "int32"), ("uint16", "int32"), ("int16", "int32"),
    ("int32", "int32"), ("uint32", "uint32"), ("int64", "int64"), ("uint64", "uint64")])
def test_numbers_in_bounds_are_literals(dtype, with_numbers):
    @function
    def k(out, n, T: tl.constexpr, WIDE: tl.constexpr):
        few = (n % 7).to(T)
        total = 0
        for i in range(0, few, 2):
            tl.static_assert(i.dtype == WIDE)
            total += i.to(tl.int32)
        for j in range(few * 0, few, few * 0 + 1):
            tl.static_assert(j.dtype == T)
            total += j.to(tl.int32) * 100
        tl.store(out, total)

    t, wide = getattr(tl, dtype), getattr(tl, with_numbers)
    assert out_of(k, 20, T=t, WIDE=wide) == 0 + 2 + 4 + 100 * 15
