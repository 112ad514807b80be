"""Mistakes with warp roles are found when a kernel is compiled, at the author's line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tilec.errors import CompilationError

describe = tilec.TensorDescriptor.from_tensor


@tilec.jit
def scalar(p, n):
    tl.store(p, n)


@tilec.jit
def gives(p):
    return tl.load(p)


@tilec.jit
def leaves(p, n):
    if n > 3:
        return
    tl.store(p, n)


@tilec.jit
def copies(p, buffer):
    tlg.async_copy(p + tl.arange(0, 64), buffer)  # copies


@tilec.jit
def sets_up():
    tlg.mbarrier()  # sets up


@tilec.jit
def nests(p, n):
    tlg.warp_specialize([(scalar, (p, n)), (scalar, (p, n))], num_warps=[2, 2])  # nests


@tilec.jit
def tiles(p):
    tl.store(p + tl.arange(0, 64), 1)  # three


@tilec.jit
def multiplies(block):
    acc = tl.zeros((64, 64), tl.float32)
    acc = tlg.wgmma_wait(0, tlg.wgmma(block, block, acc))  # small


@tilec.jit
def reads(block, p):
    acc = tlg.wgmma(block, block, tl.zeros((64, 64), tl.float32))
    tl.store(p, tl.sum(acc))  # reads


@tilec.jit
def elects(bar):
    if tlg.elect(warp=2):  # elects
        bar.expect(8)


@tilec.jit
def meets():
    tlg.warpgroup_barrier()  # six


@tilec.jit
def held():
    tlg.convert_layout(tl.arange(0, 64), tlg.Blocked([1], [32], [4], [0]))  # held


def plain(p):
    """Not of a kernel."""


@tilec.jit
def wrong(a, p, n, HOW: tl.constexpr):
    """Each way of HOW is one mistake, marked by a comment here or in a role."""
    block, row = tlg.alloc_shared((64, 64), tl.float16), tlg.alloc_shared((64,), tl.int32)
    bar = tlg.mbarrier()
    tlg.barrier()
    f = (scalar, (p, n))
    if HOW == "sum":
        tlg.warp_specialize([f, f], num_warps=[4, 8])  # sum
    if HOW == "length":
        tlg.warp_specialize([f, f], num_warps=[2, 2, 4])  # length
    if HOW == "regs length":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[24])  # regs length
    if HOW == "regs sum":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[256, 264])  # regs sum
    if HOW == "regs warps":
        tlg.warp_specialize([f, f], num_warps=[6, 2], regs=[24, 240])  # regs warps
    if HOW == "regs odd":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[25, 240])  # regs odd
    if HOW == "zero":
        tlg.warp_specialize([f, f], num_warps=[8, 0])  # zero
    if HOW == "run time":
        tlg.warp_specialize([f, f], num_warps=[n, 4])  # run time
    if HOW == "none":
        tlg.warp_specialize([], num_warps=[])  # none
    if HOW == "no pair":
        tlg.warp_specialize([scalar, scalar], num_warps=[4, 4])  # no pair
    if HOW == "descriptor":
        tlg.warp_specialize([(sets_up, a), f], num_warps=[4, 4])  # descriptor
    if HOW == "plain":
        tlg.warp_specialize([(plain, (p,)), f], num_warps=[4, 4])  # plain
    if HOW == "arguments":
        tlg.warp_specialize([(scalar, (p,)), f], num_warps=[4, 4])  # arguments
    if HOW == "tile":
        tile = (n, (tl.zeros((4, 4), tl.float32),))
        tlg.warp_specialize([(scalar, (p, tile)), f], num_warps=[4, 4])  # tile
    if HOW == "gives":
        tlg.warp_specialize([(gives, (p,)), f], num_warps=[4, 4])  # gives
    if HOW == "copies":
        tlg.warp_specialize([(copies, (p, row)), f], num_warps=[4, 4])
    if HOW == "sets up":
        tlg.warp_specialize([(sets_up, ()), f], num_warps=[4, 4])
    if HOW == "nests":
        tlg.warp_specialize([(nests, (p, n)), f], num_warps=[4, 4])
    if HOW == "three":
        tlg.warp_specialize([(tiles, (p,)), f], num_warps=[3, 5])
    if HOW == "outside":
        tl.store(p + tl.arange(0, 64), 1)  # outside
        tlg.warp_specialize([f, f], num_warps=[4, 8])
    if HOW == "small":
        tlg.warp_specialize([(multiplies, (block,)), f], num_warps=[2, 6])
    if HOW == "begins":
        tlg.warp_specialize([f, (multiplies, (block,))], num_warps=[2, 4])  # begins
    if HOW == "reads":
        tlg.warp_specialize([(reads, (block, p)), f], num_warps=[4, 4])
    if HOW == "elects":
        tlg.warp_specialize([(elects, (bar,)), f], num_warps=[2, 6])
    if HOW == "six":
        tlg.warp_specialize([(meets, ()), f], num_warps=[6, 2])
    if HOW == "held":
        tlg.warp_specialize([(held, ()), f], num_warps=[2, 6])
    if HOW == "barriers":
        tlg.warp_specialize([f, f, f, f], num_warps=[8, 8, 8, 8])  # barriers
    if HOW == "one":
        if tlg.elect():
            tlg.warp_specialize([f, f], num_warps=[4, 4])  # one
    if HOW == "loop":
        for _ in range(n):
            tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[24, 240])  # loop
    if HOW == "last":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[24, 240])  # last
        tl.store(p, 1)
    if HOW == "flight":
        acc = tlg.wgmma(block, block, tl.zeros((64, 64), tl.float32))
        tlg.warp_specialize([f, f], num_warps=[4, 4])  # flight
        acc = tlg.wgmma_wait(0, acc)
    if HOW == "right":
        tlg.warp_specialize([f, (leaves, [p, n])], num_warps=[4, 4], regs=[24, 240])


MISTAKES = {
    "sum": "the roles have 12 warps, the kernel is launched with num_warps=8",
    "length": "num_warps is [2, 2, 4] for 2 roles",
    "regs length": "regs is [24] for 2 roles",
    "regs sum": "the roles have 66560 registers, a launch of 256 threads has 65536",
    "regs warps": "registers is 24 for 6 warps, expected a multiple of 8 from 24 to 256, for whole",
    "regs odd": "registers is 25 for 4 warps, expected a multiple of 8",
    "zero": "num_warps is [8, 0] and regs [0, 0], expected 1 or more",
    "run time": "num_warps has to be known at compile time, found a run-time int32 scalar",
    "none": "found () (tuple), expected a list of roles",
    "no pair": "expected a jit function and a tuple of its arguments",
    "descriptor": "expected a jit function and a tuple of its arguments",
    "plain": "expected a jit function and a tuple of its arguments",
    "arguments": "`scalar` needs a value for `n`",
    "tile": "`n` of `scalar` is a fp32[4, 4] tile, and roles take no tiles from outside",
    "gives": "`gives` returns int32 scalar, and roles return nothing",
    "copies": "tlg.async_copy: stands in a warp role: TMA copies there",
    "sets up": "tlg.mbarrier: stands in a warp role: mbarriers are set up before the roles",
    "nests": "tlg.warp_specialize: stands in a role of another one",
    "three": "works on a tile, and this role has 3 warps: tiles are for 1, 2, 4, 8, 16 or 32",
    "outside": "works on a tile, and outside of its roles the kernel has 12 warps",
    "small": "tlg.wgmma: 2 warps are not whole warpgroups of four",
    "begins": "the role begins with warp 2; for wgmma",
    "reads": "uses the accumulator `acc`, whose product no tlg.wgmma_wait has covered",
    "elects": "the warp of tlg.elect is 2, expected 0 to 1",
    "six": "tlg.warpgroup_barrier: 6 warps are not whole warpgroups",
    "held": "is for 4 warps, the role has 2",
    "barriers": "the roles need 12 barriers of their own, 7 are left",
    "one": "one thread alone has no warps to divide",
    "loop": "roles with registers of their own must be the function's last op",
    "last": "roles with registers of their own must be the function's last op",
    "flight": "divides the warps while the product of the accumulator `acc` is under way",
}
WARPS = {"outside": 12, "begins": 6, "barriers": 32}
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("how", MISTAKES)
def test_mistakes(how):
    a, p = describe(np.zeros((64, 64), np.float16), (64, 64)), np.zeros(64, np.int32)
    with pytest.raises(CompilationError) as caught:
        wrong.warmup(a, p, 5, HOW=how, grid=(1,), target="sm_90a", num_warps=WARPS.get(how, 8))
    assert MISTAKES[how] in caught.value.message
    assert LINES[caught.value.loc.line - 1].endswith(f"# {how}"), caught.value


@pytest.mark.parametrize("options, found", [
    ({"num_warps": 8, "maxnreg": 128}, "maxnreg is 128, and roles have registers of their own"),
    ({"num_warps": 8, "target": "sm_80"}, "needs sm_90"),
    ({"num_warps": 12}, "the roles have 8 warps, the kernel is launched with num_warps=12")])
def test_options_that_do_not_fit_roles(options, found):
    a, p = describe(np.zeros((64, 64), np.float16), (64, 64)), np.zeros(64, np.int32)
    with pytest.raises(CompilationError, match=found):
        wrong.warmup(a, p, 5, HOW="right", grid=(1,), **{"target": "sm_90a", **options})


def test_only_roles_have_another_number_of_warps():
    with pytest.raises(CompilationError, match="num_warps is 3, expected 1, 2, 4, 8, 16 or 32"):
        scalar.warmup(np.zeros(1, np.int32), 5, grid=(1,), num_warps=3)
