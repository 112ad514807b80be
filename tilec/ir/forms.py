"""Integers and addresses as polynomials over scalars: what a value is at every place of a tile.

A tile's form is what its first element is, and by how much elements grow along each dimension.
Sums and products wrap modulo 2^32 or 2^64, and the forms are exact modulo that, so a form is the
value itself wherever it fits the type. `Forms.narrow` lists where 32 bits become 64: whoever uses
a form has to see that these fit.
"""

from __future__ import annotations

from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.types import Pointer, Tensor, element_of, i32, i64, shape_of

Poly = dict[tuple[int, ...], int]  # products of symbols, by their sorted numbers -> coefficients
ONE: Poly = {(): 1}
_MOST_TERMS = 64
_DEEPEST = 200


class NoForm(Exception):
    """A value that is no such polynomial; the text says why."""


class Wrap(NamedTuple):
    """Along `dim` a remainder by `extent` was taken of start + index, which the form leaves out: it
    holds where start + index lies from 0 to extent - 1."""

    dim: int
    start: Poly
    extent: Poly


class Form(NamedTuple):
    """start: the first element; steps: by how much elements grow along each dimension."""

    start: Poly
    steps: tuple[Poly, ...]
    wraps: tuple[Wrap, ...] = ()


def plus(a: Poly, b: Poly, times: int = 1) -> Poly:
    """a + times b"""
    out = dict(a)
    for term, factor in b.items():
        out[term] = out.get(term, 0) + times * factor
    return {term: factor for term, factor in out.items() if factor}


def product(a: Poly, b: Poly) -> Poly:
    """a b"""
    out: Poly = {}
    for x, m in a.items():
        for y, n in b.items():
            term = tuple(sorted(x + y))
            out[term] = out.get(term, 0) + m * n
    if len(out) > _MOST_TERMS:
        raise NoForm("its addresses have too many terms")
    return {term: factor for term, factor in out.items() if factor}


def divided(a: Poly, by: Poly) -> tuple[Poly, Poly]:
    """(quotient, rest) with a = quotient by + rest; the quotient has the terms of `a` that are
    multiples of the leading term of `by`."""
    lead = max(by, key=lambda term: (len(term), term))
    quotient: Poly = {}
    for term, factor in a.items():
        left = list(term)
        for symbol in lead:
            if symbol not in left:
                break
            left.remove(symbol)
        else:
            if factor % by[lead] == 0:
                quotient = plus(quotient, {tuple(left): factor // by[lead]})
    return quotient, plus(a, product(quotient, by), -1)


def within(a: Poly, b: Poly) -> bool:
    """Whether 0 <= a <= b where no symbol is negative: no term of a or of b - a is."""
    return all(factor > 0 for factor in (*a.values(), *plus(b, a, -1).values()))


def _combined(a: Form, b: Form, times: int = 1) -> Form:
    return Form(plus(a.start, b.start, times),
                tuple(plus(x, y, times) for x, y in zip(a.steps, b.steps, strict=True)),
                a.wraps + b.wraps)


def _scaled(a: Form, by: Poly) -> Form:
    return Form(product(a.start, by), tuple(product(x, by) for x in a.steps), a.wraps)


def permuted(steps: tuple[Poly, ...], order: tuple[int, ...]) -> tuple[Poly, ...]:
    """The steps of a transposed tile."""
    return tuple(steps[d] for d in order)


class Forms:
    """The forms of one function's values. symbols: the scalars that they are made of. narrow: the
    forms of values of 32 bits that were widened, sign and all."""

    def __init__(self) -> None:
        self.symbols: list[Value] = []
        self.narrow: list[Form] = []
        self._numbers: dict[Value, int] = {}
        self._known: dict[Value, Form] = {}
        self._depth = 0

    def of(self, value: Value) -> Form:
        """The form of a value; NoForm where there is none."""
        found = self._known.get(value)
        if found is None:
            self._depth += 1
            try:
                if self._depth > _DEEPEST:
                    raise NoForm("its addresses have too many terms")
                found = self._known[value] = self._made(value)
            finally:
                self._depth -= 1
        return found

    def symbol(self, value: Value) -> Poly:
        """A scalar as a polynomial."""
        number = self._numbers.setdefault(value, len(self.symbols))
        if number == len(self.symbols):
            self.symbols.append(value)
        return {(number,): 1}

    def _made(self, value: Value) -> Form:
        op, rank, element = value.op, len(shape_of(value.type)), element_of(value.type)
        form = None
        if isinstance(element, Pointer) or element in (i32, i64):
            form = self._carried(value) if op is None else self._of_op(op)
        if form is None and not rank:
            form = Form(self.symbol(value), ())
        if form is None:
            raise NoForm(f"its addresses are computed by {op.name}" if op is not None else
                         "a loop changes its addresses")
        return form

    def _of_op(self, op: Op) -> Form | None:
        rank = len(shape_of(op.results[0].type)) if op.results else 0
        flat: tuple[Poly, ...] = ({},) * rank
        if isinstance(op, ops.Constant):
            return Form({(): int(op.value)} if op.value else {}, flat)
        if isinstance(op, ops.Arange):
            return Form({(): op.start} if op.start else {}, (ONE,))
        if isinstance(op, ops.Splat):
            return Form(self.of(op.x).start, flat)
        if isinstance(op, ops.ExpandDims | ops.Broadcast | ops.Trans | ops.Hint):
            return self._moved(op)
        if isinstance(op, ops.Add | ops.Sub):
            return _combined(self.of(op.lhs), self.of(op.rhs), 1 if isinstance(op, ops.Add) else -1)
        if isinstance(op, ops.Neg):
            return _scaled(self.of(op.x), {(): -1})
        if isinstance(op, ops.Mul):
            a, b = self.of(op.lhs), self.of(op.rhs)
            if any(a.steps):
                a, b = b, a
            return None if any(a.steps) else _scaled(b, a.start)
        if isinstance(op, ops.Rem):
            return self._wrapped(op)
        if isinstance(op, ops.AddPtr):
            return _combined(self.of(op.ptr), self._widened(op.offset))
        if isinstance(op, ops.Cast) and element_of(op.x.type) in (i32, i64):
            return self._widened(op.x)
        return None

    def _moved(self, op: ops.ExpandDims | ops.Broadcast | ops.Trans | ops.Hint) -> Form:
        start, steps, wraps = self.of(op.x)
        if isinstance(op, ops.ExpandDims):
            steps = (*steps[:op.axis], {}, *steps[op.axis:])
            wraps = tuple(w._replace(dim=w.dim + (w.dim >= op.axis)) for w in wraps)
        elif isinstance(op, ops.Trans):
            steps = permuted(steps, op.order)
            wraps = tuple(w._replace(dim=op.order.index(w.dim)) for w in wraps)
        elif isinstance(op, ops.Broadcast):
            grown = zip(steps, shape_of(op.x.type), shape_of(op.result.type), strict=True)
            steps = tuple(step if old == new else {} for step, old, new in grown)
        return Form(start, steps, wraps)

    def _wrapped(self, op: ops.Rem) -> Form | None:
        """Indices that begin anew after the last one."""
        if not isinstance(op.result.type, Tensor):
            return None
        x, by = self.of(op.lhs), self.of(op.rhs)
        dims = [d for d, step in enumerate(x.steps) if step]
        if len(dims) != 1 or x.steps[dims[0]] != ONE or any(by.steps) or x.wraps or by.wraps:
            return None
        return Form(x.start, x.steps, (Wrap(dims[0], x.start, by.start),))

    def _widened(self, value: Value) -> Form:
        form = self.of(value)
        if element_of(value.type) == i32:
            self.narrow.append(form)
        elif element_of(value.type) != i64:
            raise NoForm(f"its offsets are {element_of(value.type)}")
        return form

    def _carried(self, value: Value) -> Form | None:
        """The form of what a loop carries, if each round adds the same to it."""
        assert isinstance(value.owner, Block)
        loop = value.owner.parent_op
        if not isinstance(loop, ops.For) or not value.index:
            return None
        known, narrow = dict(self._known), len(self.narrow)
        here = Form(self.symbol(value), ({},) * len(shape_of(value.type)))
        self._known[value] = here
        try:
            added = _combined(self.of(loop.body.terminator.operands[value.index - 1]), here, -1)
        except NoForm:
            added = None
        inside, self._known = self.narrow[narrow:], known
        del self.narrow[narrow:]
        step = loop.step.op
        if added is None or any(added.steps) or added.wraps or not isinstance(step, ops.Constant) \
                or step.value <= 0 or self.varies(added.start, loop):
            return None
        # The rounds before this one, times the loop's step.
        past = plus(self.of(loop.body.args[0]).start, self.of(loop.lo).start, -1)
        advance, rest = divided(product(added.start, past), {(): int(step.value)})
        if rest:
            return None
        for form in inside:  # widened: as much as all rounds have added
            total, rest = divided(product(form.start, past), {(): int(step.value)})
            self.narrow.append(form if rest else form._replace(start=total))
        init = self.of(loop.init[value.index - 1])
        return Form(plus(init.start, advance), init.steps, init.wraps)

    def named(self, poly: Poly) -> dict[tuple[Value, ...], int]:
        """A polynomial over values, which may be compared with those of other `Forms`."""
        return {tuple(sorted((self.symbols[n] for n in term), key=id)): factor
                for term, factor in poly.items()}

    def sinks(self, poly: Poly) -> bool:
        """Whether terms are subtracted from nothing but program ids and indices, which may be 0."""
        def grows(term: tuple[int, ...]) -> bool:
            made = [self.symbols[n].op for n in term]
            return bool(made) and not any(op is None or isinstance(op, ops.ProgramId)
                                          for op in made)

        return min(poly.values(), default=0) < 0 and \
            not any(factor > 0 and grows(term) for term, factor in poly.items())

    def varies(self, poly: Poly, loop: ops.For) -> bool:
        """Whether any symbol of a polynomial is computed in a loop."""
        for number in {n for term in poly for n in term}:
            owner = self.symbols[number].owner
            block = owner if isinstance(owner, Block) else owner.parent
            while block is not None and block.parent_op is not None:
                if block.parent_op is loop:
                    return True
                block = block.parent_op.parent
        return False
