"""Random numbers: Philox against its published vectors and Python's integers at every level,
umulhi of every integer type, uniform and normal numbers, and mistakes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tests.support.levels import LEVELS, bits, check
from tilec.errors import CompilationError
from tilec.runtime.aot import specialized

FACTORS = {32: (0xD2511F53, 0xCD9E8D57), 64: (0xD2E7470EE14C6C93, 0xCA5A826395121157)}
STEPS = {32: (0x9E3779B9, 0xBB67AE85), 64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}
# Of Random123, ten rounds: bits, counter, key, words.
VECTORS = [(width, *([int(word, 16) for word in part.split()] for part in parts.split(","))) for
           width, parts in ((32, """00000000 00000000 00000000 00000000, 00000000 00000000,
    6627e8d5 e169c58d bc57ac4c 9b00dbd8"""), (32, """ffffffff ffffffff ffffffff ffffffff,
    ffffffff ffffffff, 408f276d 41c83b0e a20bc7c6 6d5451fd"""), (32, """243f6a88 85a308d3 13198a2e
    03707344, a4093822 299f31d0, d16cfe09 94fdcceb 5001e420 24126ea1"""), (64, """0 0 0 0, 0 0,
    16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"""), (64,
    """ffffffffffffffff ffffffffffffffff ffffffffffffffff ffffffffffffffff, ffffffffffffffff
    ffffffffffffffff, 87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"""), (64,
    """243f6a8885a308d3 13198a2e03707344 a4093822299f31d0 082efa98ec4e6c89, 452821e638d01377
    be5466cf34e90c6c, a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6"""))]


def words(width: int, counter: list[int], key: list[int], rounds: int = 10) -> list[int]:
    """Philox by the paper's definition, on Python's integers."""
    mask = (1 << width) - 1
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(rounds):
        low, high = c0 * FACTORS[width][0], c2 * FACTORS[width][1]
        c0, c1, c2, c3 = high >> width ^ c1 ^ k0, high & mask, low >> width ^ c3 ^ k1, low & mask
        k0, k1 = k0 + STEPS[width][0] & mask, k1 + STEPS[width][1] & mask
    return [c0, c1, c2, c3]


@tilec.jit
def philox_words(c_ptr, k_ptr, out, N: tl.constexpr, ROUNDS: tl.constexpr):
    at = tl.arange(0, N)
    c0, c1, c2, c3 = tl.philox_impl(
        tl.load(c_ptr + at), tl.load(c_ptr + N + at), tl.load(c_ptr + 2 * N + at),
        tl.load(c_ptr + 3 * N + at), tl.load(k_ptr + at), tl.load(k_ptr + N + at), ROUNDS)
    tl.store(out + at[:, None] * 4 + tl.arange(0, 4),
             tl.join(tl.join(c0, c2), tl.join(c1, c3)).reshape(N, 4))


@pytest.mark.parametrize("width", [32, 64])
def test_published_vectors(width: int) -> None:
    dtype = np.dtype(f"u{width // 8}")
    known = [v[1:] for v in VECTORS if v[0] == width]
    assert all(words(width, counter, key) == want for counter, key, want in known)
    counters, keys, wants = (np.array(part, dtype) for part in zip(*known, strict=True))
    check(philox_words, [np.ascontiguousarray(counters.T), np.ascontiguousarray(keys.T)], [wants],
          {"N": len(known), "ROUNDS": 10}, warps=1)


@pytest.mark.parametrize(("width", "rounds", "n"), [(32, 0, 5), (32, 7, 100), (64, 6, 33)])
def test_any_counter_key_and_number_of_rounds(width: int, rounds: int, n: int) -> None:
    rng, dtype = np.random.default_rng(rounds), np.dtype(f"u{width // 8}")
    counters, keys = bits(rng, (4, n), dtype), bits(rng, (2, n), dtype)
    wants = [words(width, c, k, rounds) for c, k in zip(counters.T.tolist(), keys.T.tolist(),
                                                        strict=True)]
    check(philox_words, [counters, keys], [np.array(wants, dtype)], {"N": n, "ROUNDS": rounds})


@tilec.jit
def of_a_seed(seed, first, out, N: tl.constexpr):
    offset = first + tl.arange(0, N)
    a, b, c, d = tl.randint4x(seed, offset)
    e, f, g, h = tl.philox(seed, first.to(tl.uint64) + tl.arange(0, N), 1, 2, 3, n_rounds=7)
    wide = tl.join(tl.join(e, g), tl.join(f, h)).reshape(N, 4)
    at = tl.arange(0, N)[:, None] * 4 + tl.arange(0, 4)
    tl.store(out + at, tl.join(tl.join(a, c), tl.join(b, d)).reshape(N, 4))
    tl.store(out + N * 4 + at, wide)
    tl.store(out + N * 8 + tl.arange(0, N), tl.randint(seed, offset, 4))


@pytest.mark.parametrize(("seed", "first", "n"), [
    (5, 0, 12), (-3, 2**31 - 7, 64), (2**63 + 12345678901, 2**40 + 1, 96), (2**40, -20, 7)])
@pytest.mark.sample(2)
def test_seeds_and_offsets_of_any_width(seed: int, first: int, n: int) -> None:
    """An offset of 32 bits wraps; a seed has a sign."""
    mask, key = 2**32 - 1, seed % 2**64
    narrow = -2**31 <= first < 2**31
    counters = [(first + i) & mask if narrow else (first + i) % 2**64 for i in range(n)]
    small = [words(32, [c & mask, c >> 32, 0, 0], [key & mask, key >> 32]) for c in counters]
    wide = [words(64, [(first + i) % 2**64, 1, 2, 3], [key, 0], 7) for i in range(n)]
    one = [words(32, [c & mask, c >> 32, 0, 0], [key & mask, key >> 32], 4)[0] for c in counters]
    flat = [w for rows in (small, wide) for row in rows for w in row] + one
    check(of_a_seed, [seed, first], [np.array(flat, np.uint64)], {"N": n})


@tilec.jit
def one_round(seeds, out, N: tl.constexpr):
    at = tl.arange(0, N)
    words = tl.philox(tl.load(seeds + at)[None, :], at[:, None], 1, 2, 3, n_rounds=1)
    for word, i in ((words[0], 0), (words[1], 1), (words[2], 2), (words[3], 3)):
        tl.static_assert(word.shape == (N, N))
        tl.store(out + i * N * N + at[:, None] * N + at, word)


def test_all_words_have_the_shape_of_all_that_enters() -> None:
    """One round leaves words that not everything enters."""
    seeds = bits(np.random.default_rng(1), (6,), np.dtype("u8"))
    want = [[words(32, [i, 1, 2, 3], [s & 2**32 - 1, s >> 32], 1) for s in seeds.tolist()]
            for i in range(6)]
    check(one_round, [seeds], [np.moveaxis(np.array(want, np.uint32), -1, 0).copy()], {"N": 6})


# -- umulhi ---------------------------------------------------------------------------------------

@tilec.jit
def upper_half(x_ptr, y_ptr, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.umulhi(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_umulhi(dtype: str) -> None:
    rng, kind = np.random.default_rng(int(dtype[1])), np.dtype(dtype)
    ends = np.array([np.iinfo(kind).min, np.iinfo(kind).max, 0, 1, -1 if dtype[0] == "i" else 2],
                    kind)
    x, y = (np.concatenate([np.tile(ends, 5) if i else np.repeat(ends, 5), bits(rng, (75,), kind)])
            for i in range(2))
    width = 8 * kind.itemsize
    want = [(a % 2**width) * (b % 2**width) >> width for a, b in zip(x.tolist(), y.tolist(),
                                                                    strict=True)]
    check(upper_half, [x, y], [np.array(want, f"u{kind.itemsize}").view(kind)], {"N": 100})


def test_words_of_32_bits_take_one_instruction_for_each_half() -> None:
    made = tilec.compile(upper_half, signature=dict.fromkeys(("x_ptr", "y_ptr", "out"), "*u32"),
                         constexprs={"N": 128}, target="sm_90a")
    assert made.asm["ptx"].count("mul.hi.u32") == 1 and "mul.wide.u32" not in \
        made.asm["ptx"].split("ld.global")[-1].split("st.global")[0]


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
def test_machine_code_is_made(target: str) -> None:
    made = tilec.compile(numbers, signature={"seed": "i64", "first": "i32", "uniform": "*fp32",
                                             "normal": "*fp32"},
                         constexprs={"N": 96}, target=target)
    assert made.asm["cubin"][:4] == b"\x7fELF"


# -- floats ---------------------------------------------------------------------------------------

def uniform(x: np.ndarray) -> np.ndarray:
    signed = x.view(f"i{x.itemsize}")
    scale = np.float32({4: 4.6566127342e-10, 8: 1.0842020432385337e-19}[x.itemsize])
    return np.where(signed < 0, -signed - 1, signed).astype(np.float32) * scale


@tilec.jit
def floats_of(x_ptr, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.uint_to_uniform_float(tl.load(x_ptr + at)))


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4", "u8"])
def test_uniform_numbers_are_at_least_0_and_less_than_1(dtype: str) -> None:
    kind = np.dtype(dtype)
    info = np.iinfo(kind)
    ends = np.array([info.min, info.max, 0, 1, info.max // 2, info.max // 2 + 1], kind)
    x = np.concatenate([ends, bits(np.random.default_rng(8), (94,), kind)])
    want = uniform(x)
    assert (want >= 0).all() and (want < 1).all() and len(np.unique(want)) > 80
    check(floats_of, [x], [want], {"N": 100})


@tilec.jit
def numbers(seed, first, uniform, normal, N: tl.constexpr):
    offset = first + tl.arange(0, N)
    a, b, c, d = tl.rand4x(seed, offset)
    at = tl.arange(0, N)
    for x, i in ((a, 0), (b, 1), (c, 2), (d, 3), (tl.rand(seed, offset, 5), 4)):
        tl.store(uniform + i * N + at, x)
    a, b, c, d = tl.randn4x(seed, offset)
    for x, i in ((a, 0), (b, 1), (c, 2), (d, 3), (tl.randn(seed, offset, 5), 4)):
        tl.store(normal + i * N + at, x)


def normals(u: np.ndarray, v: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """In float64, and how far from it a result may be: the logarithm's bound of semantics.md,
    section 6, through the root, and the angle's rounding."""
    square = -2 * np.log(np.maximum(np.float64(np.float32(1e-7)), u))
    radius, error = np.sqrt(square), 2.0**-20 * np.maximum(1, square)
    angle = np.float64(np.float32(2 * np.pi)) * v
    away = np.minimum(error / (2 * radius + 1e-30), np.sqrt(error)) + radius * 2.0**-19
    return (radius * np.cos(angle), radius * np.sin(angle)), away


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("seed", "n"), [(7, 100), (2**50 + 3, 1024)])
@pytest.mark.sample(4)
def test_uniform_and_normal_numbers(seed: int, n: int, level: str) -> None:
    got = [np.full((5, n), np.nan, np.float32) for _ in range(2)]
    made = numbers.warmup(seed, 1000, *got, grid=(1,), N=n, target="sm_90a")
    made.run([seed, 1000, *got], 1, level=level)
    check_numbers(seed, n, *got)


def check_numbers(seed: int, n: int, flat: np.ndarray, normal: np.ndarray) -> None:
    """What `numbers` gives for a seed, from offset 1000 on."""
    key = [seed & 2**32 - 1, seed >> 32]
    ten, five = (np.array([words(32, [1000 + i, 0, 0, 0], key, r) for i in range(n)], np.uint32).T
                 for r in (10, 5))
    want = uniform(np.concatenate([ten, five[:1]]))
    np.testing.assert_array_equal(flat, want)
    u = uniform(np.concatenate([ten, five[:2]])).astype(np.float64)
    for first, rows in ((0, (0, 1)), (2, (2, 3)), (4, (4,))):
        pair, away = normals(u[first], u[first + 1])
        for exact, row in zip(pair, rows, strict=False):
            assert (np.abs(normal[row] - exact) <= away).all()


# -- mistakes -------------------------------------------------------------------------------------

MISTAKES = {  # expression: message, advice; the caret is under all of it
    "tl.umulhi(x, 1.5)": ("takes integers, found", "bitcast=True"),
    "tl.umulhi(x > 3, x > 4)": ("takes integers", "bitcast"),
    "tl.umulhi(p, x)": ("does not apply|pointer", ""),
    "tl.umulhi(x)": ("missing a required argument: 'y'", "signature"),
    "tl.umulhi(x, -1)": ("does not fit|negative|out of range", ""),
    "tl.rand(5)": ("offset", ""),
    "tl.rand(5, p)": (r"cannot cast pointer<fp32> to|cannot cast", "int64"),
    "tl.randint(5, None)": ("expected a tile or a number", "optional"),
    "tl.rand(5, x, n)": ("known at compile time", "constexpr"),
    "tl.randint(5, x, rounds=7)": ("rounds", ""),
    "tl.uint_to_uniform_float(x.to(tl.uint8))": ("uint8", "converted"),
    "tl.random.rnd(5, x)": ("no `rnd`", "rand"),
}
TEXT = """
@tilec.jit
def k(p, n):
    x = tl.arange(0, 16).to(tl.uint32)
    y = {}
"""


@pytest.mark.parametrize("expression", MISTAKES)
def test_mistakes_name_line_place_and_cure(expression: str) -> None:
    message, advice = MISTAKES[expression]
    kernel = from_text(TEXT.format(expression))
    with pytest.raises(CompilationError) as caught:
        specialized(kernel, {"p": "*fp32", "n": "i32"}, {}).build()
    error: Any = caught.value
    assert re.search(message, error.message), error.message
    assert re.search(advice, error.advice), error.advice
    line, caret = str(error).splitlines()[1:3]
    under = line[caret.index("^"):caret.rindex("^") + 1]
    assert error.loc.chain()[-1].line == 5 and under in expression, str(error)
