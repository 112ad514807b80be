"""A numpy machine that executes conversion plans and counts bank conflicts word by word."""

from __future__ import annotations

import numpy as np

from tilec.ir.conversion import NoOp, Plan, Registers, Select, Shared, Shuffles
from tilec.ir.linear import LinearLayout


def held(layout: LinearLayout) -> np.ndarray:
    """[warp, lane, register] -> flat index of the element that the layout puts there."""
    flat = layout.flatten_outs()
    warp, lane, register = np.ix_(
        *(np.arange(flat.in_size(n)) for n in ("warp", "lane", "register"))
    )
    return np.broadcast_to(
        flat.apply_array(register=register, lane=lane, warp=warp)[0],
        (warp.size, lane.size, register.size),
    ).copy()


def execute(plan: Plan, values: np.ndarray, dst_registers: int) -> np.ndarray:
    """values[warp, lane, src register] moved by the plan into [warp, lane, dst register]."""
    if isinstance(plan, NoOp):
        return values
    if isinstance(plan, Registers):
        return values[:, :, list(plan.permutation)]
    out = np.full((*values.shape[:2], dst_registers), -1)
    if isinstance(plan, Shuffles):
        _execute_shuffles(plan, values, out)
    else:
        assert isinstance(plan, Shared)
        _execute_shared(plan, values, out)
    return out[:, :, list(plan.copies)] if plan.copies else out


def _select(words: np.ndarray, step: Select) -> np.ndarray:
    warp, lane = np.ix_(np.arange(words.shape[0]), np.arange(words.shape[1]))
    index = lane if step.holder == "lane" else warp
    taken = (index >> step.bit & 1).astype(bool)[..., None, None]
    swapped = words[:, :, np.arange(words.shape[2]) ^ step.xor]
    return np.where(taken, swapped, words)


def _execute_shuffles(plan: Shuffles, values: np.ndarray, out: np.ndarray) -> None:
    words = np.stack([values[:, :, list(w)] for w in plan.src_words], axis=2)
    for step in plan.before:
        words = _select(words, step)
    warps, lanes = np.ix_(np.arange(words.shape[0]), np.arange(words.shape[1]))
    base = np.zeros_like(warps + lanes)
    for bit, c in enumerate(plan.lane_columns):
        base ^= (lanes >> bit & 1) * c
    for bit, c in enumerate(plan.warp_columns):
        base ^= (warps >> bit & 1) * c
    words = np.stack(
        [words[warps, base ^ x, s] for s, x in zip(plan.source, plan.lane_xor, strict=True)], axis=2
    )
    for step in plan.after:
        words = _select(words, step)
    for k, registers in enumerate(plan.dst_words):
        for part, r in enumerate(registers):
            out[:, :, r] = words[:, :, k, part]


def _offsets(access: LinearLayout) -> np.ndarray:
    warp, lane, register = np.ix_(
        *(np.arange(access.in_size(n)) for n in ("warp", "lane", "register"))
    )
    full = access.apply_array(register=register, lane=lane, warp=warp)[0]
    return np.broadcast_to(full, (warp.size, lane.size, register.size))


def _execute_shared(plan: Shared, values: np.ndarray, out: np.ndarray) -> None:
    store, load = _offsets(plan.store), _offsets(plan.load)
    elements = int(max(store.max(), load.max())) + 1
    for repetition in plan.repetitions:
        memory = np.full(elements, -1)
        owner = np.full(elements, -1)
        for w in range(values.shape[0]):
            if w & plan.skip_warps:
                continue
            memory[store[w]] = values[w][:, list(repetition.store)]
            owner[store[w]] = w
        for w in range(values.shape[0]):
            out[w][:, list(repetition.load)] = memory[load[w]]
            if plan.warp_local:
                assert (owner[load[w]] == w).all()


def vectors_are_contiguous(access: LinearLayout, width: int) -> bool:
    offsets = _offsets(access)
    groups = offsets.reshape(*offsets.shape[:2], -1, width)
    first = groups[..., :1]
    return bool((groups == first + np.arange(width)).all() and (first % width == 0).all())


def counted_wavefronts(access: LinearLayout, bits: int, width: int) -> int:
    """The most wavefronts that any lane group of any access takes, by counting words per bank."""
    offsets = _offsets(access)
    lanes_at_once = min(32, 32 * 4 // max(4, width * bits // 8))
    worst = 1
    for w in range(offsets.shape[0]):
        for position in range(0, offsets.shape[2], width):
            for start in range(0, 32, lanes_at_once):
                lanes = slice(start, start + lanes_at_once)
                touched = offsets[w, lanes, position : position + width] * (bits // 8) // 4
                if bits == 64:
                    touched = np.concatenate([touched, touched + 1])
                words = np.unique(touched)
                worst = max(worst, int(np.bincount(words % 32).max()))
    return worst
