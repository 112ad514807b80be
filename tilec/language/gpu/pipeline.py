"""A software pipeline over blocks that TMA brings, of a function that says what one step does.

Written in the kernel language itself, of what the other files here have: a lesson, too.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, NamedTuple

from tilec.frontend.function import Function, function
from tilec.frontend.merge import Mismatch, fit, split
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.language import dtypes as dt
from tilec.language.context import current, error
from tilec.language.control import elect, static_range
from tilec.language.descriptors import tensor_descriptor
from tilec.language.gpu import tma
from tilec.language.gpu.barriers import barrier, barrier_array, mbarrier
from tilec.language.gpu.shared import alloc_shared, shared_buffer
from tilec.language.selection import where
from tilec.language.values import builtin, const_int, constant, describe, tensor, unwrap

_WHAT = "tlg.emit_pipeline"


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
    _check_descriptors(descs, "tlg.make_ring")
    if count < 2:
        raise error(f"tlg.make_ring: stages is {count}, expected 2 or more",
                    "one slot is filled while another one is used")
    buffers = tuple(alloc_shared(d.block_shape[-2:], d.dtype, stages=count) for d in descs)
    full = mbarrier(stages=count)
    barrier()
    return buffer_ring(buffers, full, constant(0, dt.int32), constant(0, dt.int32))


def _check_descriptors(descs: Any, what: str) -> None:
    if not isinstance(descs, tuple) or isinstance(descs, tensor_descriptor) or not descs or \
            not all(isinstance(d, tensor_descriptor) for d in descs):
        raise error(f"{what}: found {describe(descs)}, expected a tuple of descriptors",
                    "write (a, b), or (a,) for one")


@builtin
def _bytes(ring: Any) -> int:
    """What one step's copies bring."""
    return sum(buffer.nbytes for buffer in ring.buffers)


@builtin
def _check_ring(descs: Any, ring: Any) -> None:
    _check_descriptors(descs, _WHAT)
    if not isinstance(ring, buffer_ring):
        raise error(f"{_WHAT}: found {describe(ring)}, expected a ring of buffers",
                    "make it by tlg.make_ring, before all loops")
    if len(descs) != len(ring.buffers):
        raise error(f"{_WHAT}: the ring is for other descriptors",
                    "give the tuple of descriptors that tlg.make_ring was given")


def _call(fn: Any, given: dict[str, Any], args: Any) -> Any:
    """fn(*given, *args); CompilationError if an author's function does not take that."""
    every = (*given.values(), *args)
    try:
        if isinstance(fn, Function):
            signature(fn.fn).bind(*every)
    except TypeError as e:
        form = f"{fn.name}({', '.join(given)}{', *args' if args else ''})"
        raise error(f"{_WHAT}: `{fn.name}` is called as {form}: {e}",
                    f"write `def {form}`") from None
    return current().call(fn, every, {})


@builtin
def _place(place: Any, k: Any, args: Any, descs: Any) -> Any:
    """place(k, *args), where it gives offsets for each descriptor."""
    out = _call(place, {"k": k}, args)
    ranks = [len(d.block_shape) for d in descs]
    if not isinstance(out, tuple) or \
            [len(at) if isinstance(at, tuple) else 0 for at in out] != ranks:
        raise error(f"{_WHAT}: `{place.name}` returns {describe(out)}, expected offsets of blocks "
                    f"of {', '.join(map(str, ranks))} dimensions",
                    "return a tuple of the offsets in each descriptor, as ([i, k], [k, j]), or "
                    "([i, k],) for one")
    return out


@builtin
def _step(body: Any, k: Any, blocks: Any, carry: Any, args: Any) -> Any:
    """body(k, blocks, carry, *args), where it gives the next carry."""
    context = current()
    last, given = context.last, list[Value]()
    tree = split(carry, given)
    out = _call(body, {"k": k, "blocks": blocks, "carry": carry}, args)
    taken: list[Value] = []
    try:
        fit(tree, [x.type for x in given], out, taken)
    except Mismatch as e:
        found = "nothing" if out is None else e.args[0]
        raise error(f"{_WHAT}: `{body.name}` returns {found}, expected the next carry, like the "
                    f"{describe(carry)} that it is given", "end it with `return carry`") from None
    waits = any(isinstance(op, ops.WgmmaWait) for made in context.made_since(last)
                for op in made.walk())
    if not waits and any(isinstance(x.op, ops.Wgmma) for x in taken):
        raise error(f"{_WHAT}: `{body.name}` returns a product that it has not waited for, whose "
                    "blocks the next steps replace", "write `acc = tlg.wgmma_wait(1, acc)` in it, "
                    "and `tlg.wgmma_wait(0, acc)` after the pipeline")
    return out


@function
def _fetch(descs, place, k, wanted, ring, slot, args):
    """One thread starts the copies of step k into a slot."""
    if elect(wanted):
        offsets = _place(place, k, args, descs)
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
    _check_ring(descs, ring)
    stages = ring.full.stages
    # Prologue: all slots but one are filled.
    for k in range(stages - 1):
        _fetch(descs, place, k, k < steps, ring, (ring.slot + k) % stages, args)
    slot, phase = ring.slot, ring.phase
    for k in range(steps):
        ring.full[slot].wait(phase)
        carry = _step(body, k, [buffer[slot] for buffer in ring.buffers], carry, args)
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
