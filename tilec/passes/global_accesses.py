"""Which global accesses of one program may reach the same bytes from different threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.core import Func, Op, Value
from tilec.ir.ops.base import Rearrange
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.origins import pointer_roots
from tilec.ir.scratch import tile_fragment
from tilec.ir.types import Scalar, Tensor, Type, element_of, pointee_of, shape_of

MAX_DEPTH = 64
NARROWEST = 32  # bits of integers that are looked through
FARTHEST = 1 << (NARROWEST - 2)
# Scalars and their factors, the least and the greatest of what is added to their sum.
Affine = tuple[dict[Value, int], int, int]


@dataclass(frozen=True)
class Span:
    """The bytes from low to high (excluded) after the sum of the terms, scalars times factors.
    Where integers wrap, it is elsewhere by a multiple of 2^NARROWEST bytes; two of the same terms
    that are apart are so there, too, as no span reaches farther than a quarter of that.

    step: if not 0, this is an access of an earlier iteration; in each one since, the sum grew by
    so many bytes.
    """

    terms: frozenset[tuple[Value, int]]
    low: int
    high: int
    step: int = 0

    def apart(self, later: Span) -> bool:
        """Whether it and a later access surely have no byte in common."""
        if self.terms != later.terms or later.step:
            return False
        if not self.step:
            return self.high <= later.low or later.high <= self.low
        return self.high <= later.low + self.step if self.step > 0 else \
            later.high + self.step <= self.low


@dataclass(frozen=True)
class Access:
    """One access. roots: the parameters its pointers come from, None for anything. ptr: the
    pointers, None once they may be those of another iteration. private: one thread comes to each
    element. commutes: the kind of an atomic that may change places with others of its kind.
    distinct: no two elements hold one address."""

    roots: frozenset[Value] | None
    type: Type
    ptr: Value | None
    writes: bool
    commutes: str
    private: bool
    distinct: bool
    span: Span | None

    def conflicts(self, earlier: Access) -> bool:
        """Whether the order of the two could show, were they left to different threads.

        Pointers from different parameters count as overlapping only element by element, as when a
        kernel of two parameters works in place; then the same thread comes to both.
        """
        if not (self.writes or earlier.writes) or \
                (self.commutes and self.commutes == earlier.commutes):
            return False
        if self.roots is None or earlier.roots is None or self.roots & earlier.roots:
            if self.span is not None and earlier.span is not None and \
                    earlier.span.apart(self.span):
                return False
            same_thread = self.ptr is not None and self.ptr is earlier.ptr and self.distinct
        elif _elements(self.type) != _elements(earlier.type):
            return False
        else:
            same_thread = self.type == earlier.type
        return not (same_thread and self.private and earlier.private)


def _elements(t: Type) -> tuple[object, ...]:
    """A tile's shape and what its pointers point to."""
    return shape_of(t), pointee_of(t)


def forget(accesses: Iterable[Access], loop: Op) -> set[Access]:
    """The accesses as the next iteration of `loop` sees them: values made inside are others."""
    inside = _made_inside(loop)
    return {replace(a, ptr=None if a.ptr in inside else a.ptr, span=_earlier(a.span, loop, inside))
            for a in accesses}


def _made_inside(loop: Op) -> set[Value]:
    inside: set[Value] = set()
    blocks = list(loop.regions)
    while blocks:
        block = blocks.pop()
        inside.update(block.args)
        for op in block:
            inside.update(op.results)
            blocks += op.regions
    return inside


def _earlier(span: Span | None, loop: Op, inside: set[Value]) -> Span | None:
    """A span of an iteration as the next one sees it; of what changes, only the index is known."""
    if span is None:
        return None
    changing = {v: factor for v, factor in span.terms if v in inside}
    if not changing:
        return span
    if not isinstance(loop, ops.For) or list(changing) != [loop.body.args[0]] or \
            not isinstance(loop.step.op, ops.Constant):
        return None
    return replace(span, step=changing[loop.body.args[0]] * int(loop.step.op.value))


class GlobalAccesses:
    """The accesses of one function."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.found: dict[Op, Access] = {}
        self.forms: dict[Value, Affine | None] = {}

    def of(self, op: MemoryOp) -> Access:
        """The access that an op makes."""
        if op not in self.found:
            writes = "write" in op.class_effects
            self.found[op] = Access(
                roots=pointer_roots(op.ptr, self.func), type=op.ptr.type, ptr=op.ptr, writes=writes,
                commutes=op.kind if isinstance(op, ops.AtomicRmw) and op.kind != "xchg" and
                not op.result.uses else "",
                # Of the threads that hold an element, one stores it, but all of them load it.
                private=writes or _exclusive(op.ptr.type), distinct=self._distinct(op.ptr),
                span=self._span(op.ptr))
        return self.found[op]

    def crosses(self, read: MemoryOp, write: MemoryOp, loop: Op) -> bool:
        """Whether a read of a loop's later iteration may see what an earlier one writes.

        With different parameters element by element only: so if reads come to new places each.
        """
        a, b = self.of(read), self.of(write)
        if a.roots is None or b.roots is None or a.roots & b.roots:
            return True
        if _elements(a.type) != _elements(b.type):
            return False
        before = _earlier(a.span, loop, _made_inside(loop))
        return a.span is None or before is None or not before.apart(a.span)

    @cached_property
    def _axis(self) -> AxisAnalysis:
        return AxisAnalysis(self.func)

    def _distinct(self, ptr: Value) -> bool:
        """Whether the elements are known to have addresses of their own."""
        shape = shape_of(ptr.type)
        wide = [d for d, n in enumerate(shape) if n > 1]
        if len(wide) > 1:
            return False
        return not wide or self._axis.get(ptr).contiguity[wide[0]] == shape[wide[0]]

    def _span(self, ptr: Value) -> Span | None:
        """The bytes that pointers reach."""
        form = self._affine(ptr)
        if form is None:
            return None
        terms, low, high = form
        if not -FARTHEST <= low <= high < FARTHEST:
            return None
        return Span(frozenset((v, k) for v, k in terms.items() if k), low,
                    high + pointee_of(ptr.type).bytes)

    def _affine(self, value: Value, depth: int = 0) -> Affine | None:
        """The form of integers or addresses; what it cannot see through counts as a scalar term."""
        if value not in self.forms:
            form = self._see_through(value, depth + 1) if depth < MAX_DEPTH else None
            if form is None and not isinstance(value.type, Tensor):
                form = {value: 1}, 0, 0
            self.forms[value] = form
        return self.forms[value]

    def _see_through(self, value: Value, depth: int) -> Affine | None:
        op, element = value.op, element_of(value.type)
        if element.bits < NARROWEST:
            return None
        if isinstance(op, ops.Constant) and isinstance(op.value, int):
            return {}, int(op.value), int(op.value)
        if isinstance(op, ops.Arange):
            return {}, op.start, op.end - 1
        if isinstance(op, (Rearrange, ops.Hint)) or isinstance(op, ops.Cast) and _widens(op):
            return self._affine(op.operands[0], depth)
        if not isinstance(op, (ops.Add, ops.Sub, ops.Mul, ops.AddPtr)):
            return None
        a, b = (self._affine(v, depth) for v in op.operands)
        if a is None or b is None:
            return None
        if isinstance(op, ops.Mul):
            return _times(b, a[1]) if _known(a) else _times(a, b[1]) if _known(b) else None
        size = pointee_of(op.ptr.type).bytes if isinstance(op, ops.AddPtr) else 1
        return _plus(a, _times(b, -1 if isinstance(op, ops.Sub) else size))


def _exclusive(t: Type) -> bool:
    """Whether each element is held by one thread; all threads hold a scalar."""
    if not isinstance(t, Tensor):
        return False
    masks = tile_fragment(t).free_masks
    return not (masks["lane"] or masks["warp"])


def _widens(op: ops.Cast) -> bool:
    src, dst = element_of(op.x.type), element_of(op.result.type)
    return isinstance(src, Scalar) and isinstance(dst, Scalar) and src.is_int and dst.is_int and \
        src.bits <= dst.bits


def _known(a: Affine) -> bool:
    """Whether it is one number."""
    return not a[0] and a[1] == a[2]


def _plus(a: Affine, b: Affine) -> Affine:
    terms = dict(a[0])
    for v, factor in b[0].items():
        terms[v] = terms.get(v, 0) + factor
    return terms, a[1] + b[1], a[2] + b[2]


def _times(a: Affine, k: int) -> Affine:
    ends = sorted((a[1] * k, a[2] * k))
    return {v: factor * k for v, factor in a[0].items()}, ends[0], ends[1]
