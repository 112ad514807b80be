"""Global memory where floats are elements of a ring (eval/ring.py): beside the bytes lie the
elements that they stand for. Memory that is read as another type than it is written as has the
bytes that it had before the launch."""

from __future__ import annotations

import numpy as np

from tilec.eval.atomics import Update
from tilec.eval.dtypes import Array, DType, is_float
from tilec.eval.ring import RING, RING_UPDATES, embed, encode, number
from tilec.interp.memory import SPACING, Allocation, Memory
from tilec.interp.touches import By


class RingAllocation(Allocation):
    """Bytes of host memory, and as what they are known where they hold floats."""

    def view(self, dtype: DType) -> Array:
        """The elements as a vector: of the ring, if they are floats."""
        if is_float(dtype) and dtype not in self._views:
            self._views[dtype] = embed(super().view(dtype))
        return super().view(dtype)

    def finish(self) -> None:
        """Have the bytes of all floats that were written stand for elements of the ring."""
        for dtype, view in self._views.items():
            if is_float(dtype):
                floats = self.raw[:len(view) * dtype.itemsize].view(dtype)
                new = view != embed(floats)
                floats[new] = encode(view[new], dtype)


class RingMemory(Memory):
    """All allocations of a launch that computes in the ring."""

    kind = RingAllocation

    def load(self, address: Array, active: Array | None, by: By, dtype: DType) -> Array:
        """Elements at `address`; the zeros of a load of nothing are the ring's, too."""
        return number(super().load(address, active, by, dtype))

    def stored_as(self, address: Array, value: Array, active: Array | None) -> DType:
        """An element of the ring is written as the float that the array at its address holds."""
        where = address if active is None else address[np.broadcast_to(active, address.shape)]
        if value.dtype == RING and where.size:
            index = int(where.reshape(-1)[0]) // SPACING - 1
            if 0 <= index < len(self.allocations) and is_float(self.allocations[index].dtype):
                return self.allocations[index].dtype
        return super().stored_as(address, value, active)

    def updates(self, kind: str, dtype: DType) -> Update:
        """What an atomic of a kind does to elements of `dtype` in memory."""
        return RING_UPDATES[kind] if is_float(dtype) else super().updates(kind, dtype)

    def finish(self) -> None:
        """All has run: the arrays get what stands for the elements."""
        for allocation in self.allocations:
            assert isinstance(allocation, RingAllocation)
            allocation.finish()
