"""Random well-formed modules: nested control flow, all element types, odd attributes and names."""

from __future__ import annotations

import random
from collections.abc import Callable

from tilec.errors import Location
from tilec.ir import ops
from tilec.ir.core import UNKNOWN, Block, Builder, Func, Module, Value
from tilec.ir.types import (
    SCALARS,
    Pointer,
    Scalar,
    Tensor,
    Type,
    element_of,
    i1,
    i32,
    shape_of,
    with_element,
)

FLOATS = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 5e-324, 1e-45, 3.4e38, -0.1]
NAMES = ["", "", "x", "x", "x_1", "acc", "α", "变量", "a b", "9", "%", "true", "tensor", "if"]
STRINGS = ["", 'say "hi"', "back\\slash", "new\nline\t", "// not a comment", "ünïcode 💡",
           "%x @f #b0"]
SHAPES = [(4,), (1,), (3, 4), (1, 4), (2, 3, 5), (1000,)]


class Generator:
    """Fills a function with ops whose operands are drawn from what is visible."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.visible: list[Value] = []
        self.depth = 0

    def module(self) -> Module:
        funcs = [self.func(f"kernel_{i}") for i in range(self.rng.randint(0, 2))]
        attributes = {"level": "tile", "num_warps": 4,
                      "target": self.rng.choice(["sm_80", "sm_90a"])}
        return Module(funcs, dict(list(attributes.items())[:self.rng.randint(1, 3)]))

    def func(self, name: str) -> Func:
        types: list[Type] = [i32, i1, Pointer(SCALARS["f32"]), Pointer(SCALARS["i8"], const=True)]
        types += self.rng.choices(list(SCALARS.values()), k=2)
        attrs = [{"divisibility": 16} if isinstance(t, Pointer) else {} for t in types]
        func = Func(name, Block(types), attrs, self.location())
        self.visible = list(func.args)
        b = Builder(func.body)
        self.fill(b, self.rng.randint(0, 12))
        b.insert(ops.Return(loc=self.location()))
        return func

    def location(self) -> Location:
        if self.rng.random() < 0.5:
            return UNKNOWN
        caller = Location("dir/some file.py", 7, 4) if self.rng.random() < 0.3 else None
        return Location(self.rng.choice(["k.py", 'odd "name".py']), self.rng.randint(1, 99),
                        self.rng.randint(0, 40), caller)

    def fill(self, b: Builder, count: int) -> None:
        for _ in range(count):
            before = len(self.visible)
            self.rng.choice(MAKERS)(self, b)
            for value in self.visible[before:]:
                value.name = self.rng.choice(NAMES)

    def emit(self, b: Builder, op: ops.Elementwise) -> None:
        op.loc = self.location()
        b.insert(op)
        self.visible += op.results

    def pick(self, test: Callable[[Type], bool]) -> Value | None:
        found = [v for v in self.visible if test(v.type)]
        return self.rng.choice(found) if found else None

    def scalar(self, t: Type, b: Builder) -> Value:
        found = self.pick(lambda have: have == t)
        if found is None:
            found = b.emit(ops.Constant(value=self.number(t), types=[t]))
            self.visible.append(found)
        return found

    def number(self, t: Type) -> int | float | bool:
        element = element_of(t)
        if isinstance(element, Scalar) and element.is_bool:
            return self.rng.random() < 0.5
        if isinstance(element, Scalar) and element.is_float:
            return self.rng.choice(FLOATS)
        if isinstance(element, Scalar) and not element.is_signed:
            return self.rng.choice([0, 1, 127, 2**element.bits - 1])
        return self.rng.choice([0, 1, -5, 2**(element.bits - 1) - 1])

    # -- one maker an op family -----------------------------------------------------------

    def constant(self, b: Builder) -> None:
        t: Type = self.rng.choice(list(SCALARS.values()))
        if self.rng.random() < 0.5:
            t = Tensor(self.rng.choice(SHAPES), t)  # type: ignore[arg-type]
        self.emit(b, ops.Constant(value=self.number(t), types=[t]))

    def elementwise(self, b: Builder) -> None:
        x = self.pick(lambda t: isinstance(element_of(t), Scalar))
        y = self.pick(lambda t: x is not None and t == x.type)
        assert x is not None and y is not None
        kinds = [ops.Add, ops.Mul, ops.Maximum, ops.Cmp, ops.Cast, ops.Neg, ops.Hint]
        kind = self.rng.choice(kinds)
        if kind is ops.Cmp:
            op = ops.Cmp(x, y, predicate=self.rng.choice(["eq", "lt"]))
        elif kind is ops.Cast:
            to = self.rng.choice(list(SCALARS.values()))
            op = ops.Cast(x, types=[with_element(x.type, to)], rounding="rtz")
        elif kind is ops.Neg:
            op = ops.Neg(x)
        elif kind is ops.Hint:
            rank = max(1, len(shape_of(x.type)))
            op = ops.Hint(x, divisibility=self.rng.choice([(), (16,) * rank, (1, 8, 2)[:rank]]))
        elif kind is ops.Maximum:
            op = ops.Maximum(x, y, propagate_nan=self.rng.random() < 0.5)
        else:
            op = kind(x, y)
        self.emit(b, op)

    def shape(self, b: Builder) -> None:
        x = self.pick(lambda t: isinstance(t, Tensor) and t.rank < 3)
        if x is None:
            y = self.visible[0]
            self.emit(b, ops.Splat(y, types=[Tensor(self.rng.choice(SHAPES), element_of(y.type))]))
            return
        t = x.type
        assert isinstance(t, Tensor)
        size = t.size
        self.emit(b, self.rng.choice([
            lambda: ops.ExpandDims(x, axis=self.rng.randint(0, t.rank)),
            lambda: ops.Reshape(x, types=[Tensor((1, size), t.element)]),
            lambda: ops.Trans(x, order=tuple(reversed(range(t.rank)))),
            lambda: ops.Arange(start=-3, end=5),
            lambda: ops.Join(x, x),
        ])())

    def memory(self, b: Builder) -> None:
        p = self.pick(lambda t: isinstance(t, Pointer))
        mask = self.pick(lambda t: t == i1)
        assert p is not None and mask is not None and isinstance(p.type, Pointer)
        load = ops.Load(p, mask, cache=".cg", volatile=True) if self.rng.random() < 0.5 \
            else ops.Load(p)
        self.emit(b, load)
        if not p.type.const:
            b.insert(ops.Store(p, load.result, mask, eviction="evict_first"))

    def outside(self, b: Builder) -> None:
        some = self.rng.choices(self.visible, k=self.rng.randint(0, 3))
        b.insert(self.rng.choice([
            lambda: ops.Print(some, prefix=self.rng.choice(STRINGS), hex=True),
            lambda: ops.Breakpoint(some, names=tuple(self.rng.choices(STRINGS, k=len(some)))),
        ])())

    def reduce(self, b: Builder) -> None:
        x = self.pick(lambda t: isinstance(t, Tensor) and isinstance(t.element, Scalar))
        if x is None:
            return
        t = element_of(x.type)
        body = Block([t, t], ["x", "y"])
        inner = Builder(body)
        inner.insert(ops.Yield([inner.emit(ops.Maximum(*body.args))]))
        self.emit(b, self.rng.choice([  # type: ignore[arg-type]
            lambda: ops.Reduce([x], axis=0, body=body),
            lambda: ops.Scan([x], axis=0, reverse=True, body=body)])())

    def control(self, b: Builder) -> None:
        if self.depth == 3:
            return
        carried = self.rng.choices(self.visible, k=self.rng.randint(0, 2))
        types = [v.type for v in carried]
        kind = self.rng.choice([ops.For, ops.If, ops.While])
        if kind is ops.For:
            n = self.scalar(i32, b)
            body = self.region([i32, *types], types)
            op = ops.For(n, n, n, carried, body=body, unroll=self.rng.randint(0, 3))
        elif kind is ops.If:
            cond = self.scalar(i1, b)
            op = ops.If(cond, then=self.region([], types), orelse=self.region([], types))
        else:
            op = ops.While(carried, before=self.region(types, types, condition=True),
                           after=self.region(types, types))
        self.emit(b, op)  # type: ignore[arg-type]

    def region(self, args: list[Type], results: list[Type], condition: bool = False) -> Block:
        block = Block(args, self.rng.choices(NAMES, k=len(args)))
        outer = list(self.visible)
        self.visible += block.args
        self.depth += 1
        b = Builder(block)
        self.fill(b, self.rng.randint(0, 3))
        values = [self.scalar(t, b) if isinstance(t, Scalar) else self.pick(lambda h, t=t: h == t)
                  for t in results]
        end = [self.scalar(i1, b)] if condition else []
        b.insert((ops.Condition if condition else ops.Yield)([*end, *values]))
        self.depth -= 1
        self.visible = outer
        return block


MAKERS = [Generator.constant, Generator.elementwise, Generator.elementwise, Generator.shape,
          Generator.memory, Generator.outside, Generator.reduce, Generator.control]
