"""Asynchronous matrix products (wgmma), and parts of tiles.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

from typing import Any

from tilec.errors import IRError
from tilec.ir import ops
from tilec.ir.layouts import default_blocked
from tilec.ir.ops.hopper import ACCUMULATORS
from tilec.language import dtypes as dt
from tilec.language.context import current, error
from tilec.language.gpu.layouts import num_warps
from tilec.language.gpu.shared import buffer_of, shared_buffer
from tilec.language.gpu.support import need, need_warpgroups
from tilec.language.semantic import emit
from tilec.language.shape import require_tile
from tilec.language.values import (
    builtin,
    const_int,
    const_ints,
    constant,
    describe,
    tensor,
)


@builtin
def wgmma(a: Any, b: Any, acc: Any, use_acc: Any = None) -> tensor:
    """Begin acc + a @ b of [M, K] and [K, N], or a @ b where `use_acc` is false.

    Until a tlg.wgmma_wait covers it the result is only good as the acc of a further product, and
    the buffers are in use. a: a buffer, or a tile, from registers; b: a buffer. Both have one
    dtype: float16, bfloat16, float32 (read as tf32), fp8, int8 or uint8. acc is float32, or float16
    for float16 and fp8, or int32 for integers. M is a multiple of 64. Operands of 16 bits may be
    contiguous along any dimension, others are along k: buffer.T turns one. CompilationError where
    the result is dropped, as it is in a statement without `acc = ...`.
    """
    what = "tlg.wgmma"
    need("wgmma", what)
    need_warpgroups(what, products=True)
    left = buffer_of(a, what) if isinstance(a, shared_buffer) else require_tile(a, f"{what}, a")
    right = buffer_of(b, f"{what}, b")
    acc = require_tile(acc, f"{what}, acc")
    if len(left.shape) != 2 or len(right.shape) != 2 or left.shape[1] != right.shape[0] or \
            acc.shape != (left.shape[0], right.shape[1]):
        raise error(f"{what}: cannot multiply a {left} by a {right} into a {acc}",
                    "expected [M, K], [K, N] and [M, N]; buffer.T is the transposed view")
    sums = ACCUMULATORS.get(str(right.memdesc.element), ())
    if left.dtype != right.dtype or acc.dtype.ir not in sums:
        raise error(f"{what}: no instruction multiplies a {left} by a {right} into a {acc}",
                    "both operands have one dtype; the accumulator is float32, for integers int32")
    flag = None if use_acc is None or use_acc is True else use_acc
    if flag is False:
        flag = constant(False, dt.int1)
    if flag is not None and not (isinstance(flag, tensor) and not flag.shape and
                                 flag.dtype.is_bool()):
        raise error(f"{what}: use_acc is {describe(flag)}, expected a scalar int1",
                    "compare: `k > 0`")
    op = ops.Wgmma(left.handle, right.handle, acc.handle, None if flag is None else flag.handle)
    try:
        op.wanted_layout(num_warps())
    except IRError as e:
        raise error(f"{what}: {e.message}", "M is a multiple of 64 for each warpgroup along it; "
                    "buffers have the default layout of tlg.alloc_shared, or an NvmmaShared") from e
    return emit(op)


@builtin
def wgmma_wait(pending: Any, *accs: Any) -> Any:
    """Wait until at most the newest `pending` products are under way; gives the accumulators, of
    which those of products that have ended may be read: `acc = tlg.wgmma_wait(0, acc)`.

    accs: the accumulators of all products begun; two or more come back as a tuple.
    """
    need("wgmma", "tlg.wgmma_wait")
    tiles = [require_tile(x, "tlg.wgmma_wait") for x in accs]
    if not tiles:
        raise error("tlg.wgmma_wait: found no accumulators", "write `acc = tlg.wgmma_wait(0, acc)`")
    handles = [x.handle for x in tiles]
    op = ops.WgmmaWait(handles, types=[h.type for h in handles],
                       pending=const_int(pending, "pending"))
    current().builder.insert(op)
    out = tuple(tensor(r) for r in op.results)
    return out if len(out) > 1 else out[0]


@builtin
def extract_slice(x: Any, start: Any, shape: Any) -> tensor:
    """The part of a tile that begins at `start` and has the extents `shape`, both known at compile
    time; it stays in the registers where it is. start: multiples of the extents."""
    what = "tlg.extract_slice"
    x = require_tile(x, what)
    begin, extents = const_ints(start, "the start"), const_ints(shape, "the shape")
    if not (len(begin) == len(extents) == len(x.shape)) or any(
            n < 1 or s < 0 or s % n or s + n > whole
            for s, n, whole in zip(begin, extents, x.shape, strict=True)):
        raise error(f"{what}: {list(extents)} at {list(begin)} is no part of a {x}",
                    "the part lies inside and begins at multiples of its extents")
    op = ops.ExtractSlice(x.handle, start=begin, shape=extents)
    if not op.held_in(default_blocked(extents, num_warps())):
        raise error(f"{what}: a part of {list(extents)} of a {x} is spread over the threads",
                    "take larger parts, whose extents are powers of two")
    return emit(op)

