"""Copies of blocks between tensors and buffers by the copy engine (TMA): `tlg.tma.load`, ...

Source: PTX ISA, "Data movement and conversion", cp.async.bulk.tensor.
"""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.ir.accumulators import warpgroups
from tilec.ir.core import Op, Value
from tilec.ir.descriptors import tma_boxes
from tilec.ir.ops.hopper import REDUCED
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import Scalar, TensorMap
from tilec.language.context import current, error
from tilec.language.descriptors import MAKE_DESCRIPTOR, block_offsets, tensor_descriptor
from tilec.language.gpu.barriers import barrier_array
from tilec.language.gpu.cluster import eviction_of, mask_of_ranks
from tilec.language.gpu.shared import buffer_of, shared_buffer
from tilec.language.gpu.support import by_one_thread, need, need_warpgroups
from tilec.language.memory import check_atomic, writable
from tilec.language.values import builtin, const_int, const_value, describe


def _descriptor(x: Any, what: str) -> tensor_descriptor:
    need("cp.async.bulk", what)
    if not isinstance(x, tensor_descriptor):
        raise error(f"{what}: found {describe(x)}, expected a tensor descriptor", MAKE_DESCRIPTOR)
    return x


def _map(desc: tensor_descriptor, layout: Any, what: str, stored: bool = False) -> Value:
    """The kernel's parameter with the tensor map of a descriptor's blocks in such buffers."""
    context = current()
    element = desc.dtype.ir
    assert isinstance(element, Scalar) and context.func is not None
    shape = desc.block_shape
    t = TensorMap(shape, element, layout)
    try:
        tma_boxes(t)
    except ValueError as e:
        raise error(f"{what}: {e}", "choose another block shape, or leave out the layout of "
                    "tlg.alloc_shared") from None
    maps = TensorMaps(context.func, context.target)
    extents = [x.handle for x in desc.shape]
    strides = [x.handle for x in desc.strides]
    if reason := maps.unknown(desc.base.handle, extents, strides):
        raise error(f"{what}: TMA cannot serve this tensor: {reason}",
                    "use the descriptor's own `load` and `store`, which need no TMA")
    return maps.parameter_of(t, desc.base.handle, extents, strides,
                             stored=stored and maps.ragged(extents, element))


def _block(desc: tensor_descriptor, buffer: Any, what: str) -> tuple[shared_buffer, int]:
    """(the buffer for a descriptor's blocks, how many of them are in it along its rows)."""
    made, block = buffer_of(buffer, what), desc.block_shape
    rank = len(made.shape)
    shape = block[-rank:]
    parts = made.shape[0] // shape[0] if rank == 2 else 1
    if len(block) < rank or set(block[:-rank]) - {1} or not parts or \
            made.shape != (shape[0] * parts, *shape[1:]):
        raise error(f"{what}: cannot copy blocks of {list(block)} with a {made}",
                    "buffer and block must have equal extents, but that the buffer may lack those "
                    "of 1 in front")
    if made.dtype != desc.dtype:
        raise error(f"{what}: found a {made} for a tensor of {desc.dtype}",
                    "copies convert nothing: both must have one dtype")
    return made, parts


@builtin
def load(desc: Any, offsets: Any, buffer: Any, barrier: Any, pred: Any = None, *,
         multicast: Any = None, eviction_policy: Any = "") -> None:
    """One thread begins to copy the block at `offsets` into a buffer of its shape, if `pred` holds;
    what lies outside of the tensor becomes zero.

    The data is there when the phase of `barrier`, an mbarrier that was told to expect its
    `buffer.nbytes`, has ended. offsets: an int32 for each dimension; the last one begins at a
    multiple of 16 bytes. multicast: an int32, whose bit r says that the block goes to the program
    of rank r of the cluster, where buffer and mbarrier lie as they do here; each program's mbarrier
    must expect it. eviction_policy: "evict_first" or "evict_last" from the L2 cache.
    """
    what = "tlg.tma.load"
    desc = _descriptor(desc, what)
    target, parts = _block(desc, buffer, what)
    if parts != 1:
        raise error(f"{what}: the blocks are {list(desc.block_shape)}, the buffer is a {target}",
                    "buffer and block must have equal extents")
    if not isinstance(barrier, barrier_array):
        raise error(f"{what}: found {describe(barrier)}, expected an mbarrier",
                    "tlg.mbarrier makes one")
    if desc.form.padding != "zero":
        raise error(f"{what}: the descriptor pads with {desc.form.padding}",
                    "TMA fills with zeros; make it without padding_option")
    at = block_offsets(desc, offsets, what)
    operands = _map(desc, target.layout, what), target.handle, barrier.one(what)
    where, eviction = [x.handle for x in at], eviction_of(eviction_policy, what)
    op: Op = ops.TmaLoad(*operands, where, eviction=eviction) if multicast is None else \
        ops.TmaMulticast(*operands, mask_of_ranks(multicast, what), where, eviction=eviction)
    by_one_thread(op, pred, what)


def _store(desc: Any, offsets: Any, buffer: Any, what: str, reduce: str = "") -> None:
    desc = _descriptor(desc, what)
    need_warpgroups(what)
    writable(desc.base, what)
    if reduce:
        check_atomic(reduce, desc.dtype, what)
        if desc.dtype.ir not in REDUCED[reduce]:
            raise error(f"{what}: TMA has no {reduce} of {desc.dtype}",
                        f"use the descriptor's own atomic_{reduce}, or tl.atomic_{reduce}")
    source, parts = _block(desc, buffer, what)
    groups = warpgroups(current().num_warps)
    if parts not in (1, groups):
        raise error(f"{what}: the buffer holds {parts} blocks of {list(desc.block_shape)}, "
                    f"expected 1 or {groups}", "there is one, or one for each warpgroup")
    at = block_offsets(desc, offsets, what)
    current().builder.insert(ops.TmaStore(
        _map(desc, source.layout, what, stored=True), source.handle, [x.handle for x in at],
        parts=parts, reduce=reduce))


@builtin
def store(desc: Any, offsets: Any, buffer: Any) -> None:
    """Begin to copy a buffer to the block at `offsets`; what lies outside of the tensor is left
    out.

    The buffer is one block, which the first thread of the program, or of the role, copies, or as
    many, one below the other, as there are warpgroups: then the first thread of each copies its
    own. Between what filled the buffer and this must stand tlg.fence_async and a barrier. The
    copies belong to the group that the next store_commit closes.
    """
    _store(desc, offsets, buffer, "tlg.tma.store")


@builtin
def atomic_add(desc: Any, offsets: Any, buffer: Any) -> None:
    """Like `store`, but adds the buffer to what is there, element by element, atomically (relaxed,
    for the GPU). dtypes as for tl.atomic_add, but for float64.

    Source: PTX ISA, cp.reduce.async.bulk.tensor.
    """
    _store(desc, offsets, buffer, "tlg.tma.atomic_add", reduce="add")


@builtin
def atomic_max(desc: Any, offsets: Any, buffer: Any) -> None:
    """Like `atomic_add`, but the greater of the two stays. dtypes: 32-bit and unsigned 64-bit
    integers, float16 and bfloat16."""
    _store(desc, offsets, buffer, "tlg.tma.atomic_max", reduce="max")


@builtin
def atomic_min(desc: Any, offsets: Any, buffer: Any) -> None:
    """Like `atomic_max`, but the lesser of the two stays."""
    _store(desc, offsets, buffer, "tlg.tma.atomic_min", reduce="min")


@builtin
def atomic_and(desc: Any, offsets: Any, buffer: Any) -> None:
    """Like `atomic_add`, but the bits that both have stay. dtypes: 32- and 64-bit integers."""
    _store(desc, offsets, buffer, "tlg.tma.atomic_and", reduce="and")


@builtin
def atomic_or(desc: Any, offsets: Any, buffer: Any) -> None:
    """Like `atomic_and`, but sets the bits of the buffer."""
    _store(desc, offsets, buffer, "tlg.tma.atomic_or", reduce="or")


@builtin
def atomic_xor(desc: Any, offsets: Any, buffer: Any) -> None:
    """Like `atomic_and`, but flips the bits of the buffer."""
    _store(desc, offsets, buffer, "tlg.tma.atomic_xor", reduce="xor")


@builtin
def store_commit() -> None:
    """Close the group of copies that tlg.tma.store and its atomics began since the last commit."""
    need("cp.async.bulk", "tlg.tma.store_commit")
    current().builder.insert(ops.TmaStoreCommit())


@builtin
def store_wait(pending: Any = 0, read: Any = False) -> None:
    """The thread that stores waits until at most the newest `pending` groups are under way; with
    `read`, only until the others have read their buffers. A barrier must follow before other
    threads fill them anew."""
    need("cp.async.bulk", "tlg.tma.store_wait")
    current().builder.insert(ops.TmaStoreWait(pending=const_int(pending, "pending"),
                                              read=bool(const_value(read, "read"))))


@builtin
def prefetch(desc: Any, buffer: Any) -> None:
    """A hint: one thread brings the tensor map of copies of this descriptor's blocks to and from
    `buffer`, or an array of such, into the cache."""
    what = "tlg.tma.prefetch"
    desc = _descriptor(desc, what)
    if not isinstance(buffer, shared_buffer):
        buffer_of(buffer, what)
    by_one_thread(ops.PrefetchTensormap(_map(desc, buffer.layout, what)), None, what)
