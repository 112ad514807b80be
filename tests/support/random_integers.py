"""Random integer expressions as IR, of all widths, of numbers that wrap and are divided: tiles of
odd extents, casts, pointers, branches and loops; and what each value is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.eval.promises import broken_promise
from tilec.eval.rules import evaluate
from tilec.ir import ops
from tilec.ir.axis import GRID, AxisAnalysis
from tilec.ir.core import Block, Builder, Func, Op, Value
from tilec.ir.types import (
    SCALARS,
    Element,
    Pointer,
    Scalar,
    Tensor,
    Type,
    element_of,
    f32,
    i1,
    i32,
    shape_of,
    with_element,
)

INTS = [SCALARS[sign + str(bits)] for sign in "iu" for bits in (8, 16, 32, 64)]
DTYPES = {t: np.dtype(f"{'int' if t.is_signed else 'uint'}{t.bits}") for t in INTS} | {
    i1: np.dtype(bool)}
EXTENTS = (1, 2, 3, 4, 8, 12, 16, 17, 32, 48, 64, 96, 100, 128, 300)
MOST = 600  # elements of a tile
POINTEES = [SCALARS[name] for name in ("i8", "f16", "f32", "i64")]
BINARY = (ops.Add, ops.Add, ops.Add, ops.Sub, ops.Mul, ops.And, ops.Or, ops.Xor, ops.Minimum,
          ops.Maximum)
PREDICATES = ("lt", "le", "gt", "ge", "eq", "ne")

Values = dict[Value, np.ndarray]
Seen = Callable[[Value, np.ndarray], None]


def run(block: Block, values: Values, given: Values, seen: Seen = lambda *_: None) -> list:
    """What the block's last op takes, all its values computed from those it has; `given`: of ops
    that read memory or the grid. Tells `seen` every value, in a loop each time."""
    for op in block:
        if isinstance(op, ops.For):
            results = _loop(op, values, given, seen)
        elif isinstance(op, ops.If):
            results = run(op.regions[0 if values[op.cond] else 1], values, given, seen)
        elif op is block.last:
            return [values[v] for v in op.operands]
        else:
            results = [given[r] for r in op.results if r in given] or \
                [evaluate(op, *(values[v] for v in op.operands))]
        for result, x in zip(op.results, results, strict=True):
            values[result] = x
            seen(result, x)
    raise AssertionError("a block ends in a yield or a return")


def _loop(op: ops.For, values: Values, given: Values, seen: Seen) -> list:
    lo, hi, step = (int(values[v]) for v in (op.lo, op.hi, op.step))
    carried = [values[v] for v in op.init]
    for i in range(lo, hi, step) if step > 0 else ():
        entered = [np.asarray(i, DTYPES[op.lo.type]), *carried]
        for arg, x in zip(op.body.args, entered, strict=True):
            values[arg] = x
            seen(arg, x)
        carried = run(op.body, values, given, seen)
    return carried


class Expression:
    """A function of one random expression. given: of arguments, and of results that no rule
    computes; narrowest: the bits of the narrowest integers that a value was made of."""

    def __init__(self, seed: int, depth: int = 3) -> None:
        self.rng = np.random.default_rng(seed)
        rng = self.rng
        scalars: list[Element] = [i32, INTS[rng.integers(8)], INTS[rng.integers(8)],
                                  *(Pointer(POINTEES[rng.integers(4)]) for _ in range(2))]
        self.block = Block(scalars, [f"a{i}" for i in range(len(scalars))])
        self.func = Func("f", self.block, [{} for _ in scalars])
        self.builder, self.inside = Builder(self.block), 0
        self.given: Values = {}
        self.narrowest: dict[Value, int] = {}
        for arg, attrs in zip(self.block.args, self.func.arg_attrs, strict=True):
            self.argument(arg, attrs)
        shape = self.shape()
        self.addresses(self.grow(Tensor(shape, self.integer()), depth))
        self.builder.insert(ops.Return())

    def check(self, seen: Seen) -> None:
        """Compute all values, and tell them."""
        run(self.block, dict(self.given), self.given, seen)

    # -- numbers
    def pick(self, *things: object) -> object:
        return things[self.rng.integers(len(things))]

    def integer(self) -> Scalar:
        return INTS[self.rng.choice(8, p=(.1, .05, .3, .15, .1, .05, .15, .1))]

    def number(self, t: Scalar) -> int:
        """Small, or near a power of two or an end of the type."""
        rng, bits = self.rng, t.bits
        low = -(1 << (bits - 1)) if t.is_signed else 0
        match rng.integers(4):
            case 0:
                n = int(rng.integers(-20, 40))
            case 1:
                n = int(rng.integers(1, 8)) << int(rng.integers(0, bits))
            case 2:
                n = (1 << int(rng.integers(0, bits))) + int(rng.integers(-20, 20))
            case _:
                n = low + int(rng.integers(-70, 70))
        return (n - low) % (1 << bits) + low

    def divisor(self, t: Scalar) -> int:
        n = int(self.pick(2, 3, 4, 6, 8, 12, 16, 64, 100))  # type: ignore[call-overload]
        return -n if t.is_signed and self.rng.random() < 0.15 else n

    def argument(self, arg: Value, attrs: dict) -> None:
        element, div = element_of(arg.type), 1 << int(self.rng.integers(0, 6))
        attrs["divisibility"] = div
        if isinstance(element, Pointer):
            x = np.asarray(int(self.rng.integers(1, 1 << 40)) * div, np.int64)
        else:
            assert isinstance(element, Scalar)
            x = np.asarray(self.number(element), DTYPES[element])
            x = np.asarray(x - x % div, x.dtype)
        self.given[arg], self.narrowest[arg] = x, element.bits

    # -- ops
    def emit(self, op: Op) -> Value:
        result = self.builder.emit(op)
        bits = [self.narrowest[v] for v in op.operands]
        own = element_of(result.type).bits
        self.narrowest[result] = min(b for b in (*bits, own) if b > 1) if own > 1 else 1
        return result

    def constant(self, n: int, t: Type) -> Value:
        return self.emit(ops.Constant(value=bool(n) if element_of(t) == i1 else n, types=[t]))

    def shape(self) -> tuple[int, ...]:
        rng = self.rng
        while True:
            shape = tuple(int(n) for n in rng.choice(EXTENTS, rng.choice([1, 1, 1, 2, 2, 3, 3])))
            if np.prod(shape) <= MOST:
                return shape

    def cast(self, x: Value, t: Type) -> Value:
        return x if x.type == t else self.emit(ops.Cast(x, types=[t]))

    def leaf(self, t: Tensor) -> Value:
        """A tile of integers: a row, one number, what was loaded."""
        rng, element = self.rng, t.element
        assert isinstance(element, Scalar)
        match rng.integers(8):
            case 0 | 1 | 2:
                return self.cast(self.row(t), t)
            case 3:
                arg = self.block.args[rng.integers(3)]
                return self.splat(self.cast(arg, element), t)
            case 4:
                op = ops.ProgramId(axis=int(rng.integers(3)))
                pid = self.builder.emit(op)
                self.narrowest[pid], most = 32, GRID[op.axis] - 1
                small = bool(rng.random() < 0.5)
                self.given[pid] = np.asarray(rng.integers(40) if small else
                                             most - rng.integers(40), np.int32)
                return self.splat(self.cast(pid, element), t)
            case 5:
                p = self.constant(0, Tensor(t.shape, Pointer(element)))
                loaded = self.emit(ops.Load(p))
                self.narrowest[loaded] = element.bits
                self.given[loaded] = np.array(
                    [self.number(element) for _ in range(t.size)], DTYPES[element]).reshape(t.shape)
                return loaded
        return self.constant(self.number(element), t)

    def row(self, t: Tensor) -> Value:
        """Numbers that grow along a dimension."""
        dim = int(self.rng.integers(t.rank))
        start = int(self.pick(0, 0, 0, 1, 4, 7, 32, -8, -100))  # type: ignore[call-overload]
        x = self.emit(ops.Arange(start=start, end=start + t.shape[dim]))
        for d in range(t.rank):
            if d != dim:
                x = self.emit(ops.ExpandDims(x, axis=d))
        whole = Tensor(t.shape, i32)
        return x if x.type == whole else self.emit(ops.Broadcast(x, types=[whole]))

    def splat(self, x: Value, t: Tensor) -> Value:
        return self.emit(ops.Splat(x, types=[t]))

    def condition(self, t: Tensor, depth: int) -> Value:
        inner = Tensor(t.shape, self.integer())
        a = self.grow(inner, depth)
        b = self.grow(inner, depth) if self.rng.random() < 0.3 else \
            self.constant(self.number(self.integer_of(inner)), inner)
        return self.emit(ops.Cmp(a, b, predicate=str(self.pick(*PREDICATES))))

    def integer_of(self, t: Type) -> Scalar:
        element = element_of(t)
        assert isinstance(element, Scalar)
        return element

    def grow(self, t: Tensor, depth: int) -> Value:
        """A tile of type `t`."""
        if depth <= 0:
            return self.leaf(t)
        makers = (self.binary, self.binary, self.binary, self.divided, self.divided, self.divided,
                  self.shifted, self.masked, self.unary, self.converted, self.converted,
                  self.selected, self.moved, self.moved, self.carried, self.branched, self.hinted)
        return makers[self.rng.integers(len(makers))](t, depth - 1)

    def binary(self, t: Tensor, depth: int) -> Value:
        kind = BINARY[self.rng.integers(len(BINARY))]
        return self.emit(kind(self.grow(t, depth), self.grow(t, depth - 1)))

    def divided(self, t: Tensor, depth: int) -> Value:
        kind = ops.Div if self.rng.random() < 0.5 else ops.Rem
        b = self.constant(self.divisor(self.integer_of(t)), t)
        if self.rng.random() < 0.2:
            odd = self.constant(1, t)
            b = self.emit(ops.Or(self.grow(t, depth - 1), odd))
        return self.emit(kind(self.grow(t, depth), b))

    def shifted(self, t: Tensor, depth: int) -> Value:
        kind, bits = ops.Shl if self.rng.random() < 0.4 else ops.Shr, self.integer_of(t).bits
        count = int(self.pick(1, 2, 3, 4, bits - 1, bits))  # type: ignore[call-overload]
        b = self.grow(t, depth - 1) if self.rng.random() < 0.2 else self.constant(count, t)
        return self.emit(kind(self.grow(t, depth), b))

    def masked(self, t: Tensor, depth: int) -> Value:
        """The last bits, or others."""
        mask = int(self.pick(1, 3, 7, 15, 63, 5, 6, 8, 12, 127))  # type: ignore[call-overload]
        return self.emit(ops.And(self.grow(t, depth), self.constant(mask, t)))

    def unary(self, t: Tensor, depth: int) -> Value:
        kind = (ops.Neg, ops.Not, ops.Abs)[self.rng.integers(3)]
        return self.emit(kind(self.grow(t, depth)))

    def converted(self, t: Tensor, depth: int) -> Value:
        element = self.integer_of(t)
        inner: Scalar = self.integer()
        match self.rng.integers(8):
            case 0:
                inner = i1
            case 1:
                inner = f32
            case 2:
                inner = SCALARS[f"{self.pick('i', 'u')}{element.bits}"]
        if inner.is_float:
            x = self.emit(ops.Cast(self.grow(t, depth), types=[with_element(t, f32)]))
            return self.emit(ops.Cast(x, types=[t]))
        x = self.condition(t, depth - 1) if inner == i1 and self.rng.random() < 0.6 else \
            self.cast(self.grow(Tensor(t.shape, self.integer()), depth), with_element(t, inner))
        if inner.bits == element.bits:
            return self.emit(ops.Bitcast(x, types=[t]))
        return self.cast(x, t)

    def selected(self, t: Tensor, depth: int) -> Value:
        cond = self.condition(t, depth - 1)
        return self.emit(ops.Select(cond, self.grow(t, depth), self.grow(t, depth)))

    def moved(self, t: Tensor, depth: int) -> Value:
        """Out of a tile of another shape."""
        rng, shape = self.rng, t.shape
        kind = rng.integers(5)
        if kind == 4 and 2 * t.size <= MOST and t.rank < 3:
            pairs = self.grow(Tensor((*shape, 2), t.element), depth)
            return self.emit(ops.Split(pairs, index=int(rng.integers(2))))
        if kind == 4 and shape[-1] == 2 and t.rank > 1:
            half = Tensor(shape[:-1], t.element)
            return self.emit(ops.Join(self.grow(half, depth), self.grow(half, depth)))
        if kind == 0 and t.rank > 1:
            order = tuple(int(d) for d in rng.permutation(t.rank))
            source = [0] * t.rank
            for d, n in zip(order, shape, strict=True):
                source[d] = n
            x = self.grow(Tensor(tuple(source), t.element), depth)
            return self.emit(ops.Trans(x, order=order))
        if kind == 1:
            source = [1 if rng.random() < 0.6 else n for n in shape]
            x = self.grow(Tensor(tuple(source), t.element), depth)
            return self.emit(ops.Broadcast(x, types=[t])) if x.type != t else x
        if kind == 2 and 1 in shape and t.rank > 1:
            axis = shape.index(1)
            x = self.grow(Tensor((*shape[:axis], *shape[axis + 1:]), t.element), depth)
            return self.emit(ops.ExpandDims(x, axis=axis))
        cut = int(rng.choice([d for d in range(1, t.size + 1) if t.size % d == 0]))
        source = tuple(self.pick((t.size,), (cut, t.size // cut)))  # type: ignore[arg-type]
        x = self.grow(Tensor(source, t.element), depth)
        return self.emit(ops.Reshape(x, types=[t])) if x.type != t else x

    # -- control
    def region(self, args: list[Type], make: Callable[[list[Value]], list[Value]]) -> Block:
        block, outer = Block(args, [""] * len(args)), self.builder
        self.builder, self.inside = Builder(block), self.inside + 1
        for arg in block.args:
            self.narrowest[arg] = 8
        self.builder.insert(ops.Yield(make(list(block.args))))
        self.builder, self.inside = outer, self.inside - 1
        return block

    def carried(self, t: Tensor, depth: int) -> Value:
        """What a loop adds up, its index of any type."""
        element, rng = self.integer(), self.rng
        start = self.number(element)
        step = int(rng.integers(1, 20))
        most = (1 << (element.bits - element.is_signed)) - 1
        end = min(start + step * int(rng.integers(0, 4)), most)
        bounds = [self.constant(n, element) for n in (start, end, min(step, most))]
        init = self.grow(t, depth)

        def body(args: list[Value]) -> list[Value]:
            i, x = args
            more = self.splat(self.cast(i, t.element), t) if rng.random() < 0.5 else \
                self.grow(t, depth - 1)
            kind = (ops.Add, ops.Add, ops.Sub, ops.Mul)[rng.integers(4)]
            return [self.emit(kind(x, more)) if rng.random() < 0.8 else more]

        block = self.region([element, t], body)
        result = self.builder.emit(ops.For(*bounds, [init], body=block))
        self.narrowest[result] = 8
        return result

    def branched(self, t: Tensor, depth: int) -> Value:
        n = self.block.args[self.rng.integers(3)]
        cond = self.emit(ops.Cmp(n, self.constant(self.number(self.integer_of(n.type)), n.type),
                                 predicate="lt"))
        arms = [self.region([], lambda _: [self.grow(t, depth)]) for _ in range(2)]
        result = self.builder.emit(ops.If(cond, then=arms[0], orelse=arms[1]))
        self.narrowest[result] = 8
        return result

    def hinted(self, t: Tensor, depth: int) -> Value:
        """A promise that the interpreter does not see broken, outside of loops."""
        x = self.grow(t, depth)
        if self.inside:
            return x
        end = self.builder.insert(ops.Return([x]))
        values = dict(self.given)
        run(self.block, values, self.given)
        end.erase()
        ones = (1,) * (t.rank - 1)
        some = {name: (*ones, 1 << int(self.rng.integers(0, 5)))
                for name in ("divisibility", "contiguity", "constancy") if self.rng.random() < 0.5}
        hint = ops.Hint(x, **some)
        runs = AxisAnalysis(self.func).get(x).contiguity
        if broken_promise(hint, values[x][None], hint.contiguity or runs, runs):
            hint.drop()
            return x
        return self.emit(hint)

    def addresses(self, offsets: Value) -> None:
        """Pointers that the expression moves, and others that a condition picks."""
        shape = shape_of(offsets.type)

        def at(arg: Value, by: Value) -> Value:
            p = self.splat(arg, Tensor(shape, element_of(arg.type)))
            return self.emit(ops.AddPtr(p, by))

        first = self.block.args[3]
        p = at(first, offsets)
        q = at(first, self.leaf(Tensor(shape, self.integer())))
        picked = self.emit(ops.Select(self.condition(Tensor(shape, i32), 1), p, q))
        self.emit(ops.AddPtr(picked, self.leaf(Tensor(shape, self.integer()))))
        self.emit(ops.Reshape(p, types=[Tensor((int(np.prod(shape)),), element_of(p.type))]))
