"""Named barriers used wrongly: what the compiler, the interpreter and the simulator find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.language.test_named_barriers import consume, handing_over, produce, stored_by_a_role
from tests.support.explicit import LEVELS
from tilec.errors import CompilationError, InterpreterError, IRError, TilecError
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify

describe = tilec.TensorDescriptor.from_tensor


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
            assert Path(caught.value.loc.file).parent == Path(__file__).parent


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
