"""The hand-written Hopper kernels: they verify and round-trip, generic passes leave them as they
are, and their protocol of copies, waits and products is right for many extents."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.fixtures import fixture
from tests.support.protocol import Walk
from tilec.ir import ops
from tilec.ir.buffers import buffer_bytes
from tilec.ir.conversion import NoOp, plan_conversion
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import equal, print_module
from tilec.ir.types import Tensor
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.base import parse_pipeline
from tilec.passes.insert_barriers import InsertBarriers

GEMM, ATTENTION = "gemm_a_branch.tir", "attention_e1.tir"
ROLES = ("gemm_c_e2.tir", "attention_f3nf.tir")
LIMIT = 232448  # bytes of shared memory of one CTA on sm_90
each = pytest.mark.parametrize("name", [GEMM, ATTENTION, *ROLES, "gemm_d_e2.tir"])


@each
def test_round_trip(name: str) -> None:
    m = fixture(name)
    for locations in (False, True):
        again = parse(print_module(m, locations=locations))
        verify(again)
        assert equal(m, again)


@each
@pytest.mark.parametrize("passes", ["cse", "dce", "licm", "canonicalize", "reorder",
                                    "canonicalize,cse,licm,dce,reorder"])
def test_generic_passes_change_nothing(name: str, passes: str) -> None:
    m = fixture(name)
    for p in parse_pipeline(passes):
        p.run(m)
        verify(m)
    assert equal(m, fixture(name))


@each
def test_passes_undo_what_they_should(name: str) -> None:
    """Equal scalars computed twice are merged again, and dead ones removed, around the same ops."""
    m = fixture(name)
    for op in list(m.walk()):
        if isinstance(op, ops.Add | ops.And | ops.MemdescIndex) and op.parent is not None:
            twin = op.clone({})
            op.parent.insert(twin, op.next)
            first = next(iter(op.result.uses), None)
            if first is not None and first[0].parent is op.parent:
                first[0].set_operand(first[1], twin.results[0])
    verify(m)
    assert not equal(m, fixture(name))
    for p in parse_pipeline("cse,dce"):
        p.run(m)
    verify(m)
    assert equal(m, fixture(name))


@pytest.mark.parametrize(("name", "shared"), [(GEMM, 4 * 49152 + 32768), (ATTENTION, 6 * 32768),
                                              (ROLES[0], 4 * 49152 + 32768),
                                              (ROLES[1], 6 * 32768)])
def test_shared_memory(name: str, shared: int) -> None:
    m = fixture(name)
    AllocateShared().run(m)
    assert shared < m.attributes["shared"] <= min(shared + 1024, LIMIT)
    verify(m)


@each
def test_no_barrier_is_added(name: str) -> None:
    """What TMA and wgmma use is ordered by what is written in the IR."""
    m = fixture(name)
    AllocateShared().run(m)
    want = m.clone()
    InsertBarriers().run(m)
    verify(m)
    assert equal(m, want)


@each
def test_buffers_are_aligned_and_apart(name: str) -> None:
    m = fixture(name)
    AllocateShared().run(m)
    allocated = sorted((op.offset, op.offset + buffer_bytes(op.result), op.result.type)
                       for op in m.walk() if isinstance(op, ops.AllocShared))
    for (_, end, _), (start, _, _) in zip(allocated, allocated[1:]):
        assert end <= start
    assert all(start % (1024 if t.shape[-1] > 1 else 16) == 0 for start, _, t in allocated)


def test_probabilities_keep_their_registers() -> None:
    for op in fixture(ATTENTION).walk():
        if isinstance(op, ops.ConvertLayout):
            src, dst = op.x.type, op.result.type
            assert isinstance(src, Tensor) and isinstance(dst, Tensor)
            assert src.layout is not None and dst.layout is not None
            plan = plan_conversion(src.layout.to_linear(src.shape),
                                   dst.layout.to_linear(dst.shape), 16)
            assert isinstance(plan, NoOp)


def walk(m: Module, grid: int, program: int, /, **scalars: int) -> Walk:
    values = {name: np.int32(value) for name, value in scalars.items()}
    return Walk(grid, program).run(m.funcs[0], values)


@pytest.mark.parametrize("grid", [1, 3, 132])
@pytest.mark.parametrize("extents", [(1, 1, 1), (128, 256, 64), (1000, 1088, 100), (640, 512, 256),
                                     (2048, 1024, 130), (1300, 300, 321)])
def test_gemm_protocol(grid: int, extents: tuple[int, int, int]) -> None:
    """Every tile is stored once, and made of the right products, in order, the first from nothing;
    what is loaded is used."""
    m, n, k = extents
    module, stored = fixture(GEMM), []
    for program in range(grid):
        done = walk(module, grid, program, m=m, n=n, k=k)
        steps = range(0, k, 64)
        tiles = done.stores[::2]
        assert done.stores[1::2] == [(row, col + 128) for row, col in tiles]
        want = [(("amap", row, at), ("bmap", at, col), at > 0) for row, col in tiles
                for at in steps]
        assert done.products == want
        assert done.loads == 2 * len(want)
        stored += tiles
    assert sorted(stored) == [(row, col) for row in range(0, m, 128) for col in range(0, n, 256)]
    if grid == 1:
        # Down bands of eight tiles: a new column only after the band's last row.
        bands = [row // 1024 for row, _ in stored]
        assert bands == sorted(bands)
        assert all(later[1] >= col or later[0] // 1024 > row // 1024
                   for (row, col), later in zip(stored, stored[1:]))


@pytest.mark.parametrize("grid", [1, 3, 132])
@pytest.mark.parametrize("seq", [1, 100, 128, 129, 256, 300, 513, 1024, 1100])
def test_attention_protocol(seq: int, grid: int) -> None:
    """Every tile: each block's scores and its product with v, from the last to the first; one load
    each."""
    heads, stored, module = 3, [], fixture(ATTENTION)
    rows = list(reversed(range(0, seq, 128)))
    for program in range(min(grid, heads * len(rows))):
        done = walk(module, grid, program, seq=seq, heads=heads)
        want = []
        for head, row, _ in done.stores:
            scores = [(("qmap", head, row, 0), ("kmap", head, at, 0), False) for at in rows]
            products = [(None, ("vmap", head, at, 0), True) for at in rows]
            rotated = [x for pair in zip(scores[1:], products) for x in pair]
            want += [scores[0], *rotated, products[-1]]
        assert done.products == want
        assert done.loads == len(done.stores) * (1 + 2 * len(rows))
        stored += done.stores
    assert sorted(stored) == [(h, row, 0) for h in range(heads) for row in range(0, seq, 128)]


@pytest.mark.parametrize(("name", "fault"), [
    (GEMM, "count"), (GEMM, "pending"), (ATTENTION, "count"), (ATTENTION, "pending"),
    (ATTENTION, "arrive")])
def test_the_walk_sees_faults(name: str, fault: str) -> None:
    """A protocol with one op changed does not pass."""
    m = fixture(name)
    kind = {"count": ops.MbarrierInit, "pending": ops.WgmmaWait,
            "arrive": ops.MbarrierArrive}[fault]
    found = [op for op in m.walk() if isinstance(op, kind)]
    if fault == "count":
        found[0].count += 1
    elif fault == "pending":
        found[0 if name == GEMM else 1].pending += 1
    else:
        found[1].erase()
    with pytest.raises(AssertionError, match="never ends|while refilled"):
        if name == GEMM:
            walk(m, 1, 0, m=256, n=256, k=1024)
        else:
            walk(m, 1, 0, seq=1024, heads=2)
