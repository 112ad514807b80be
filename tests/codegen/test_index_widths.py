"""How wide loads and stores are, and which lanes share a predicate, follows from what is known of
their addresses and masks: random kernels whose indices wrap and are divided, cast and picked leave
the same bits in memory at tile and as PTX."""

from __future__ import annotations

import importlib.util
import random
from math import prod
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec import JITFunction

INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32,
        "uint64": 64}
POINTEES = ("int8", "float16", "float32", "int64")
SHAPES = ((128,), (128,), (96,), (100,), (300,), (12,), (16, 8), (8, 24), (4, 3, 16))
IN = 256  # elements of an input
ACCESSES = 5
N = (0, 1, -128, 16, 100, 7 << 28, (1 << 31) - 48, -(1 << 31), 3 << 29, -16)
HEADER = "import tilec\nimport tilec.language as tl\n\n\n@tilec.jit\n"


class Kernel:
    """The text of one kernel: x, y, inputs of one dtype, o, the output, and n, a number."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.shape, self.pointee = rng.choice(SHAPES), rng.choice(POINTEES)
        size = prod(self.shape)
        lines = [f"a = {self.place()}"]
        for k in range(ACCESSES):
            at = f"o + {k * size} + {self.target(size)}"
            lines.append(f"v = tl.load({self.pointer()}, mask={self.mask()}, other=1)")
            lines.append(f"tl.store({at}, v, mask={self.mask()})" if rng.random() < 0.6
                         else f"tl.store({at}, v)")
        self.source = HEADER + "def kernel(x, y, o, n):\n" + "".join(f"    {s}\n" for s in lines)

    def place(self) -> str:
        """Row-major numbers of the elements."""
        rank, terms = len(self.shape), []
        for d, extent in enumerate(self.shape):
            where = ", ".join(":" if i == d else "None" for i in range(rank))
            terms.append(f"tl.arange(0, {extent})[{where}] * {prod(self.shape[d + 1:])}")
        return " + ".join(terms)

    def target(self, size: int) -> str:
        """Where to store, every element at a place of its own."""
        moved = self.rng.choice(("n", "8 * n", "3", "16"))
        if size & (size - 1) or self.rng.random() < 0.4:
            return self.rng.choice(("a", "a", f"({size - 1} - a)"))
        return f"((a + {moved}) & {size - 1})"

    def number(self, t: str, most: int = 0) -> int:
        bits, rng = INTS[t], self.rng
        top = (1 << (bits - (t[0] == "i"))) - 1
        n = rng.choice((rng.randint(1, 20), rng.choice((3, 4, 8, 16, 64, 100)),
                        1 << rng.randrange(bits - 1), top - rng.randrange(64)))
        n = min(n, most or top, top)
        return -n if t[0] == "i" and rng.random() < 0.3 else n

    def index(self, steps: int) -> tuple[str, str]:
        """An integer for each element, and its dtype."""
        rng = self.rng
        text = rng.choice(("a", "a", "(a + n)", "(n - a)", "(n * 16 + a)", "(a + n * 4)",
                           # As large as their signs are known: they wrap to negative numbers.
                           "((tl.program_id(0) + 3) * 1073741824 + a)", "(a + 2147483584)",
                           "((tl.program_id(0) + 50000) * 50000 + a)",
                           "(a.to(tl.uint32) + 4294967168).to(tl.int32)", "(a * 67108864)",
                           "(a.to(tl.uint8) + 128).to(tl.int8).to(tl.int32)",
                           "tl.max_contiguous(tl.multiple_of(n * 8 + tl.reshape(a, "
                           f"({prod(self.shape)},)), 8), 8)"))
        t = "int32"
        if text.startswith("tl.max"):
            text = f"tl.reshape({text}, {self.shape})"
        for _ in range(steps):
            text, t = self.step(text, t)
        return text, t

    def step(self, text: str, t: str) -> tuple[str, str]:
        rng, divisor = self.rng, self.rng.choice((2, 3, 4, 8, 12, 16, 64))
        match rng.randrange(14):
            case 0 | 1:
                to = rng.choice(list(INTS))
                return f"{text}.to(tl.{to})", to
            case 2 | 3 | 12:
                return f"({text} // {divisor})", t
            case 4 | 13:
                return f"({text} % {divisor})", t
            case 5:
                return f"({text} {rng.choice(('>>', '<<'))} {rng.randrange(1, 4)})", t
            case 6:
                mask = rng.choice((7, 15, 63, -4)) if t[0] == "i" else 63
                return f"({text} & {mask})", t
            case 7:
                return rng.choice((f"(-{text})", f"(~{text})", f"tl.abs({text})")), t
            case 8:
                return f"tl.where({self.mask(1)}, {text}, {text} + {abs(self.number(t))})", t
            case 9:
                return f"({text} * {self.number(t, 100)})", t
        return f"({text} {rng.choice('+-')} {abs(self.number(t))})", t

    def offset(self) -> str:
        """An index from 0 to 127."""
        text, _ = self.index(self.rng.randrange(5))
        return self.rng.choice((f"({text} & 127)", f"({text} % 64 + 64)"))

    def pointer(self) -> str:
        if self.rng.random() < 0.3:
            return f"tl.where({self.mask()}, x + {self.offset()}, y + {self.offset()})"
        return f"x + {self.offset()}" + self.rng.choice(("", "", " + 8", " + 128"))

    def mask(self, steps: int = 4) -> str:
        if self.rng.random() < 0.2:
            return f"(a % {self.rng.choice((3, 8, 12))} {self.rng.choice(('==', '<'))} 2)"
        text, t = self.index(self.rng.randrange(steps))
        compared, number = self.rng.choice(("<", "<=", ">", ">=", "!=")), self.number(t)
        divisor = self.rng.choice((3, 4, 8, 64))
        return self.rng.choice((f"({text} {compared} {number})", f"({text} % {divisor} == 0)",
                                f"({text} // {divisor} {compared} {int(number / divisor)})"))


def check(seed: int, folder: Path) -> None:
    kernel, rng = Kernel(seed), np.random.default_rng(seed)
    path = folder / "random_indices.py"
    path.write_text(kernel.source)
    spec = importlib.util.spec_from_file_location("random_indices", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: JITFunction = module.kernel
    x, y = (rng.integers(-99, 100, IN).astype(kernel.pointee) for _ in range(2))
    size, n = ACCESSES * prod(kernel.shape), int(rng.choice(N))
    stored = []
    made = function.warmup(x, y, np.zeros(size, kernel.pointee), n, grid=(1,), num_warps=1)
    for level in ("tile", "ptx"):
        # Beyond its end, too: a lane that is too wide writes there.
        o = np.full(size + 64, 77, kernel.pointee)
        values = dict(zip("xyon", (x.copy(), y.copy(), o, n)))
        made.run({k: values[k] for k in made.signature}, (1,), level=level)
        stored.append(o)
    assert np.array_equal(*stored), \
        f"seed {seed}, n = {n}, elements {np.flatnonzero(stored[0] != stored[1])}\n{kernel.source}"


@tilec.jit
def wraps_by_a_product(x, o, N: tl.constexpr):
    a = tl.arange(0, N)
    i = (tl.program_id(0) + 3) * 1073741824 + a
    tl.store(o + a, tl.load(x + 8 + i % 4))


@tilec.jit
def was_unsigned(x, o, N: tl.constexpr):
    a = tl.arange(0, N)
    i = (a.to(tl.uint32) + 4294967168).to(tl.int32)
    tl.store(o + a, tl.load(x + 8 + i % 4))


@tilec.jit
def masked_by_a_quotient(x, o, N: tl.constexpr):
    i = (tl.program_id(0) + 50000) * 50000 + tl.arange(0, N)
    tl.store(o + tl.arange(0, N), 1.0, mask=i // 4 <= -448741824)


@tilec.jit
def one_of_two_pointers(x, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o + i, tl.load(tl.where(i % 3 == 0, x + i, x + 64 + i)))


@tilec.jit
def hinted_beyond_the_end(x, o, N: tl.constexpr):
    i = tl.arange(0, N + 172)  # 300 are 4 * 75
    tl.store(tl.max_contiguous(tl.multiple_of(o + i, 8), 8), tl.load(x + i))


@tilec.jit
def narrow_neighbours(x, o, N: tl.constexpr):
    i = tl.arange(0, N)
    start = tl.load(x).to(tl.int8) + 97  # as x begins with 1: 98
    tl.store(o + i, tl.load(x + 130 + start), mask=i < 64)
    tl.store(o + i, tl.load(x + 130 + (start + 50)), mask=i >= 64)


@tilec.jit
def scalar_neighbours(x, o, N: tl.constexpr):
    start = (tl.load(x) + 97).to(tl.int8)
    tl.store(o, tl.load(x + 130 + start))
    tl.store(o + 1, tl.load(x + 130 + (start + 50)))


K, R = np.arange(1, 401), np.arange(320)
WANT = {  # x is 1, 2, 3 ...
    wraps_by_a_product: np.array([9, 6, 7, 8])[R % 4], was_unsigned: np.array([9, 6, 7, 8])[R % 4],
    masked_by_a_quotient: np.where(R < 1, 1, 77),
    one_of_two_pointers: np.where(R % 3 == 0, 1 + R, 65 + R),
    hinted_beyond_the_end: np.where(R < 300, 1 + R, 0),
    narrow_neighbours: np.where(R < 64, 131 + 98, 131 + 148 - 256),
    scalar_neighbours: np.where(R < 1, 131 + 98, 131 + 148 - 256)}
WRITTEN = {hinted_beyond_the_end: 300, scalar_neighbours: 2}  # elements; by the others, 128


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("kernel", WANT, ids=lambda k: k.name)
def test_what_wraps(kernel: JITFunction, level: str) -> None:
    for dtype in (np.float32, np.int16, np.uint8):
        o = np.full(320, 77, dtype)
        with tilec.knobs.scope(run=level):
            kernel[(1,)](K.astype(dtype), o, N=128, num_warps=1)
        want = np.where(R < WRITTEN.get(kernel, 128), WANT[kernel], 77)
        np.testing.assert_array_equal(o, want.astype(dtype))


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sample(6)
def test_same_bits(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 3000))
def test_same_bits_of_many(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)
