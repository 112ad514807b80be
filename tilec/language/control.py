"""The iterators of `for` loops: `tl.range` and `tl.static_range`."""

from __future__ import annotations

from typing import Any, NoReturn

from tilec.language.context import CallableInKernels, error
from tilec.language.values import const_int, const_value, unwrap


def _bounds(args: tuple[Any, ...]) -> tuple[Any, Any]:
    return (0, args[0]) if args[1] is None else args


class range:
    """What a run-time `for` loop goes over: lo, lo + step, ... below hi (above, if a constant
    step is negative).

    Bounds are integers, known at compile time or not. num_stages: stages of the software
    pipeline, the kernel's option if None; loop_unroll_factor: iterations to unroll, 1 or None for
    none. The other options are accepted for Triton's sake and change nothing.
    """

    __tilec_builtin__ = CallableInKernels()

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None, num_stages: Any = None,
                 loop_unroll_factor: Any = None, disallow_acc_multi_buffer: bool = False,
                 flatten: bool = False, warp_specialize: bool = False,
                 disable_licm: bool = False) -> None:
        self.lo, self.hi = (unwrap(x) for x in _bounds((arg1, arg2)))
        self.step = 1 if step is None else unwrap(step)
        self.num_stages = _count(num_stages, "num_stages of tl.range")
        self.unroll = _count(loop_unroll_factor, "loop_unroll_factor of tl.range")

    def __iter__(self) -> NoReturn:
        raise error("tl.range can only be iterated over by `for` in a kernel",
                    "outside of one use Python's range")


def _count(x: Any, what: str) -> int:
    """A count that is 0 when left open."""
    if const_value(x, what) is None:
        return 0
    n = const_int(x, what)
    if n < 0:
        raise error(f"{what} is {n}, expected 0 or more", "leave it out for the default")
    return n


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
