"""Every module of tests/lit gives the same results before and after its passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import lit
from tilec.eval.dtypes import dtype_of
from tilec.interp.run import run
from tilec.ir.core import Func, Module
from tilec.ir.parser import parse
from tilec.ir.tensor_maps import recipes
from tilec.ir.types import Pointer, Scalar, TensorMap, Type
from tilec.ir.verifier import verify
from tilec.passes.base import parse_pipeline
from tilec.passes.insert_barriers import InsertBarriers
from tilec.runtime.maps import MapMaker
from tilec.tools.opt import split

# What rounds otherwise than before, by design, and what it may differ by (bf16's half ulp).
INEXACT = {"form_fma": 2.0**-7, "combine": 1e-5}
NUMBER = re.compile(r"\?|nan|[-+]?inf|True|False|[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


def random_argument(t: Type, divisor: int, rng: np.random.Generator) -> Any:
    """A buffer for a pointer; a small positive number, so that offsets stay inside of it."""
    assert isinstance(t, (Pointer, Scalar))
    scalar = t.pointee if isinstance(t, Pointer) else t
    size = 1 << 16 if isinstance(t, Pointer) else 1
    if scalar.is_float:
        numbers = rng.normal(size=size).astype(dtype_of(scalar))
    else:
        numbers = rng.integers(0 if scalar.is_bool else 1, 2 if scalar.is_bool else 13, size)
        numbers = numbers.astype(dtype_of(scalar))
    return numbers if isinstance(t, Pointer) else numbers[0].item() * divisor


def outcome(module: Module, func: Func, seed: int) -> tuple[list[np.ndarray], list[str]]:
    """What a function leaves in its buffers, and what it prints."""
    rng = np.random.default_rng(seed)
    args = [random_argument(a.type, attributes.get("divisibility", 1), rng)
            for a, attributes in zip(func.args, func.arg_attrs, strict=True)
            if not isinstance(a.type, TensorMap)]
    maps = [MapMaker(recipe).on_host(args, (1, 1, 1)) for recipe in recipes(func)]
    printed: list[str] = []
    run(module, func.name, [*args, *maps], module.num_ctas, seed=seed, on_print=printed.append)
    return [a for a in args if isinstance(a, np.ndarray)], printed


def same_text(before: list[str], after: list[str], tolerance: float) -> None:
    """Printed numbers agree; poison may have become anything."""
    old, new = (NUMBER.findall("\n".join(lines)) for lines in (before, after))
    assert len(old) == len(new), (before, after)
    for x, y in zip(old, new, strict=True):
        if x != "?" and x != y:
            assert tolerance and float(x) == pytest.approx(float(y), rel=tolerance, abs=tolerance)


def cases() -> list[tuple[Path, str]]:
    files = [(path, lit.passes_of(path)) for path in lit.FILES]
    return [(path, passes) for path, passes in files if passes and "tools" not in path.parts]


@pytest.mark.parametrize(("path", "passes"), cases(), ids=lambda c: getattr(c, "stem", None))
def test_same_results(path: Path, passes: str) -> None:
    tolerance = max(INEXACT.get(p.name, 0.0) for p in parse_pipeline(passes))
    for piece in split(path.read_text(encoding="utf-8")):
        before = parse(piece, str(path))
        after = before.clone()
        for p in parse_pipeline(passes):
            p.run(after)
            verify(after)
        if after.level == "lowered":
            # Without barriers only the gpu level runs, where an op is done before the next begins.
            before.attributes["level"] = "gpu"
            InsertBarriers().run(after)
        for func, now in zip(before.funcs, after.funcs, strict=True):
            for seed in range(3):
                old, old_text = outcome(before, func, seed)
                new, new_text = outcome(after, now, seed)
                same_text(old_text, new_text, tolerance)
                for x, y in zip(old, new, strict=True):
                    np.testing.assert_allclose(
                        x.astype(np.float64), y.astype(np.float64), rtol=tolerance,
                        atol=tolerance, err_msg=f"{path.name} @{func.name}, seed {seed}")
