"""The dtype of every operator on every pair of dtypes, and of Python numbers beside tensors."""

from __future__ import annotations

import math
import operator

import pytest

import tilec.language as tl
from tests.language.harness import LOC, tracing
from tilec.errors import CompilationError
from tilec.language import dtypes as dt
from tilec.language.promotion import promote

# Rows and columns in this order; `-` where there is no common type.
_TABLE = """
         i1   i8   i16  i32  i64  u8   u16  u32  u64  fp16 bf16 fp32 fp64 fp8e4nv fp8e5
i1       i1   i8   i16  i32  i64  u8   u16  u32  u64  fp16 fp32 fp32 fp64 -       -
i8       i8   i8   i16  i32  i64  u8   u16  u32  u64  fp16 fp32 fp32 fp64 -       -
i16      i16  i16  i16  i32  i64  i16  u16  u32  u64  fp16 fp32 fp32 fp64 -       -
i32      i32  i32  i32  i32  i64  i32  i32  u32  u64  fp16 fp32 fp32 fp64 -       -
i64      i64  i64  i64  i64  i64  i64  i64  i64  u64  fp16 fp32 fp32 fp64 -       -
u8       u8   u8   i16  i32  i64  u8   u16  u32  u64  fp16 fp32 fp32 fp64 -       -
u16      u16  u16  u16  i32  i64  u16  u16  u32  u64  fp16 fp32 fp32 fp64 -       -
u32      u32  u32  u32  u32  i64  u32  u32  u32  u64  fp16 fp32 fp32 fp64 -       -
u64      u64  u64  u64  u64  u64  u64  u64  u64  u64  fp16 fp32 fp32 fp64 -       -
fp16     fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp16 fp32 fp64 fp16    fp16
bf16     fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp16 bf16 fp32 fp64 fp32    fp32
fp32     fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp64 fp32    fp32
fp64     fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64 fp64    fp64
fp8e4nv  -    -    -    -    -    -    -    -    -    fp16 fp32 fp32 fp64 fp8e4nv fp16
fp8e5    -    -    -    -    -    -    -    -    -    fp16 fp32 fp32 fp64 fp16    fp8e5
"""
_ROWS = [line.split() for line in _TABLE.strip().splitlines()]
NAMES = _ROWS[0]
TABLE = {(row[0], column): cell for row in _ROWS[1:]
         for column, cell in zip(NAMES, row[1:], strict=True)}
PAIRS = sorted(TABLE)
SIGNED = ("i8", "i16", "i32", "i64")
INTS = NAMES[:9]
FP8 = ("fp8e4nv", "fp8e5")

ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
BITS = {"&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
        ">>": operator.rshift}
COMPARE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
           ">": operator.gt, ">=": operator.ge}


def of(name):
    return dt.from_name(name)


def tiles(*names):
    return tracing(*[((8,), of(n)) for n in names])


def refused(fn):
    """The error that `fn` raises; it must have a place and advice, and say what was found."""
    with pytest.raises(CompilationError) as caught:
        fn()
    assert caught.value.loc == LOC
    assert caught.value.advice, caught.value.message
    return caught.value


def test_the_table_is_complete():
    assert len(TABLE) == len(NAMES) ** 2 == len(dt.ALL) ** 2
    assert all(TABLE[a, b] == TABLE[b, a] for a, b in PAIRS)


@pytest.mark.parametrize("a", NAMES)
def test_promote(a):
    for b in NAMES:
        cell = TABLE[a, b]
        assert promote(of(a), of(b)) == (None if cell == "-" else of(cell))


@pytest.mark.parametrize("symbol", ARITHMETIC)
def test_arithmetic(symbol):
    for a, b in PAIRS:
        want = TABLE[a, b]
        with tiles(a, b) as (x, y):
            if want == "-" or want in FP8:
                error = refused(lambda x=x, y=y: ARITHMETIC[symbol](x, y))
                assert f"`{symbol}`" in error.message
                assert ".to(tl.float16)" in error.advice
            else:
                z = ARITHMETIC[symbol](x, y)
                assert (z.dtype, z.shape) == (of(want), (8,)), (a, b)


def _division(a, b):
    """The dtype of a / b; None where it is refused."""
    want = TABLE[a, b]
    if want == "-" or want in FP8:
        return None
    return "fp32" if want in ("fp16", "bf16") or want in INTS else want


def test_true_division():
    for a, b in PAIRS:
        want = _division(a, b)
        with tiles(a, b) as (x, y):
            if want is None:
                refused(lambda x=x, y=y: x / y)
            else:
                assert (x / y).dtype == of(want), (a, b)


def test_remainder():
    for a, b in PAIRS:
        both_ints = a in INTS and b in INTS
        with tiles(a, b) as (x, y):
            if both_ints and (a in SIGNED) != (b in SIGNED):
                error = refused(lambda x=x, y=y: x % y)
                assert "signed" in error.message and "cast one side" in error.advice
            elif both_ints:
                assert (x % y).dtype == of(TABLE[a, b])
            elif _division(a, b) is None:
                refused(lambda x=x, y=y: x % y)
            else:
                assert (x % y).dtype == of(_division(a, b))


def test_floor_division_takes_integers_of_one_signedness():
    for a, b in PAIRS:
        with tiles(a, b) as (x, y):
            if a in INTS and b in INTS and (a in SIGNED) == (b in SIGNED):
                assert (x // y).dtype == of(TABLE[a, b])
            else:
                refused(lambda x=x, y=y: x // y)


@pytest.mark.parametrize("symbol", BITS)
def test_bits_and_shifts_take_integers(symbol):
    for a, b in PAIRS:
        with tiles(a, b) as (x, y):
            if a in INTS and b in INTS:
                assert BITS[symbol](x, y).dtype == of(TABLE[a, b])
            else:
                assert "takes integers" in refused(lambda x=x, y=y: BITS[symbol](x, y)).message


@pytest.mark.parametrize("symbol", COMPARE)
def test_comparisons_give_int1(symbol):
    for a, b in PAIRS:
        want = TABLE[a, b]
        with tiles(a, b) as (x, y):
            if want == "-" or want in FP8:
                refused(lambda x=x, y=y: COMPARE[symbol](x, y))
                continue
            z = COMPARE[symbol](x, y)
            assert z.dtype == tl.int1
            assert all(v.type.element == of(want).ir for v in z.handle.op.operands)


@pytest.mark.parametrize("fn", [tl.minimum, tl.maximum, lambda x, y: tl.clamp(x, y, y),
                                lambda x, y: tl.where(x.to(tl.int1), x, y)])
def test_selections_promote_like_plus(fn):
    for a, b in PAIRS:
        want = TABLE[a, b]
        with tiles(a, b) as (x, y):
            where = "lambda" in fn.__name__ and want in FP8
            if want == "-" or (want in FP8 and not where):
                refused(lambda x=x, y=y: fn(x, y))
            elif not where:
                assert fn(x, y).dtype == of(want)


def test_where_keeps_fp8():
    with tiles("fp8e5", "i1") as (x, c):
        assert tl.where(c, x, x).dtype == tl.float8e5
        assert tl.where(c, x, 0.0).dtype == tl.float8e5


def test_a_scalar_tensor_promotes_fully():
    with tracing(((8,), tl.int8), tl.int32, tl.float64) as (x, n, d):
        assert (x + n).dtype == tl.int32
        assert (x * d).dtype == tl.float64
        assert (n + x).shape == (8,)


# -- Python numbers -------------------------------------------------------------------------------

def _adopted(name, number):
    """The dtype of tile + number by rule 0."""
    kind = 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2
    of_tile = 0 if name == "i1" else 1 if name in INTS else 2
    if kind <= of_tile:
        return name
    return TABLE[name, "fp32" if kind == 2 else "i32"]


@pytest.mark.parametrize("number", [True, False, 0, 1, 100, 0.5, -2.0, math.inf, math.nan])
def test_numbers_adopt_the_dtype(number):
    for name in NAMES:
        want = _adopted(name, number)
        with tiles(name) as (x,):
            for fn in (lambda x: x + number, lambda x: number * x, lambda x: number - x):
                if want in (*FP8, "-"):
                    refused(lambda x=x, fn=fn: fn(x))
                else:
                    assert fn(x).dtype == of(want), (name, number)


def test_division_by_a_number():
    for name in NAMES:
        with tiles(name) as (x,):
            if name in FP8:
                refused(lambda x=x: x / 2)
                continue
            want = "fp64" if name == "fp64" else "fp32"
            assert (x / 2).dtype == of(want) and (2 / x).dtype == of(want)
            if name in INTS:
                refused(lambda x=x: x // 2.0)
                if name != "i1":  # there 2 is int32, which is signed
                    assert (x // 2).dtype == (x % 2).dtype == of(name)
            else:
                assert (x % 2).dtype == of(want)


@pytest.mark.parametrize(("name", "number"), [
    ("i8", 128), ("i8", -129), ("u8", 256), ("i16", 40000), ("i32", 1 << 31), ("u32", 1 << 32),
    ("i64", 1 << 63), ("u64", 1 << 64), ("u8", -1), ("u32", -1), ("u64", -5)])
def test_numbers_out_of_range(name, number):
    with tiles(name) as (x,):
        error = refused(lambda: x + number)
        assert str(number) in error.message and of(name).name in error.message
        assert ("unsigned" in error.message) == (number < 0 and name[0] == "u")
        refused(lambda: number < x)
        refused(lambda: x << number)


@pytest.mark.parametrize(("name", "number"), [
    ("i8", -128), ("u8", 255), ("u64", (1 << 64) - 1), ("i64", -(1 << 63)), ("fp16", 1 << 40)])
def test_numbers_in_range(name, number):
    with tiles(name) as (x,):
        assert (x + number).dtype == of(name)


@pytest.mark.parametrize(("number", "want"), [
    (True, "i1"), (0, "i32"), (-1, "i32"), ((1 << 31) - 1, "i32"), (1 << 31, "u32"),
    (-(1 << 31) - 1, "i64"), ((1 << 32) - 1, "u32"), (1 << 32, "i64"), (1 << 63, "u64"),
    (1.0, "fp32"), (0.0, "fp32"), (math.inf, "fp32"), (math.nan, "fp32"), (1e39, "fp64"),
    (1e-40, "fp64"), (3.4e38, "fp32"), (1.2e-38, "fp32")])
def test_typed_literals(number, want):
    with tracing():
        x = tl.to_tensor(number)
        assert (x.dtype, x.shape) == (of(want), ())
        assert x.literal is number


@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1])
def test_literals_that_no_type_holds(number):
    with tracing():
        assert "64 bits" in refused(lambda: tl.to_tensor(number)).advice


def test_a_literal_tensor_is_not_weak():
    with tiles("i8") as (x,):
        one = tl.to_tensor(1)
        assert (x + one).dtype == tl.int32


def test_a_number_beside_fp16_divides_in_fp32_unrounded():
    with tiles("fp16") as (x,):
        z = x / 0.1
        divisor = z.handle.op.operands[1].op
        assert (z.dtype, divisor.value) == (tl.float32, 0.10000000149011612)
