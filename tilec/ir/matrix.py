"""ldmatrix and stmatrix: which maps from registers to shared memory they carry out.

A matrix is 8 rows of 16 bytes, each row anywhere. Each lane holds a 32-bit word of every matrix: of
row lane / 4, or with .trans (16-bit elements only) two neighbours of column lane / 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilec.ir.f2 import Span, bit_order, log2_exact
from tilec.ir.linear import LinearLayout

ROW_BYTES = 16
WORD_BITS = 32
MAX_MATRICES = 4
# Rows served at once: one row of a matrix in each 16 bytes of the banks.
BANK_ROWS = 8


@dataclass(frozen=True)
class MatrixPlan:
    """One instruction after another, each for `count` (1, 2 or 4) matrices.

    order: the registers, by instruction, matrix and place in the word. address: the map with the
    lanes' columns replaced by those of the row addresses that they give: for an instruction's first
    register, lane 8 m + r gives row r of matrix m. per_word: registers in a lane's word.
    wavefronts: how many a matrix takes; 1 means no bank conflict.
    """

    trans: bool
    count: int
    per_word: int
    order: tuple[int, ...]
    address: LinearLayout
    wavefronts: int

    @property
    def per_instruction(self) -> int:
        """Registers that one instruction moves."""
        return self.count * self.per_word

    @property
    def cost(self) -> tuple[int, int]:
        """(wavefronts, instructions) of one warp."""
        instructions = len(self.order) // self.per_instruction
        return instructions * self.count * self.wavefronts, instructions


@lru_cache(maxsize=4096)
def find_ldmatrix(access: LinearLayout, bits: int) -> MatrixPlan | None:
    """The plan for a map (register, lane, warp) -> element offset of elements of `bits`, or None.

    Registers that only hold copies (zero columns) are left out of the plan.
    """
    found = [plan for plan in (_rows(access, bits), *_columns(access, bits)) if plan is not None]
    return min(found, key=lambda p: p.wavefronts, default=None)


def matrix_tiles(layout: LinearLayout, bits: int) -> list[tuple[list[int], list[int]]]:
    """What a matrix would be of a tile in this layout: (columns inside of a row, lowest first;
    columns that choose the row), without .trans and with it."""
    lanes = layout.columns_of("lane")
    registers = [c for c in layout.columns_of("register") if c]
    tiles = []
    word = log2_exact(WORD_BITS // bits) if bits <= WORD_BITS else 0
    if bits <= WORD_BITS and len(registers) >= word:
        tiles.append(([*registers[:word], *lanes[:2]], [*lanes[2:]]))
    if bits == 16 and registers:
        tiles.append(([*lanes[2:]], [registers[0], *lanes[:2]]))
    return [(row, rows) for row, rows in tiles if 0 not in row]


def row_wavefronts(rows: Sequence[int], bits: int) -> int:
    """Wavefronts for 8 rows whose element offsets these three columns span."""
    chunks = [c * (bits // 8) // ROW_BYTES for c in rows]
    return 1 << (Span(chunks).rank - Span(c & (BANK_ROWS - 1) for c in chunks).rank)


def _rows(access: LinearLayout, bits: int) -> MatrixPlan | None:
    """Lanes 0 to 3 hold the words of a row."""
    if bits > WORD_BITS:
        return None
    registers, lanes = access.columns_of("register"), access.columns_of("lane")
    inside = [1 << i for i in range(log2_exact(WORD_BITS // bits))]
    if any(c not in registers for c in inside):
        return None
    word = [registers.index(c) for c in inside]
    first = 1 << len(word)
    if lanes[:2] != (first, 2 * first):
        return None
    return _plan(access, bits, word, [0, 1], lanes[2:], False)


def _columns(access: LinearLayout, bits: int) -> list[MatrixPlan | None]:
    """Lanes 0, 4, 8, ... hold the elements of a row; a word has two rows' elements."""
    lanes = access.columns_of("lane")
    if bits != 16 or lanes[2:] != (1, 2, 4):
        return []
    return [_plan(access, bits, [i], [2, 3, 4], (c, *lanes[:2]), True)
            for i, c in enumerate(access.columns_of("register")) if c]


def _plan(access: LinearLayout, bits: int, word: Sequence[int], inner_lanes: Sequence[int],
          rows: Sequence[int], trans: bool) -> MatrixPlan | None:
    """The plan if nothing but a row's own bits touches the 16 bytes of a row."""
    registers, lanes = access.columns_of("register"), access.columns_of("lane")
    warps = access.columns_of("warp")
    inner_registers = [] if trans else word
    others = [*(c for i, c in enumerate(registers) if i not in inner_registers),
              *(c for i, c in enumerate(lanes) if i not in inner_lanes), *warps,
              access.flip_bits]
    if any(c & (ROW_BYTES * 8 // bits - 1) for c in others):
        return None
    free = [i for i, c in enumerate(registers) if c and i not in word]
    # The lowest registers make one instruction's results, as they make one mma's operand: both
    # want neighbouring registers, and any other choice costs a move for each.
    matrices = free[:log2_exact(MAX_MATRICES)]
    columns = [*rows, *(registers[i] for i in matrices)]
    columns += [0] * (len(lanes) - len(columns))
    rest = sorted(free[len(matrices):])
    return MatrixPlan(trans, 1 << len(matrices), 1 << len(word),
                      bit_order([*word, *matrices, *rest]), access.with_columns("lane", columns),
                      row_wavefronts(rows, bits))
