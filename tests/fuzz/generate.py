"""Draws random programs. A statement is run as soon as it is drawn, in every program of the grid,
and is dropped where it has no one meaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from tests.fuzz import ops as _ops  # noqa: F401  (registers operations)
from tests.fuzz import random_ops as _random_ops  # noqa: F401
from tests.fuzz import shape_ops as _shape_ops  # noqa: F401
from tests.fuzz.memory_ops import ALONE, UPDATES, atomics_of
from tests.fuzz.numerics import ALL, FP8, INTS, SIGNED, Reject, is_float, limits, width
from tests.fuzz.program import (
    Argument,
    For,
    If,
    Leave,
    Let,
    Machine,
    Memory,
    Program,
    Statement,
    Value,
    While,
    walk,
)

EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 32, 40, 64, 96, 100, 128, 160)
IN, SLOTS = 1024, 64  # elements of an input, and of what atomics add to
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_90a", "sm_100",
           "sm_100a", "sm_103a", "sm_120", "sm_120a", "sm_121a")
Kinds = dict[Callable[["Generator"], None], int]
FAILS = (Reject, ValueError, IndexError, TypeError, AttributeError, KeyError)


class Generator:
    """Draws one program. kinds: functions that draw statements, and their weights; size: how many
    are drawn; elements: the most in a tile."""

    def __init__(self, seed: int, kinds: Kinds, size: int = 9, elements: int = 512) -> None:
        self.rng = random.Random(seed)
        self.kinds, self.size, self.elements = kinds, size, elements
        grid = self.rng.choice([(1, 1), (2, 1), (3, 1), (2, 2)])
        self.program = Program([], [], grid, seed=seed)
        self.memory = Memory([])
        self.machines = [Machine((x, y, 0), (*grid, 1), self.memory, [])
                         for y in range(grid[1]) for x in range(grid[0])]
        self.block: list[Statement] = self.program.body
        self.depth, self.count = 0, 0
        self.options()

    def options(self) -> None:
        rng, p = self.rng, self.program
        p.target = rng.choice(TARGETS)
        p.options = {"num_warps": rng.choice([1, 2, 4, 4, 8]),
                     "num_stages": rng.choice([1, 2, 3, 3, 4])}
        if rng.random() < 0.1:
            p.options["find_boxes"] = False

    # -- adding statements
    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def add(self, *statements: Statement) -> bool:
        """Append statements if every program gives them one meaning."""
        saved = [(dict(m.env), m.done) for m in self.machines]
        effects = any(not isinstance(s, Let) or not s.names or s.op == "atomic"
                      for s in statements)
        memory = self.memory.copy() if effects else None
        try:
            with np.errstate(all="ignore"):
                for m in self.machines:
                    m.block(statements)
            if all(m.done for m in self.machines):
                raise Reject("no program goes on")
        except FAILS:
            self.restore(saved, memory)
            return False
        self.block += statements
        return True

    def restore(self, saved: list[tuple[dict[str, Any], str]], memory: Memory | None) -> None:
        if memory is not None:
            for a in self.program.arguments[len(memory.arrays):]:
                memory.give(a)
            self.memory = memory
        for m, (env, done) in zip(self.machines, saved, strict=True):
            m.env, m.done, m.memory = env, done, self.memory

    def put(self, op: str, *args: Any, **attrs: Any) -> str:
        """A new name for the result of an operation; Reject if it has none."""
        name = self.name()
        if not self.add(Let(op, (name,), args, attrs)):
            raise Reject(op)
        return name

    def put_two(self, op: str, *args: Any, **attrs: Any) -> tuple[str, str]:
        names = self.name(), self.name()
        if not self.add(Let(op, names, args, attrs)):
            raise Reject(op)
        return names

    def do(self, op: str, *args: Any, **attrs: Any) -> None:
        """An effect; Reject if it has no one meaning."""
        if not self.add(Let(op, (), args, attrs)):
            raise Reject(op)

    @contextmanager
    def inside(self, **first: Any) -> Iterator[list[Statement]]:
        """The body of control flow, whose statements run once while they are drawn and leave
        nothing behind; first: the variable of a loop, and its bounds and step."""
        saved, memory = [(dict(m.env), m.done) for m in self.machines], self.memory.copy()
        outer, body = self.block, []
        for m in self.machines:
            m.env |= {} if m.done else {
                k: m.index(bounds, m.scalar(bounds[0])) for k, bounds in first.items()}
        self.block = body
        self.depth += 1
        try:
            yield body
        finally:
            self.depth -= 1
            self.block = outer
            self.restore(saved, memory)

    # -- choosing
    @property
    def env(self) -> dict[str, Any]:
        return next(m.env for m in self.machines if not m.done)

    def tiles(self, test: Callable[[Value], bool] = lambda v: True) -> list[str]:
        """Names of tiles of numbers, the later ones more often than once."""
        found = [k for k, v in self.env.items() if isinstance(v, Value) and v.bound is None
                 and not v.dtype.startswith("*") and test(v)]
        return found + found[-6:]

    def any(self, test: Callable[[Value], bool] = lambda v: True) -> str:
        found = self.tiles(test)
        if not found:
            raise Reject("no such tile")
        return self.rng.choice(found)

    def value(self, name: str) -> Value:
        return next(m.read(name) for m in self.machines if not m.done)

    def like(self, name: str) -> str:
        return self.any(lambda v: v.type == self.value(name).type)

    def shape(self, ranks: tuple[int, ...] = (0, 1, 1, 2, 2, 3, 4)) -> tuple[int, ...]:
        while True:
            shape = tuple(self.rng.choices(EXTENTS, k=self.rng.choice(ranks)))
            if prod(shape) <= self.elements:
                return shape

    def argument(self, fill: str, dtype: str, size: int = IN, again: float = 0.6,
                 **more: Any) -> str:
        rng = self.rng
        same = [a for a in self.program.arguments if (a.fill, a.dtype, a.size) ==
                (fill, dtype, size) and a.block is None and not more]
        if same and rng.random() < again:
            return rng.choice(same).name
        prefix = {"whole": "x", "bits": "x", "poison": "o", "zero": "z", "number": "n"}[fill]
        arguments = self.program.arguments
        shift = 1 if not more and fill != "number" and rng.random() < 0.1 else 0
        a = Argument(f"{prefix}{len(arguments)}", dtype, size, fill, rng.randrange(1000), shift,
                     **more)
        arguments.append(a)
        self.memory.give(a)
        for m in self.machines:
            m.give(len(arguments) - 1, a)
        return a.name

    def number_argument(self) -> str:
        """A scalar argument: int32 mostly."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.7:
            x = rng.choice([0, 1, 3, 7, 16, 33, 40, 64, 97, 1000])
            return self.argument("number", "int32", 1, number=x)
        t = rng.choice([*INTS, "int1"])
        x = rng.choice([*limits(t), 1, 0]) if t != "int1" else rng.random() < 0.5
        return self.argument("number", t, 1, number=x)

    def dtype(self) -> str:
        return self.rng.choice((*ALL, "int32", "int32", "float32", "float32", "float16"))

    def literal(self, t: str) -> Any:
        rng = self.rng
        if rng.random() < 0.15:
            return rng.choice([0.5, 2, True, -1, 2.0])
        if is_float(t):
            return rng.choice([0.0, 1.0, -1.0, 2.0, 0.5, 3, -2, 1000.0, 0.1])
        low, high = limits(t)
        return rng.choice([0, 1, 2, 3, 5, 8, -1 if low else 7, low, high, high // 2, 100])

    def constexpr(self, x: Any) -> str:
        """A parameter that is this number at compile time."""
        name = self.name("C")
        self.program.constexprs[name] = x
        for m in self.machines:
            m.given[name] = x
        return name

    # -- indices
    def lanes(self, shape: tuple[int, ...], permuted: bool = True) -> str:
        """Offsets 0 .. of a tile, row-major or in another order of the dimensions."""
        order = [*range(len(shape))]
        if permuted and self.rng.random() < 0.3:
            self.rng.shuffle(order)
        strides, step = [0] * len(shape), 1
        for d in reversed(order):
            strides[d] = step
            step *= shape[d]
        flip = tuple(d for d in range(len(shape)) if permuted and self.rng.random() < 0.1)
        return self.put("lanes", shape=shape, strides=tuple(strides), flip=flip)

    def index(self, shape: tuple[int, ...], size: int) -> str:
        """Indices below `size`."""
        rng, kind = self.rng, self.rng.random()
        whole = self.tiles(lambda v: v.shape == shape and v.dtype in INTS)
        if whole and kind < 0.25:
            return self.put("bits", rng.choice(whole), rng.choice([63, 31, 7]), symbol="&")
        if kind < 0.5:
            return self.bounded(self.wrapping(shape), size)
        at = self.lanes(shape)
        more: list[Callable[[], str]] = [
            lambda: self.put("floordiv", at, rng.choice([2, 3, 4])),
            lambda: self.put("mod", at, rng.choice([8, 16, 17])),
            lambda: self.put("add", self.put("mul", self.put("number"), 16), at),
            lambda: self.put("cast", at, t=rng.choice(["int64", "uint32", "uint64"]), form=""),
            lambda: self.put("shift", at, 1, symbol=">>"), lambda: at, lambda: at, lambda: at]
        return rng.choice(more)()

    def wrapping(self, shape: tuple[int, ...]) -> str:
        """Integers that may have wrapped, been unsigned or be negative, divided."""
        rng = self.rng
        at = self.lanes(shape) if rng.random() < 0.8 else \
            self.put("cast", self.any(lambda v: v.shape == shape and v.dtype in INTS),
                     t="int32", form="")
        kind = rng.randrange(6)
        if kind == 0:
            first = self.put("add", self.put("program", axis=0), rng.choice([1, 3, 50000]))
            far = self.put("mul", first, rng.choice([1 << 30, 50000, 1 << 28, 715827883]))
            at = self.put("add", far, at)
        elif kind == 1:
            t, bits = rng.choice([("uint32", 32), ("uint16", 16), ("uint8", 8)])
            at = self.put("cast", at, t=t, form="")
            at = self.put("add", at, (1 << bits) - rng.choice([128, 64, 100, 7]))
            at = self.put("cast", at, t=t[1:], form="")
        elif kind == 2:
            at = self.put("sub", at, rng.choice([1, 16, 100, 128, 2 ** 31 - 5]))
        elif kind == 3:
            at = self.put("mul", at, rng.choice([-1, -3, 1 << 27, 100000007]))
        elif kind == 4:
            at = self.put("add", at, rng.choice([100, 120, 32700, 2 ** 31 - 20]))
            at = self.put("cast", at, t=rng.choice(["int8", "int16", "uint8", "int32"]), form="")
        else:
            at = self.put("shift", at, rng.choice([27, 29, 3]), symbol="<<")
        for _ in range(rng.choice([1, 1, 2])):
            op = rng.choice(["floordiv", "mod", "floordiv", "mod", "shift", "bits"])
            by = rng.choice([2, 3, 4, 5, 8, 16])
            more = {"shift": {"symbol": ">>"}, "bits": {"symbol": "&"}}.get(op, {})
            at = self.put(op, at, by if op != "bits" else by * 2 - 1, **more)
        return at

    def bounded(self, at: str, size: int) -> str:
        """Indices made of any integers."""
        t = self.value(at).dtype
        wide = self.put("cast", at, t="int32", form="") if width(t) < 32 else at
        values = [m.read(wide).x for m in self.machines if not m.done]
        low, high = min(int(x.min()) for x in values), max(int(x.max()) for x in values)
        if high - low >= size:
            most = self.rng.choice([4, 8, 60])
            wide, low = self.put("mod", wide, most), 1 - most
        if t in SIGNED and low < 0:
            return self.put("add", wide, -low)
        return wide if high - low < size and 0 <= low and high < size else \
            self.put("mod", wide, min(size, 100))

    def mask(self, shape: tuple[int, ...]) -> str:
        rng, found = self.rng, self.tiles(lambda v: v.shape == shape and v.dtype == "int1")
        if found and rng.random() < 0.4:
            return rng.choice(found)
        at = self.wrapping(shape) if rng.random() < 0.4 else self.lanes(shape)
        known = self.value(at).x.reshape(-1)
        limit = int(rng.choice(known.tolist()))
        symbol = rng.choice(["<", "<=", ">", "<", "!="])
        numbers = [a.name for a in self.program.arguments if a.fill == "number"
                   and a.dtype == "int32"]
        if numbers and rng.random() < 0.4 and self.value(at).dtype == "int32":
            return self.put("compare", at, rng.choice(numbers), symbol="<")
        return self.put("compare", at, limit, symbol=symbol)

    # -- statements
    def load(self) -> None:
        rng, shape, t = self.rng, self.shape(), self.dtype()
        source = self.argument(rng.choice(["whole", "whole", "bits"]), t)
        p = self.put("add", source, self.index(shape, IN))
        mask = self.mask(shape) if shape and rng.random() < 0.4 else None
        other = None
        if mask and rng.random() < 0.7:
            same = self.tiles(lambda v: v.shape == shape and v.dtype == t)
            other = rng.choice(same) if same and rng.random() < 0.3 else \
                rng.choice([0, 1]) if t != "int1" else False
        more = rng.choice([""] * 6 + [', cache_modifier=".cg"', ", volatile=True",
                                      ', eviction_policy="evict_first"'])
        x = self.put("load", p, mask, other, more=more)
        if mask and other is None and rng.random() < 0.8:  # what is masked off is not chosen
            x = self.put("where", mask, x, 0)

    def store(self, name: str = "") -> None:
        rng = self.rng
        name = name or self.any()
        v = self.value(name)
        to = v.dtype if v.bound is not None or rng.random() < 0.85 else self.dtype()
        size = prod(v.shape)
        out = self.argument("poison", to, size * len(self.machines), again=0.0)
        far = self.put("mul", self.put("number"), size)
        p = self.put("add", self.put("add", out, far), self.lanes(v.shape))
        mask = None
        if v.poison.any() or rng.random() < 0.2:
            mask = self.mask(v.shape)
        more = rng.choice([""] * 6 + [', cache_modifier=".cs"', ', eviction_policy="evict_last"'])
        self.do("store", p, name, mask, more=more)

    def work(self) -> None:
        """Memory that other threads of the program read again."""
        rng, x = self.rng, self.any(lambda v: bool(v.shape) and v.dtype != "int1")
        v = self.value(x)
        size = prod(v.shape)
        out = self.argument("poison", v.dtype, size * len(self.machines), again=0.3)
        base = self.put("add", out, self.put("mul", self.put("number"), size))
        p = self.put("add", base, self.lanes(v.shape))
        self.do("store", p, x, None, more="")
        at = self.lanes((size,))
        if rng.random() < 0.5:
            at = self.put("mod", self.put("mul", at, 7), size)
        self.put("load", self.put("add", base, at), None, None, more="")

    def atomic(self) -> None:
        rng = self.rng
        x = self.any(lambda v: bool(atomics_of(v.dtype)))
        v = self.value(x)
        kind = rng.choice(atomics_of(v.dtype))
        sem = rng.choice(["relaxed", "acq_rel", "release", "acquire"])
        scope = rng.choice(["gpu", "gpu", "cta", "sys"])
        used = rng.random() < 0.4
        fill, size = "zero" if kind in ("add", "cas") else "whole", prod(v.shape)
        if used or kind in ALONE:  # a slot of its own for each lane
            slots = self.argument("whole" if kind == "add" else fill, v.dtype,
                                  size * len(self.machines), again=0.0)
            at = self.put("add", self.put("mul", self.put("number"), size), self.lanes(v.shape))
        else:  # as many slots for each kind as no other has
            slots = self.argument(fill, v.dtype, SLOTS + [*UPDATES].index(kind))
            at = self.put("bits", self.index(v.shape, IN), SLOTS - 1, symbol="&")
            scope = "gpu"
        if kind == "cas":
            other = self.put("where", self.mask(v.shape), x, 0) if v.shape else x
        else:
            other = self.mask(v.shape) if v.shape and rng.random() < 0.3 else None
        self.add(Let("atomic", (self.name(),) if used else (),
                     (self.put("add", slots, at), x, other),
                     {"kind": kind, "sem": sem, "scope": scope, "out": used}))

    def pointers(self) -> None:
        """Pointers that are chosen, carried or reshaped."""
        rng, shape = self.rng, self.shape()
        t = rng.choice(["int32", "float32", "int8", "int64", "float16"])
        source = self.argument("whole", t)
        p = self.put("add", source, self.index(shape, IN))
        kind = rng.randrange(4)
        if kind == 0:
            q = self.put("add", self.argument("whole", t), self.index(shape, IN))
            p = self.put("where", self.mask(shape), p, q)
        elif kind == 1:
            p = self.put("sub", self.put("add", p, 16), rng.choice([16, 3]))
        elif kind == 2 and self.depth < 2:
            carried, i = self.put("copy", p), self.name("i")
            with self.inside(**{i: (0,)}) as body:
                self.add(Let("add", (carried,), (carried, 16)))
            self.add(For(i, 0, rng.choice([1, 3]), 1, body))
            p = carried
        elif shape:
            p = self.put("reshape", p, shape=(1, prod(shape)), form="tl.reshape")
        self.put("load", p, None, None, more="")

    # -- control flow
    def control(self) -> None:
        rng = self.rng
        if self.depth > 1:
            raise Reject("deep enough")
        names = [self.any() for _ in range(rng.choice([1, 2]))]
        carried = [self.put("copy", x) for x in names]
        kind = rng.randrange(4)
        if kind == 0:
            cond = self.put("compare", self.put("program", axis=0), rng.choice([0, 1]),
                            symbol=rng.choice(["==", ">"]))
            if rng.random() < 0.2:  # a tile of one element
                cond = self.put("expand_dims", cond, axis=0, rank=rng.choice([None, 1, 2]))
            arms = []
            for _ in range(rng.choice([1, 2])):
                with self.inside() as body:
                    self.fill(carried)
                arms.append(body)
            self.add(If(cond, arms[0], arms[1] if len(arms) > 1 else []))
        elif kind == 1:
            counter, limit = self.put("to_tensor", x=0), rng.choice([2, 3, self.number_argument()])
            option = rng.choice(["{}", "{}", "tl.condition({}, disable_licm=True)"])
            with self.inside() as body:
                self.fill(carried, never=counter, leave=(counter, ["break", "return"]))
            self.add(While(counter, limit, body, option))
        else:
            self.loop(carried)

    def loop(self, carried: list[str]) -> None:
        rng, i = self.rng, self.name("i")
        lo, hi, step = rng.choice([(0, 3, 1), (0, 2, 1), (1, 9, 3), (0, 0, 1), (5, 0, -2),
                                   (0, 5, 1), (2, 7, 2), (-3, 2, 1)])
        if rng.random() < 0.4 and step > 0 and lo >= 0:  # the argument may have no sign
            hi = self.put("mod", self.number_argument(), 5)
        over, options = "range", {}
        if isinstance(hi, int) and rng.random() < 0.2:
            hi = self.constexpr(hi)
        if rng.random() < 0.5:
            over = "tl.range"
            options = {k: v for k, v in (
                ("num_stages", rng.choice([1, 2, 3, 5])),
                ("loop_unroll_factor", rng.choice([2, 4])), ("flatten", True),
                ("warp_specialize", True), ("disable_licm", True),
                ("disallow_acc_multi_buffer", True)) if rng.random() < 0.3}
        elif isinstance(hi, int) and rng.random() < 0.3:
            over = "tl.static_range"
        with self.inside(**({} if over == "tl.static_range" else {i: (lo, hi, step)})) as body:
            self.fill(carried, leave=("" if over == "tl.static_range" else i,
                                      ["break", "continue", "return"]))
        self.add(For(i, lo, hi, step, body, options, over))

    def fill(self, carried: list[str], never: str = "",
             leave: tuple[str, list[str]] | None = None) -> None:
        """Statements of a body, and what it carries on. leave: the variable of a loop, and how it
        may be left."""
        before = set(self.env)
        for x in carried:
            if self.rng.random() < 0.6:
                self.attempt(lambda g, x=x: g.update(x))  # type: ignore[misc]
        for _ in range(self.rng.randint(1, 3)):
            self.statement()
            if leave is not None and self.rng.random() < 0.2:
                self.attempt(lambda g: g.leave(leave[0], g.rng.choice(leave[1])))
        for x in carried:
            kept = self.value(x).type
            same = [k for k, v in self.env.items() if k != never and v.type == kept]
            new = [k for k in same if k not in before]
            self.add(Let("copy", (x,), (self.rng.choice(new or same),)))

    def update(self, x: str) -> None:
        """A tile of the type of `x`, made of it."""
        rng, t, y = self.rng, self.value(x).dtype, self.like(x)
        if t in FP8:
            self.put("neg", x)
        elif t == "int1":
            self.put("bits", x, y, symbol=rng.choice("&|^"))
        elif is_float(t):
            op = rng.choice(["add", "sub", "extreme"])
            more = {"name": "minimum", "nan": False} if op == "extreme" else {}
            self.put(op, x, rng.choice([y, 1.0]), **more)
        else:
            self.put(rng.choice(["add", "sub", "mul"]), x, rng.choice([y, 3]))

    def early_return(self) -> None:
        if self.depth == 0:
            cond = self.put("compare", self.put("program", axis=0), 1, symbol=">=")
            self.add(Leave(cond))

    def leave(self, i: str, how: str) -> None:
        """In a loop of the variable `i`, if it has one: leave a round, the loop or the program."""
        rng = self.rng
        x = self.put("program", axis=0) if not i or rng.random() < 0.3 else i
        cond = self.put("compare", x, rng.choice([0, 1, 2]), symbol=rng.choice([">", "=="]))
        if not self.add(Leave(cond, how)):
            raise Reject(how)

    # -- whole programs
    def statement(self) -> None:
        self.attempt(self.rng.choices(list(self.kinds), list(self.kinds.values()))[0])

    def store_leaves(self, most: int) -> None:
        """Store tiles that nothing has used yet."""
        used = {a for s in walk(self.program.body) for a in s.args if isinstance(a, str)}
        leaves = [x for x in self.tiles() if x not in used]
        for x in [*dict.fromkeys(leaves)][-most:]:
            self.attempt(lambda g, x=x: g.store(x))  # type: ignore[misc]

    def attempt(self, draw: Callable[[Generator], None]) -> bool:
        """Draw a statement; what it had added before it was rejected stays."""
        try:
            draw(self)
        except FAILS:
            return False
        return True
