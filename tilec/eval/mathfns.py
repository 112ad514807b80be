"""Math functions: the f64 function rounded to f32; f16 and bf16 by way of f32 (semantics.md 6)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilec.eval.dtypes import F32, F64, Array

_ERF = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x), F64)


def _rsqrt(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(x))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {"exp": np.exp, "exp2": np.exp2, "log": np.log,
                                                  "log2": np.log2, "sin": np.sin, "cos": np.cos,
                                                  "tanh": np.tanh, "erf": _erf, "rsqrt": _rsqrt}
_EXACT: dict[str, Callable[[Array], Array]] = {"sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil}


@np.errstate(all="ignore")
def math_function(name: str, x: Array) -> Array:
    """exp, exp2, log, log2, sin, cos, tanh, erf, rsqrt, sqrt, floor or ceil of floats."""
    exact = _EXACT.get(name)
    if exact is not None:
        return np.asarray(exact(x))
    y = np.asarray(FUNCTIONS[name](x.astype(F64)))
    return y if x.dtype == F64 else y.astype(F32).astype(x.dtype)
