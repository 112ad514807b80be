"""Named barriers between warp roles: the same values at every level, and mistakes named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.explicit import LEVELS, both, everywhere
from tilec.errors import CompilationError, InterpreterError, IRError, TilecError
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify

describe = tilec.TensorDescriptor.from_tensor


# -- one buffer, full and empty -------------------------------------------------------------------

@tilec.jit
def produce(x, n, rounds, buffer, full, empty):
    """Doubled parts of x into the buffer, part after part."""
    B: tl.constexpr = buffer.shape[0]
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        part = tl.load(x + at, mask=at < n, other=0) * 2
        if i > 0:
            empty.sync()
        buffer.store(part)
        full.arrive()


@tilec.jit
def consume(y, total, n, rounds, buffer, full, empty):
    """The buffer's parts to y, and the sum of all that is in them to total."""
    B: tl.constexpr = buffer.shape[0]
    acc = tl.zeros((), y.dtype.element_ty)
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        full.sync()
        part = buffer.load()
        empty.arrive()
        tl.store(y + at, part, mask=at < n)
        acc += tl.sum(part, 0)
    tl.store(total, acc)


@tilec.jit
def handed_over(x, y, total, n, B: tl.constexpr, WARPS: tl.constexpr, GIVE: tl.constexpr,
                TAKE: tl.constexpr):
    buffer = tlg.alloc_shared((B,), y.dtype.element_ty)
    full, empty = tlg.named_barrier(WARPS[0] + WARPS[1]), tlg.named_barrier(WARPS[0] + WARPS[1])
    rounds = tl.cdiv(n, B)
    tlg.warp_specialize([(GIVE, (x, n, rounds, buffer, full, empty)),
                         (TAKE, (y, total, n, rounds, buffer, full, empty))], num_warps=WARPS)


def handing_over(args, warps, give=produce, take=consume):
    return handed_over.warmup(*args, B=128, WARPS=warps, GIVE=give, TAKE=take, grid=(1,),
                              target="sm_90a", num_warps=sum(warps))


@pytest.mark.parametrize("warps, dtype", [
    ((1, 1), np.float32), ((2, 1), np.int32), ((4, 2), np.float16), ((4, 8), np.float32)], ids=str)
def test_roles_hand_tiles_over(warps, dtype, rng):
    n = 613
    x = rng.integers(-9, 9, n).astype(dtype)
    y, total = np.empty(n, dtype), np.empty(1, dtype)
    args = [x, y, total, n]
    kernel = handing_over(args, warps)
    everywhere(kernel, args, 1, y, x * 2)
    for seed in range(4):
        for level in LEVELS:
            y[...], total[...] = -1, -1
            kernel.run(args, 1, level=level, seed=seed)
            np.testing.assert_array_equal(y, x * 2, level)
            assert total[0] == x.astype(np.float64).sum() * 2
    threads = 32 * sum(warps)
    for number in (15, 14):
        assert f"bar.sync {number}, {threads};" in kernel.asm["ptx"]
        assert f"bar.arrive {number}, {threads};" in kernel.asm["ptx"]


# -- to a role that stores by TMA -----------------------------------------------------------------

@tilec.jit
def make(x, rounds, out, full, empty):
    rows, columns = tl.arange(0, 64), tl.arange(0, 64)
    for i in range(rounds):
        at = (i * 64 + rows[:, None]) * 64 + columns[None, :]
        tile = tl.load(x + at) + i
        if i > 0:
            empty.sync()
        out.store(tile)
        tlg.fence_async()
        full.arrive()


@tilec.jit
def store(y, rounds, out, full, empty):
    for i in range(rounds):
        full.sync()
        tlg.tma.store(y, [i * 64, 0], out)
        tlg.tma.store_commit()
        tlg.tma.store_wait(read=True)
        empty.arrive()


@tilec.jit
def stored_by_a_role(x, y, rounds, MAKE: tl.constexpr):
    out = tlg.alloc_shared((64, 64), y.dtype)
    full, empty = tlg.named_barrier(5), tlg.named_barrier(5)
    tlg.warp_specialize([(MAKE, (x, rounds, out, full, empty)),
                         (store, (y, rounds, out, full, empty))], num_warps=[4, 1])


def storing(x, y, first=make):
    args = [x, describe(y, (64, 64)), len(x) // 64]
    return args, stored_by_a_role.warmup(*args, MAKE=first, grid=(1,), target="sm_90a", num_warps=5)


def test_a_role_stores_what_another_has_made(rng):
    """An arrival vouches for each thread's own fence: no barrier of the role comes before it."""
    x = rng.integers(-9, 9, (192, 64)).astype(np.float16)
    y = np.empty_like(x)
    args, kernel = storing(x, y)
    everywhere(kernel, args, 1, y, x + np.repeat(np.arange(3), 64)[:, None])


# -- ping-pong ------------------------------------------------------------------------------------

@tilec.jit
def compute(x, trace, rounds, box, mine, theirs, WHO: tl.constexpr):
    """In turns with the other role: the box's tile times 2 or plus 3; and how often it was so."""
    at = tl.arange(0, 128)
    for i in range(rounds):
        mine.sync()
        tile = box.load()
        tl.store(trace + (2 * i + WHO) * 128 + at, tile)
        if WHO == 0:
            tile = tile * 2
        else:
            tile = tile + 3
        box.store(tile)
        theirs.arrive()
    if WHO == 1:
        mine.sync()  # the first one's last word
        tl.store(x + at, box.load())


@tilec.jit
def begin(x, trace, rounds, box, first, second):
    box.store(tl.load(x + tl.arange(0, 128)))
    first.arrive()
    compute(x, trace, rounds, box, second, first, 1)


@tilec.jit
def go(x, trace, rounds, box, first, second):
    compute(x, trace, rounds, box, first, second, 0)
    first.sync()
    second.arrive()


@tilec.jit
def in_turns(x, trace, rounds, WARPS: tl.constexpr):
    box = tlg.alloc_shared((128,), tl.int32)
    first, second = tlg.named_barrier(2 * WARPS), tlg.named_barrier(2 * WARPS)
    tlg.warp_specialize([(go, (x, trace, rounds, box, first, second)),
                         (begin, (x, trace, rounds, box, first, second))],
                        num_warps=[WARPS, WARPS])


@pytest.mark.parametrize("warps", [1, 4])
def test_ping_pong(warps, rng):
    """Two roles that compute take turns, and each sees what the other has left."""
    rounds, start = 3, rng.integers(-99, 99, 128).astype(np.int32)
    want, value = [], start.astype(np.int64)
    for i in range(2 * rounds):
        want.append(value)
        value = value * 2 if i % 2 == 0 else value + 3
    x, trace = start.copy(), np.empty((2 * rounds, 128), np.int32)
    kernel = in_turns.warmup(x, trace, rounds, WARPS=warps, grid=(1,), target="sm_90a",
                             num_warps=2 * warps)
    for level in LEVELS:
        for seed in range(3):
            x[...], trace[...] = start, -1
            kernel.run([x, trace, rounds], 1, level=level, seed=seed)
            np.testing.assert_array_equal(trace, want, level)
            np.testing.assert_array_equal(x, value, level)


@tilec.jit
def multiply(x, y, out, rounds, mine, theirs, WHO: tl.constexpr):
    """rounds times x @ y, begun in turns with the other role, and under way beside its."""
    rows, columns = tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(rounds):
        if i + WHO > 0:
            mine.sync()
        acc = tlg.wgmma(x, y, acc)
        theirs.arrive()
        acc = tlg.wgmma_wait(0, acc)
    tl.store(out + (WHO * 64 + rows[:, None]) * 64 + columns[None, :], acc)


@tilec.jit
def products_in_turns(a, b, out, rounds):
    x, y = both(a, b)
    first, second = tlg.named_barrier(8), tlg.named_barrier(8)
    tlg.warp_specialize([(multiply, (x, y, out, rounds, first, second, 0)),
                         (multiply, (x, y, out, rounds, second, first, 1))], num_warps=[4, 4])


def test_products_in_turns(rng):
    a, b = rng.integers(-3, 4, (2, 64, 64)).astype(np.float16)
    out = np.empty((128, 64), np.float32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), out, 3]
    kernel = products_in_turns.warmup(*args, grid=(1,), target="sm_90a", num_warps=8)
    want = 3 * (a.astype(np.float32) @ b.astype(np.float32))
    everywhere(kernel, args, 1, out, np.concatenate([want, want]))
    linked = kernel.lower().linked
    assert linked.advisories == [] and linked.n_spills == 0


# -- global memory, and all warps -----------------------------------------------------------------

@tilec.jit
def writes(x, y, n, told):
    at = tl.arange(0, 128)
    tl.store(y + at, tl.load(x + at, mask=at < n, other=0) + 1, mask=at < n)
    told.arrive()


@tilec.jit
def reads(y, z, n, told):
    at = tl.arange(0, 128)
    told.sync()
    tl.store(z + at, tl.load(y + n - 1 - at, mask=at < n) * 2, mask=at < n)


@tilec.jit
def by_global_memory(x, y, z, n):
    told = tlg.named_barrier(3)
    tlg.warp_specialize([(writes, (x, y, n, told)), (reads, (y, z, n, told))], num_warps=[2, 1])


def test_global_memory_is_ordered(rng):
    x, y, z = rng.integers(-99, 99, 101).astype(np.int32), *np.full((2, 101), -1, np.int32)
    args = [x, y, z, 101]
    kernel = by_global_memory.warmup(*args, grid=(1,), target="sm_90a", num_warps=3)
    for level in LEVELS:
        for seed in range(3):
            y[...] = z[...] = -1
            kernel.run(args, 1, level=level, seed=seed)
            np.testing.assert_array_equal(z, (x[::-1] + 1) * 2, level)


@tilec.jit
def reverses(x):
    """By a buffer, which all warps have filled when they go on."""
    buffer, filled = tlg.alloc_shared((256,), tl.int32), tlg.named_barrier(tlg.num_warps())
    at = tl.arange(0, 256)
    buffer.store(tl.load(x + at))
    filled.sync()
    tl.store(x + 255 - at, buffer.load() + tl.load(x + at))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_outside_of_roles_all_warps_wait(target, rng):
    start = rng.integers(-99, 99, 256).astype(np.int32)
    x = start.copy()
    kernel = reverses.warmup(x, grid=(3,), target=target, num_warps=4)
    assert "bar.sync 15, 128;" in kernel.asm["ptx"]
    for level in LEVELS:
        x[...] = start
        kernel.run([x], 1, level=level)
        np.testing.assert_array_equal(x, (2 * start)[::-1], level)


# -- what the interpreter and the simulator find --------------------------------------------------

@tilec.jit
def ends_early(x, n, rounds, buffer, full, empty):
    produce(x, n, rounds - 1, buffer, full, empty)


@tilec.jit
def does_not_wait(x, n, rounds, buffer, full, empty):
    for _ in range(rounds):
        buffer.store(tl.load(x + tl.arange(0, 128)))
        full.arrive()


@tilec.jit
def stores_late(x, n, rounds, buffer, full, empty):
    for i in range(rounds):
        if i > 0:
            empty.sync()
        full.arrive()
        buffer.store(tl.load(x + tl.arange(0, 128)))


@tilec.jit
def does_not_ask(y, total, n, rounds, buffer, full, empty):
    for i in range(rounds):
        tl.store(y + i * 128 + tl.arange(0, 128), buffer.load())
        full.sync()
        empty.arrive()


ROUND = "nothing says that the round before has ended"
FOUND = {
    "trip counts": (ends_early, consume, "waits for ever.*\n.*warp 2 at .*: this round of the "
                    "named barrier lacks 2 of 3 warps", "deadlock: threads wait"),
    "no wait": (does_not_wait, consume, f"{ROUND}|no named barrier orders the two",
                "race|arrives again|deadlock"),
    "stores late": (stores_late, consume, "no named barrier orders the two", "race|uninitialised"),
    "reads at once": (produce, does_not_ask, "no named barrier orders the two|that nobody wrote",
                      "race|uninitialised")}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", FOUND)
def test_what_is_missing_is_found(how, level):
    give, take, in_interpreter, in_simulator = FOUND[how]
    args = [np.ones(384, np.float32), np.ones(384, np.float32), np.ones(1, np.float32), 384]
    kernel = handing_over(args, (2, 1), give, take)
    found = in_simulator if level == "ptx" else in_interpreter
    for seed in range(4):
        with pytest.raises(TilecError, match=found) as caught:
            kernel.run(args, 1, level=level, seed=seed)
        if level != "ptx":
            assert isinstance(caught.value, InterpreterError)
            assert caught.value.loc.file == __file__


@tilec.jit
def does_not_fence(x, rounds, out, full, empty):
    out.store(tl.zeros((64, 64), tl.float16))
    full.arrive()


@tilec.jit
def stores_before_all_have(x, rounds, out, full, empty):
    out.store(tl.zeros((64, 64), tl.float16))
    tlg.fence_async()
    full.arrive()  # none of these threads waits
    tlg.tma.atomic_add(x, [0, 0], out)
    tlg.tma.store_commit()
    tlg.tma.store_wait()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first", [does_not_fence, stores_before_all_have])
def test_what_tma_reads_must_be_there(first, level):
    x, y = np.zeros((2, 64, 64), np.float16)
    args = [describe(x, (64, 64)), describe(y, (64, 64)), 1]
    kernel = stored_by_a_role.warmup(*args, MAKE=first, grid=(1,), target="sm_90a", num_warps=5)
    for seed in range(3):
        with pytest.raises(TilecError, match="to which threads have stored|fence|race"):
            kernel.run(args, 1, level=level, seed=seed)


@tilec.jit
def again_and_again(x, y, total, n):
    """Rounds that one call leaves begun, the next one takes up."""
    buffer = tlg.alloc_shared((128,), y.dtype.element_ty)
    full, empty = tlg.named_barrier(3), tlg.named_barrier(3)
    for _ in range(2):
        tlg.warp_specialize([(produce, (x, n, 2, buffer, full, empty)),
                             (consume, (y, total, n, 2, buffer, full, empty))], num_warps=[2, 1])


@tilec.jit
def arrives(barrier):
    barrier.arrive()


@tilec.jit
def waits(barrier):
    barrier.sync()


@tilec.jit
def too_many():
    barrier = tlg.named_barrier(3)
    tlg.warp_specialize([(waits, (barrier,)), (arrives, (barrier,)), (arrives, (barrier,))],
                        num_warps=[2, 2, 1])


@tilec.jit
def then_all():
    barrier = tlg.named_barrier(3)
    tlg.warp_specialize([(arrives, (barrier,)), (scalar, ())], num_warps=[2, 1])
    barrier.sync()


@tilec.jit
def scalar():
    tl.static_assert(True)


@pytest.mark.parametrize("kernel, warps, found, in_simulator", [
    (again_and_again, 3, f"{ROUND}|no named barrier orders the two", "race|arrives again"),
    (then_all, 3, "2 have arrived before in a round that never ended", "arrives again|deadlock"),
    (too_many, 5, f"{ROUND}|4 warps arrive in a round of a named barrier that is for 3", "")])
def test_rounds_that_do_not_come_out(kernel, warps, found, in_simulator):
    x = np.ones(256, np.float32)
    args = [x, x.copy(), np.ones(1, np.float32), 256] if kernel is again_and_again else []
    made = kernel.warmup(*args, grid=(1,), target="sm_90a", num_warps=warps)
    for level in LEVELS if in_simulator else LEVELS[:3]:
        for seed in range(4):
            with pytest.raises(TilecError, match=in_simulator if level == "ptx" else found):
                made.run(args, 1, level=level, seed=seed)


# -- what the compiler finds ----------------------------------------------------------------------

@tilec.jit
def one_thread(barrier):
    if tlg.elect():
        barrier.arrive()  # elect


@tilec.jit
def wide(barrier):
    barrier.sync()  # wide


@tilec.jit
def never(barrier):
    barrier.sync()  # counts


@tilec.jit
def makes():
    tlg.named_barrier(4)  # inside


@tilec.jit
def roles(first, second, barrier):
    tlg.warp_specialize([(first, (barrier,)), (second, (barrier,))], num_warps=[4, 4])


@tilec.jit
def wrong(n, HOW: tl.constexpr):
    barrier = tlg.named_barrier(8)
    if HOW == "elect":
        roles(one_thread, waits, barrier)
    elif HOW == "wide":
        roles(wide, arrives, tlg.named_barrier(2))
    elif HOW == "counts":
        roles(never, arrives, tlg.named_barrier(6))
    elif HOW == "inside":
        tlg.warp_specialize([(makes, ()), (waits, (barrier,))], num_warps=[4, 4])
    elif HOW == "arrive":
        barrier.arrive()  # arrive
    elif HOW == "part":
        tlg.named_barrier(4).sync()  # part
    elif HOW == "none":
        tlg.named_barrier(0)  # none
    elif HOW == "more":
        tlg.named_barrier(9)  # more
    elif HOW == "run time":
        tlg.named_barrier(n)  # run time
    elif HOW == "many":
        for _ in tl.static_range(13):
            tlg.named_barrier(8)  # many
    elif HOW == "left":
        for _ in tl.static_range(8):
            tlg.named_barrier(8)
        roles(leaves_none, waits, tlg.named_barrier(8))


@tilec.jit
def leaves_none(barrier):
    barrier.arrive()  # left


MISTAKES = {
    "elect": "arrive: all threads come to a named barrier, not one",
    "wide": "sync: the role has 4 warps, the named barrier is for 2",
    "counts": "the named barrier is for 6 warps, and the roles that come to it have 4, 4",
    "inside": "tlg.named_barrier: stands in a role",
    "arrive": "arrive: outside of roles all 8 warps come to a named barrier and wait there",
    "part": "sync: outside of roles all 8 warps come to a named barrier and wait there; this one",
    "none": "num_warps is 0, and the kernel has 8 warps",
    "more": "num_warps is 9, and the kernel has 8 warps",
    "run time": "the num_warps of tlg.named_barrier has to be known at compile time",
    "many": "found 13 before it, expected at most 12",
    "left": "the kernel's named barrier 10, and 7 of the 16 barriers are its warps', warpgroups'",
}
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("how", MISTAKES)
def test_mistakes(how):
    with pytest.raises(CompilationError) as caught:
        wrong.warmup(5, HOW=how, grid=(1,), target="sm_90a", num_warps=8)
    assert MISTAKES[how] in caught.value.message
    assert LINES[caught.value.loc.line - 1].endswith(f"# {how}"), caught.value
    assert caught.value.advice or "make fewer" in caught.value.message


TEXT = """module attributes {level = "tile", num_warps = 3, target = "sm_90a"} {
  func @k() {
    gpu.warp_specialize() {
      gpu.warp_role() {warps = 2} {
        gpu.named_barrier_arrive() {barrier = 1, warps = 3}
        scf.yield()
      }
      gpu.warp_role() {warps = 1} {
        gpu.named_barrier_sync() {barrier = 1, warps = 3}
        scf.yield()
      }
      scf.yield()
    }
    gpu.named_barrier_sync() {barrier = 0, warps = 3}
    func.return()
  }
}"""


@pytest.mark.parametrize("old, new, found", [
    ("", "", ""),
    ("sync() {barrier = 1", "sync() {barrier = 15", "barrier is 15, expected 0 to 14"),
    ("sync() {barrier = 1", "sync() {barrier = 14", "the kernel's named barrier 15, and 2 of the"),
    ("sync() {barrier = 1, warps = 3", "sync() {barrier = 1, warps = 4",
     "warps is 4, elsewhere 3 for the same named barrier"),
    ("barrier = 1, warps = 3", "barrier = 1, warps = 1", "the role has 2 warps, the named barrier"),
    ("barrier = 0, warps = 3", "barrier = 0, warps = 2", "outside of roles all 3 warps come"),
    ("sync() {barrier = 0", "arrive() {barrier = 0", "outside of roles all 3 warps come"),
    ("barrier = 0, warps = 3", "barrier = 0, warps = 33", "warps is 33, expected 1 to 32")])
def test_the_verifier_counts(old, new, found):
    if not found:
        module = parse(TEXT)
        verify(module)
        assert print_module(module) == print_module(parse(print_module(module)))
        return
    with pytest.raises(IRError, match=found):
        verify(parse(TEXT.replace(old, new)))
