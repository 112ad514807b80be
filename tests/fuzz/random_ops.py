"""Random numbers, as in ops.py, from docs/semantics.md, section 6: Philox on Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.numerics import INTS, NUMPY, Reject, cast, width
from tests.fuzz.ops import common, number
from tests.fuzz.program import Machine, Value, op, value

# Of words of 32 and of 64 bits: the factors of a round, what the key grows by, the floats' scale.
PHILOX = {
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 4.6566127342e-10),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
         1.0842020432385337e-19)}
M32, M64 = 2 ** 32 - 1, 2 ** 64 - 1


@op("umulhi", "tl.umulhi({0}, {1})")
def _(m: Machine, a: Any, b: Any) -> Value:
    t, (x, y), poison, _ = common((a, b))
    if t not in INTS:
        raise Reject("not integers")
    bits, unsigned = width(t), f"u{width(t) // 8}"
    product = x.astype(unsigned).astype(object) * y.astype(unsigned).astype(object)
    return value(np.asarray(product >> bits).astype(unsigned).view(NUMPY[t]), t, poison)


def _words(counter: list[Any], key: list[Any], bits: int, rounds: int) -> list[np.ndarray]:
    """Philox on arrays of Python's integers."""
    (a, b), steps, _ = PHILOX[bits]
    mask = (1 << bits) - 1
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, object) for c in counter))
    k0, k1 = key
    for _ in range(rounds):
        low, high = c0 * a, c2 * b
        c0, c1, c2, c3 = high >> bits ^ c1 ^ k0, high & mask, low >> bits ^ c3 ^ k1, low & mask
        k0, k1 = k0 + steps[0] & mask, k1 + steps[1] & mask
    return [np.asarray(c).astype(f"u{bits // 8}") for c in (c0, c1, c2, c3)]


def _counter(a: Any) -> tuple[Any, int]:
    """Integers modulo 2^bits, 64 bits of such offsets and else 32."""
    if number(a).dtype not in INTS:
        raise Reject("no offset")
    bits = 64 if width(a.dtype) == 64 else 32
    return a.x.astype(object) & (M64 if bits == 64 else M32), bits


def _of_offset(a: Any, seed: int, rounds: int) -> list[np.ndarray]:
    offset, _ = _counter(a)
    return _words([offset & M32, offset >> 32, 0, 0], [seed & M32, (seed & M64) >> 32], 32, rounds)


@op("philox", "tl.philox({seed}, {0}, 1, 2, 3, n_rounds={rounds})[{i}]")
def _(m: Machine, a: Any, seed: int, rounds: int, i: int) -> Value:
    c0, bits = _counter(a)
    key = [seed & M64, 0] if bits == 64 else [seed & M32, (seed & M64) >> 32]
    return value(_words([c0, 1, 2, 3], key, bits, rounds)[i], f"uint{bits}", a.poison)


@op("philox_impl", "tl.philox_impl({0}, {0}, {0}, {0}, {k}, {k}, {rounds})[{i}]")
def _(m: Machine, a: Any, k: int, rounds: int, i: int) -> Value:
    if number(a).dtype not in ("uint32", "uint64"):
        raise Reject("no word")
    bits = width(a.dtype)
    return value(_words([a.x.astype(object)] * 4, [k, k], bits, rounds)[i], a.dtype, a.poison)


@op("randint", lambda a, seed, rounds, i: f"tl.randint({seed}, {a}, {rounds})" if i is None else
    f"tl.randint4x({seed}, {a}, n_rounds={rounds})[{i}]")
def _(m: Machine, a: Any, seed: int, rounds: int, i: int | None) -> Value:
    return value(_of_offset(a, seed, rounds)[i or 0], "uint32", a.poison)


def _uniform(x: np.ndarray) -> np.ndarray:
    signed = x.view(f"i{x.itemsize}")
    positive = np.where(signed < 0, -1 - signed, signed)
    return cast(positive, f"int{8 * x.itemsize}", "float32") * \
        np.float32(PHILOX[8 * x.itemsize][2])


@op("uniform", "tl.uint_to_uniform_float({0})")
def _(m: Machine, a: Any) -> Value:
    if number(a).dtype not in INTS or width(a.dtype) < 32:
        raise Reject("not integers of 32 or 64 bits")
    return value(_uniform(a.x), "float32", a.poison, rounded=True)


@op("rand", lambda a, seed, i: f"tl.rand({seed}, {a})" if i is None else
    f"tl.rand4x({seed}, {a})[{i}]")
def _(m: Machine, a: Any, seed: int, i: int | None) -> Value:
    return value(_uniform(_of_offset(a, seed, 10)[i or 0]), "float32", a.poison, rounded=True)


def _normal(u: np.ndarray, v: np.ndarray, second: bool, *poisons: np.ndarray) -> Value:
    """By the bounds of the logarithm, through the root, and of the cosine and its angle."""
    u, v = u.astype(np.float64), v.astype(np.float64)
    square = -2 * np.log(np.maximum(np.float64(np.float32(1e-7)), u))
    radius, error = np.sqrt(square), 2.0 ** -20 * np.maximum(1, square)
    exact = radius * (np.sin if second else np.cos)(np.float64(np.float32(2 * np.pi)) * v)
    bound = np.minimum(error / (2 * radius + 1e-30), np.sqrt(error)) + radius * 2.0 ** -19
    return value(exact.astype(np.float32), "float32", *poisons, exact=exact, bound=bound)


@op("randn", lambda a, seed, i: f"tl.randn({seed}, {a})" if i is None else
    f"tl.randn4x({seed}, {a})[{i}]")
def _(m: Machine, a: Any, seed: int, i: int | None) -> Value:
    words, first = _of_offset(a, seed, 10), (i or 0) // 2 * 2
    return _normal(_uniform(words[first]), _uniform(words[first + 1]), (i or 0) % 2 == 1, a.poison)


@op("normal", "tl.pair_uniform_to_normal({0}, {1})[{i}]")
def _(m: Machine, a: Any, b: Any, i: int) -> Value:
    for v in (number(a), number(b)):
        if v.dtype != "float32" or not ((v.x >= 0) & (v.x < 1)).all():
            raise Reject("not uniform numbers")
    if a.shape != b.shape:
        raise Reject("of one shape")
    return _normal(a.x, b.x, i == 1, a.poison, b.poison)
