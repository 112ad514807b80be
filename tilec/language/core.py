"""Everything of the language but the library written in it; Triton's `tl.core`."""

from __future__ import annotations

from builtins import tuple

from tilec.language.block_pointers import advance, block_pointer, make_block_ptr
from tilec.language.casting import cast
from tilec.language.control import condition, range, static_range
from tilec.language.creation import (
    arange,
    full,
    num_programs,
    program_id,
    to_tensor,
    zeros,
    zeros_like,
)
from tilec.language.debug import (
    assume,
    debug_barrier,
    device_assert,
    device_print,
    max_constancy,
    max_contiguous,
    multiple_of,
    static_assert,
    static_print,
)
from tilec.language.descriptors import (
    load_tensor_descriptor,
    make_tensor_descriptor,
    store_tensor_descriptor,
    tensor_descriptor,
)
from tilec.language.dtypes import (
    bfloat16,
    block_type,
    const,
    dtype,
    float8e4nv,
    float8e5,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    pi32_t,
    pointer_type,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)
from tilec.language.dtypes import get_int_dtype as get_int_dtype
from tilec.language.inline_asm import inline_asm_elementwise
from tilec.language.linalg import dot
from tilec.language.math import (
    abs,
    cdiv,
    ceil,
    cos,
    div_rn,
    erf,
    exp,
    exp2,
    fdiv,
    floor,
    fma,
    log,
    log2,
    rsqrt,
    sin,
    sqrt,
    sqrt_rn,
    tanh,
    umulhi,
)
from tilec.language.memory import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
    load,
    store,
)
from tilec.language.order import flip, gather, histogram
from tilec.language.reduction import argmax, argmin, max, min, reduce, reduce_or, sum, xor_sum
from tilec.language.scan import associative_scan, cumprod, cumsum
from tilec.language.selection import PropagateNan, clamp, maximum, minimum, where
from tilec.language.shape import (
    broadcast,
    broadcast_to,
    cat,
    expand_dims,
    interleave,
    join,
    permute,
    ravel,
    reshape,
    split,
    trans,
    view,
)
from tilec.language.sort import bitonic_merge, sort, topk
from tilec.language.values import builtin, constexpr, constexpr_function, tensor

__all__ = [
    "PropagateNan", "abs", "advance", "arange", "argmax", "argmin", "associative_scan", "assume",
    "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_xchg", "atomic_xor", "bfloat16", "bitonic_merge", "block_pointer", "block_type",
    "broadcast", "broadcast_to", "builtin", "cast", "cat", "cdiv", "ceil", "clamp", "condition",
    "const", "constexpr", "constexpr_function", "cos", "cumprod", "cumsum", "debug_barrier",
    "device_assert", "device_print", "div_rn", "dot", "dtype", "erf", "exp", "exp2", "expand_dims",
    "fdiv", "flip", "float16", "float32", "float64", "float8e4nv", "float8e5", "floor", "fma",
    "full", "gather", "histogram", "inline_asm_elementwise", "int1", "int16", "int32", "int64",
    "int8", "interleave", "join", "load", "load_tensor_descriptor", "log", "log2", "make_block_ptr",
    "make_tensor_descriptor", "max", "max_constancy", "max_contiguous", "maximum", "min", "minimum",
    "multiple_of", "num_programs", "permute", "pi32_t", "pointer_type", "program_id", "range",
    "ravel", "reduce", "reduce_or", "reshape", "rsqrt", "sin", "sort", "split", "sqrt", "sqrt_rn",
    "static_assert", "static_print", "static_range", "store", "store_tensor_descriptor", "sum",
    "tanh", "tensor", "tensor_descriptor", "to_tensor", "topk", "trans", "tuple", "uint16",
    "uint32", "uint64", "uint8", "umulhi", "view", "void", "where", "xor_sum", "zeros",
    "zeros_like",
]

CONSTEXPR_0 = constexpr(0)  # Triton's own kernels, and copies of them, read it
