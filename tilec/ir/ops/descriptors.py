"""Ops on blocks of tensors in global memory, as `tl.make_tensor_descriptor` describes them.

Their operands describe the tensor: `base`, a pointer to its first element, and in `place`, one
after another, its extents (i32), its strides in elements (i64, the last one is 1) and where the
block begins (i32, may be negative), one number of each for every dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Op, Value, attr, operand, operands
from tilec.ir.ops.memory import RMW_KINDS, has_atomic
from tilec.ir.types import Pointer, Scalar, Tensor, Type, i32, i64, refines, scalar_of


class DescriptorOp(Op):
    """Base of the ops on a block; `block` are its extents. unit_dims: how many leading ones, which
    are 1, the tile does not have. places: of a block that find_boxes has made of pointers, where it
    begins, as text whose value a launch can bound, after texts of what these are computed of;
    narrow: its addresses had 32 bits."""

    base: Value = operand()
    block: tuple[int, ...] = attr(tuple, least=1)
    unit_dims: int = attr(int, 0)
    places: tuple[str, ...] = attr(tuple, (), of=str)
    narrow: bool = attr(bool, False)

    @property
    def place(self) -> tuple[Value, ...]:
        """Extents, strides and offsets."""
        return tuple(self.operands[-3 * len(self.block):])

    def parts(self) -> tuple[tuple[Value, ...], tuple[Value, ...], tuple[Value, ...]]:
        """(extents, strides, offsets)."""
        rank = len(self.block)
        return self.place[:rank], self.place[rank:2 * rank], self.place[2 * rank:]

    def _block_type(self) -> Tensor:
        """The type of the tile, after a check of the operands."""
        pointer, rank = self.base.type, len(self.block)
        if not isinstance(pointer, Pointer) or not isinstance(pointer.pointee, Scalar):
            raise self.fail(f"base is {pointer}, expected a pointer to numbers")
        if not 1 <= rank <= 5:
            raise self.fail(f"the block has {rank} dimensions, expected 1 to 5")
        if not 0 <= self.unit_dims < rank or set(self.block[:self.unit_dims]) - {1}:
            raise self.fail(f"unit_dims is {self.unit_dims} for a block of {list(self.block)}")
        want = [i32] * rank + [i64] * rank + [i32] * rank
        have = [v.type for v in self.operands[len(self.operands) - 3 * rank:]]
        if have != want:
            raise self.fail(f"the tensor and the block's place are ({', '.join(map(str, have))}), "
                            f"expected ({', '.join(map(str, want))})")
        return Tensor(self.block[self.unit_dims:], pointer.pointee)

    def _check_written(self, value: Value) -> None:
        t = self._block_type()
        if not refines(value.type, t):
            raise self.fail(f"value is {value.type}, expected {t}")
        if isinstance(self.base.type, Pointer) and self.base.type.const:
            raise self.fail(f"cannot store through {self.base.type}")


class DescriptorLoad(DescriptorOp, name="tile.descriptor_load", effects={"read"}):
    """Read a block; elements outside of the tensor are zero, or NaN with padding = "nan"."""

    described: tuple[Value, ...] = operands()
    padding: str = attr(str, "zero", choices=("zero", "nan"))

    def infer(self) -> Sequence[Type]:
        t = self._block_type()
        if self.padding == "nan" and isinstance(t.element, Scalar) and not t.element.is_float:
            raise self.fail(f"{t.element} has no NaN")
        return (t,)


class DescriptorStore(DescriptorOp, name="tile.descriptor_store", effects={"write"}):
    """Write a block; elements outside of the tensor are left out."""

    value: Value = operand()
    described: tuple[Value, ...] = operands()

    def infer(self) -> Sequence[Type]:
        self._check_written(self.value)
        return ()


class DescriptorAtomic(DescriptorOp, name="tile.descriptor_atomic", effects={"read", "write"}):
    """Combine a block with what lies there, element by element, atomically (relaxed, for the GPU);
    elements outside of the tensor are left out."""

    value: Value = operand()
    described: tuple[Value, ...] = operands()
    kind: str = attr(str, "add", choices=RMW_KINDS)

    def infer(self) -> Sequence[Type]:
        self._check_written(self.value)
        element = scalar_of(self.value.type)
        if not has_atomic(self.kind, element):
            raise self.fail(f"no atomic {self.kind} for {element}")
        return ()
