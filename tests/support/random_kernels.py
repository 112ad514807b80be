"""Random kernels as source text: tiles of odd extents, every dtype, shapes, reductions, memory,
control flow. Their results are exact, so that all levels must agree bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
FP8 = ("float8e4nv", "float8e5")
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 40, 64, 96, 100, 160, 1000)
IN, SLOTS = 4096, 64  # elements of an input, and of what atomics add to
SUMS = {"bool": "uint32", "int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32"}
BEST = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32",
        "float16": "float32", "bfloat16": "float32"}
PROGRAM = "(tl.program_id(0) + tl.program_id(1) * tl.num_programs(0))"
HEADER = '''import tilec
import tilec.language as tl


@tilec.jit
def pick(a, b, c, d):
    return a ^ c, tl.maximum(b, d)


@tilec.jit
def between(x, y):
    low = tl.minimum(x, y)
    if False:
        low = x
    return tl.minimum(tl.maximum(x, low), tl.maximum(x, y))


'''
INT_OPS = ("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} & {y}", "{x} | {y}", "{x} ^ {y}", "~{x}",
           "{x} << {y}", "{x} >> {y}", "{x} // tl.where({y} == 0, 3, {y})", "{x} // 4", "{x} % 8",
           "{x} % tl.where({y} == 0, 5, {y})", "tl.minimum({x}, {y})", "tl.abs({x})", "{x} * 3",
           "between({x}, {y})", "{x} << 3", "{x} >> 1", "{x} - {x}")
FLOAT_OPS = ("{x} + {y}", "{x} - {y}", "{x} * {y}", "tl.minimum({x}, {y})", "tl.maximum({x}, {y})",
             "tl.abs({x})", "-{x}", "tl.floor({x})", "{x} * {y} + {x}", "tl.fma({x}, {y}, {x})",
             "tl.clamp({x}, -1.0, 1.0)", "{x} * 2.0", "between({x}, {y})", "{x} + 0.0")


@dataclass(frozen=True)
class Tile:
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Argument:
    """kind: "in", "out" or "work" (written by each program in a part of its own), "slots"."""

    name: str
    kind: str
    dtype: str
    size: int


def along(text: str, dim: int, rank: int) -> str:
    """A 1-D tile as dimension `dim` of `rank`."""
    where = ", ".join(":" if d == dim else "None" for d in range(rank))
    return f"{text}[{where}]" if rank > 1 else text


class Kernel:
    """One kernel; `source` is its text, `arguments` what it takes before the scalar n."""

    def __init__(self, seed: int, statements: int, elements: int) -> None:
        self.rng = random.Random(seed)
        self.elements = elements
        self.grid = self.rng.choice([(1,), (2,), (2, 2)])
        self.arguments: list[Argument] = []
        self.tiles: list[Tile] = []
        self.lines: list[str] = []
        self.depth, self.count = 1, 0
        for _ in range(3):
            self.load()
        for _ in range(statements):
            self.statement()
        for tile in self.tiles[-4:]:
            self.store(tile)
        names = ", ".join(a.name for a in self.arguments)
        self.source = HEADER + f"@tilec.jit\ndef kernel({names}, n):\n" + "\n".join(self.lines)

    # -- helpers
    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def put(self, text: str, shape: tuple[int, ...], dtype: str) -> None:
        tile = Tile(self.name("v"), shape, dtype)
        self.emit(f"{tile.name} = {text}")
        self.tiles.append(tile)

    def any(self, **want: object) -> Tile | None:
        """A tile with these attributes; rather one of the last."""
        found = [t for t in self.tiles if all(getattr(t, k) == v for k, v in want.items())]
        return self.rng.choice(found[-6:]) if found else None

    def like(self, tile: Tile) -> Tile:
        return self.any(shape=tile.shape, dtype=tile.dtype) or tile

    def argument(self, kind: str, dtype: str, size: int) -> str:
        same = [a for a in self.arguments if (a.kind, a.dtype, a.size) == (kind, dtype, size)]
        if same and kind in ("in", "work") and self.rng.random() < 0.7:
            return self.rng.choice(same).name
        self.arguments.append(Argument(f"{kind}{len(self.arguments)}", kind, dtype, size))
        return self.arguments[-1].name

    def shape(self) -> tuple[int, ...]:
        while True:
            shape = tuple(self.rng.choices(EXTENTS, k=self.rng.choice([0, 1, 1, 2, 2, 3])))
            if prod(shape) <= self.elements:
                return shape

    def index(self, shape: tuple[int, ...]) -> str:
        """Offsets into an input."""
        rng, rank = self.rng, len(shape)
        if not shape:
            return rng.choice(["tl.program_id(0) * 7 + 3", "5"])
        order, step, terms = list(range(rank)), 1, []
        if rng.random() < 0.3:
            rng.shuffle(order)
        for d in reversed(order):
            place = f"tl.arange(0, {shape[d]})"
            if rng.random() < 0.15:
                place = f"({shape[d] - 1} - {place})"
            terms.append(along(place, d, rank) + f" * {step}")
            step *= shape[d]
        text = " + ".join(reversed(terms))
        return rng.choice([text, text, text, f"tl.program_id(0) * 16 + {text}",
                           f"({text}).to(tl.int64)", f"({text}) // 2", f"({text}) % 17",
                           f"{step - 1} - ({text})", f"(({text}) & 1023).to(tl.uint32) * 3"])

    def flat(self, shape: tuple[int, ...]) -> str:
        """Row-major offsets; 0 for a scalar."""
        terms = [along(f"tl.arange(0, {n})", d, len(shape)) + f" * {prod(shape[d + 1:])}"
                 for d, n in enumerate(shape)]
        return " + ".join(terms) or "0"

    # -- statements
    def statement(self) -> None:
        kinds = {self.load: 18, self.elementwise: 22, self.broadcast: 8, self.reshape: 12,
                 self.reduce: 12, self.poison: 3, self.pointers: 4, self.work: 6, self.atomic: 3,
                 self.control: 8, self.store: 3}
        self.rng.choices(list(kinds), list(kinds.values()))[0]()

    def load(self) -> None:
        rng, shape = self.rng, self.shape()
        dtype = rng.choice(("bool", *INTS, *FLOATS, *FP8, "int32", "float32"))
        source = self.argument("in", dtype, IN)
        chosen = self.any(shape=shape, dtype="uint8") or self.any(shape=shape, dtype="int32")
        gather = chosen is not None and rng.random() < 0.3
        at = f"({chosen.name} & 63)" if chosen and gather else f"({self.index(shape)})"
        text = f"tl.load({source} + {at}"
        if shape and rng.random() < 0.5:
            mask = self.any(shape=shape, dtype="bool")
            cond = mask.name if mask and rng.random() < 0.5 else f"{at} < {rng.choice(['n', '33'])}"
            text += f", mask={cond}, other={rng.choice(['0', '1'])}"
        if dtype in FP8:
            self.put(f"{text}).to(tl.float32)", shape, "float32")
        else:
            self.put(f"{text})", shape, dtype)

    def elementwise(self) -> None:
        rng = self.rng
        x = rng.choice(self.tiles)
        y, cond = self.like(x), self.any(shape=x.shape, dtype="bool")
        kind = rng.random()
        if kind < 0.15:
            to = rng.choice(INTS + FLOATS)
            self.put(f"{x.name}.to(tl.{to})", x.shape, to)
        elif kind < 0.3:
            self.put(f"{x.name} {rng.choice(['<', '>=', '==', '!='])} {y.name}", x.shape, "bool")
        elif kind < 0.4 and cond:
            self.put(f"tl.where({cond.name}, {x.name}, {y.name})", x.shape, x.dtype)
        else:
            ops = ("{x} & {y}", "{x} | {y}", "~{x}") if x.dtype == "bool" else \
                INT_OPS if x.dtype in INTS else FLOAT_OPS
            self.put(rng.choice(ops).format(x=x.name, y=y.name), x.shape, x.dtype)

    def broadcast(self) -> None:
        x = self.rng.choice(self.tiles)
        if x.shape and len(x.shape) < 3 and self.rng.random() < 0.5:
            axis = self.rng.randint(0, len(x.shape))
            shape = (*x.shape[:axis], 1, *x.shape[axis:])
            self.put(f"tl.expand_dims({x.name}, {axis})", shape, x.dtype)
            return
        shape = tuple(self.rng.choice([3, 8, 12]) if n == 1 else n for n in x.shape) or self.shape()
        if shape and prod(shape) <= self.elements:
            self.put(f"tl.broadcast_to({x.name}, {shape})", shape, x.dtype)

    def reshape(self) -> None:
        rng, x = self.rng, self.rng.choice(self.tiles)
        if len(x.shape) > 1 and rng.random() < 0.4:
            order = rng.sample(range(len(x.shape)), len(x.shape))
            shape = tuple(x.shape[d] for d in order)
            self.put(f"tl.permute({x.name}, {tuple(order)})", shape, x.dtype)
        elif x.shape:
            left, shape = prod(x.shape), []
            for _ in range(rng.choice([0, 1, 1, 2])):
                shape.append(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
                left //= shape[-1]
            self.put(f"tl.reshape({x.name}, {(*shape, left)})", (*shape, left), x.dtype)

    def reduce(self) -> None:
        rng, x = self.rng, self.rng.choice(self.tiles)
        if not x.shape:
            return
        axis = rng.choice([None, *range(len(x.shape))])
        keep = rng.random() < 0.3
        shape = tuple(1 if axis in (None, d) else n for d, n in enumerate(x.shape)
                      if keep or axis not in (None, d))
        rest = f"{axis}, keep_dims=True)" if keep else f"{axis})"
        kind = rng.random()
        if x.dtype in FLOATS and kind < 0.4:  # whole numbers, whose sums are exact
            self.put(f"tl.sum(tl.floor(tl.clamp({x.name}, -8.0, 8.0)), {rest}", shape, x.dtype)
        elif x.dtype == "bool" or x.dtype in INTS and kind < 0.3:
            self.put(f"tl.sum({x.name}, {rest}", shape, SUMS.get(x.dtype, x.dtype))
        elif x.dtype in INTS and kind < 0.5:
            y, both = self.like(x), (self.name("v"), self.name("v"))
            last = ", keep_dims=True)" if keep else ")"
            self.emit(f"{', '.join(both)} = tl.reduce(({x.name}, {y.name}), {axis}, pick{last}")
            self.tiles += [Tile(name, shape, x.dtype) for name in both]
        elif x.dtype in INTS and kind < 0.75:
            self.put(f"tl.{rng.choice(['argmax', 'argmin'])}({x.name}, {rest}", shape, "int32")
        else:
            self.put(f"tl.{rng.choice(['max', 'min'])}({x.name}, {rest}", shape,
                     BEST.get(x.dtype, x.dtype))

    def poison(self) -> None:
        """What is masked off is used, but not chosen."""
        shape, dtype = self.shape(), self.rng.choice(["int32", "float32", "int8"])
        at, mask, x = self.index(shape), self.name("m"), self.name("x")
        self.emit(f"{mask} = ({at}) < {self.rng.choice(['n', '40'])}")
        self.emit(f"{x} = tl.load({self.argument('in', dtype, IN)} + ({at}), mask={mask})")
        self.put(f"tl.where({mask}, {x} + {x}, 0)", shape, dtype)

    def pointers(self) -> None:
        """Pointers that were chosen, carried or reshaped."""
        rng, shape = self.rng, self.shape()
        dtype = rng.choice(["int32", "float32", "int8", "int64"])
        p, q = (f"{self.argument('in', dtype, IN)} + ({self.index(shape)})" for _ in range(2))
        at = self.name("p")
        self.emit(f"{at} = {p}")
        kind = rng.randrange(4)
        if kind == 0:
            self.emit(f"{at} = tl.where(({self.index(shape)}) % 3 == 0, {at}, {q})")
        elif kind == 1:
            self.emit("if n > 20:")
            self.emit(f"    {at} = {q}")
        elif kind == 2:
            self.emit("for _ in range(n % 4):")
            self.emit(f"    {at} += 16")
        elif shape:
            shape = (1, prod(shape))
            self.emit(f"{at} = tl.reshape({at}, {shape})")
        self.put(f"tl.load({at})", shape, dtype)

    def work(self) -> None:
        """Memory that other threads of the program read again."""
        rng, x = self.rng, self.rng.choice(self.tiles)
        size = prod(x.shape)
        if not x.shape or x.dtype == "bool":
            return
        base = self.argument("work", x.dtype, size) + f" + {PROGRAM} * {size}"
        flat = f"tl.arange(0, {size})"
        at = rng.choice([f"{size - 1} - {flat}", f"{flat} // 2", f"({flat} * 7) % {size}", flat])
        self.emit(f"tl.store({base} + {flat}, tl.reshape({x.name}, ({size},)))")
        self.put(f"tl.load({base} + ({at}))", (size,), x.dtype)

    def atomic(self) -> None:
        x = self.any(dtype="int32") or self.any(dtype="uint64")
        if x and self.depth == 1:
            slots = self.argument("slots", x.dtype, SLOTS)
            sem = self.rng.choice(["relaxed", "acq_rel"])
            self.emit(f'tl.atomic_add({slots} + (({self.index(x.shape)}) & {SLOTS - 1}), '
                      f'{x.name}, sem="{sem}")')

    def control(self) -> None:
        """A loop or branch that carries tiles."""
        rng = self.rng
        if self.depth > 2:
            return
        carried = []
        for x in rng.sample(self.tiles, 2):
            carried.append(Tile(self.name("c"), x.shape, x.dtype))
            self.emit(f"{carried[-1].name} = {x.name}")
        outside = [*self.tiles, *carried]
        index, kind = self.name("i"), rng.randrange(3)
        if kind == 2:
            self.emit(f"{index} = 0")
        self.emit([f"if {rng.choice(['n > 50', 'tl.program_id(0) == 1'])}:",
                   f"for {index} in range({rng.choice(['3', 'n % 4', '5, 0, -2', '0'])}):",
                   f"while {index} < {rng.choice(['2', 'n % 3'])}:"][kind])
        self.depth += 1
        self.tiles += carried
        for _ in range(rng.randint(1, 3)):
            self.statement()
        for x in carried:
            self.emit(f"{x.name} = {self.like(x).name}")
        if kind == 2:
            self.emit(f"{index} += 1")
        self.depth -= 1
        self.tiles = outside

    def store(self, tile: Tile | None = None) -> None:
        x = tile or self.rng.choice(self.tiles)
        size, at = prod(x.shape), self.flat(x.shape)
        if self.rng.random() < 0.2:
            at = f"{size - 1} - ({at})"
        mask = self.any(shape=x.shape, dtype="bool") if self.rng.random() < 0.3 else None
        rest = f", mask={mask.name})" if mask else ")"
        out = self.argument("out", x.dtype, size)
        self.emit(f"tl.store({out} + {PROGRAM} * {size} + ({at}), {x.name}{rest}")
