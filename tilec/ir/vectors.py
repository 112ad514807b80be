"""How many neighbours in global memory one instruction of a thread may move."""

from __future__ import annotations

from functools import lru_cache

from tilec.ir.axis import AxisAnalysis, low_bit
from tilec.ir.core import Value
from tilec.ir.fragment import Fragment
from tilec.ir.scratch import tile_fragment
from tilec.ir.swizzle import MAX_ACCESS_BYTES, VectorAccess, vector_width
from tilec.ir.types import pointee_of


def access_limits(ptr: Value, mask: Value | None, axis: AxisAnalysis, dim: int) -> dict[str, int]:
    """What bounds the elements that one instruction moves along a dimension, by the bound's name:
    they lie side by side, aligned, under one mask."""
    frag, info, size = tile_fragment(ptr.type), axis.get(ptr), pointee_of(ptr.type).bytes
    limits = {"size": MAX_ACCESS_BYTES // size,
              "alignment": max(1, info.divisibility[dim] // size)}
    if dim in frag.padded_dims:
        limits["extent"] = low_bit(frag.shape[dim])
    limits["contiguity"] = low_bit(info.contiguity[dim])
    if mask is not None:
        limits["mask"] = low_bit(axis.get(mask).constancy[dim])
    return limits


def widest_access(ptr: Value, mask: Value | None, axis: AxisAnalysis) -> VectorAccess:
    """The widest pieces that pointers, mask and layout allow."""
    frag = tile_fragment(ptr.type)
    best = VectorAccess(1, tuple(range(frag.num_registers)))
    parts = range(0, frag.num_registers, frag.registers_per_part)
    for dim in range(len(frag.shape)):
        limit = min(access_limits(ptr, mask, axis, dim).values())
        if limit > best.width:
            found = register_runs(frag, dim, limit)
            if found.width > best.width:
                order = tuple(part + r for part in parts for r in found.order)
                best = VectorAccess(found.width, order)
    return best


@lru_cache(maxsize=2048)
def register_runs(frag: Fragment, dim: int, limit: int) -> VectorAccess:
    """Runs of up to `limit` registers of one part along a dimension."""
    along = frag.linear.sublayout(("register", "lane", "warp"), (f"dim{dim}",))
    return vector_width(along, 8, limit)
