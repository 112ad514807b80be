"""How random programs multiply matrices: single products, pipelines, persistent nests, and loops of
chained products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.explicit import EXPLICIT
from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.program import For, Let

RESULTS = {"float16": ("float32", "float32", "float16"), "bfloat16": ("float32",),
           "float32": ("float32",), "float64": ("float64",), "int8": ("int32",),
           "float8e4nv": ("float32", "float16"), "float8e5": ("float32",)}
OPTIONS = (("num_stages", (1, 2, 3, 4)), ("loop_unroll_factor", (2,)), ("flatten", (True,)),
           ("warp_specialize", (True,)), ("disallow_acc_multi_buffer", (True,)))


def types(g: Generator) -> tuple[str, str, str]:
    """(operands' type, result's, input_precision or "")."""
    t = g.rng.choice([*RESULTS, "float16", "bfloat16"])
    precision = g.rng.choice(["", "tf32", "tf32x3", "ieee"]) if t == "float32" else ""
    return t, g.rng.choice(RESULTS[t]), precision


def options(g: Generator) -> dict[str, Any]:
    return {k: g.rng.choice(vs) for k, vs in OPTIONS if g.rng.random() < 0.35}


class Operand:
    """One side of products in a loop over k: how the block of a step is addressed and loaded.
    before(): what stands before the loop; load(k): in it; after(): at its end."""

    def __init__(self, g: Generator, t: str, rows: int, step: int, length: int, left: bool,
                 masked: bool) -> None:
        self.g, self.t, self.rows, self.step, self.left = g, t, rows, step, left
        self.length, self.masked = length, masked
        rng = g.rng
        self.way = rng.choice(["index", "pointer", "block", "descriptor", "descriptor"])
        # Whether k lies along the last dimension in memory, and whether that has to be turned.
        self.inner = rng.random() < (0.7 if left else 0.3)
        held = (rows, length) if self.inner else (length, rows)
        self.block = (rows, step) if self.inner else (step, rows)
        self.turned = self.inner != left
        self.held = held
        self.strides = (length, 1) if self.inner else (rows, 1)
        host = self.way == "descriptor" and rng.random() < 0.6
        more = {"extents": held, "block": self.block} if host else {}
        self.base = g.argument("whole", t, held[0] * held[1], again=0.0, **more)
        if self.way == "descriptor":
            self.p = self.base if host else g.put("make_descriptor", self.base, *held,
                                                  block=self.block, padding="zero")
        elif self.way == "block":
            self.p = g.put("make_block_ptr", self.base, *held, 0, 0, strides=self.strides,
                           block=self.block)
        else:
            at = g.put("lanes", shape=self.block, strides=self.strides, flip=())
            self.p = g.put("add", self.base, at)
        if self.way == "block":
            self.p = g.put("copy", self.p)

    def place(self, k: Any) -> tuple[Any, Any]:
        return (0, k) if self.inner else (k, 0)

    def load(self, k: str) -> str:
        g = self.g
        if self.way == "descriptor":
            x = g.put("descriptor_load", self.p, *self.place(k), form=False)
        elif self.way == "block":
            x = g.put("block_load", self.p, check=(0, 1), padding="zero")
            g.add(Let("advance", (self.p,), (self.p, *self.place(self.step)), {"form": False}))
        else:
            mask = None
            if self.masked:
                at = g.put("add", g.put("arange", lo=0, hi=self.step), k)
                row = g.put("expand_dims", at, axis=0 if self.inner else 1, rank=2)
                mask = g.put("compare", row, self.length, symbol="<")
            p = self.p
            if self.way == "index":
                far = k if self.inner else g.put("mul", k, self.rows)
                p = g.put("add", self.p, far)
            x = g.put("load", p, mask, 0 if self.masked else None, more="")
            if self.way == "pointer":
                by = self.step if self.inner else self.step * self.rows
                g.add(Let("add", (self.p,), (self.p, by)))
        return g.put("trans", x, form="tl.trans") if self.turned else x


def extents(g: Generator, t: str) -> tuple[int, int, int, int]:
    """(rows, columns, step, length) of a product in a loop."""
    rng = g.rng
    most = g.elements * 4
    while True:
        m, n = rng.choice([16, 32, 64, 64, 128, 24, 8]), rng.choice([8, 16, 32, 64, 48])
        step = rng.choice([16, 32, 64, 8, 24])
        if max(m * n, m * step, n * step) <= most:
            break
    rounds = rng.choice([1, 2, 3, 4, 6])
    lack = rng.choice([0, 0, 3, 8])
    return m, n, step, max(1, rounds * step - lack)


def single(g: Generator) -> None:
    """A product of what is loaded once, of three dimensions perhaps, or of tiles that are there."""
    rng = g.rng
    t, out, precision = types(g)
    m, n, k, _ = extents(g, t)
    if rng.random() < 0.25:
        shapes = [(2, m, k), (2, k, n)]
    else:
        shapes = [(m, k), (k, n)]
    if max(a * b for *_, a, b in shapes) > 2 * g.elements:
        shapes = [(16, 16), (16, 8)]
    sides = []
    for shape in shapes:
        at = g.put("lanes", shape=shape, strides=_strides(shape, rng.random() < 0.4), flip=())
        size = 1
        for e in shape:
            size *= e
        p = g.put("add", g.argument("whole", t, size, again=0.3), at)
        sides.append(g.put("load", p, None, None, more=""))
    acc = None
    if rng.random() < 0.5:
        shape = (*shapes[0][:-1], shapes[1][-1])
        acc = g.put("full", shape=shape, x=rng.choice([0, 1, 3]), t=out)
    y = g.put("dot", *sides, acc, out=out, precision=precision)
    if rng.random() < 0.4 and t in ("float16", "bfloat16"):  # an operand of another one
        z = g.put("cast", g.put("clamp", y, -8, 8), t=t, form="")
        z = g.put("dot", g.put("trans", z, form="tl.trans"), z, None, out="float32", precision="")
        g.attempt(lambda g: g.store(z))
    elif rng.random() < 0.3:
        y = g.put("add", y, g.put("full", shape=g.value(y).shape, x=2, t=out))
    g.store(y)


def _strides(shape: tuple[int, ...], turned: bool) -> tuple[int, ...]:
    m, n = shape[-2:]
    return ((m * n,) if len(shape) == 3 else ()) + ((1, m) if turned else (n, 1))


def _rounds(g: Generator, a: Operand, b: Operand, acc: str, out: str, precision: str,
            over: str) -> For:
    """The loop over k."""
    rng, k = g.rng, g.name("k")
    hi = g.argument("number", "int32", 1, again=0.0, number=a.length) if rng.random() < 0.5 \
        else a.length
    with g.inside(**{k: (0,)}) as body:
        x, y = a.load(k), b.load(k)
        kind = rng.random()
        if kind < 0.2 and a.t != "int8" and not a.t.startswith("float8"):
            x = g.put("extreme", x, 0, name="maximum", nan=False)
        if kind < 0.8:
            g.add(Let("dot", (acc,), (x, y, acc), {"out": out, "precision": precision}))
        else:
            part = g.put("dot", x, y, None, out=out, precision=precision)
            g.add(Let("add", (acc,), (acc, part)))
    chosen = options(g)
    return For(k, 0, hi, a.step, body, chosen, "tl.range" if chosen else over)


def loop(g: Generator) -> None:
    """A pipeline: a sum of products over k."""
    t, out, precision = types(g)
    m, n, step, length = extents(g, t)
    masked = length % step != 0 or g.rng.random() < 0.2
    a = Operand(g, t, m, step, length, True, masked)
    b = Operand(g, t, n, step, length, False, masked)
    acc = g.put("zeros", shape=(m, n), t=out)
    g.add(_rounds(g, a, b, acc, out, precision, "range"))
    if g.rng.random() < 0.3:
        acc = g.put("cast", acc, t="float32", form="")
    g.store(acc)


def persistent(g: Generator) -> None:
    """A nest: tiles in turn, a sum of products for each, a store of each."""
    rng = g.rng
    t, out, precision = types(g)
    m, n, step, length = extents(g, t)
    masked = length % step != 0
    tiles = rng.choice([1, 3, 4, 5])
    made = rng.random() < 0.5
    extents_, block = (tiles * m, n), (m, n)
    size = tiles * m * n
    if made:
        result = g.argument("poison", out, size, again=0.0, extents=extents_, block=block)
    else:
        result = g.argument("poison", out, size, again=0.0)
    first, every = g.put("program", axis=0), g.put("programs", axis=0)
    g.program.grid = (g.program.grid[0], 1)
    g.machines = [x for x in g.machines if x.program[1] == 0]
    for x in g.machines:
        x.grid = (*g.program.grid, 1)
    tile = g.name("tile")
    with g.inside(**{tile: (first, tiles, every)}) as body:
        a = Operand(g, t, m, step, length, True, masked)
        b = Operand(g, t, n, step, length, False, masked)
        acc = g.put("zeros", shape=(m, n), t=out)
        g.add(_rounds(g, a, b, acc, out, precision, "range"))
        row = g.put("mul", tile, m)
        acc = g.put("add", acc, g.put("cast", tile, t=out, form=""))
        if made:
            g.do("descriptor_store", result, acc, row, 0, form=False)
        else:
            at = g.put("add", g.put("mul", row, n), g.put("lanes", shape=(m, n), strides=(n, 1),
                                                          flip=()))
            g.do("store", g.put("add", result, at), acc, None, more="")
    chosen = options(g)
    g.add(For(tile, first, tiles, every, body, chosen, "tl.range"))


def chain(g: Generator) -> None:
    """First products of a block that stays, second ones of what is made of them, in any order, as
    attention has them."""
    rng, p = g.rng, g.program
    p.target, width, step = "sm_90a", 64, 32
    warps = rng.choice([4, 8])
    p.options |= {"num_warps": warps, "maxnreg": rng.choice([0, 96, 128])}
    rows, n = 16 * warps, rng.randint(2, 5 * step)
    t = rng.choice(["float16", "bfloat16"])

    def described(fill: str, t: str, extents: tuple[int, int], height: int) -> str:
        return g.argument(fill, t, extents[0] * extents[1], again=0.0, extents=extents,
                          block=(height, width))

    q = g.put("descriptor_load", described("whole", t, (rows, width), rows), 0, 0, form=False)
    firsts, seconds = rng.randint(1, 3), rng.randint(1, 3)
    names = [described("whole", t, (n, width), step) for _ in range(firsts + seconds)]
    sums = [g.put("zeros", shape=(rows, width), t="float32") for _ in range(seconds)]
    row = g.argument("whole", "float32", n, again=0.0)
    hi = g.argument("number", "int32", 1, again=0.0, number=n)
    i = g.name("i")
    with g.inside(**{i: (0,)}) as body:
        _chained(g, names, firsts, sums, q, i, (row, hi, step, t))
    g.add(For(i, 0, hi, step, body, {"warp_specialize": rng.random() < 0.5}, "tl.range"))
    for acc in sums:
        if rng.random() < 0.5:
            out = described("poison", "float32", (rows * len(g.machines), width), rows)
            g.do("descriptor_store", out, acc, g.put("mul", g.put("number"), rows), 0, form=False)
        else:
            g.store(acc)


def _chained(g: Generator, names: list[str], firsts: int, sums: list[str], q: str, i: str,
             rest: tuple[str, str, int, str]) -> None:
    """The body of `chain`."""
    rng, (row, hi, step, t) = g.rng, rest
    waiting = [("first", j) for j in range(firsts)] + [("second", j) for j in range(len(sums))]
    blocks: list[str] = []
    scores: list[str] = []
    while waiting:
        what, j = rng.choice(waiting)
        if what == "second" and not scores:
            continue
        waiting.remove((what, j))
        if what == "first":
            blocks.append(g.put("descriptor_load", names[j], i, 0, form=False))
            s = g.put("dot", q, g.put("trans", blocks[-1], form="tl.trans"), None, out="float32",
                      precision="")
            if rng.random() < 0.3:
                at = g.put("add", i, g.put("arange", lo=0, hi=step))
                mask = g.put("compare", at, hi, symbol="<")
                shift = g.put("load", g.put("add", row, at), mask, 0.0, more="")
                s = g.put("sub", s, g.put("expand_dims", shift, axis=0, rank=2))
            scores.append(s)
            continue
        made = g.put("extreme", rng.choice(scores), rng.choice([0.0, *scores]), name="maximum",
                     nan=False)
        made = g.put("cast", g.put("clamp", made, 0.0, 7.0), t=t, form="")
        v = rng.choice(blocks) if rng.random() < 0.5 else \
            g.put("descriptor_load", names[firsts + j], i, 0, form=False)
        g.add(Let("dot", (sums[j],), (made, v, sums[j]), {"out": "float32", "precision": ""}))


Draw = Callable[[Generator], None]
PRODUCTS: Kinds = {single: 5, loop: 9, persistent: 4, chain: 3, **EXPLICIT}
