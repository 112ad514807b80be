"""Functions of numbers under the names of CUDA's libdevice: those of the language where they mean
the same, others written in it. Accuracy: docs/semantics.md, section 6."""

from __future__ import annotations

from tilec.language import math
from tilec.language.extra.bits import (
    brev,
    clz,
    copysign,
    div_rz,
    double_as_longlong,
    fast_dividef,
    fdim,
    ffs,
    finitef,
    float2int_rd,
    float2int_rn,
    float2int_ru,
    float2int_rz,
    float_as_int,
    float_as_uint,
    fmod,
    int_as_float,
    isfinited,
    isinf,
    isnan,
    llrint,
    llround,
    longlong_as_double,
    mulhi,
    nearbyint,
    popc,
    rcp_rn,
    rint,
    round,
    saturatef,
    signbit,
    trunc,
    uint_as_float,
    umulhi,
)
from tilec.language.extra.exponents import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    cosh,
    erfc,
    exp10,
    expm1,
    fast_powf,
    fast_tanf,
    hypot,
    ldexp,
    log,
    log1p,
    log10,
    normcdf,
    pow,
    scalbn,
    sinh,
    tan,
)
from tilec.language.selection import maximum, minimum

__all__ = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "brev", "cbrt", "ceil",
    "clz", "copysign", "cos", "cosh", "div_rn", "div_rz", "double_as_longlong", "erf", "erfc",
    "exp", "exp10", "exp2", "expm1", "fabs", "fast_cosf", "fast_dividef", "fast_exp10f",
    "fast_expf", "fast_log10f", "fast_log2f", "fast_logf", "fast_powf", "fast_sinf",
    "fast_tanf", "fast_tanhf", "fdim", "ffs", "finitef", "float2int_rd", "float2int_rn",
    "float2int_ru", "float2int_rz", "float_as_int", "float_as_uint", "floor", "fma", "fmax",
    "fmin", "fmod", "hypot", "int_as_float", "isfinited", "isinf", "isnan", "ldexp", "llrint",
    "llround", "log", "log10", "log1p", "log2", "longlong_as_double", "max", "min", "mulhi",
    "nearbyint", "normcdf", "popc", "pow", "rcp_rn", "rint", "round", "rsqrt", "saturatef",
    "scalbn", "signbit", "sin", "sinh", "sqrt", "sqrt_rn", "tan", "tanh", "trunc",
    "uint_as_float", "umulhi",
]

abs = fabs = math.abs
exp = fast_expf = math.exp
exp2 = math.exp2
log2 = fast_log2f = math.log2
sin = fast_sinf = math.sin
cos = fast_cosf = math.cos
tanh = fast_tanhf = math.tanh
erf, floor, ceil, fma, rsqrt = math.erf, math.floor, math.ceil, math.fma, math.rsqrt
sqrt, sqrt_rn, div_rn = math.sqrt, math.sqrt_rn, math.div_rn
fmin = min = minimum
fmax = max = maximum
fast_logf, fast_log10f, fast_exp10f = math.log, log10, exp10
