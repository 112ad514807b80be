"""What a launch makes of each argument: a hashable key that it is specialised on, and a value.

Keys: `(short type, aligned, where)` for pointers, `(short type, divisible by 16)` for numbers,
`Const` for what is baked in, tuples of keys for tuples. `where` is "numpy", "torch" (a CPU tensor)
or the index of a CUDA device. Triton's rules: None, bool, 1, divisibility by 16, i32/i64/u64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from tilec.errors import LaunchError
from tilec.frontend.function import Function
from tilec.frontend.signature import ArgSpec, Spec, parse_spec
from tilec.ir import types as ir
from tilec.language import dtypes as dt
from tilec.language.values import constexpr
from tilec.runtime import dlpack

Key = Any
Handler = Callable[[Any], tuple[Key, Any]]


class Const(NamedTuple):
    """The key of a compile-time value; the type tells 1 from True and 1.0."""

    kind: type
    value: Any


class ArrayOnDevice(NamedTuple):
    """The value of an argument that lives on a GPU: its address, and the object itself."""

    address: int
    owner: Any


_ONE = Const(int, 1)
_NONE = Const(type(None), None)
_I32, _I32_16 = ("i32", False), ("i32", True)
_FLOAT, _BOOL = ("fp32", False), ("i1", False)


def _int(value: int) -> tuple[Key, Any]:
    if value == 1:
        return _ONE, value
    return _plain_int(value)


def _plain_int(value: int) -> tuple[Key, Any]:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return (_I32_16 if value % 16 == 0 else _I32), value
    if -(1 << 63) <= value < 1 << 63:
        return ("i64", value % 16 == 0), value
    if value < 1 << 64 and value > 0:
        return ("u64", value % 16 == 0), value
    raise LaunchError(f"{value} does not fit into 64 bits")


def constexpr_handler(value: Any) -> tuple[Key, Any]:
    """The key of a compile-time argument; LaunchError if it cannot be hashed."""
    if isinstance(value, constexpr):
        value = value.value
    if isinstance(value, Function):
        return Const(Function, (value, value.source_key())), value
    value = _as_plain(value)
    if isinstance(value, (tuple, list)):
        return tuple(constexpr_handler(v)[0] for v in value), tuple(value)
    try:
        hash(value)
    except TypeError:
        raise LaunchError(f"a constexpr is {value!r}, which has no hash", None,
                          "give a number, string, tuple, dtype or jit function") from None
    return Const(type(value), value), value


def _as_plain(value: Any) -> Any:
    """numpy and torch scalars as Python numbers, their dtypes as tl dtypes."""
    module = type(value).__module__
    if module.startswith("numpy") and hasattr(value, "item") and not hasattr(value, "__len__"):
        return value.item()
    if type(value).__name__ in ("dtype", "DType") or module.startswith(("torch", "ml_dtypes")):
        try:
            return dt.from_any(value)
        except Exception:  # noqa: BLE001  (any other object is left as it is)
            return value
    return value


def _tuple(value: tuple[Any, ...]) -> tuple[Key, Any]:
    parts = [handler_of(type(v), v)(v) for v in value]
    return tuple(k for k, _ in parts), tuple(v for _, v in parts)


def _function(value: Function) -> tuple[Key, Any]:
    return Const(Function, (value, value.source_key())), value


def _numpy_scalar(value: Any) -> tuple[Key, Any]:
    plain = value.item()
    return handler_of(type(plain), plain)(plain)


_SHORT: dict[Any, str] = {}


def short_name(dtype: Any) -> str:
    """tilec's short name ("fp32") of a numpy, ml_dtypes or torch dtype."""
    found = _SHORT.get(dtype)
    if found is None:
        found = _SHORT[dtype] = dt.from_any(dtype).short
    return found


def _ndarray(value: Any) -> tuple[Key, Any]:
    address = value.__array_interface__["data"][0]
    return (_SHORT.get(value.dtype) or short_name(value.dtype), address % 16 == 0, "numpy"), value


def _torch(value: Any) -> tuple[Key, Any]:
    address = value.data_ptr()
    device = value.get_device()
    short = _SHORT.get(value.dtype) or short_name(value.dtype)
    if device < 0:
        return (short, address % 16 == 0, "torch"), value
    return (short, address % 16 == 0, device), ArrayOnDevice(address, value)


def _cuda_interface(value: Any) -> tuple[Key, Any]:
    import numpy as np  # loaded by whoever has such an object

    interface = value.__cuda_array_interface__
    address = interface["data"][0]
    own = getattr(value, "dtype", None)
    short = short_name(np.dtype(interface["typestr"]) if own is None else own)
    device = getattr(getattr(value, "device", None), "id", 0)
    return (short, address % 16 == 0, device), ArrayOnDevice(address, value)


def _dlpack(value: Any) -> tuple[Key, Any]:
    found = dlpack.read(value)
    if found.device is None:
        import numpy as np

        return _ndarray(np.from_dlpack(value))
    return ((found.short, found.address % 16 == 0, found.device),
            ArrayOnDevice(found.address, value))


_HANDLERS: dict[type, Handler] = {
    int: _int,
    bool: lambda v: (_BOOL, v),
    float: lambda v: (_FLOAT, v),
    type(None): lambda v: (_NONE, v),
    tuple: _tuple,
    list: lambda v: _tuple(tuple(v)),
    constexpr: constexpr_handler,
}


def handler_of(kind: type, value: Any) -> Handler:
    """The handler of a type of argument; LaunchError names an argument that none fits."""
    handler = _HANDLERS.get(kind)
    if handler is None:
        handler = _HANDLERS[kind] = _find(kind, value)
    return handler


def _find(kind: type, value: Any) -> Handler:
    if isinstance(value, Function):
        return _function
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray):
            return _ndarray
        if isinstance(value, numpy.generic):
            return _numpy_scalar
    if hasattr(value, "__cuda_array_interface__"):
        return _cuda_interface
    if hasattr(value, "__dlpack__"):
        return _dlpack
    if isinstance(value, tuple):
        return _tuple
    if isinstance(value, dt.dtype) or kind.__name__ == "dtype":
        return constexpr_handler
    if isinstance(value, (bool, int, float)):
        base = next(b for b in (bool, int, float) if isinstance(value, b))
        return lambda v: _HANDLERS[base](base(v))
    raise LaunchError(f"an argument is a {kind.__name__}, which a kernel cannot take", None,
                      "give arrays (numpy, torch, cupy), numbers, None, tuples of these, or "
                      "declare the parameter `: tl.constexpr`")


def annotated_handler(annotation: Any, name: str) -> Handler | None:
    """The handler of a parameter annotated with a type, which overrides what the value says.

    None for tl.constexpr, tl.const and annotations that name no type.
    """
    try:
        spec = parse_spec(annotation, name)
    except Exception:  # noqa: BLE001  (annotations may be anything)
        return None
    if not isinstance(spec, ArgSpec) or not isinstance(spec.type, ir.Scalar):
        return None
    key = (dt.of_ir(spec.type).short, False)
    convert: Callable[[Any], Any] = float if spec.type.is_float else \
        bool if spec.type.is_bool else int
    if spec.type.is_float or spec.type.is_bool:
        return lambda v: (key, convert(v))
    aligned = (key[0], True)
    return lambda v: (aligned if int(v) % 16 == 0 else key, int(v))


def unspecialized(handler: Handler, alignment_only: bool) -> Handler:
    """The handler of a parameter in `do_not_specialize`: 1 and divisibility are not baked in."""
    def handle(value: Any) -> tuple[Key, Any]:
        key, out = _plain_int(value) if type(value) is int and not alignment_only else \
            handler(value)
        if isinstance(key, Const) or not isinstance(key, tuple) or len(key) not in (2, 3):
            return key, out
        return (key[0], False, *key[2:]), out

    return handle


def spec_of(key: Key, const: bool = False) -> Spec | Const:
    """What the front end is told of an argument with this key."""
    if isinstance(key, Const):
        return Const(key.kind, key.value[0]) if key.kind is Function else key
    if key and isinstance(key[0], str):
        element = dt.from_name(key[0]).ir
        divisor = 16 if key[1] else 1
        assert isinstance(element, ir.Scalar)
        return ArgSpec(ir.Pointer(element, const) if len(key) == 3 else element, divisor)
    return tuple(spec_of(k) for k in key)  # type: ignore[misc]


def places(key: Key) -> set[Any]:
    """Where the arrays with this key live."""
    if isinstance(key, Const) or not isinstance(key, tuple):
        return set()
    if len(key) == 3 and isinstance(key[0], str):
        return {key[2]}
    return set().union(*(places(k) for k in key if isinstance(k, tuple)), set())
