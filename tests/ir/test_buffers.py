"""Layouts of shared buffers: bank conflicts counted word by word, from where elements lie."""

import itertools
from collections import Counter

import pytest

from tilec.errors import IRError
from tilec.ir.buffers import access_map, operand_layout, stage_bytes
from tilec.ir.fragment import Fragment, SharedTile, fragment, shared_tile
from tilec.ir.layout_base import SharedLayout
from tilec.ir.layouts import Blocked, DotOperand, Mma, NvmmaShared, SharedLinear, SwizzledShared
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.swizzle import best_route
from tilec.ir.types import MemDesc, f16, f32, f64, i8
from tilec.ir.verifier import verify

SIZES = {1: i8, 2: f16, 4: f32, 8: f64}
BANKS = 32


def words(buffer: SharedTile, frag: Fragment, size: int, lane: int, registers: list[int]
          ) -> set[int]:
    """The 32-bit words that a lane of warp 0 touches."""
    found: set[int] = set()
    for r in registers:
        at = buffer.offset(frag.coords(r, lane, 0)) * size
        found.update(range(at // 4, (at + size - 1) // 4 + 1))
    return found


def degree(touched: set[int]) -> int:
    """Wavefronts that these words take, 1 being the least there can be."""
    per_bank = Counter(w % BANKS for w in touched)
    return max(per_bank.values())


def plain_degree(buffer: SharedTile, frag: Fragment, size: int, registers: list[int]) -> int:
    """Of one vector access, the most wavefronts of a group of lanes served at once."""
    lanes = 32 // max(1, size * len(registers) // 4)
    groups = [range(first, first + lanes) for first in range(0, 32, lanes)]
    return max(degree(set().union(*(words(buffer, frag, size, lane, registers) for lane in group)))
               for group in groups)


def matrix_degree(buffer: SharedTile, frag: Fragment, size: int, registers: list[int],
                  trans: bool) -> int:
    """Of one 8 x 8 matrix: the words of its 8 rows of 16 bytes are one wavefront."""
    touched = set().union(*(words(buffer, frag, size, lane, registers) for lane in range(32)))
    assert len(touched) <= 32
    # The 16 bytes of each row lie side by side.
    assert all({w & ~3, w & ~3 | 1, w & ~3 | 2, w & ~3 | 3} <= touched for w in touched)
    return degree(touched)


def worst(buffer: SharedTile, frag: Fragment, size: int) -> tuple[int, str]:
    """(conflict degree, how) of the best route between a fragment and a buffer."""
    access = access_map(frag, buffer)
    route = best_route(access, size * 8, True)
    if route.matrix is None:
        return max(plain_degree(buffer, frag, size, list(g)) for g in route.groups()), \
            f"{route.width * size} bytes"
    each = route.matrix.per_word
    order = route.order
    pieces = [list(order[i:i + each]) for i in range(0, len(order), each)]
    return max(matrix_degree(buffer, frag, size, p, route.matrix.trans) for p in pieces), \
        "matrix.trans" if route.matrix.trans else "matrix"


def writer(shape: tuple[int, int], size: int, order: tuple[int, int], warps: int) -> Blocked:
    """16 bytes a thread along order[0], as `coalesce` lays out loads."""
    vec = 16 // size
    extent = shape[order[0]] & -shape[order[0]]
    vec = min(vec, extent)
    lanes = min(32, max(1, extent // vec))
    fields = [[1, 1], [1, 1], [1, 1]]
    fields[0][order[0]] = vec
    fields[1][order[0]], fields[1][order[1]] = lanes, 32 // lanes
    fields[2][order[1]] = warps
    return Blocked(*(tuple(f) for f in fields), order)


SHAPES = [(64, 64), (128, 32), (16, 128), (96, 64), (64, 96), (192, 160), (32, 16), (48, 80)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_operands_meet_no_bank_twice(size: int, index: int, order: tuple[int, int],
                                     shape: tuple[int, int]) -> None:
    mma = Mma(2, (2, 2), (8, 8) if size == 8 else (16, 8))
    reader = DotOperand(mma, index, max(1, 4 // size))
    filler = writer(shape, size, order, 4)
    layout = operand_layout(shape, SIZES[size], order, (reader,), filler)
    buffer = shared_tile(shape, layout)
    stored, how = worst(buffer, fragment(shape, filler), size)
    loaded, read = worst(buffer, fragment(shape, reader), size)
    assert (stored, loaded) == (1, 1), (str(layout), how, read)
    assert how == "16 bytes"
    along_k = order[0] == 1 - index
    if size < 8 and (along_k or size == 2) and min(n & -n for n in shape) > 16:
        assert read == ("matrix" if along_k else "matrix.trans")
    # Bytes of one column in short rows are the only case in which rows must change places.
    assert isinstance(layout, SwizzledShared) or (size == 1 and not along_k)


def test_two_readers() -> None:
    mma = Mma(2, (2, 2), (16, 8))
    readers = DotOperand(mma, 0, 2), DotOperand(mma, 1, 2)
    filler = writer((64, 64), 2, (1, 0), 4)
    layout = operand_layout((64, 64), f16, (1, 0), readers, filler)
    assert layout == SwizzledShared(8, 1, 8, (1, 0))
    for reader in readers:
        assert worst(shared_tile((64, 64), layout), fragment((64, 64), reader), 2)[0] == 1


def test_vectors_are_plain() -> None:
    layout = Blocked((4,), (32,), (4,), (0,))
    assert operand_layout((512,), f32, (0,), (layout,), layout) == SwizzledShared(1, 1, 1, (0,))


# ---- transposed views
@pytest.mark.parametrize("layout", [
    SwizzledShared(8, 1, 4, (1, 0)), SwizzledShared(4, 2, 2, (0, 1)), NvmmaShared(32, True, 16),
    NvmmaShared(32, False, 16),
    SharedLinear(((0, 1), (0, 2), (0, 4), (0, 8), (1, 0), (2, 0), (4, 4), (8, 2)))])
@pytest.mark.parametrize("shape", [(16, 16), (48, 80), (80, 16), (16, 48)])
def test_transposing_moves_nothing(layout: SharedLayout, shape: tuple[int, int]) -> None:
    flipped = layout.permuted((1, 0))
    here, there = shared_tile(shape, layout), shared_tile(shape[::-1], flipped)
    assert flipped.permuted((1, 0)) == layout and layout.permuted((0, 1)) == layout
    offsets = set()
    for i, j in itertools.product(*map(range, shape)):
        assert here.offset((i, j)) == there.offset((j, i))
        offsets.add(here.offset((i, j)))
    assert offsets == set(range(shape[0] * shape[1]))


def test_bytes() -> None:
    layout = SwizzledShared(4, 1, 8, (1, 0))
    assert stage_bytes(MemDesc((96, 32), f32, layout)) == 96 * 32 * 4
    assert stage_bytes(MemDesc((34, 32), f32, layout)) == 64 * 32 * 4  # 34 is stored as 64
    assert stage_bytes(MemDesc((3, 96, 32), f32, layout)) == 96 * 32 * 4


# ---- what the ops refuse
GOOD = """#s = swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>
#f = swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [0, 1]}>
#b = blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], \
order = [1, 0]}>
module attributes {level = "gpu", num_warps = 4} {
  func @k(%p: ptr<f16>, %n: i32, %w: i64) {
    %q = tile.splat(%p) : tensor<96x64xptr<f16>, #b>
    %a = gpu.alloc_shared() : memdesc<3x96x64xf16, #s>
    %i = gpu.memdesc_index(%a, %n) {ahead = 2} : memdesc<96x64xf16, #s>
    gpu.async_copy(%q, %i)
    gpu.async_commit()
    gpu.async_wait() {pending = 1}
    %t = gpu.memdesc_trans(%i) {order = [1, 0]} : memdesc<64x96xf16, #f>
    %x = gpu.shared_load(%i) : tensor<96x64xf16, #b>
    %y = gpu.shared_load(%i) {offsets = [48, 0]} : tensor<48x64xf16, #b>
    gpu.shared_store(%i, %x)
    func.return()
  }
}
"""


def test_buffer_ops_round_trip() -> None:
    m = parse(GOOD)
    verify(m)
    assert print_module(parse(print_module(m))) == print_module(m)


@pytest.mark.parametrize("old,new,message", [
    ("gpu.memdesc_index(%a, %n)", "gpu.memdesc_index(%i, %n)", "not defined"),
    ("gpu.memdesc_index(%a, %n)", "gpu.memdesc_index(%a, %w)", "index is i64, expected i32"),
    ("{ahead = 2}", "{ahead = -2}", "attribute `ahead` is -2, expected int from -1"),
    ("{ahead = 2} : memdesc<96x64xf16, #s>", ": memdesc<3x96x64xf16, #s>", "result type"),
    ("gpu.async_copy(%q, %i)", "gpu.async_copy(%q, %a)", "expected a single buffer"),
    ("gpu.memdesc_trans(%i) {order = [1, 0]}", "gpu.memdesc_trans(%i) {order = [1, 1]}",
     r"order is \[1, 1\], expected a permutation"),
    ("memdesc<64x96xf16, #f>", "memdesc<64x96xf16, #s>", "result type"),
    ("gpu.async_wait() {pending = 1}", "gpu.async_wait() {pending = -1}",
     "attribute `pending` is -1"),
    ("gpu.shared_store(%i, %x)", "gpu.shared_store(%t, %x)", "cannot store"),
    ("gpu.shared_load(%i) :", "gpu.shared_load(%t) :", "cannot load"),
    ("{offsets = [48, 0]} : tensor<48x64xf16, #b>", ": tensor<48x64xf16, #b>", "cannot load"),
    ("[48, 0]} : tensor<48x64xf16, #b>", "[48, 0]} : tensor<48x64xbf16, #b>", "cannot load"),
    ("[48, 0]", "[24, 0]", r"at \[24, 0\] is no part of memdesc<96x64xf16"),
    ("[48, 0]", "[96, 0]", "is no part of"), ("[48, 0]", "[-48, 0]", "is no part of"),
    ("[48, 0]", "[48]", "is no part of"),
    ("[48, 0]} : tensor<48x64xf16, #b>", "[0, 0]} : tensor<64x64xf16, #b>", "is no part of"),
    ("memdesc<3x96x64xf16, #s>", "memdesc<2x3x96x64xf16, #s>", "has a layout of rank 2"),
    ("memdesc<3x96x64xf16, #s>", "memdesc<3x96x64xf16, #b>", "is not a layout of shared memory"),
    ("tensor<96x64xptr<f16>, #b>", "tensor<64x64xptr<f16>, #b>", "cannot copy"),
])
def test_buffer_ops_refuse(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(IRError, match=message):
        verify(parse(GOOD.replace(old, new, 1)))
