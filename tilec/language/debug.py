"""Assertions, printing, promises to the compiler, and the barrier for debugging."""

from __future__ import annotations

from typing import Any

from tilec.errors import CompileTimeAssertionError
from tilec.ir import ops
from tilec.language.context import current, error, here
from tilec.language.semantic import emit, logical_not, logical_or, to_bool
from tilec.language.shape import require_tile
from tilec.language.values import (
    builtin,
    const_ints,
    const_value,
    describe,
    is_number,
    tensor,
    to_tensor,
    unwrap,
)


@builtin
def static_assert(cond: Any, msg: str = "") -> None:
    """Stop compiling with CompileTimeAssertionError, and `msg`, unless `cond` holds."""
    value = const_value(cond, "the condition of tl.static_assert")
    if not value:
        text = const_value(msg, "the message of tl.static_assert")
        raise CompileTimeAssertionError("static assertion failed" + (f": {text}" if text else ""),
                                        here())


@builtin
def static_print(*values: Any, sep: str = " ", end: str = "\n", file: Any = None,
                 flush: bool = False) -> None:
    """Print while compiling, as Python's `print` does; a run-time value shows its type."""
    print(*[describe(v) if isinstance(v, tensor) and v.literal is None else
            const_value(v, "a value") for v in values],
          sep=sep, end=end, file=file, flush=flush)


@builtin
def device_print(prefix: str, *args: Any, hex: bool = False) -> None:
    """Print `prefix` and every element of `args` at run time, each on a line that says which
    program and which index it is of; integers in hexadecimal with hex=True."""
    text = unwrap(prefix)
    if not isinstance(text, str):
        raise error(f"tl.device_print: the prefix is {describe(prefix)}, expected a string",
                    'write tl.device_print("name", x)')
    current().builder.insert(ops.Print([to_tensor(a).handle for a in args], prefix=text,
                                       hex=bool(const_value(hex, "hex"))))


@builtin
def device_assert(cond: Any, msg: str = "", mask: Any = None) -> None:
    """Stop the program with `msg` at run time unless `cond` holds for every element where `mask`
    does. Always active at the tile level; compiled only with debug=True."""
    text = const_value(msg, "the message of tl.device_assert")
    holds = to_bool(cond, "the condition of tl.device_assert")
    if mask is not None:
        holds = logical_or(holds, logical_not(mask))
    current().builder.insert(ops.Assert(holds.handle, message=str(text)))


@builtin
def assume(cond: Any) -> None:
    """Promise that the scalar condition `cond` holds; the compiler may build on it."""
    if is_number(cond):
        if not cond:
            raise error("tl.assume: the condition is false at compile time",
                        "it would promise what does not hold; remove it, or check the constexprs")
        return
    holds = to_bool(cond, "the condition of tl.assume")
    if holds.shape:
        raise error(f"tl.assume: found {holds} as condition, expected a scalar",
                    "promises about tiles are made by tl.multiple_of and tl.max_contiguous")
    current().builder.insert(ops.Assume(holds.handle))


@builtin
def debug_barrier() -> None:
    """All threads of the program wait for each other here."""
    current().builder.insert(ops.Barrier())


def _hint(input: Any, values: Any, what: str, attribute: str) -> Any:
    if is_number(input):
        return input
    x = require_tile(input, what)
    counts = const_ints(values, f"the values of {what}")
    if len(counts) != max(1, x.rank):
        raise error(f"{what}: {len(counts)} values are given for {x}",
                    f"give one for each of its {x.rank} dimensions")
    if any(n < 1 for n in counts):
        raise error(f"{what}: the values are {list(counts)}, expected positive ones",
                    "1 promises nothing")
    named: dict[str, Any] = {attribute: counts}
    out = emit(ops.Hint(x.handle, **named))
    out.literal = x.literal
    return out


@builtin
def multiple_of(input: Any, values: Any) -> Any:
    """`input`, with the promise that the first value of every contiguous run along each
    dimension is divisible by values: an int, or one int a dimension."""
    return _hint(input, values, "tl.multiple_of", "divisibility")


@builtin
def max_contiguous(input: Any, values: Any) -> Any:
    """`input`, with the promise that along each dimension groups of `values` elements are
    consecutive numbers: an int, or one int a dimension."""
    return _hint(input, values, "tl.max_contiguous", "contiguity")


@builtin
def max_constancy(input: Any, values: Any) -> Any:
    """`input`, with the promise that along each dimension groups of `values` elements are equal:
    an int, or one int a dimension."""
    return _hint(input, values, "tl.max_constancy", "constancy")
