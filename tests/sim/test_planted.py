"""Faults planted in PTX that tilec emits: each changes a result or an order, and each is caught."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np
import pytest

from tests.sim import hopper_product, launches
from tests.sim.launches import Launch
from tilec.sim import SimError

LAUNCHES = {**launches.LAUNCHES, "by hand": hopper_product.launch}
SEEDS = (None, 0)
DIFFERS = "differs"
ORDER = r"race: it (reads|writes)|uninitialised"
BOUNDS = "out-of-bounds"
FLIGHT = "race|touches the accumulator"


@functools.cache
def launch(name: str) -> Launch:
    return LAUNCHES[name]()


class Mutant(NamedTuple):
    """The occurrence `nth` of `pattern` (a statement) replaced, as re.sub does.

    `expected` is DIFFERS, for a result other than the kernel's own, or a pattern that the error of
    a checked run matches.
    """

    launch: str
    name: str
    pattern: str
    replacement: str
    nth: int = 0
    expected: str = DIFFERS

    def text(self) -> str:
        """The mutated PTX."""
        whole = launch(self.launch).ptx
        found = list(re.finditer(self.pattern, whole))
        assert len(found) > self.nth, f"{self}: {len(found)} places"
        place = found[self.nth]
        changed = whole[: place.start()] + place.expand(self.replacement) + whole[place.end() :]
        assert changed != whole
        return changed

    def __str__(self) -> str:
        return f"{self.launch}: {self.name}"


def dropped(where: str, statement: str, nth: int = 0, expected: str = ORDER) -> Mutant:
    return Mutant(where, f"{statement} {nth} dropped", rf"{statement}[^;]*;", "", nth, expected)


WAIT, COMMIT, BARRIER = r"cp\.async\.wait_group", r"cp\.async\.commit_group", r"bar\.sync"
LATE = (rf"({WAIT}[^;]*;)([\s\S]*?)({BARRIER}[^;]*;)", r"\2\3\1")
BFLY = r"(shfl\.sync\.bfly\.b32[^;]*, )"
PRODUCTS = [f"product of {n} stages" for n in (2, 3, 4)]
A_REGISTERS = r"(mma\.sync[^;]*?\}, \{)(%r\d+), (%r\d+)"
B_REGISTERS = r"(mma\.sync[^;]*?\}, \{[^}]*\}, \{)(%r\d+), (%r\d+)"
SUMS = r"(mma\.sync\S*\s+\{)(%r\d+), (%r\d+)"
PLAIN = (r"@(%p\d+) atom\S+add\.u32 (%r\d+), \[(%rd\d+)\], (%r\d+);",
         r"{ .reg .b32 %sum; @\1 ld.global.b32 \2, [\3]; @\1 add.u32 %sum, \2, \4; "
         r"@\1 st.global.b32 [\3], %sum; }")

ORDERING = [
    *[dropped(name, BARRIER, nth) for name in PRODUCTS for nth in range(3)],
    *[dropped(name, WAIT, nth) for name in PRODUCTS for nth in range(2)],
    *[dropped(PRODUCTS[0], COMMIT, nth) for nth in range(2)],
    *[dropped(PRODUCTS[1], COMMIT, nth) for nth in range(3)],
    Mutant(PRODUCTS[0], "wait off by one", rf"({WAIT}\s+)0", r"\g<1>1", 0, ORDER),
    Mutant(PRODUCTS[1], "wait off by one", rf"({WAIT}\s+)1", r"\g<1>2", 0, ORDER),
    Mutant(PRODUCTS[2], "wait off by one", rf"({WAIT}\s+)2", r"\g<1>3", 0, ORDER),
    Mutant("big product", "wait off by one", rf"({WAIT}\s+)1", r"\g<1>2", 0, ORDER),
    *[Mutant(name, "wait after the barrier", *LATE, 0, ORDER) for name in PRODUCTS],
    Mutant(PRODUCTS[1], "slot refilled a step early", r"(selp\.b32 \s*%r\d+, -1), 2, ",
           r"\1, 1, ", 0, ORDER),
    dropped("big product", BARRIER), dropped("big product", WAIT),
    dropped("attention", BARRIER), dropped("attention", WAIT),
    dropped("attention", r"bar\.warp\.sync", 0), dropped("attention", r"bar\.warp\.sync", 1),
    Mutant("attention", "wait off by one", rf"({WAIT}\s+)1", r"\g<1>2", 0, ORDER),
    *[dropped("reduction", BARRIER, nth) for nth in range(6)],
    *[dropped("shapes", BARRIER, nth) for nth in range(3)],
    *[dropped("softmax", BARRIER, nth) for nth in range(2)],
    Mutant("softmax", "barrier of a warp for one of the CTA", rf"{BARRIER}\s+0;",
           "bar.warp.sync -1;", 0, ORDER),
    Mutant("atomics", "plain addition", *PLAIN, 0, "race"),
    Mutant("atomics", "plain addition by one thread of each CTA", *PLAIN, 1, "race"),
]

SPIN = r"\{{ \.reg \.pred %done; W: [^;]*\[{}\],[^}}]*\}}"
FLIP = r"@%wrapped xor\.b32 %phase, %phase, 1;"
STUCK, PHASE, ENDS = "deadlock", "arrivals at an mbarrier", "the CTA ends while"
BY_HAND = [Mutant("by hand", *rest) for rest in [
    ("full wait dropped", SPIN.format("%full"), "", 0, ORDER),
    ("empty wait dropped", SPIN.format("%empty"), "", 0, f"{ORDER}|{PHASE}"),
    ("consumer's first phase", r"mov\.u32 %phase, 0;", "mov.u32 %phase, 1;", 0,
     f"{ORDER}|{STUCK}"),
    ("producer's first phase", r"mov\.u32 %phase, 1;", "mov.u32 %phase, 0;", 0, STUCK),
    ("producer's phase never flips", FLIP, "", 0, f"{ORDER}|{PHASE}|{STUCK}"),
    ("consumer's phase never flips", FLIP, "", 1, f"{ORDER}|{STUCK}"),
    ("fewer bytes expected", r"\[%full\], 16384;", "[%full], 8192;", 0, f"{ORDER}|{ENDS}|bytes"),
    ("more bytes expected", r"\[%full\], 16384;", "[%full], 24576;", 0, STUCK),
    ("no bytes expected", r"mbarrier\.arrive\.expect_tx([^;]*), 16384;", r"mbarrier.arrive\1;", 0,
     f"{ORDER}|bytes"),
    ("half of the arrivals", r"\[%bars\+16\], 128;", "[%bars+16], 64;", 0, f"{ORDER}|{STUCK}"),
    ("one arrival more", r"\[%bars\+24\], 128;", "[%bars+24], 129;", 0, STUCK),
    ("arrival dropped", r"mbarrier\.arrive\.shared::cta\.b64 _, \[%empty\];", "", 0, STUCK),
    ("arrival before the wait", r"(wgmma\.wait_group[^;]*;)(\s*)(mbarrier\.arrive[^;]*;)",
     r"\3\2\1", 0, ORDER),
    ("wgmma wait off by one", r"(wgmma\.wait_group\.sync\.aligned) 0", r"\1 1", 0, FLIGHT),
    ("wgmma wait dropped", r"wgmma\.wait_group[^;]*;", "", 0, FLIGHT),
    ("wgmma commit dropped", r"wgmma\.commit_group[^;]*;", "", 0, FLIGHT),
    ("wgmma fence dropped", r"wgmma\.fence[^;]*;", "", 0, r"since the last wgmma\.fence"),
    ("proxy fence dropped", r"fence\.proxy\.async[^;]*;", "", 0, r"missing fence\.proxy\.async"),
    ("barrier before the store dropped", r"bar\.sync 1, 128;", "", 0, ORDER),
    ("barrier for fewer threads", r"bar\.sync 1, 128;", "bar.sync 1, 96;", 0, "a barrier for 96"),
    ("barrier after the initialisation dropped", r"bar\.sync 0;", "", 0, "race: it uses the mbar"),
    ("fence of the initialisation dropped", r"@%first fence\.mbarrier_init[^;]*;", "", 0,
     "missing fence.mbarrier_init"),
    ("an mbarrier not initialised", r"@%first mbarrier\.init[^;]*;", "", 1, "never initialised"),
    ("slots overlap", r"%b, %a, 16384", "%b, %a, 8192", 0, ORDER),
]]

GROUP = r"bar\.sync \S+ 128;"
PRODUCT = [Mutant("hopper product", *rest) for rest in [
    ("wait for data dropped", r"\{ \.reg \.pred p; W:[^}]*\}", "", 0, ORDER),
    ("wait for the other parity", r"(bfe\.u32\s+%r\d+, %r\d+), 2, 1", r"\1, 3, 1", 0,
     f"{ORDER}|{STUCK}"),
    ("wait for another slot", r"(and\.b32\s+%r\d+, %r\d+), 3;", r"\1, 1;", 0,
     f"{ORDER}|{STUCK}"),
    ("fewer bytes expected", r"49152;", "32768;", 1, f"{ORDER}|{ENDS}|bytes"),
    ("more bytes expected", r"49152;", "65536;", 0, STUCK),
    ("wgmma wait off by one", r"(wgmma\.wait_group\.sync\.aligned) 1", r"\1 2", 0, ORDER),
    ("wgmma wait dropped in the loop", r"wgmma\.wait_group\.sync\.aligned 1;", "", 0, ORDER),
    ("wgmma wait dropped after it", r"wgmma\.wait_group\.sync\.aligned 0;", "", 0, FLIGHT),
    ("wgmma commit dropped", r"wgmma\.commit_group[^;]*;", "", 0, f"{ORDER}|{FLIGHT}"),
    ("wgmma fence dropped", r"wgmma\.fence[^;]*;", "", 0, r"since the last wgmma\.fence"),
    ("slot refilled a step early", r"(add\.s32\s+%r\d+, %r\d+), -1;", r"\1, 0;", 0, ORDER),
    ("fence of the initialisation dropped", r"fence\.mbarrier_init[^;]*;", "", 0,
     "missing fence.mbarrier_init"),
    ("barrier after the initialisation dropped", r"bar\.sync \s*0;", "", 0, "it uses the mbarrier"),
    ("barrier of a step dropped", r"bar\.sync \s*0;", "", 1, ORDER),
    *[(f"proxy fence {n} dropped", r"fence\.proxy\.async[^;]*;", "", n,
       r"missing fence\.proxy\.async") for n in range(2)],
    *[(f"barrier {n} of a warpgroup dropped", GROUP, "", n, ORDER) for n in range(4)],
    *[(f"wait {n} for a store dropped", r"@p cp\.async\.bulk\.wait_group\.read 0;", "", n,
       f"{ORDER}|{ENDS}") for n in range(3)],
    *[(f"bulk commit {n} dropped", r"@p cp\.async\.bulk\.commit_group;", "", n, f"{ORDER}|{ENDS}")
      for n in range(2)],
]]

COPIES = [Mutant("pointer product", *rest) for rest in [
    ("proxy fence dropped", r"fence\.proxy\.async[^;]*;", "", 0, r"missing fence\.proxy\.async"),
    ("barrier before the product dropped", rf"{BARRIER}[^;]*;", "", 0,
     rf"{ORDER}|missing fence\.proxy\.async"),
    ("barrier before the copies dropped", rf"{BARRIER}[^;]*;", "", 1, ORDER),
    ("barrier before scratch dropped", rf"{BARRIER}[^;]*;", "", 2, ORDER),
    ("wait for copies dropped", rf"{WAIT}[^;]*;", "", 0, rf"{ORDER}|missing fence\.proxy\.async"),
    ("wait for copies off by one", rf"({WAIT}\s+)1", r"\g<1>2", 0,
     rf"{ORDER}|missing fence\.proxy\.async"),
    ("fence before the wait", rf"({WAIT}[^;]*;)([\s\S]*?)(fence\.proxy\.async[^;]*;)",
     r"\2\3\1", 0, rf"{ORDER}|missing fence\.proxy\.async"),
    ("wgmma wait off by one", r"(wgmma\.wait_group\.sync\.aligned) 1", r"\1 2", 0, ORDER),
    ("wgmma wait dropped in the loop", r"wgmma\.wait_group\.sync\.aligned 1;", "", 0, ORDER),
    ("wgmma wait dropped after it", r"wgmma\.wait_group\.sync\.aligned 0;", "", 0, FLIGHT),
]]

VALUES = [
    Mutant(PRODUCTS[0], "registers of a swapped", A_REGISTERS, r"\1\3, \2"),
    Mutant(PRODUCTS[1], "registers of b swapped", B_REGISTERS, r"\1\3, \2", 2),
    Mutant(PRODUCTS[2], "registers of the sum swapped", SUMS, r"\1\3, \2", 1),
    Mutant("big product", "registers of a swapped", A_REGISTERS, r"\1\3, \2", 5),
    Mutant("attention", "registers of b swapped", B_REGISTERS, r"\1\3, \2", 3),
    Mutant(PRODUCTS[1], "mma of another type", r"f32\.f16\.f16\.f32", "f32.bf16.bf16.f32"),
    Mutant(PRODUCTS[1], "ldmatrix not transposed", r"x4\.trans\.", "x4."),
    Mutant("attention", "ldmatrix transposed", r"(x4)(\.shared\.b16 \{)", r"\1.trans\2", 1),
    Mutant(PRODUCTS[1], "ldmatrix 16 bytes on", r"(ldmatrix[^;]*\+)3072", r"\g<1>3088", 0,
           f"{BOUNDS}|{ORDER}"),
    Mutant("big product", "ldmatrix at another row", r"(ldmatrix[^;]*\[%rd\d+)\]", r"\1+64]"),
    Mutant(PRODUCTS[0], "zero-fill dropped", r"(cp\.async\.cg[^;]*, 16), %r\d+", r"\1", 3, BOUNDS),
    Mutant(PRODUCTS[0], "zero-fill always", r"(cp\.async\.cg[^;]*, 16), %r\d+", r"\1, 0", 3),
    Mutant(PRODUCTS[0], "bound of rows off by one", r"setp\.lt(\.s32\s+%p11,)", r"setp.le\1", 0,
           BOUNDS),
    Mutant(PRODUCTS[1], "every other step of the loop", r"(add\.s32\s+(%r\d+), \2, )16",
           r"\g<1>32", 0, BOUNDS),
    Mutant(PRODUCTS[1], "copy to another slot", r"(cp\.async\.cg[^;]*\+)4096", r"\g<1>3072"),
    Mutant(PRODUCTS[2], "copy from 16 bytes on", r"(cp\.async\.cg[^;]*, \[%rd\d+)\]",
           r"\1+16]"),
    Mutant(PRODUCTS[1], "scratch stored 16 bytes on", r"(st\.shared\.v4[^;]*\+)1024",
           r"\g<1>1040"),
    Mutant(PRODUCTS[2], "stores of two rows exchanged", r"(st\.global[^;]*\{)(%r\d+), (%r\d+)",
           r"\1\3, \2"),
    Mutant("attention", "mask off by one", r"setp\.lt(\.s32\s+%p\d+, %r\d+, %r\d+;)",
           r"setp.le\1", 4),
    Mutant("attention", "maximum not taken", r"max\.f32(\s+%r\d+), (%r\d+), (%r\d+);",
           r"mov.b32\1, \2;", 10),
    Mutant("attention", "shuffle distance", BFLY + "2, 31", r"\g<1>1, 31", 3),
    Mutant("reduction", "shuffle distance", BFLY + "16, 31", r"\g<1>8, 31"),
    Mutant("reduction", "bound of lanes", BFLY + "16, 31", r"\g<1>16, 15", 4),
    Mutant("reduction", "shuffle dropped", BFLY + r"16[^;]*;", "", 1),
    Mutant("reduction", "partial results 16 bytes on", r"(ld\.shared\.v4[^;]*\+)2064",
           r"\g<1>2080"),
    Mutant("reduction", "smaller for larger", r"max\.NaN\.f32|max\.f32", "min.f32", 3),
    Mutant("reduction", "comparison of the argument", r"setp\.lt\.f32", "setp.gt.f32", 7),
    Mutant("reduction", "store dropped", r"@%p\d+ st\.global[^;]*;", "", 1),
    Mutant("shapes", "offset of a store", r"(st\.global[^;]*\+)4096", r"\g<1>4112"),
    Mutant("shapes", "offset of a load", r"(ld\.shared\.b32[^;]*\+)640", r"\g<1>644"),
    Mutant("shapes", "registers of a store exchanged", r"(st\.shared\.v4[^;]*\{)(%r\d+), (%r\d+)",
           r"\1\3, \2", 5),
    Mutant("softmax", "mask off by one", r"setp\.lt\.s32(\s+%p5)", r"setp.le.s32\1", 0,
           f"{BOUNDS}|race"),
    Mutant("softmax", "value of masked lanes", r"0xff800000", "0x7f800000", 3),
    Mutant("softmax", "predicate of another column", r"@%p5( st\.global)", r"@%p2\1", 0,
           f"{BOUNDS}|race"),
    Mutant("softmax", "shuffle distance", BFLY + "4, 31", r"\g<1>3, 31", 1),
    Mutant("softmax", "a sum shuffled up", r"shfl\.sync\.bfly(\.b32[^;]*, 8, )31",
           r"shfl.sync.up\g<1>0", 1),
    Mutant("softmax", "predicate of a store negated", r"@(%p2 st\.global)", r"@!\1"),
    Mutant("softmax", "partial sums of the maxima", r"\[smem\+16\]", "[smem]"),
    Mutant("atomics", "exchange for addition", r"(atom\S+)add\.u32", r"\1exch.b32"),
    Mutant("atomics", "predicate dropped", r"@%p\d+( atom)", r"\1", 1),
    *[Mutant("by hand", *rest) for rest in [
        ("stride of a descriptor", "0x4000004000010000", "0x4000002000010000"),
        ("swizzle of a descriptor", "0x4000004000010000", "0x8000004000010000"),
        ("base offset of a descriptor", "0x4000004000010000", "0x4002004000010000"),
        ("step of a descriptor", r"%left, %left, 2;", "%left, %left, 4;", 1),
        ("start of a descriptor", r"%right, %left, 1024", "%right, %left, 1023"),
        ("operands exchanged", r"%left, %right, %adds", "%right, %left, %adds"),
        ("b transposed", r"%adds, 1, 1, 0, 0", "%adds, 1, 1, 0, 1", 2),
        ("sign of a", r"%adds, 1, 1, 0, 0", "%adds, -1, 1, 0, 0", 3),
        ("registers of the sum swapped", r"(wgmma\.mma\S* \{)(%f0), (%f1)", r"\1\3, \2"),
        ("coordinates exchanged", r"\{%x, 0\}", "{0, %x}", 1),
        ("step of the coordinates", r"shl\.b32 %x, %k, 6", "shl.b32 %x, %k, 5"),
    ]],
    *[Mutant("hopper product", *rest) for rest in [
        ("stride of a's descriptor", str(0x4000004000010000), str(0x4000002000010000)),
        ("panels of b's descriptor", str(0x4000004002000000), str(0x4000004001000000)),
        ("step of a's descriptor", r"a, (%rd\d+), 4;", r"a, \1, 2;"),
        ("b not transposed", r"1, 1, 0, 1;", "1, 1, 0, 0;", 2),
        ("sums never kept", r"selp\.b32 (\s*%r\d+), 1, 0,", r"selp.b32 \1, 0, 0,"),
        ("columns misaligned", r"or\.b32 (\s*%r\d+, %r\d+), 64;", r"or.b32 \1, 4;", 0,
         "misaligned tensor copy"),
        ("store of another panel", r"add\.s32 (\s*%r\d+, %r\d+), 212992;",
         r"add.s32 \1, 196608;"),
    ]],
]
# Only where a copy may come late does it matter that nobody waits for it.
LATE_ONLY = [
    Mutant("by hand", "bulk wait dropped", r"@%lead cp\.async\.bulk\.wait_group 0;", "", 0, ENDS),
    Mutant("by hand", "bulk commit dropped", r"@%lead cp\.async\.bulk\.commit_group;", "", 0, ENDS),
]


SPUN = r"\{ \.reg \.pred p; W: mbarrier\.try_wait[^}]*\}"
ROLES = [Mutant("product by roles", *rest) for rest in [
    ("wait for room dropped", SPUN, "", 0, f"{ORDER}|{PHASE}|{STUCK}"),
    ("wait for data dropped", SPUN, "", 1, f"{ORDER}|{STUCK}"),
    ("arrival dropped", r"\{[^}]*mbarrier\.arrive\.shared::cta\.b64[^}]*\}", "", 0, STUCK),
    ("fewer bytes expected", r"49152;", "32768;", 0, f"{ORDER}|{STUCK}|bytes"),
    ("an arrival too few", r"(mbarrier\.init[^;]*), 2;", r"\1, 1;", 1, f"{ORDER}|{PHASE}|{STUCK}"),
    ("an arrival too many", r"(mbarrier\.init[^;]*), 2;", r"\1, 3;", 1, STUCK),
    ("roles begin before the mbarriers are there", r"bar\.sync\s+0;", "", 0,
     "race: it uses the mbarrier"),
    ("barriers of two warpgroups for one", r"(bar\.sync %r\d+), 128;", r"\1, 256;", 1, STUCK),
    ("one barrier for both warpgroups", r"bar\.sync %r\d+, 128;", "bar.sync 7, 128;", 1,
     f"{ORDER}|{STUCK}|arrive at a barrier"),
    ("product still read", r"wgmma\.wait_group\.sync\.aligned 0", "wgmma.wait_group.sync.aligned 1",
     0, FLIGHT),
]]


@pytest.mark.parametrize("mutant", ORDERING + BY_HAND + PRODUCT + COPIES + ROLES, ids=str)
@pytest.mark.sample(50)
def test_faults_of_order_are_reported(mutant: Mutant) -> None:
    text = mutant.text()
    for seed in SEEDS[: 1 if mutant in PRODUCT + ROLES else 2]:  # products take their time
        with pytest.raises(SimError, match=mutant.expected) as caught:
            launch(mutant.launch).run(text, seed, check=True)
        assert caught.value.ptx_line is not None


@pytest.mark.parametrize("mutant", VALUES, ids=str)
@pytest.mark.sample(30)
def test_faults_of_value_are_caught(mutant: Mutant) -> None:
    held, text = launch(mutant.launch), mutant.text()
    if mutant.expected == DIFFERS:
        assert differs(held.run(text), held.run())
        return
    with pytest.raises(SimError, match=mutant.expected):
        held.run(text, check=True)


@pytest.mark.parametrize("mutant", LATE_ONLY, ids=str)
def test_operations_that_outlive_the_cta(mutant: Mutant) -> None:
    with pytest.raises(SimError, match=mutant.expected):
        launch(mutant.launch).run(mutant.text())


def differs(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    return any(a.tobytes() != b.tobytes() for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", LAUNCHES)
def test_no_false_alarm(name: str) -> None:
    held = launch(name)
    want = held.run()
    for seed in (*SEEDS, 1):
        assert not differs(held.run(seed=seed, check=True), want)


def test_there_are_enough() -> None:
    names = [str(mutant) for mutant in
             ORDERING + BY_HAND + PRODUCT + COPIES + ROLES + VALUES + LATE_ONLY]
    assert len(set(names)) == len(names) >= 40
