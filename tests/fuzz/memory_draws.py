"""How block pointers and tensor descriptors of random programs are drawn."""

from __future__ import annotations

from math import prod

from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.memory_ops import ALONE, atomics_of
from tests.fuzz.numerics import FLOATS, INTS, Reject

EXTENTS = (1, 2, 4, 8, 12, 16, 32)
TYPES = ("float16", "float32", "int32", "int8", "bfloat16", "int64", "uint8")


def _block(g: Generator, ranks: tuple[int, ...]) -> tuple[int, ...]:
    while True:
        block = tuple(g.rng.choices(EXTENTS, k=g.rng.choice(ranks)))
        if prod(block) <= g.elements:
            return block


def block_load(g: Generator) -> None:
    """A block of a matrix, perhaps beyond its edges, perhaps advanced."""
    rng, block, t = g.rng, _block(g, (1, 2, 2, 3)), g.rng.choice(TYPES)
    extents = tuple(n + rng.choice([0, 3, 8]) for n in block)
    strides = tuple(prod(extents[d + 1:]) for d in range(len(block)))
    if len(block) == 2 and rng.random() < 0.3:  # columns lie side by side
        strides = (1, extents[0])
    offsets = [rng.choice([0, 0, 2, -1]) for _ in block]
    p = g.put("make_block_ptr", g.argument("whole", t, 4 * prod(extents), again=0.2),
              *extents, *offsets, strides=strides, block=block)
    if rng.random() < 0.4:
        p = g.put("advance", p, *(rng.choice([0, 1, 4]) for _ in block),
                  form=rng.random() < 0.5)
    padding = rng.choice(["zero", "zero", "nan"]) if t in FLOATS else "zero"
    g.put("block_load", p, check=tuple(range(len(block))), padding=padding)


def block_store(g: Generator) -> None:
    rng = g.rng
    x = g.any(lambda v: 0 < len(v.shape) < 4 and not v.poison.any())
    v = g.value(x)
    extents = tuple(max(1, n - rng.choice([0, 0, 1])) for n in v.shape)
    strides = tuple(prod(extents[d + 1:]) for d in range(len(extents)))
    size = prod(extents)
    out = g.argument("poison", v.dtype, size * len(g.machines), again=0.0)
    base = g.put("add", out, g.put("mul", g.put("number"), size))
    p = g.put("make_block_ptr", base, *extents, *[0] * len(extents), strides=strides,
              block=v.shape)
    g.do("block_store", p, x, check=tuple(range(len(extents))))


def _descriptor(g: Generator, t: str, block: tuple[int, ...], extents: tuple[int, ...],
                fill: str = "whole") -> str:
    """A descriptor that the launch gives, or one made in the kernel."""
    rng = g.rng
    if rng.random() < 0.5:
        return g.argument(fill, t, prod(extents), again=0.0, extents=extents, block=block)
    base = g.argument(fill, t, prod(extents), again=0.0)
    padding = "nan" if t in FLOATS and fill == "whole" and rng.random() < 0.2 else "zero"
    return g.put("make_descriptor", base, *extents, block=block, padding=padding)


def _aligned(g: Generator, t: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A block and extents that TMA could take, mostly."""
    rng, block = g.rng, list(_block(g, (1, 2, 2, 3)))
    block[-1] = max(block[-1], 16)
    extents = [n + rng.choice([0, 5, 16]) for n in block]
    extents[-1] = -(-extents[-1] // 16) * 16 if rng.random() < 0.8 else extents[-1]
    if prod(block) > g.elements:
        raise Reject("too many elements")
    return tuple(block), tuple(extents)


def descriptor_load(g: Generator) -> None:
    rng, t = g.rng, g.rng.choice(TYPES)
    block, extents = _aligned(g, t)
    d = _descriptor(g, t, block, extents)
    at = [rng.choice([0, 0, 8, -1, 16]) for _ in block]
    if len(block) == 2 and block[0] == 1 and rng.random() < 0.7:
        rows = g.put("arange", lo=0, hi=rng.choice([4, 8]))
        g.put("gather", d, g.put("mod", g.put("mul", rows, 3), extents[0] + 1), at[-1])
        return
    g.put("descriptor_load", d, *at, form=rng.random() < 0.2)


def descriptor_store(g: Generator) -> None:
    """Each program stores, or all add to, blocks of a tensor of its own."""
    rng = g.rng
    x = g.any(lambda v: 0 < len(v.shape) < 4 and v.dtype in (*FLOATS, *INTS)
              and v.shape[-1] >= 16 and not v.poison.any())
    v = g.value(x)
    kinds = [k for k in atomics_of(v.dtype) if k not in ALONE]
    kind = rng.choice(kinds) if kinds and rng.random() < 0.5 else ""
    rows = v.shape[0]
    width = v.shape[-1] if v.shape[-1] % 16 == 0 else v.shape[-1] + -v.shape[-1] % 16
    whole = (rows * len(g.machines) if len(v.shape) > 1 else rows, *v.shape[1:-1],
             width)[-len(v.shape):]
    if len(v.shape) == 1:
        whole = (width * len(g.machines),)
    d = _descriptor(g, v.dtype, v.shape, whole,
                    "zero" if kind == "add" else "whole" if kind else "poison")
    at: list[object] = [0] * len(v.shape)
    if not kind or rng.random() < 0.5:
        step = rows if len(v.shape) > 1 else width
        at[0] = g.put("mul", g.put("number"), step)
    if kind:
        g.do("descriptor_atomic", d, x, *at, kind=kind)
    else:
        g.do("descriptor_store", d, x, *at, form=rng.random() < 0.2)


def scatter(g: Generator) -> None:
    """Each program writes rows of a matrix of its own, some of them outside."""
    rng = g.rng
    x = g.any(lambda v: len(v.shape) == 2 and v.dtype in (*FLOATS, *INTS) and not v.poison.any())
    n, columns = g.value(x).shape
    height, width = n * len(g.machines), columns + rng.choice([0, 3])
    d = _descriptor(g, g.value(x).dtype, (1, columns), (height, width), "poison")
    first = g.put("mul", g.put("number"), n)
    rows = g.put("add", first, g.put("arange", lo=0, hi=n))
    g.do("scatter", d, x, rows, rng.choice([0, 0, 2, -1]))


BLOCKS: Kinds = {block_load: 3, block_store: 2, descriptor_load: 3, descriptor_store: 3, scatter: 2}
