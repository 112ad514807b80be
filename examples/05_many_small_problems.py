"""Many small problems of different kinds and sizes in one launch (horizontal fusion).

A launch costs more than a small problem. So the problems are laid end to end in one buffer, and a
table says of every tile which problem it belongs to: a program looks its tile up, and from there
it knows the range, the kind of work and the scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import support

import tilec
import tilec.language as tl

SCALE, RELU, SQUARE = (tl.constexpr(i) for i in range(3))
KINDS = ("scale", "relu", "square")


@tilec.jit
def many_kernel(x_ptr, out_ptr, tiles_ptr, starts_ptr, kinds_ptr, factors_ptr,
                BLOCK: tl.constexpr):
    """tiles: (programs, 2) int32, the problem of a tile and the tile's number within it."""
    program = tl.program_id(0)
    problem = tl.load(tiles_ptr + program * 2)
    tile = tl.load(tiles_ptr + program * 2 + 1)
    start = tl.load(starts_ptr + problem)
    end = tl.load(starts_ptr + problem + 1)
    kind = tl.load(kinds_ptr + problem)
    factor = tl.load(factors_ptr + problem)

    offs = start + tile * BLOCK + tl.arange(0, BLOCK)
    mask = offs < end
    x = tl.load(x_ptr + offs, mask=mask)
    if kind == SCALE:
        y = x * factor
    elif kind == RELU:
        y = tl.maximum(x, 0.0) * factor
    else:
        y = x * x * factor
    tl.store(out_ptr + offs, y, mask=mask)


class Plan(NamedTuple):
    """The tables of a set of problems, on the side where the kernel runs."""

    tiles: Any
    starts: Any
    kinds: Any
    factors: Any
    programs: int
    block: int


def plan(sizes: list[int], kinds: list[str], factors: list[float], block: int = 256) -> Plan:
    """Tables for problems of these sizes, kinds (of KINDS) and factors, for any number of runs."""
    tiles = [(p, t) for p, size in enumerate(sizes) for t in range(tilec.cdiv(size, block))]
    return Plan(support.array(np.array(tiles), "int32"),
                support.array(np.concatenate([[0], np.cumsum(sizes)]), "int64"),
                support.array(np.array([KINDS.index(k) for k in kinds]), "int32"),
                support.array(np.array(factors), "float32"), len(tiles), block)


def run(problems: Plan, x: Any, out: Any) -> Any:
    """Solve all problems, x to out, both laid end to end; returns the compiled kernel."""
    return many_kernel[(problems.programs,)](x, out, problems.tiles, problems.starts,
                                             problems.kinds, problems.factors,
                                             BLOCK=problems.block)


def reference(x: np.ndarray, sizes: list[int], kinds: list[str],
              factors: np.ndarray) -> np.ndarray:
    """The same in float64, problem by problem."""
    work = {"scale": lambda v: v, "relu": lambda v: np.maximum(v, 0), "square": np.square}
    parts = np.split(x, np.cumsum(sizes)[:-1])
    return np.concatenate([work[k](p) * f for p, k, f in zip(parts, kinds, factors)])


def main(n_problems: int = 40) -> None:
    rng = np.random.default_rng(0)
    sizes = [int(s) for s in rng.integers(1, 1000, n_problems)]
    kinds = [KINDS[i] for i in rng.integers(0, len(KINDS), n_problems)]
    problems = plan(sizes, kinds, list(rng.standard_normal(n_problems)))
    x = support.array(rng.standard_normal(sum(sizes)), "float32")
    out = support.poisoned(sum(sizes), "float32")
    run(problems, x, out)
    support.check(f"{n_problems} problems in one launch of {problems.programs} programs, "
                  f"{support.place()}", out,
                  reference(support.host(x), sizes, kinds, support.host(problems.factors)), 1e-6)


if __name__ == "__main__":
    main()
