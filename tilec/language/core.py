"""Everything of the language but the library written in it; Triton's `tl.core`."""

from __future__ import annotations

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
from tilec.language.linalg import dot
from tilec.language.math import (
    abs,
    cdiv,
    ceil,
    cos,
    erf,
    exp,
    exp2,
    floor,
    fma,
    log,
    log2,
    rsqrt,
    sin,
    sqrt,
    tanh,
)
from tilec.language.memory import atomic_add, load, store
from tilec.language.order import flip, gather, histogram
from tilec.language.reduction import argmax, argmin, max, min, reduce, sum, xor_sum
from tilec.language.scan import associative_scan, cumprod, cumsum
from tilec.language.selection import PropagateNan, clamp, maximum, minimum, where
from tilec.language.shape import (
    broadcast,
    broadcast_to,
    expand_dims,
    permute,
    ravel,
    reshape,
    trans,
    view,
)
from tilec.language.sort import bitonic_merge, sort, topk
from tilec.language.values import builtin, constexpr, tensor

__all__ = [
    "PropagateNan", "abs", "advance", "arange", "argmax", "argmin", "associative_scan", "assume",
    "atomic_add",
    "bfloat16", "bitonic_merge",
    "block_pointer", "block_type", "broadcast", "broadcast_to", "builtin", "cast",
    "cdiv", "ceil", "clamp", "condition", "const", "constexpr", "cos", "cumprod", "cumsum",
    "debug_barrier",
    "device_assert", "device_print", "dot", "dtype", "erf", "exp", "exp2", "expand_dims",
    "float16", "float32", "float64", "float8e4nv", "float8e5", "flip", "floor", "fma", "full",
    "gather", "histogram", "int1",
    "int16", "int32", "int64", "int8", "load", "load_tensor_descriptor", "log", "log2",
    "make_block_ptr", "make_tensor_descriptor", "max", "max_constancy", "max_contiguous",
    "maximum", "min", "minimum", "multiple_of", "num_programs", "permute", "pi32_t",
    "pointer_type", "program_id", "range", "ravel", "reduce", "reshape", "rsqrt", "sin",
    "sort", "sqrt",
    "static_assert", "static_print", "static_range", "store", "store_tensor_descriptor", "sum",
    "tanh", "tensor", "tensor_descriptor", "to_tensor", "topk", "trans",
    "uint16", "uint32", "uint64",
    "uint8", "view", "void", "where", "xor_sum", "zeros", "zeros_like",
]
