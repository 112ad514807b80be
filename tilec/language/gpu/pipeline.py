"""A software pipeline over blocks that TMA brings, of a function that says what one step does.

Written in the kernel language itself, of what the other files here have: a lesson, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tilec.frontend.function import function
from tilec.language import dtypes as dt
from tilec.language.context import error
from tilec.language.control import elect, static_range
from tilec.language.debug import static_assert
from tilec.language.descriptors import tensor_descriptor
from tilec.language.gpu import tma
from tilec.language.gpu.barriers import barrier, barrier_array, mbarrier
from tilec.language.gpu.shared import alloc_shared, shared_buffer
from tilec.language.selection import where
from tilec.language.values import builtin, const_int, constant, describe, tensor, unwrap


class buffer_ring(NamedTuple):
    """Slots for the blocks of one step, used in turn: a buffer for each descriptor, and an mbarrier
    that says when they are there. slot, phase: int32 scalars, of the next step."""

    buffers: tuple[shared_buffer, ...]
    full: barrier_array
    slot: tensor
    phase: tensor


@builtin
def make_ring(descs: Any, stages: Any) -> buffer_ring:
    """A ring of `stages` slots, two or more, for blocks of these descriptors, for emit_pipeline.
    Make it outside of loops: mbarriers are set up once."""
    descs, count = unwrap(descs), const_int(stages, "the stages of tlg.make_ring")
    if not isinstance(descs, tuple) or isinstance(descs, tensor_descriptor) or not descs or \
            not all(isinstance(d, tensor_descriptor) for d in descs):
        raise error(f"tlg.make_ring: found {describe(descs)}, expected a tuple of descriptors",
                    "write (a, b), or (a,) for one")
    if count < 2:
        raise error(f"tlg.make_ring: stages is {count}, expected 2 or more",
                    "one slot is filled while another one is used")
    buffers = tuple(alloc_shared(d.block_shape[-2:], d.dtype, stages=count) for d in descs)
    full = mbarrier(stages=count)
    barrier()
    return buffer_ring(buffers, full, constant(0, dt.int32), constant(0, dt.int32))


@builtin
def _bytes(ring: Any) -> int:
    """What one step's copies bring."""
    return sum(buffer.nbytes for buffer in ring.buffers)


@function
def _fetch(descs, place, k, wanted, ring, slot, args):
    """One thread starts the copies of step k into a slot."""
    if elect(wanted):
        offsets = place(k, *args)
        ring.full[slot].expect(_bytes(ring))
        for i in static_range(len(descs)):
            tma.load(descs[i], offsets[i], ring.buffers[i][slot], ring.full[slot])


@function
def emit_pipeline(body, place, steps, descs, ring, carry, args=()):
    """Run `carry = body(k, blocks, carry, *args)` for k from 0 below `steps`, the blocks of each
    step brought by TMA ahead of time; gives (carry, ring), the ring for the next pipeline.

    body: a jit function. blocks: a buffer for each descriptor. They may be read until the next step
    ends, by products too: with tlg.wgmma_wait(1, ...) in each step, one is always under way.
    place: a jit function; place(k, *args) gives the offsets of step k's blocks, in a tuple.
    steps: an int32. descs: the descriptors, a tuple, as given to make_ring. carry: a value or a
    tuple of them. args: a tuple of whatever body and place need.
    """
    static_assert(len(descs) == len(ring.buffers), "the ring is for other descriptors")
    stages = ring.full.stages
    # Prologue: all slots but one are filled.
    for k in range(stages - 1):
        _fetch(descs, place, k, k < steps, ring, (ring.slot + k) % stages, args)
    slot, phase = ring.slot, ring.phase
    for k in range(steps):
        ring.full[slot].wait(phase)
        carry = body(k, [buffer[slot] for buffer in ring.buffers], carry, *args)
        # All threads have ended the step before, whose slot is filled again. In the epilogue,
        # the last steps, there is nothing left to fetch.
        barrier()
        free = where(slot == 0, stages, slot) - 1
        ahead = k + stages - 1
        _fetch(descs, place, ahead, ahead < steps, ring, free, args)
        slot += 1
        phase = where(slot == stages, phase ^ 1, phase)
        slot = where(slot == stages, 0, slot)
    return carry, buffer_ring(ring.buffers, ring.full, slot, phase)
