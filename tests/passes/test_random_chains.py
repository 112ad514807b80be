"""Random loops of first and second dots, in any order: they compile, with exact results at every
level, however few registers there are and with or without warp roles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tilec
from tests.runtime.support import from_text
from tilec.knobs import RUN_LEVELS

D, STEP = 64, 32
LEVELS = RUN_LEVELS
HEADER = """
@tilec.jit
def kernel(q, {blocks}, {outs}, row, n, STEP: tl.constexpr, WS: tl.constexpr):
    BM: tl.constexpr = q.block_shape[0]
    D: tl.constexpr = q.block_shape[1]
    x = q.load([0, 0])
"""


@dataclass
class Loop:
    """A kernel's text and what it computes: of each second dot, (first dots that it is made of, its
    block), and which first dots have had the row taken off."""

    firsts: int
    lines: list[str] = field(default_factory=list)
    seconds: list[tuple[list[int], int]] = field(default_factory=list)
    blocks: int = 0
    shifted: set[int] = field(default_factory=set)

    def text(self) -> str:
        blocks = ", ".join(f"k{i}" for i in range(self.blocks))
        outs = ", ".join(f"o{j}" for j in range(len(self.seconds)))
        sums = "".join(f"    a{j} = tl.zeros((BM, D), tl.float32)\n"
                       for j in range(len(self.seconds)))
        stores = "".join(f"    o{j}.store([0, 0], a{j})\n" for j in range(len(self.seconds)))
        body = "".join(f"        {line}\n" for line in self.lines)
        return HEADER.format(blocks=blocks, outs=outs) + sums + \
            "    for i in tl.range(0, n, STEP, warp_specialize=WS):\n" + body + stores


def random_loop(rng: np.random.Generator) -> Loop:
    """First dots are x k', perhaps less a row that pointers read; second ones the larger of two
    such, or one, by a block of their own or of a first dot."""
    loop = Loop(firsts=int(rng.integers(1, 4)))
    loop.blocks = loop.firsts
    waiting = [f"first {i}" for i in range(loop.firsts)] + \
        [f"second {j}" for j in range(rng.integers(1, 4))]
    there: list[int] = []
    while waiting:
        kind = waiting[int(rng.integers(len(waiting)))]
        if kind.startswith("second") and not there:
            continue
        waiting.remove(kind)
        if kind.startswith("first"):
            i = int(kind.split()[1])
            loop.lines += [f"y{i} = k{i}.load([i, 0])", f"s{i} = tl.dot(x, tl.trans(y{i}))"]
            if rng.integers(3) == 0:
                loop.shifted.add(i)
                loop.lines += [
                    f"c{i} = i + tl.arange(0, STEP)",
                    f"s{i} -= tl.load(row + c{i}, mask=c{i} < n, other=0.0)[None, :]"]
            there.append(i)
            continue
        j, of = len(loop.seconds), [int(i) for i in rng.choice(there, min(2, len(there)), False)]
        if rng.integers(2):
            of = of[:1]
        block = int(rng.choice(there)) if rng.integers(2) else loop.blocks
        if block == loop.blocks:
            loop.blocks += 1
            loop.lines.append(f"y{block} = k{block}.load([i, 0])")
        made = f"tl.maximum(s{of[0]}, {f's{of[1]}' if len(of) > 1 else '0.0'})"
        loop.lines.append(f"a{j} = tl.dot({made}.to(q.dtype), y{block}, a{j})")
        loop.seconds.append((of, block))
    return loop


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sample(6)
def test_random_chain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loop, warps = random_loop(rng), int(rng.choice([4, 8]))
    n, rows = int(rng.integers(2, 5 * STEP)), 16 * warps
    q = rng.integers(-1, 2, (rows, D)).astype(np.float16)
    blocks = [rng.integers(-1, 2, (n, D)).astype(np.float16) for _ in range(loop.blocks)]
    row = rng.integers(-3, 4, n).astype(np.float32)
    s = [q.astype(np.float64) @ k.astype(np.float64).T - (row if i in loop.shifted else 0)
         for i, k in enumerate(blocks[:loop.firsts])]
    want = [np.maximum(s[of[0]], s[of[1]] if len(of) > 1 else 0) @ blocks[b].astype(np.float64)
            for of, b in loop.seconds]
    got = [np.empty((rows, D), np.float32) for _ in want]

    def described(x: np.ndarray, height: int) -> Any:
        return tilec.TensorDescriptor.from_tensor(x, (height, D))

    args = [described(q, rows), *(described(k, STEP) for k in blocks),
            *(described(out, rows) for out in got), row, n]
    made = from_text(loop.text()).warmup(
        *args, STEP=STEP, WS=bool(rng.integers(2)), grid=(1,), target="sm_90a", num_warps=warps,
        num_stages=int(rng.integers(1, 4)), maxnreg=int(rng.choice([0, 96, 128])))
    assert "tile.dot" not in made.asm["gpu"]
    for level in LEVELS:
        for out in got:
            out[:] = np.nan
        made.run(args, 1, level, seed=seed)
        for out, right in zip(got, want, strict=True):
            np.testing.assert_array_equal(out, right, f"{level}\n{loop.text()}")
