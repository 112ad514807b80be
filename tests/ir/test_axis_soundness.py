"""What axis analysis says of random integer expressions holds of the values that they have, which
wrap, are negative, narrow, cast and divided; and so does what codegen makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.random_integers import Expression
from tilec.ir.axis import AxisAnalysis, AxisInfo
from tilec.ir.core import Value
from tilec.ir.types import Pointer, Scalar, element_of

BATCH = 250  # expressions a test


def bits_of(x: np.ndarray) -> np.ndarray:
    """Integers modulo 2^64."""
    return np.atleast_1d(x).astype(np.int64 if x.dtype.kind == "i" else np.uint64).view(np.uint64)


def runs_of(x: np.ndarray, length: int) -> np.ndarray:
    """Along the last dimension, the first element of each element's aligned run."""
    return x[..., np.arange(x.shape[-1]) // length * length]


def wrong(info: AxisInfo, x: np.ndarray, narrowest: int) -> str:
    """A claim about `x` that does not hold; empty if all do. narrowest: bits of the narrowest
    integers on the way to it, modulo whose numbers runs go on."""
    bits = bits_of(x)
    if (bits & np.uint64(info.all_divisor - 1)).any():
        return f"{info.all_divisor} divides all"
    if info.range is not None and not (info.within(-1 << 64) and
                                       int(x.min()) in info.range and int(x.max()) in info.range):
        return f"the range is {info.range}"
    for dim, n in enumerate(bits.shape):
        if (said := _wrong_along(info, dim, np.moveaxis(bits, dim, -1), narrowest)) and n:
            return f"along {dim}, {said}"
    return ""


def _wrong_along(info: AxisInfo, dim: int, bits: np.ndarray, narrowest: int) -> str:
    run, same, group = info.contiguity[dim], info.constancy[dim], info.group(dim)
    if same > 1 and (bits != runs_of(bits, same)).any():
        return f"runs of {same} are constant"
    if (bits[..., ::run] & np.uint64(info.divisibility[dim] - 1)).any():
        return f"runs of {run} begin at multiples of {info.divisibility[dim]}"
    for step in (2, 3, 4, 6, 8, 12):
        if (bits[..., ::step] & np.uint64(info.divisor(dim, step) - 1)).any():
            return f"every {step}th is a multiple of {info.divisor(dim, step)}"
    if run == 1:
        return ""
    place, unit = np.arange(bits.shape[-1]).astype(np.uint64), np.uint64(info.unit)
    modulus = np.uint64((info.unit << narrowest) - 1 if narrowest + info.unit < 64 else 2**64 - 1)
    grown = bits - runs_of(bits, run) - place % np.uint64(run) * unit
    if (grown & modulus).any():
        return f"runs of {run} grow by one"
    if (bits - runs_of(bits, group) != place % np.uint64(group) * unit).any():
        return f"groups of {group} grow by one"
    if any(len(set(row)) < len(row) for row in bits[..., :run].reshape(-1, min(run, len(place)))):
        return f"runs of {run} have no number twice"
    return ""


def check(seed: int) -> int:
    """Check one expression; the number of values in it."""
    made = Expression(seed)
    analysis, count = AxisAnalysis(made.func), 0

    def seen(value: Value, x: np.ndarray) -> None:
        nonlocal count
        count += 1
        element = element_of(value.type)
        if isinstance(element, Pointer) or isinstance(element, Scalar) and element.is_int:
            info = analysis.get(value)
            said = wrong(info, x, made.narrowest[value])
            assert not said, f"seed {seed}: not so: {said}\n{value.op}\n{info}\n{x}"

    made.check(seen)
    return count


@pytest.mark.parametrize("batch", range(2000 // BATCH))
def test_claims_hold(batch: int) -> None:
    assert sum(map(check, range(batch * BATCH, (batch + 1) * BATCH))) > 10 * BATCH


@pytest.mark.full
@pytest.mark.parametrize("batch", range(2000 // BATCH, 100_000 // BATCH))
def test_claims_hold_of_many(batch: int) -> None:
    test_claims_hold(batch)
