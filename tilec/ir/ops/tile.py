"""Ops that make tiles and change their shape, reduction, and the matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilec.ir.core import Block, Op, Value, attr, operand, operands, region
from tilec.ir.layouts import (
    DotOperand,
    Layout,
    Mma,
    Slice,
    same_layout,
    slice_of,
    split,
    transpose,
)
from tilec.ir.ops.base import Anchor, ExplicitType, Rearrange, ScratchOp
from tilec.ir.types import (
    Scalar,
    Tensor,
    Type,
    element_of,
    f16,
    f32,
    f64,
    i1,
    i32,
    layout_of,
    linear_shape,
    refines,
    shape_of,
)

MAX_ELEMENTS = 1 << 20


class Constant(ExplicitType, name="tile.constant"):
    """A number, or a tile filled with it. An i1 holds a bool, an integer an int, a float a float
    that the type represents exactly."""

    value: int | float | bool = attr(object)

    def infer(self) -> Sequence[Type]:
        t = self.given()
        element = element_of(t)
        want = bool if element == i1 else float if isinstance(element, Scalar) and \
            element.is_float else int
        if type(self.value) is not want:
            raise self.fail(f"value {self.value!r} does not fit {t}")
        if want is int and isinstance(element, Scalar):
            least = -(1 << (element.bits - 1)) if element.is_signed else 0
            if not 0 <= self.value - least < 1 << element.bits:
                raise self.fail(f"value {self.value} does not fit {t}")
        return (t,)


class ProgramId(Op, name="tile.program_id"):
    """The program's index along an axis of the grid."""

    axis: int = attr(int, least=0, most=2)

    def infer(self) -> Sequence[Type]:
        return (i32,)


class NumPrograms(Op, name="tile.num_programs"):
    """The grid's extent along an axis."""

    axis: int = attr(int, least=0, most=2)

    def infer(self) -> Sequence[Type]:
        return (i32,)


class Arange(Op, name="tile.arange"):
    """start, start + 1, ..., end - 1."""

    start: int = attr(int)
    end: int = attr(int)

    def infer(self) -> Sequence[Type]:
        if not 0 < self.end - self.start <= MAX_ELEMENTS:
            raise self.fail(f"end {self.end} is not above start {self.start} by 1 to "
                            f"{MAX_ELEMENTS}")
        return (Tensor((self.end - self.start,), i32),)


class Splat(Rearrange, ExplicitType, name="tile.splat"):
    """A tile filled with a scalar."""

    def infer(self) -> Sequence[Type]:
        t = self.given()
        if not isinstance(t, Tensor) or t.element != self.x.type:
            raise self.fail(f"cannot make {t} of {self.x.type}")
        return (t,)


class Broadcast(Rearrange, ExplicitType, name="tile.broadcast"):
    """Repeat along dimensions of extent 1; the layout stays."""

    def infer(self) -> Sequence[Type]:
        src, dst = self.x.type, self.given()
        ok = isinstance(src, Tensor) and isinstance(dst, Tensor) and src.rank == dst.rank and \
            all(a == b or a == 1 for a, b in zip(src.shape, dst.shape, strict=True)) and \
            refines(src, Tensor(src.shape, dst.element, dst.layout))
        if not ok:
            raise self.fail(f"cannot broadcast {src} to {dst}")
        return (dst,)


def _axis(op: Op, axis: int, rank: int) -> None:
    if not 0 <= axis < rank:
        raise op.fail(f"axis {axis} is not in 0..{rank - 1}")


class ExpandDims(Rearrange, name="tile.expand_dims"):
    """Insert a dimension of extent 1 at `axis`. The operand's layout is the result's, sliced."""

    axis: int = attr(int)

    def infer(self) -> Sequence[Type]:
        t = self.x.type
        assert isinstance(t, Tensor)
        _axis(self, self.axis, t.rank + 1)
        shape = t.shape[:self.axis] + (1,) + t.shape[self.axis:]
        parent = t.layout.parent if isinstance(t.layout, Slice) and t.layout.dim == self.axis \
            else None
        return (Tensor(shape, t.element, parent),)

    def check(self) -> None:
        src, dst = self.x.type, self.result.type
        assert isinstance(src, Tensor) and isinstance(dst, Tensor)
        if dst.layout is not None:
            want = Tensor(src.shape, src.element, slice_of(dst.layout, self.axis))
            if not refines(src, want):
                raise self.fail(f"operand is {src}, expected layout {want}")


class Reshape(Rearrange, ScratchOp, ExplicitType, name="tile.reshape"):
    """The same elements in row-major order under another shape."""

    def infer(self) -> Sequence[Type]:
        src, dst = self.x.type, self.given()
        if not (isinstance(src, Tensor) and isinstance(dst, Tensor)) or \
                prod(src.shape) != prod(dst.shape) or src.element != dst.element:
            raise self.fail(f"cannot reshape {src} to {dst}")
        return (dst,)


class Trans(Rearrange, name="tile.trans"):
    """Permute dimensions: result dimension i is operand dimension order[i]."""

    order: tuple[int, ...] = attr(tuple)

    def infer(self) -> Sequence[Type]:
        t = self.x.type
        if not isinstance(t, Tensor) or sorted(self.order) != list(range(t.rank)):
            raise self.fail(f"order {self.order} does not permute the dimensions of {t}")
        layout = None if t.layout is None else \
            transpose(t.layout, self.order, linear_shape(t.shape))
        return (Tensor(tuple(t.shape[i] for i in self.order), t.element, layout),)


class Join(Op, name="tile.join"):
    """Two tiles along a new last dimension of extent 2. The operands' layout is the result's less
    that dimension: a thread that holds one element of a pair holds both operands' in its place."""

    a: Value = operand()
    b: Value = operand()

    def infer(self) -> Sequence[Type]:
        t = self.a.type
        if not isinstance(t, Tensor) or not refines(self.b.type, t):
            raise self.fail(f"cannot join {t} and {self.b.type}")
        return (Tensor((*t.shape, 2), t.element, None),)

    def check(self) -> None:
        src, dst = self.a.type, self.result.type
        assert isinstance(src, Tensor) and isinstance(dst, Tensor)
        if dst.layout is not None:
            want = Tensor(src.shape, src.element, self.operand_layout(dst.layout))
            if not refines(src, want):
                raise self.fail(f"operands are {src}, expected {want}")

    def operand_layout(self, layout: Layout) -> Layout:
        """The layout of the operands of a result with this one."""
        shape = (*shape_of(self.a.type), 2)
        return split(layout, linear_shape(shape)) or slice_of(layout, len(shape) - 1)


class Split(Rearrange, name="tile.split"):
    """The elements at `index` of the last dimension, of extent 2, both of which a thread holds."""

    index: int = attr(int, least=0, most=1)

    def infer(self) -> Sequence[Type]:
        t = self.x.type
        if not isinstance(t, Tensor) or t.rank < 2 or t.shape[-1] != 2:
            raise self.fail(f"operand is {t}, expected a tile of pairs")
        layout = None if t.layout is None else split(t.layout, linear_shape(t.shape))
        if t.layout is not None and layout is None:
            raise self.fail(f"no thread holds both elements of a pair of {t}")
        return (Tensor(t.shape[:-1], t.element, layout),)


class Gather(ScratchOp, name="tile.gather"):
    """The elements of `x` whose coordinate along `axis` is that of `index` in the same place; the
    extents but that along `axis` are equal. Indices outside give poison."""

    x: Value = operand()
    index: Value = operand()
    axis: int = attr(int)

    def infer(self) -> Sequence[Type]:
        t, index = self.x.type, self.index.type
        if not (isinstance(t, Tensor) and isinstance(index, Tensor)) or t.rank != index.rank:
            raise self.fail(f"operands are {t} and {index}, expected tiles of one rank")
        _axis(self, self.axis, t.rank)
        if any(a != b for d, (a, b) in enumerate(zip(t.shape, index.shape, strict=True))
               if d != self.axis):
            raise self.fail(f"{t} and {index} differ in another extent than that of axis "
                            f"{self.axis}")
        if not isinstance(index.element, Scalar) or not index.element.is_int:
            raise self.fail(f"index is {index}, expected integers")
        return (Tensor(index.shape, t.element, index.layout),)


class Histogram(ScratchOp, name="tile.histogram"):
    """How many elements of a tile of rank 1 are 0, 1, ..., bins - 1; others are not counted."""

    x: Value = operand()
    bins: int = attr(int, least=1, most=MAX_ELEMENTS)

    def infer(self) -> Sequence[Type]:
        t = self.x.type
        if not isinstance(t, Tensor) or t.rank != 1 or not isinstance(t.element, Scalar) or \
                t.element.is_float:
            raise self.fail(f"operand is {t}, expected integers in a tile of rank 1")
        return (Tensor((self.bins,), i32),)


class Combining(ScratchOp):
    """Base of ops that combine the elements of tiles of one shape along `axis`. The region takes
    the values so far, then the next ones, one scalar per operand each, and yields the combined
    ones; it must be associative."""

    isolated = True
    inputs: tuple[Value, ...] = operands()
    axis: int = attr(int)
    body: Block = region()

    def infer(self) -> Sequence[Type]:
        shape = shape_of(self.inputs[0].type)
        _axis(self, self.axis, len(shape))
        for v in self.inputs:
            if shape_of(v.type) != shape:
                raise self.fail(f"operands differ in shape: {shape} and {shape_of(v.type)}")
        scalars = [element_of(v.type) for v in self.inputs]
        have = [a.type for a in self.body.args]
        yielded = [v.type for v in self.body.terminator.operands]
        if have != scalars * 2 or yielded != scalars:
            takes, gives, want = (", ".join(map(str, types)) for types in (have, yielded, scalars))
            raise self.fail(f"region takes ({takes}) and yields ({gives}), expected twice and once "
                            f"({want})")
        return [self.result_type(v.type) for v in self.inputs]

    def result_type(self, t: Type) -> Type:
        """The type of the result for an operand of type `t`."""
        raise NotImplementedError

    def check(self) -> None:
        first, *rest = (v.type for v in self.inputs)
        for t in rest:
            if not refines(t, Tensor(shape_of(first), element_of(t), layout_of(first))):
                raise self.fail(f"operands differ in layout: {first} and {t}")


class Reduce(Combining, name="tile.reduce"):
    """Combine all elements along `axis`, in any order: the region must be commutative, too. A tile
    of rank 1 gives a scalar."""

    def result_type(self, t: Type) -> Type:
        shape, layout = shape_of(t), layout_of(t)
        rest = shape[:self.axis] + shape[self.axis + 1:]
        sliced = None if layout is None else slice_of(layout, self.axis)
        return Tensor(rest, element_of(t), sliced) if rest else element_of(t)


class Scan(Combining, name="tile.scan"):
    """Combine, for every element, it and all before it along `axis` in their order, or with
    `reverse` it and all after it from the last one down."""

    reverse: bool = attr(bool, False)

    def result_type(self, t: Type) -> Type:
        return t


class Dot(Anchor, ScratchOp, name="tile.dot"):
    """a @ b + c for [M, K] by [K, N] tiles (or with a leading batch dimension); the result has
    the type of c, the accumulator."""

    a: Value = operand()
    b: Value = operand()
    c: Value = operand()
    input_precision: str = attr(str, "tf32", choices=("tf32", "tf32x3", "ieee"))

    def infer(self) -> Sequence[Type]:
        a, b, c = (v.type for v in self.operands)
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and isinstance(c, Tensor)):
            raise self.fail(f"operands are {a}, {b}, {c}, expected tiles")
        ok = a.rank == b.rank == c.rank and a.rank in (2, 3) and a.shape[-1] == b.shape[-2] and \
            c.shape == (*a.shape[:-1], b.shape[-1]) and a.shape[:-2] == b.shape[:-2]
        if not ok or a.element != b.element:
            raise self.fail(f"cannot multiply {a} by {b} into {c}")
        if c.element not in (f32, f64, i32, f16) and c.element != a.element:
            raise self.fail(f"accumulator is {c}")
        return (c,)

    def check(self) -> None:
        parent = layout_of(self.result.type)
        if not isinstance(parent, Mma) or parent.version == 3:
            return
        for index, value in enumerate((self.a, self.b)):
            have, shape = layout_of(value.type), linear_shape(shape_of(value.type))
            if have is None or not any(
                    same_layout(have, DotOperand(parent, index, 1 << w), shape) for w in range(4)):
                raise self.fail(f"operand {index} has the layout {have}, expected dot_operand "
                                f"{index} of the result's, {parent}")
