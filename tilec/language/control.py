"""What control flow is written with: `tl.range` and `tl.static_range` of `for`, `tl.condition` of
`while`, `tlg.elect` of `if`."""

from __future__ import annotations

from typing import Any, NoReturn

from tilec.errors import shown
from tilec.ir.ops.scf import MAX_STAGES
from tilec.language.context import CallableInKernels, current, error
from tilec.language.values import const_int, const_value, unwrap

MAX_UNROLL = 1024  # beyond it LLVM takes minutes, and then more stack than there is


def _bounds(args: tuple[Any, ...]) -> tuple[Any, Any]:
    return (0, args[0]) if args[1] is None else args


class range:
    """What a run-time `for` loop goes over: lo, lo + step, ... below hi (above, if a constant
    step is negative).

    Bounds are integers, known at compile time or not. num_stages: stages of the software
    pipeline, the kernel's option if None; loop_unroll_factor: iterations to unroll, 1 or None for
    none, at most 1024; flatten: this loop and the one inside run as one, so that a pipeline goes on
    from one iteration into the next (a remark says where that cannot be); disable_licm: what does
    not change stays inside; warp_specialize: blocks that TMA loads in this loop, or in one inside,
    are loaded by warps of their own (a remark says where they cannot be). disallow_acc_multi_buffer
    has no effect. All are known at compile time.
    """

    __tilec_builtin__ = CallableInKernels()

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None, num_stages: Any = None,
                 loop_unroll_factor: Any = None, disallow_acc_multi_buffer: bool = False,
                 flatten: bool = False, warp_specialize: bool = False,
                 disable_licm: bool = False) -> None:
        self.lo, self.hi = (unwrap(x) for x in _bounds((arg1, arg2)))
        self.step = 1 if step is None else unwrap(step)
        self.attributes = {  # of the scf.for
            "num_stages": _count(num_stages, "num_stages of tl.range", MAX_STAGES),
            "unroll": _count(loop_unroll_factor, "loop_unroll_factor of tl.range",
                             MAX_UNROLL),
            "flatten": flag(flatten, "flatten of tl.range"),
            "disable_licm": flag(disable_licm, "disable_licm of tl.range"),
            "warp_specialize": flag(warp_specialize, "warp_specialize of tl.range")}
        flag(disallow_acc_multi_buffer, "disallow_acc_multi_buffer of tl.range")

    def __iter__(self) -> NoReturn:
        raise error("tl.range can only be iterated over by `for` in a kernel",
                    "outside of one use Python's range")


def _count(x: Any, what: str, most: int | None = None) -> int:
    """A count that is 0 when left open."""
    if const_value(x, what) is None:
        return 0
    n = const_int(x, what)
    if n < 0:
        raise error(f"{what} is {n}, expected 0 or more", "leave it out for the default")
    if most is not None and n > most:
        raise error(f"{what} is {n}, expected at most {most}", "leave it out for the default")
    return n


def flag(x: Any, what: str) -> bool:
    """An option that is on or off."""
    value = const_value(x, what)
    if not isinstance(value, (bool, int)):
        raise error(f"{what} is {shown(value)}, expected True or False",
                    f"write {what.split()[0]}=True, or leave it out")
    return bool(value)


class condition:
    """The condition of a `while` with an option: `while tl.condition(i < n, disable_licm=True)`.

    disable_licm: what does not change stays inside the loop.
    """

    __tilec_builtin__ = CallableInKernels()

    def __init__(self, arg1: Any, disable_licm: bool = False) -> None:
        self.value = unwrap(arg1)
        self.disable_licm = flag(disable_licm, "disable_licm of tl.condition")


class static_range:
    """What a `for` loop goes over that the compiler unrolls: the bounds and the step are known at
    compile time, and so is the loop variable."""

    __tilec_builtin__ = CallableInKernels()

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None) -> None:
        lo, hi = _bounds((arg1, arg2))
        self.lo = const_int(lo, "the start of tl.static_range")
        self.hi = const_int(hi, "the end of tl.static_range")
        self.step = 1 if step is None else const_int(step, "the step of tl.static_range")
        if self.step == 0:
            raise error("the step of tl.static_range is 0", "such a loop would not end")

    def __iter__(self) -> NoReturn:
        raise error("tl.static_range can only be iterated over by `for` in a kernel",
                    "outside of one use Python's range")


class elect:
    """The condition of an `if` whose body one thread of the program runs, if `pred` holds; the
    others go on at once. There the thread deals with mbarriers and starts copies by TMA, computes
    with scalars and loops; nothing that it assigns is known after it.

        if tlg.elect(more):
            full[slot].expect(buffer.nbytes)
            tlg.tma.load(desc, [i, k], buffer[slot], full[slot])

    pred: a scalar int1, or None. warp: the number of the warp whose thread it is. by: how the
    others leave it out, "thread" (best right after a barrier) or "warp" (best between products).
    """

    __tilec_builtin__ = CallableInKernels()

    def __init__(self, pred: Any = None, warp: int = 0, by: str = "thread") -> None:
        self.pred = unwrap(pred)
        self.warp = const_int(warp, "the warp of tlg.elect")
        warps = current("tlg.elect").num_warps
        if not 0 <= self.warp < warps:
            raise error(f"the warp of tlg.elect is {self.warp}, expected 0 to {warps - 1}",
                        "leave it out for the first warp")
        self.by = const_value(by, "by of tlg.elect")
        if self.by not in ("thread", "warp"):
            raise error(f"by of tlg.elect is {self.by!r}, expected 'thread' or 'warp'",
                        "leave it out for 'thread'")

    def __bool__(self) -> NoReturn:
        raise error("tlg.elect() is not a value", "write `if tlg.elect(pred):`, without an `else`, "
                    "and combine conditions in `pred` with &")
