"""Which tiles of pointers are boxes of a matrix, as descriptors describe them, and what of that is
left for the launch to see to.

A box's place is computed of program ids, loop indices and arguments. That it does not lie before
the matrix, where its mask has upper bounds alone, and that nothing overflows, follows from how
large these can get, which a launch knows (tilec/runtime/ranges.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.core import Builder, Func, Op, Value
from tilec.ir.forms import (
    ONE,
    Form,
    Forms,
    NoForm,
    Poly,
    Wrap,
    divided,
    permuted,
    plus,
    product,
    within,
)
from tilec.ir.tensor_maps import EVERYTHING, ROOM
from tilec.ir.types import Pointer, Scalar, element_of, i32, i64, scalar_of, shape_of

_MOST_TEXTS = 64
_SIGNS: dict[type[Op], str] = {ops.Add: "+", ops.Sub: "-", ops.Mul: "*", ops.Div: "//",
                               ops.Rem: "%"}
_CALLS: dict[type[Op], str] = {ops.Minimum: "min", ops.Maximum: "max"}


class Bound(NamedTuple):
    """A mask's bound along `dim`: index + start < 0, or with `lower` index >= start. side: what
    the index is added to, on its side of the comparison."""

    dim: int
    start: Poly
    side: Poly
    lower: bool = False


def bounds_of(forms: Forms, mask: Value | None) -> list[Bound]:
    """The bounds that a mask consists of. NoForm for a mask of another kind."""
    op = mask.op if mask is not None else None
    if mask is None or isinstance(op, ops.Constant) and op.value:
        return []
    if isinstance(op, ops.And):
        return bounds_of(forms, op.lhs) + bounds_of(forms, op.rhs)
    if isinstance(op, ops.ExpandDims):
        return [b._replace(dim=b.dim + (b.dim >= op.axis)) for b in bounds_of(forms, op.x)]
    if isinstance(op, ops.Broadcast):
        found, old = bounds_of(forms, op.x), shape_of(op.x.type)
        if any(old[b.dim] != shape_of(mask.type)[b.dim] for b in found):
            raise NoForm("its mask is the same for all elements of a row or a column")
        return found
    if isinstance(op, ops.Trans):
        return [b._replace(dim=op.order.index(b.dim)) for b in bounds_of(forms, op.x)]
    if isinstance(op, ops.Cmp) and scalar_of(op.lhs.type) in (i32, i64):
        return [_bound(op, forms.of(op.lhs), forms.of(op.rhs))]
    raise NoForm(f"its mask is made by {op.name}" if op is not None else "a loop carries its mask")


def _bound(op: ops.Cmp, a: Form, b: Form) -> Bound:
    if op.predicate in ("gt", "ge"):
        a, b = b, a
    less = plus(plus(a.start, b.start, -1), ONE, -1 if op.predicate in ("le", "ge") else 0)
    steps = [plus(x, y, -1) for x, y in zip(a.steps, b.steps, strict=True)]
    dims = [d for d, step in enumerate(steps) if step]
    if a.wraps or b.wraps:
        raise NoForm("its mask is of indices that begin anew")
    along = {d for d, x in enumerate(zip(a.steps, b.steps, strict=True)) if any(x)}
    if len(along) == len(dims) == 1 and op.predicate in ("lt", "le", "gt", "ge"):
        if steps[dims[0]] == ONE and a.steps[dims[0]] == ONE:
            return Bound(dims[0], less, a.start)
        if steps[dims[0]] == {(): -1} and b.steps[dims[0]] == ONE:
            return Bound(dims[0], plus(less, ONE), b.start, True)
    raise NoForm("its mask is no bound of rows or columns")


@dataclass
class Box:
    """A box: base, a parameter; strides, places and extents, an extent None where no mask gives
    one: of dimensions of which it has one place, and then of rows and columns; turned: the tile's
    columns are the rows; narrow: offsets are computed in 32 bits; wraps: along which dimensions of
    the tile indices begin anew, where the box reads zeros."""

    forms: Forms
    base: Value
    strides: list[Poly]
    places: list[Poly]
    extents: list[Poly | None]
    turned: bool
    narrow: bool
    wraps: tuple[Wrap, ...]

    def operands(self, builder: Builder) -> list[Value]:
        """Extents, strides and offsets of a descriptor op, emitted."""
        extents = [builder.emit(ops.Constant(value=EVERYTHING, types=[i32])) if e is None
                   else self._emit(builder, e, i32) for e in self.extents]
        strides = [self._emit(builder, s, i64) for s in self.strides]
        return [*extents, *strides, *(self._emit(builder, p, i32) for p in self.places)]

    def block(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The extents of the block that a tile of this shape is."""
        return (1,) * (len(self.places) - 2) + (shape[::-1] if self.turned else shape)

    def texts(self, func: Func) -> tuple[str, ...]:
        """The places as text that a launch can bound, after what they are computed of. NoForm
        where it cannot."""
        texts = _Texts(self.forms, func)
        places = [texts.of(place) for place in self.places]
        return (*texts.lines, *places)

    def _emit(self, builder: Builder, poly: Poly, t: Scalar) -> Value:
        total: Value | None = None
        for term, factor in poly.items():
            parts = [builder.emit(ops.Cast(self.forms.symbols[n], types=[t])) for n in term]
            if factor != 1 or not parts:
                parts.append(builder.emit(ops.Constant(value=factor, types=[t])))
            made = parts[0]
            for part in parts[1:]:
                made = builder.emit(ops.Mul(made, part))
            total = made if total is None else builder.emit(ops.Add(total, made))
        return builder.emit(ops.Constant(value=0, types=[t])) if total is None else total


def find_box(ptr: Value, mask: Value | None, func: Func) -> Box:
    """The box that a tile of pointers is; NoForm says why it is none."""
    if len(shape_of(ptr.type)) != 2:
        raise NoForm("it is no tile of two dimensions")
    forms = Forms()
    start, steps, wraps = forms.of(ptr)
    bounds = bounds_of(forms, mask)
    bounds += [Bound(w.dim, plus(w.start, w.extent, -1), w.start) for w in wraps]
    turned = steps[0] == ONE
    if turned:
        steps = permuted(steps, (1, 0))
    if steps[1] != ONE or not steps[0]:
        raise NoForm("its neighbours are not known to lie side by side")
    bases = [n for n, v in enumerate(forms.symbols) if isinstance(v.type, Pointer)
             and any(n in term for term in start)]
    if len(bases) != 1 or start.get((bases[0],)) != 1 or sum(bases[0] in t for t in start) != 1:
        raise NoForm("its addresses do not begin at one pointer")
    base, offset = forms.symbols[bases[0]], plus(start, {(bases[0],): -1})
    strides, places, ends = [*steps], [*divided(offset, steps[0])], list[Poly | None]()
    for d in (0, 1):
        along = [b for b in bounds if b.dim == (d ^ turned)]
        for term in _apart(forms, func, places[d], along, d):
            _move_out(forms, func, term, d, strides, places)
        ends.append(_extent(along, places[d]))
    strides, places = strides[2:] + strides[:2], places[2:] + places[:2]
    extents = [*(None for _ in places[2:]), *ends]
    if any(map(forms.sinks, places)):
        raise NoForm("it may begin before the matrix")
    narrow = [form for form in forms.narrow if not _fits(forms, form, places)]
    sums = _sums([product(*x) for x in zip(places, strides, strict=True)])
    if not all((within(form.start, offset) or form.start in sums)
               and all(s in ({}, ONE, steps[0]) for s in form.steps) for form in narrow):
        raise NoForm("its addresses might overflow 32 bits")
    box = Box(forms, base, strides, places, extents, turned, bool(narrow), wraps)
    for poly in (*strides, *extents):
        if poly is not None and any(forms.symbols[n].owner is not func.body
                                    for term in poly for n in term):
            raise NoForm("the host cannot compute the matrix's extents and strides")
    return box


def _apart(forms: Forms, func: Func, place: Poly, bounds: list[Bound], dim: int
           ) -> list[tuple[int, ...]]:
    """The terms of a place that choose one of several matrices, as a batch's number does: the mask
    does not count them, or, along columns without a mask, a parameter is their stride."""
    def known(term: tuple[int, ...]) -> list[bool]:
        return [forms.symbols[n].owner is func.body for n in term]

    if bounds:
        extent = plus(place, bounds[0].start, 0 if bounds[0].lower else -1)
        return [term for term, factor in extent.items()
                if not all(known(term)) and place.get(term) == factor]
    return [term for term in place if dim and any(known(term)) and not all(known(term))]


def _move_out(forms: Forms, func: Func, term: tuple[int, ...], dim: int, strides: list[Poly],
              places: list[Poly]) -> None:
    """Make a dimension of its own of a term of rows' or columns' place."""
    known = {n for n in term if forms.symbols[n].owner is func.body}
    stride = product(strides[dim], {tuple(n for n in term if n in known): places[dim].pop(term)})
    index: Poly = {tuple(n for n in term if n not in known): 1}
    if stride in strides[2:]:
        at = strides.index(stride, 2)
        places[at] = plus(places[at], index)
    else:
        strides.append(stride)
        places.append(index)


def _sums(parts: list[Poly]) -> list[Poly]:
    """The sums of some of these."""
    found: list[Poly] = [{}]
    for part in parts:
        found += [plus(x, part) for x in found]
    return found


def _extent(bounds: list[Bound], place: Poly) -> Poly | None:
    """The matrix's extent along a dimension, None where there is no bound."""
    found: list[Poly] = []
    for bound in bounds:
        # The index's side is the place itself, or lacks it: neither side can overflow.
        moved = plus(place, bound.side, -1)
        if moved != place and not _small(moved):
            raise NoForm("its mask is no bound of rows or columns")
        if bound.lower:
            if plus(place, bound.start):
                raise NoForm("its mask leaves out rows or columns before the box")
        else:
            found.append(plus(place, bound.start, -1))
    if any(extent != found[0] for extent in found):
        raise NoForm("its mask has two bounds along a dimension")
    return found[0] if found else None


def _small(poly: Poly) -> bool:
    return not set(poly) - {()} and abs(poly.get((), 0)) < ROOM // 2


def _fits(forms: Forms, form: Form, places: list[Poly]) -> bool:
    """Whether a value of 32 bits cannot have overflowed: a scalar of 32 bits as it is, or part of a
    place."""
    start, steps, _ = form
    if any(step not in ({}, ONE) for step in steps):
        return False
    alone = list(start.values()) == [1] and not any(steps) and \
        [forms.symbols[n].type for n in next(iter(start))] == [i32]
    return alone or _small(start) or any(start == place or within(start, place) for place in places)


class _Texts:
    """Scalars as text over parameters, $0, program ids, p0, their numbers, n0, and texts before
    it, t0: how large they can get follows from it."""

    def __init__(self, forms: Forms, func: Func) -> None:
        self.forms, self.func = forms, func
        self.lines: list[str] = []
        self._names: dict[Value, str] = {}
        self._depth = 0

    def of(self, poly: Poly) -> str:
        """A polynomial."""
        terms = [" * ".join([*(self._name(self.forms.symbols[n]) for n in term),
                             *([str(factor)] if factor != 1 or not term else [])])
                 for term, factor in poly.items()]
        return " + ".join(terms) or "0"

    def _name(self, value: Value) -> str:
        if value not in self._names:
            self._depth += 1
            text = self._made(value)
            self._depth -= 1
            if " " in text:
                self.lines.append(text)
                text = f"t{len(self.lines) - 1}"
            self._names[value] = text
        return self._names[value]

    def _made(self, value: Value) -> str:
        op = value.op
        if element_of(value.type) not in (i32, i64):
            raise NoForm(f"its place is computed of a {value.type}")
        if self._depth > _MOST_TEXTS or len(self.lines) > _MOST_TEXTS:
            raise NoForm("its place is computed in too many steps")
        if op is None:
            return self._argument(value)
        if isinstance(op, ops.Constant):
            return str(op.value)
        if isinstance(op, ops.ProgramId | ops.NumPrograms):
            return f"{'p' if isinstance(op, ops.ProgramId) else 'n'}{op.axis}"
        if isinstance(op, ops.Cast | ops.Hint):
            return self._name(op.x)
        sign, call = _SIGNS.get(type(op)), _CALLS.get(type(op))
        if not sign and not call:
            raise NoForm(f"its place comes from {op.name}, which a launch cannot bound")
        a, b = (self._name(x) for x in op.operands)
        return f"{a} {sign} {b}" if sign else f"{call}({a}, {b})"

    def _argument(self, value: Value) -> str:
        if value.owner is self.func.body:
            return f"${value.index}"
        loop = value.owner.parent_op  # type: ignore[union-attr]
        if not isinstance(loop, ops.For) or value.index:
            raise NoForm("its place comes from what a loop carries, which a launch cannot bound")
        lo, hi, step = (self._name(x) for x in (loop.lo, loop.hi, loop.step))
        return f"index({lo}, {hi}, {step})"
