"""Shapes, indexing and tiles of one element: kernels at every level against numpy, of all dtypes
and at odd extents, and the mistakes that authors make with them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tests.support.levels import DTYPES, bits, check
from tilec.errors import CompilationError
from tilec.runtime.aot import specialized

SHAPES = [(1, 1), (1, 2), (4, 32), (3, 8), (6, 16), (17, 4), (100, 2), (16, 64), (5, 24), (2, 96)]


# -- every dtype, odd extents ---------------------------------------------------------------------

@tilec.jit
def joined(x_ptr, y_ptr, out, M: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    pairs = tl.join(tl.load(x_ptr + at), tl.load(y_ptr + at))
    tl.store(out + at[:, :, None] * 2 + tl.arange(0, 2), pairs)


@tilec.jit
def halves(x_ptr, y_ptr, out, M: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    where = at[:, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    a, b = tl.load(x_ptr + where % (M * K)).split()
    c, d = tl.split(tl.load(y_ptr + where % (M * K)))
    for part, i in ((a, 0), (b, 1), (c, 2), (d, 3)):
        tl.store(out + i * M * K + at, part)


@tilec.jit
def in_turn(x_ptr, y_ptr, out, M: tl.constexpr, K: tl.constexpr):
    row, col = tl.arange(0, M)[:, None], tl.arange(0, K)[None, :]
    z = tl.interleave(tl.load(x_ptr + row * K + col), tl.load(y_ptr + row * K + col))
    tl.store(out + row * 2 * K + tl.arange(0, 2 * K)[None, :], z)


@tilec.jit
def one_after_the_other(x_ptr, y_ptr, out, M: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, M * K)
    z = tl.cat(tl.load(x_ptr + at), tl.load(y_ptr + at), can_reorder=True)
    tl.store(out + tl.arange(0, 2 * M * K), z)


@tilec.jit
def columns_after_columns(x_ptr, y_ptr, out, M: tl.constexpr, K: tl.constexpr):
    row, col = tl.arange(0, M)[:, None], tl.arange(0, K)[None, :]
    z = tl.cat(tl.load(x_ptr + row * K + col), tl.load(y_ptr + row * K + col), dim=-1)
    tl.store(out + row * 2 * K + tl.arange(0, 2 * K)[None, :], z)


@tilec.jit
def rotated(x_ptr, y_ptr, out, M: tl.constexpr, K: tl.constexpr):
    """Halves of a row change places, and those of every pair: through shape ops alone."""
    at = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    low, high = tl.join(tl.load(x_ptr + at), tl.load(y_ptr + at)).permute(2, 0, 1).reshape(
        M * K, 2, can_reorder=True).split()
    z = tl.join(high, low).trans().ravel().view(K, 2 * M).T
    tl.store(out + tl.arange(0, 2 * M)[:, None] * K + tl.arange(0, K)[None, :], z)


def _rotated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    pairs = np.stack([x, y]).reshape(-1, 2)
    return pairs[:, ::-1].T.reshape(x.shape[1], -1).T


MEANINGS: dict[Any, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    joined: lambda x, y: np.stack([x, y], -1),
    halves: lambda x, y: np.stack([np.resize(z.ravel(), 2 * z.size)[i::2].reshape(z.shape)
                                   for z in (x, y) for i in range(2)]),
    in_turn: lambda x, y: np.stack([x, y], -1).reshape(len(x), -1),
    one_after_the_other: lambda x, y: np.concatenate([x.ravel(), y.ravel()]),
    columns_after_columns: lambda x, y: np.concatenate([x, y], 1),
    rotated: _rotated,
}
CASES = [pytest.param(kernel, dtype, id=f"{kernel.__name__}-{dtype.name}")
         for kernel in MEANINGS for dtype in DTYPES]


@pytest.mark.sample(14)
@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_every_dtype(kernel: Any, dtype: np.dtype) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{kernel.__name__}{dtype.name}".encode()))
    for shape in rng.choice(SHAPES, 2, replace=False).tolist():
        x, y = bits(rng, tuple(shape), dtype), bits(rng, tuple(shape), dtype)
        check(kernel, [x, y], [np.ascontiguousarray(MEANINGS[kernel](x, y))],
              {"M": shape[0], "K": shape[1]}, warps=int(rng.choice([1, 2, 4, 8])))


@pytest.mark.sample(6)
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", MEANINGS, ids=lambda k: k.__name__)
def test_machine_code_is_made(kernel: Any, target: str) -> None:
    made = tilec.compile(kernel, signature={"x_ptr": "*i8:16", "y_ptr": "*i8", "out": "*i8:16"},
                         constexprs={"M": 12, "K": 32}, target=target)
    assert made.asm["cubin"][:4] == b"\x7fELF"


# -- promotion, broadcasting, pointers, scalars ---------------------------------------------------

@tilec.jit
def mixed(x_ptr, y_ptr, n, p, wide, numbers, scalars, M: tl.constexpr, K: tl.constexpr):
    """Columns with rows of another type, a tile with a number, two scalars."""
    row, col = tl.arange(0, M), tl.arange(0, K)
    x, y = tl.load(x_ptr + row), tl.load(y_ptr + col)
    pairs = tl.join(x[:, None], y)
    tl.store(p + (row[:, None, None] * K + col[:, None]) * 2 + tl.arange(0, 2), pairs)
    tl.store(wide + row[:, None] * 2 * K + tl.arange(0, 2 * K), tl.interleave(y, x[:, None]))
    tl.store(numbers + tl.arange(0, 2 * M), tl.interleave(x, 7))
    tl.store(scalars + tl.arange(0, 2), tl.join(n, 3))
    a, b = tl.interleave(n, n * 2).split()
    tl.store(scalars + 2, a)
    tl.store(scalars + 3, b)


@pytest.mark.parametrize(("m", "k"), [(4, 3), (16, 17)])
def test_what_is_joined_broadcasts_and_is_promoted(m: int, k: int) -> None:
    rng = np.random.default_rng(m)
    x, y = bits(rng, (m,), np.dtype("i2")), rng.standard_normal(k).astype(np.float32)
    wide = np.broadcast_arrays(x[:, None].astype(np.float32), y)
    n = 12345
    check(mixed, [x, y, n], [
        np.stack(wide, -1), np.stack(wide[::-1], -1).reshape(m, -1),
        np.stack([x, np.full_like(x, 7)], -1).ravel(),
        np.array([n, 3, n, 2 * n], np.int32)], {"M": m, "K": k})


@tilec.jit
def through_pointers(x_ptr, y_ptr, out, N: tl.constexpr):
    at = tl.arange(0, N)
    pairs = tl.join(x_ptr + at, y_ptr + (N - 1 - at))
    x, y = tl.load(pairs).split()
    xs, ys = pairs.split()
    tl.store(out + at, x - tl.load(ys))
    tl.store(out + N + at, y - tl.load(xs))


@pytest.mark.parametrize("n", [2, 48, 100])
def test_pointers_are_joined_and_split(n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-99, 99, n).astype(np.int32) for _ in range(2))
    check(through_pointers, [x, y], [np.stack([x - y[::-1], y[::-1] - x])], {"N": n})


@tilec.jit
def sum_of_halves(x_ptr, rounds, out, N: tl.constexpr):
    """Halves that a loop carries, from rows that begin anywhere: no access is aligned."""
    at = tl.arange(0, 2 * N)
    even, odd = tl.zeros((N,), tl.int32), tl.zeros((N,), tl.int32)
    for i in range(rounds):
        a, b = tl.load(x_ptr + 1 + i * (2 * N + 1) + at).reshape(N, 2).split()
        even, odd = even + a, b - odd
    tl.store(out + at, tl.interleave(odd, even))


@pytest.mark.parametrize(("n", "warps"), [(64, 1), (96, 2), (300, 4)])
def test_halves_go_around_a_loop(n: int, warps: int) -> None:
    x = np.random.default_rng(n).integers(-9999, 9999, 1 + 5 * (2 * n + 1)).astype(np.int32)
    even, odd = np.zeros(n, np.int32), np.zeros(n, np.int32)
    for row in x[1:].reshape(5, -1)[:, :-1]:
        even, odd = even + row[::2], row[1::2] - odd
    check(sum_of_halves, [x, 5], [np.stack([odd, even], -1).ravel()], {"N": n}, warps)


@tilec.jit
def masked(x_ptr, n, out, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at, mask=at < n)  # poison beyond n
    a, b = tl.join(x, at).split()
    tl.store(out + at, tl.where(at < n, a, b))
    tl.store(out + N + at, tl.join(x, at).split()[1])


def test_a_half_has_the_poison_of_its_own_elements() -> None:
    x = np.random.default_rng(3).integers(0, 99, 64).astype(np.int32)
    at = np.arange(64, dtype=np.int32)
    check(masked, [x, 40], [np.stack([np.where(at < 40, x, at), at])], {"N": 64})


@tilec.jit
def packed_weights(a_ptr, q_ptr, out, K: tl.constexpr, N: tl.constexpr, ALONG_K: tl.constexpr):
    """A product with two weights of four bits a byte, which lie along k or along n."""
    m, n = tl.arange(0, 16), tl.arange(0, N)
    acc = tl.zeros((16, N), tl.float32)
    for k in range(0, K, 32):
        a = tl.load(a_ptr + m[:, None] * K + k + tl.arange(0, 32)[None, :])
        if ALONG_K:
            q = tl.load(q_ptr + (k // 2 + tl.arange(0, 16))[:, None] * N + n[None, :])
            b = tl.join(q & 15, q >> 4).permute(0, 2, 1).reshape(32, N)
        else:
            row = (k + tl.arange(0, 32))[:, None] * (N // 2)
            q = tl.load(q_ptr + row + tl.arange(0, N // 2)[None, :])
            b = tl.interleave(q & 15, q >> 4)
        acc = tl.dot(a, b.to(tl.float16), acc)
    tl.store(out + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.sample(3)
def test_joined_tiles_are_operands_of_products(along_k: bool, target: str) -> None:
    rng = np.random.default_rng(along_k)
    a = rng.integers(-4, 5, (16, 96)).astype(np.float16)
    q = rng.integers(0, 256, (48, 32) if along_k else (96, 16)).astype(np.uint8)
    b = np.stack([q & 15, q >> 4], 1 if along_k else 2).reshape(96, 32)
    check(packed_weights, [a, q], [a.astype(np.float32) @ b.astype(np.float32)],
          {"K": 96, "N": 32, "ALONG_K": along_k}, target=target)


# -- indexing -------------------------------------------------------------------------------------

@tilec.jit
def indexed(x_ptr, n, out, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.static_assert(x[:, :].shape == (N,))
    tl.static_assert(x[None, :, :].shape == (1, N))
    tl.static_assert(x[:, None, :, :].shape == (N, 1))
    tl.static_assert(x[None].shape == (1, N))
    tl.static_assert(n[:].shape == ())
    tl.static_assert(n[None, :].shape == (1,))
    tl.static_assert(n[None, None, :].shape == (1, 1))
    tl.static_assert(tl.expand_dims(x, (0, -1)).shape == (1, N, 1))
    tl.static_assert(x.expand_dims((0, 2)).broadcast_to(2, N, 3).shape == (2, N, 3))
    tl.store(out + tl.arange(0, N)[None, :], x[None, :, :] + n[None, None, :])


def test_indices_of_more_slices_than_dimensions() -> None:
    x = np.arange(24, dtype=np.int32)
    check(indexed, [x, 1000], [x + 1000], {"N": 24})


# -- tiles of one element -------------------------------------------------------------------------

@tilec.jit
def decided(x_ptr, out, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    most = tl.max(x, 0, keep_dims=True)
    if most > 40:
        most -= 40
    low, count = tl.min(x, 0)[None, None], 0
    while low < 0 and most:
        low += 7
        count += 1
    both = 1 if most[None] > 3 and low.ravel() != 5 else 2
    if not (most < 5 or low == 0):
        both += 10
    tl.store(out + tl.arange(0, 1), most)
    tl.store(out + 1, low.item())
    tl.store(out + 2, count)
    tl.store(out + 3, both)


@pytest.mark.parametrize("seed", range(6))
def test_tiles_of_one_element_are_conditions(seed: int) -> None:
    x = np.random.default_rng(seed).integers(-30, 50, (33, 9)[seed % 2]).astype(np.int32)
    most, low, count = int(x.max()), int(x.min()), 0
    most -= 40 if most > 40 else 0
    while low < 0 and most:
        low, count = low + 7, count + 1
    both = (1 if most > 3 and low != 5 else 2) + (10 if not (most < 5 or low == 0) else 0)
    check(decided, [x], [np.array([most, low, count, both], np.int32)], {"N": x.size})


# -- mistakes -------------------------------------------------------------------------------------

MISTAKES = {  # statement: the part under the caret, message, advice
    "tl.split(x)": ("tl.split(x)", r"last extent of int32\[16\] tile is not 2", "reshape"),
    "x[None].split()": ("x[None].split()", r"last extent of int32\[1, 16\] tile", "permute"),
    "tl.split(n)": ("tl.split(n)", "last extent of int32 scalar is not 2", "reshape"),
    "tl.split(2)": ("tl.split(2)", "expected a tile, found the number 2", "tl.full"),
    "a, b, c = tl.join(x, x).split()": (
        "a, b, c", "2 values for 3 names", "one name to each"),
    "tl.join(x, tl.arange(0, 8))": (
        "tl.join(x, tl.arange(0, 8))", r"tl.join: shapes \[16\] and \[8\]", "must be equal"),
    "tl.join(p + x, x)": ("tl.join(p + x, x)", "expected pointers of one type", "cast"),
    "tl.join(p + x, q + x)": ("tl.join(p + x, q + x)", "expected pointers of one type", "to"),
    "tl.join(x, None)": ("tl.join(x, None)", "`tl.join` does not apply|found", "None"),
    "tl.join(x)": ("tl.join(x)", "missing a required argument: 'b'", "signature"),
    "tl.join(tl.zeros((1024, 1024), tl.int8), 0)": (
        "tl.join(tl.zeros((1024, 1024), tl.int8), 0)", "2097152 elements", "smaller tiles"),
    "tl.interleave(x, x[:, None, None] + x[:8])": ("x[:8]", "a slice with bounds", "load the part"),
    "tl.interleave(x, tl.arange(0, 5))": (
        "tl.interleave(x, tl.arange(0, 5))", r"tl.interleave: shapes \[16\] and \[5\]", "equal"),
    "tl.cat(x, tl.arange(0, 8))": (
        "tl.cat(x, tl.arange(0, 8))", r"int32\[16\] tile and int32\[8\] tile differ", "one shape"),
    "tl.cat(n, n)": ("tl.cat(n, n)", "a scalar has no axis 0", "tl.full"),
    "tl.cat(x, x, dim=1)": ("tl.cat(x, x, dim=1)", "axis 1 is out of range", "-1 to 0"),
    "tl.cat(x, 0)": ("tl.cat(x, 0)", "expected a tile, found the number 0", "tl.full"),
    "x[:, :, None]": ("x[:, :, None]", "a None in place 2 .* has 1 dimensions", "one `:` for each"),
    "n[:, None]": ("n[:, None]", "a None in place 1 of the index of int32 scalar", "one `:`"),
    "x[..., None]": ("...", "literal Ellipsis has no meaning", ""),
    "x[0]": ("x[0]", "by the number 0", "reduce with a mask"),
    "x.item()": ("x.item()", "16 elements, expected 1", "tl.sum"),
    "if x > 3:\n        pass": ("x > 3", r"condition of `if` is a int1\[16\] tile", "tl.where"),
    "while x[None] > 3:\n        pass": ("x[None] > 3", r"`while` is a int1\[1, 16\]", "tl.where"),
}
TEXT = """
@tilec.jit
def k(p, q, n):
    x = tl.arange(0, 16)
    {}
"""


@pytest.mark.parametrize("statement", MISTAKES)
def test_mistakes_name_line_place_and_cure(statement: str) -> None:
    under, message, advice = MISTAKES[statement]
    text = statement if "\n" in statement or "," in statement.split("=")[0] and " = " in \
        statement else f"y = {statement}"
    kernel = from_text(TEXT.format(text))
    with pytest.raises(CompilationError) as caught:
        specialized(kernel, {"p": "*fp32", "q": "*i32", "n": "i32"}, {}).build()
    error = caught.value
    assert re.search(message, error.message), error.message
    assert re.search(advice, error.advice), error.advice
    assert error.loc is not None and error.loc.line == 5, str(error)
    line, caret = str(error).splitlines()[1:3]
    assert line[caret.index("^"):caret.rindex("^") + 1] == under, str(error)
