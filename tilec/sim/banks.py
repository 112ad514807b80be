"""Wavefronts of shared-memory requests: how many turns the banks need to serve a warp.

Shared memory has 32 banks of 4 bytes; the word at byte address x lies in bank x / 4 % 32. In one
wavefront each bank gives or takes one word, for any number of lanes. Accesses of up to 4 bytes
serve all lanes of a warp at once, those of 8 bytes one half of the warp after the other, those of
16 one quarter after another; ldmatrix and stmatrix serve the 8 rows of a matrix at once. Each such
phase takes as many wavefronts as the most distinct words that fall into one bank.

Sources: CUDA C++ Programming Guide, shared memory of compute capability 5.x and later (banks, lanes
that share a word) and of 2.x (halves and quarters of a warp); PTX ISA, ldmatrix (whose lanes give
the rows of a matrix). What they leave open: cp.async counts as a store of its size; lanes of an
atomic operation take turns at a word; and phases in which pairs of lanes read the same words, which
the hardware can join, count one by one, so that these counts are never too low.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.sim.machine import Array
from tilec.sim.ptx import Instr

BANKS, WORD, WARP = 32, 4, 32
OnShared = Callable[[Instr, Array, Array], None]
"""Called as (instruction, wavefronts, phases), arrays with an entry for each warp that asks; their
difference is what bank conflicts cost."""


def wavefronts(lanes: Array, offsets: Array, width: int, joins: bool = True
               ) -> tuple[Array, Array]:
    """Wavefronts and phases of each warp that asks, when `lanes` of a CTA access `width` bytes.

    `lanes` are thread numbers and `offsets` their byte offsets, multiples of `width`; `joins` says
    whether lanes that name one word are served at once. Both results are integers in the order of
    the warps; phases, those with a lane, is the least possible.
    """
    words = max(width // WORD, 1)
    phase = lanes.astype(np.int64) * words // WARP
    word = offsets.astype(np.int64)[:, None] // WORD + np.arange(words)
    asked = (phase[:, None] << 32) + word
    distinct = np.unique(asked) if joins else asked.reshape(-1)
    used = np.bincount((distinct >> 32) * BANKS + distinct % BANKS)
    used = np.pad(used, (0, -len(used) % (words * BANKS))).reshape(-1, words, BANKS).max(axis=2)
    asks = used.any(axis=1)
    return used.sum(axis=1)[asks], np.count_nonzero(used, axis=1)[asks]
