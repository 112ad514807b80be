"""Which blocks of described tensors TMA can move, and how the host finds their tensor maps.

A map is a parameter of the kernel beside those that the author wrote. Its attributes say what the
launch makes it of: `base`, the number of the pointer's parameter, and `extents` and `strides` (in
elements), expressions over parameters by number, such as "$3 * 2", with % where integers wrap, and
`apart`, the numbers of parameters that must not be the same buffer, since TMA keeps no order with
accesses through them, and `stored`, if rows must be multiples of 16 bytes, of which TMA stores
whole ones.

A map of blocks that an author's pointers make up has `places`, too: where its blocks begin, over
parameters, program ids (p0) and loop indices, `reach`, the blocks' extents, and `narrow`, if their
addresses had 32 bits. If such a map cannot be made, or a block might begin elsewhere than in the
tensor, or an offset overflow, the launch takes a kernel that leaves pointers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.core import Func, Op, Value
from tilec.ir.descriptors import tma_boxes
from tilec.ir.layouts import NvmmaShared
from tilec.ir.ops.descriptors import DescriptorOp
from tilec.ir.ops.hopper import MAX_TMA_RANK
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.origins import pointer_roots
from tilec.ir.types import MemDesc, Scalar, TensorMap, pointee_of, scalar_of
from tilec.target import DEFAULT, Target

ROOM = 1 << 16  # more than any tile's extent
EVERYTHING = (1 << 31) - ROOM  # an extent that leaves out nothing
STRIDE_BYTES = 16  # what strides, the first address and a block's place in a row are multiples of
_SIGNS: dict[type[Op], str] = {ops.Add: "+", ops.Sub: "-", ops.Mul: "*"}


def host_expression(value: Value, func: Func) -> str | None:
    """An integer as text over the function's parameters; None if the host cannot compute it."""
    if value.owner is func.body:
        return f"${value.index}"
    op = value.op
    if isinstance(op, ops.Constant):
        return str(int(op.value))
    if isinstance(op, ops.Cast):
        old, new = scalar_of(op.x.type), scalar_of(op.result.type)
        if not (old.is_int and (new.bits > old.bits and new.is_signed or new == old)):
            return None
        text = host_expression(op.x, func)
        # The host computes without wrapping: a sum wraps here, before it is widened.
        return _wrapped(text, old) if text is not None and type(op.x.op) in _SIGNS else text
    sign = _SIGNS.get(type(op)) if op is not None else None
    if op is None or sign is None:
        return None
    a, b = (host_expression(v, func) for v in op.operands)
    return None if a is None or b is None else f"({a} {sign} {b})"


def _wrapped(text: str, t: Scalar) -> str:
    """The value of an expression as an integer of type `t` holds it."""
    low = 1 << t.bits - 1 if t.is_signed else 0
    return f"(({text} + {low}) % {1 << t.bits} - {low})"


def block_layout(block: Sequence[int], element: Scalar) -> NvmmaShared | None:
    """The widest swizzle for a block whose rows are contiguous; None where TMA copies none such.
    All extents but the last two are 1."""
    swizzle = next((s for s in (128, 64, 32) if block[-1] * element.bytes % s == 0), 0)
    if not swizzle or not 2 <= len(block) <= MAX_TMA_RANK or set(block[:-2]) - {1}:
        return None
    try:
        layout = NvmmaShared(swizzle, False, element.bits)
        tma_boxes(TensorMap(tuple(block), element, layout))
    except ValueError:
        return None
    return layout


class MapRecipe(NamedTuple):
    """What a launch makes a tensor map of; see the top of this file. name: the pointer's. extents,
    strides: text. apart: number and name of parameters. stored: whether rows must be multiples of
    16 bytes."""

    type: TensorMap
    name: str
    base: int
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    apart: tuple[tuple[int, str], ...] = ()
    stored: bool = False
    places: tuple[str, ...] = ()
    reach: tuple[int, ...] = ()
    narrow: bool = False


def recipes(func: Func) -> list[MapRecipe]:
    """Those of the parameters that the author did not write; they are the last ones."""
    return [MapRecipe(arg.type, func.args[have["base"]].name, have["base"], tuple(have["extents"]),
                      tuple(have["strides"]),
                      tuple((i, func.args[i].name) for i in have.get("apart", ())),
                      bool(have.get("stored")), tuple(have.get("places", ())),
                      tuple(have.get("reach", ())), bool(have.get("narrow")))
            for arg, have in zip(func.args, func.arg_attrs, strict=True)
            if isinstance(arg.type, TensorMap) and "base" in have]


class TensorMaps:
    """The tensor maps of one function: which ops can have one, and the parameters made for them."""

    def __init__(self, func: Func, target: object) -> None:
        self.func = func
        self.target = Target.parse(str(target or DEFAULT))
        self.capable = self.target.has("cp.async.bulk.tensor")
        self.axis = AxisAnalysis(func)

    def obstacle(self, op: DescriptorOp) -> str:
        """Why TMA cannot move the block, or an empty string."""
        element = pointee_of(op.base.type)
        assert isinstance(element, Scalar)
        extents, strides, offsets = op.parts()
        if not self.capable:
            return "the target has no TMA"
        if reason := self.unknown(op.base, extents, strides):
            return reason
        if self.axis.get(op.base).divisibility[0] % STRIDE_BYTES:
            return "the pointer is not known to be a multiple of 16"
        if block_layout(op.block, element) is None or len(op.block) - op.unit_dims != 2:
            return f"TMA copies no blocks of {list(op.block)} {element}"
        if any(self.axis.get(v).divisibility[0] * element.bytes % STRIDE_BYTES
               for v in strides[:-1]):
            return "a stride is not known to be a multiple of 16 bytes"
        if self.axis.get(offsets[-1]).divisibility[0] * element.bytes % STRIDE_BYTES:
            return "the block's place in a row is not known to be a multiple of 16 bytes"
        if isinstance(op, ops.DescriptorStore) and self.ragged(extents, element):
            return "rows are not known to be multiples of 16 bytes, of which TMA stores whole ones"
        return ""

    def unknown(self, base: Value, extents: Sequence[Value], strides: Sequence[Value]) -> str:
        """What of a tensor the host cannot know, or an empty string."""
        if base.owner is not self.func.body:
            return "the tensor does not begin where a parameter points to"
        if any(host_expression(v, self.func) is None for v in (*extents, *strides)):
            return "the host cannot compute the tensor's extents and strides"
        return ""

    def ragged(self, extents: Sequence[Value], element: Scalar) -> bool:
        """Whether TMA might store beyond the ends of rows."""
        return self.axis.get(extents[-1]).divisibility[0] * element.bytes % STRIDE_BYTES != 0

    def parameter(self, op: DescriptorOp, block: tuple[int, ...] = ()) -> Value:
        """The parameter with an op's map, made if there is none. block: of a copy, if it is smaller
        than the op's tile."""
        block = (*op.block[:-2], *(block or op.block[-2:]))
        element = pointee_of(op.base.type)
        assert isinstance(element, Scalar)
        layout = block_layout(block, element)
        assert layout is not None
        extents, strides, _ = op.parts()
        boxes: dict[str, Any] = {"places": op.places, "reach": op.block} if op.places else {}
        if op.narrow:
            boxes["narrow"] = True
        return self.parameter_of(TensorMap(block, element, layout), op.base, extents, strides,
                                 self.apart(op), boxes=boxes)

    def parameter_of(self, t: TensorMap, base: Value, extents: Sequence[Value],
                     strides: Sequence[Value], apart: tuple[int, ...] = (), stored: bool = False,
                     boxes: dict[str, Any] | None = None) -> Value:
        """The parameter with a map of a tensor that the host knows, made if there is none. boxes:
        the attributes that only a map of an author's pointers has."""
        attributes: dict[str, Any] = {"base": base.index} | (boxes or {})
        for name, values in (("extents", extents), ("strides", strides)):
            attributes[name] = tuple(str(host_expression(v, self.func)) for v in values)
        if apart:
            attributes["apart"] = apart
        more = {"stored": True} if stored else {}
        for arg, have in zip(self.func.args, self.func.arg_attrs, strict=True):
            if arg.type == t and have | {"stored": True} == attributes | {"stored": True}:
                have |= more
                return arg
        self.func.arg_attrs.append(attributes | more)
        name, taken = f"{base.name}_map", {arg.name for arg in self.func.args}
        others = (f"{name}_{i}" for i in range(1, len(taken) + 1))
        return self.func.body.add_arg(t, next(n for n in (name, *others) if n not in taken))

    def apart(self, op: DescriptorOp) -> tuple[int, ...]:
        """Parameters through which the kernel accesses memory that must not be this op's tensor: a
        copy may begin before what was written earlier or in this loop, and a result arrive after
        what is read or written later or in this loop. Results are in order among themselves."""
        storing, seen, found = isinstance(op, ops.DescriptorStore), False, set[int]()
        loops = {a for a in op.ancestors() if isinstance(a, ops.For | ops.While)}
        for other in self.func.walk():
            seen |= other is op
            if not isinstance(other, MemoryOp | ops.DescriptorStore) or \
                    storing and isinstance(other, ops.DescriptorStore) or \
                    not storing and "write" not in other.effects or \
                    seen != storing and loops.isdisjoint(other.ancestors()):
                continue
            pointer = other.base if isinstance(other, ops.DescriptorStore) else other.ptr
            found |= {root.index for root in pointer_roots(pointer, self.func) or ()}
        return tuple(sorted(found - {op.base.index}))


def buffer_type(op: DescriptorOp, slots: int = 0, block: tuple[int, ...] = ()) -> MemDesc:
    """Buffers for an op's block or a part of it, an array of them if there are slots."""
    element = pointee_of(op.base.type)
    assert isinstance(element, Scalar)
    block = block or op.block[-2:]
    layout = block_layout(block, element)
    assert layout is not None
    return MemDesc((*((slots,) if slots else ()), *block), element, layout)
