"""What a launch makes of each argument: a hashable key that it is specialised on, and a value.

Keys: `(short type, aligned, where)` for arrays, `(short type, divisible by 16)` for numbers,
`Const` for what is baked in, tuples of keys for tuples. `where` is "numpy", "torch" (a CPU tensor)
or the index of a CUDA device. Triton's rules: None, bool, 1, divisibility by 16, i32/i64/u64.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tilec.errors import LaunchError, TilecError, shown
from tilec.frontend.function import MISSING, Function, Param, python_key
from tilec.frontend.signature import ArgSpec, Spec, check_nesting, parse_spec
from tilec.ir import types as ir
from tilec.language import dtypes as dt
from tilec.language.values import constexpr, constexpr_function, like
from tilec.runtime import dlpack

Key = Any
# Gives the key and what a launch on a GPU passes: numbers, and addresses of device arrays.
Handler = Callable[[Any], tuple[Key, Any]]


class Const(NamedTuple):
    """The key of a compile-time value; the kind tells 1 from True and 1.0.

    value: floats as hexadecimal text, for 0.0 == -0.0 and nan != nan; tuples as tuples of keys;
    functions as (function, what it does).
    """

    kind: type
    value: Any


_ONE = Const(int, 1)
_NONE = Const(type(None), None)
_I32, _I32_16 = ("i32", False), ("i32", True)
_FLOAT, _BOOL = ("fp32", False), ("i1", False)


def int_handler(value: int) -> tuple[Key, Any]:
    """1 is baked in; other integers have the first type of i32, i64, u64 that holds them."""
    return (_ONE, value) if value == 1 else _plain_int(value)


def _plain_int(value: int) -> tuple[Key, Any]:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return (_I32_16 if value % 16 == 0 else _I32), value
    if -(1 << 63) <= value < 1 << 63:
        return ("i64", value % 16 == 0), value
    if 0 < value < 1 << 64:
        return ("u64", value % 16 == 0), value
    raise LaunchError(f"{shown(value)} does not fit into 64 bits", None,
                      "pass it in parts, or as a float")


def none_handler(value: None) -> tuple[Key, Any]:
    """None is baked in."""
    return _NONE, value


def float_handler(value: float) -> tuple[Key, Any]:
    """Floats are fp32."""
    return _FLOAT, value


def bool_handler(value: bool) -> tuple[Key, Any]:
    """Bools are i1."""
    return _BOOL, value


class Composite:
    """Base of arguments that count as a tuple, `parts`."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """The tuple."""
        raise NotImplementedError

    def read(self) -> tuple[Key, tuple[Any, ...]]:
        """What a handler gives for it."""
        raise NotImplementedError


def described(value: Any) -> str:
    """A value as errors show it: an array by its type and shape, anything else by its text."""
    try:
        return shown(value) if value.shape is None or isinstance(value, type) else \
            f"{type(value).__name__} of shape {tuple(value.shape)}"[:80]
    except Exception:  # it has no shape, or one that is none
        return shown(value)


@contextlib.contextmanager
def asking(value: Any) -> Iterator[None]:
    """LaunchError for an array of another library that does not say what it is."""
    try:
        yield
    except TilecError:
        raise
    except Exception as e:
        raise LaunchError(f"it is a {type(value).__name__} that cannot be read as an array: "
                          f"{type(e).__name__}: {e}", None,
                          "give a dense array of numpy, torch or cupy") from None


def parts_of(value: Any) -> Sequence[Any] | None:
    """What is in a tuple, or what counts as one; None for other arguments."""
    if isinstance(value, (tuple, list)):
        return value
    return value.parts if isinstance(value, Composite) else None


def tuple_handler(value: Any) -> tuple[Key, Any]:
    """A tuple of keys; the values of nested tuples in one flat tuple."""
    check_nesting(value, "it")
    keys: list[Key] = []
    values: list[Any] = []
    for v in value:
        handler = handler_of(v)
        key, one = handler(v)
        keys.append(key)
        values += one if handler in (tuple_handler, composite_handler) else (one,)
    return like(value, keys), tuple(values)


def composite_handler(value: Composite) -> tuple[Key, Any]:
    """The same for what counts as a tuple."""
    return value.read()


# -- constants --------------------------------------------------------------------------------


def constexpr_handler(value: Any) -> tuple[Key, Any]:
    """The key of a compile-time argument; LaunchError if it cannot be hashed, CompilationError for
    tuples nested too deep."""
    value = as_plain(value)
    if isinstance(value, Function):
        return Const(Function, (value, value.source_key())), value
    if isinstance(value, constexpr_function):
        return Const(constexpr_function, (value, python_key(value))), value
    if isinstance(value, float):
        return Const(float, float.hex(value)), value
    if isinstance(value, (tuple, list)):
        check_nesting(value, "a constexpr")
        kind = type(value) if hasattr(value, "_fields") else tuple
        return Const(kind, tuple(constexpr_handler(v)[0] for v in value)), value
    try:
        hash(value)
    except Exception:
        raise LaunchError(f"a constexpr is {described(value)}, which has no hash", None,
                          "give a number, string, tuple, dtype or jit function") from None
    return Const(type(value), value), value


def constant(key: Const) -> Any:
    """The value behind the key of a compile-time argument."""
    if key.kind in (Function, constexpr_function):
        return key.value[0]
    if key.kind is float:
        return float.fromhex(key.value)
    if key.kind is tuple:
        return tuple(map(constant, key.value))
    if issubclass(key.kind, tuple):
        return key.kind(*map(constant, key.value))
    return key.value


def as_plain(value: Any) -> Any:
    """A compile-time value without its wrapper; numpy scalars as Python numbers, and the dtypes
    of numpy, ml_dtypes and torch as tl dtypes."""
    if isinstance(value, constexpr):
        value = value.value
    module = (value if isinstance(value, type) else type(value)).__module__.partition(".")[0]
    if module not in ("numpy", "ml_dtypes", "torch"):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item() if type(value).__module__ != "ml_dtypes" else float(value)
    try:
        return dt.from_any(value)
    except TilecError:
        return value


# -- arrays -----------------------------------------------------------------------------------

_SHORT: dict[Any, str] = {}


def short_name(dtype: Any) -> str:
    """tilec's short name ("fp32") of a numpy, ml_dtypes or torch dtype."""
    found = _SHORT.get(dtype)
    if found is None:
        if not getattr(dtype, "isnative", True):
            raise LaunchError(f"an array has elements of type {dtype.str}, whose bytes are swapped",
                              None, "convert it to the byte order of this machine")
        try:
            found = _SHORT[dtype] = dt.from_any(dtype).short
        except TilecError as e:
            raise LaunchError(e.message, None, e.advice or "convert it to a type that tl has"
                              ) from None
    return found


def _ndarray(value: Any) -> tuple[Key, Any]:
    address = value.ctypes.data
    return (_SHORT.get(value.dtype) or short_name(value.dtype), address % 16 == 0, "numpy"), value


def torch_handler(value: Any) -> tuple[Key, Any]:
    """A tensor of torch, on the CPU or a GPU."""
    if value.device.type not in ("cpu", "cuda"):
        raise LaunchError(f"it is on the device {value.device}, expected the CPU or CUDA", None,
                          "move it with `.cuda()` or `.cpu()`")
    with asking(value):
        address, device = value.data_ptr(), value.get_device()
    short = _SHORT.get(value.dtype) or short_name(value.dtype)
    return (short, address % 16 == 0, device if device >= 0 else "torch"), address


def _cuda_interface(value: Any) -> tuple[Key, Any]:
    import numpy as np  # loaded by whoever has such an object

    with asking(value):
        interface = value.__cuda_array_interface__
        address = operator.index(interface["data"][0])
        own = getattr(value, "dtype", None)
        short = short_name(np.dtype(interface["typestr"]) if own is None else own)
        device = operator.index(getattr(getattr(value, "device", None), "id", 0))
    return (short, address % 16 == 0, device), address


def _dlpack(value: Any) -> tuple[Key, Any]:
    with asking(value):
        found = dlpack.read(value)
    if found.device is None:
        return _ndarray(dlpack.as_numpy(value))
    return (found.short, found.address % 16 == 0, found.device), found.address


class TensorWrapper:
    """The memory of an array, read as elements of another dtype; made by `reinterpret`."""

    def __init__(self, base: Any, dtype: Any) -> None:
        self.base, self.dtype = base, as_plain(dtype)
        self.data, self.shape = base, base.shape
        if hasattr(base, "device"):
            self.device = base.device

    def data_ptr(self) -> int:
        """The address."""
        return _address(self.base)

    def __repr__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base!r})"


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """An array, for a kernel that is to see elements of a tl dtype; the array itself where it was
    one before. LaunchError for what is no array."""
    base = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if not (hasattr(base, "data_ptr") or hasattr(base, "ctypes")):
        raise LaunchError(f"cannot reinterpret {described(tensor)}", None,
                          "give an array of numpy or torch")
    same = base is not tensor and as_plain(base.dtype) == as_plain(dtype)
    return base if same else TensorWrapper(base, dtype)


def _address(array: Any) -> int:
    return operator.index(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)


def array_behind(value: Any) -> Any:
    """Of an object that has no more than an address (`data_ptr()`) and a dtype, the array among its
    attributes that the address lies in; None if there is none."""
    kinds = tuple(kind for module, name in (("torch", "Tensor"), ("numpy", "ndarray"))
                  if (kind := getattr(sys.modules.get(module), name, None)) is not None)
    found = [x for x in getattr(value, "__dict__", {}).values() if isinstance(x, kinds)]
    return found[0] if found else None


def points(value: Any) -> bool:
    """Whether a value is such an object."""
    return hasattr(value, "data_ptr") and hasattr(value, "dtype") and \
        not hasattr(value, "__array_interface__") and not hasattr(value, "__dlpack__")


def _pointing(value: Any) -> tuple[Key, Any]:
    with asking(value):
        address = operator.index(value.data_ptr())
        short = _SHORT.get(value.dtype) or short_name(value.dtype)
    base = array_behind(value)
    where = "numpy" if base is None else place_of(handler_of(base)(base)[0])
    device = getattr(value, "device", None)
    if base is None and getattr(device, "type", device) == "cuda":
        where = getattr(device, "index", None) or 0
    return (short, address % 16 == 0, where), address


class StandIn(NamedTuple):
    """Stands for an aligned array of a dtype, where nothing is launched."""

    short: str


def stand_in(value: Any) -> Any:
    """A StandIn for a dtype, or a pointer type; any other value as it is."""
    plain = as_plain(value)
    if not isinstance(plain, dt.dtype):
        return value
    return StandIn((plain.element_ty if isinstance(plain, dt.pointer_type) else plain).short)


def _stand_in(value: StandIn) -> tuple[Key, Any]:
    return (value.short, True, "numpy"), 0


# -- which handler ----------------------------------------------------------------------------

_HANDLERS: dict[type, Handler] = {
    int: int_handler, bool: bool_handler, float: float_handler, type(None): none_handler,
    tuple: tuple_handler, list: tuple_handler, StandIn: _stand_in,
}


def handler_of(value: Any) -> Handler:
    """The handler of an argument, by its type; LaunchError for one that kernels cannot take."""
    kind = type(value)
    handler = _HANDLERS.get(kind)
    if handler is None:
        handler = _HANDLERS[kind] = _find(kind, value)
    return handler


def _find(kind: type, value: Any) -> Handler:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return torch_handler
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray):
            return _ndarray
        if isinstance(value, numpy.generic):
            return _numpy_scalar
    with asking(value):
        if hasattr(value, "__cuda_array_interface__"):
            return _cuda_interface
        if hasattr(value, "__dlpack__"):
            return _dlpack
        if points(value):
            return _pointing
    if isinstance(value, tuple):
        return tuple_handler
    if isinstance(value, Composite):
        return composite_handler
    if isinstance(value, (Function, constexpr, dt.dtype)):
        return constexpr_handler
    if isinstance(as_plain(value), dt.dtype):
        return _foreign_dtype
    if isinstance(value, (int, float)):
        base: type = int if isinstance(value, int) else float
        return lambda v: _HANDLERS[base](base(v))
    raise _not_taken(value)


def _not_taken(value: Any) -> LaunchError:
    return LaunchError(f"it is a {type(value).__name__}, which a kernel cannot take", None,
                       "give arrays (numpy, torch, cupy), a TensorDescriptor of one, numbers, "
                       "None, tuples of these, or declare the parameter `: tl.constexpr`")


def _foreign_dtype(value: Any) -> tuple[Key, Any]:
    """A dtype of numpy or torch, which may be of the same Python type as other classes."""
    if not isinstance(as_plain(value), dt.dtype):
        raise _not_taken(value)
    return constexpr_handler(value)


def _numpy_scalar(value: Any) -> tuple[Key, Any]:
    plain = as_plain(value)
    if type(plain) is type(value):  # Python has no number for it
        raise LaunchError(f"it is a {type(value).__name__}, which a kernel cannot take", None,
                          "convert it to float64")
    return handler_of(plain)(plain)


def number_of(value: Any, t: ir.Scalar) -> int | float | bool:
    """A scalar argument as a Python number: an integer that its type holds, a float that will be
    rounded to its type. LaunchError for any other value."""
    number: int | float | None = None
    if getattr(value, "ndim", 0) == 0 and not isinstance(value, (str, bytes)):
        with contextlib.suppress(Exception):  # of an author's class may be any
            number = float(value) if t.is_float else operator.index(as_plain(value))
    low, high = -(1 << t.bits - 1) * t.is_signed, (1 << t.bits - t.is_signed) - 1
    if number is None or not (t.is_float or t.is_bool or low <= number <= high):
        what = "a number" if t.is_float else "a bool" if t.is_bool else \
            f"an integer from {low} to {high}"
        raise LaunchError(f"it is {described(value)}, where the type {dt.of_ir(t).short} takes "
                          f"{what}", None, "pass one, or give the parameter another type")
    return bool(number) if t.is_bool else number


def param_handler(p: Param) -> Handler | None:
    """The handler that a declaration settles; None where the argument's type does."""
    if p.is_constexpr:
        return constexpr_handler
    handler = None if p.annotation is MISSING else _annotated(p)
    if p.do_not_specialize or p.do_not_specialize_on_alignment:
        return _unspecialized(handler, p.do_not_specialize)
    return handler


def _annotated(p: Param) -> Handler | None:
    """The handler of a parameter annotated with a number type, which overrides the value's.

    None for annotations that name none, such as tl.const.
    """
    annotation = p.annotation
    if isinstance(annotation, str):  # with `from __future__ import annotations`: "tl.int64"
        annotation = annotation.strip("'\" ").rpartition(".")[2]
    try:
        spec = parse_spec(annotation, p.name)
    except TilecError:
        return None
    if not isinstance(spec, ArgSpec) or not isinstance(spec.type, ir.Scalar):
        return None
    scalar, short = spec.type, dt.of_ir(spec.type).short
    whole = not (scalar.is_float or scalar.is_bool)

    def handle(value: Any) -> tuple[Key, Any]:
        if value is None:
            return _NONE, value
        number = number_of(value, scalar)
        return (short, number % 16 == 0 if whole else False), number

    return handle


def _unspecialized(handler: Handler | None, not_one: bool) -> Handler:
    """The handler of a parameter in `do_not_specialize`. not_one: 1 is not baked in either."""
    def general(key: Key) -> Key:
        if key == _ONE and not_one:
            return _I32
        if isinstance(key, Const) or not key:
            return key
        if isinstance(key[0], str):
            return (key[0], False, *key[2:])
        return like(key, list(map(general, key)))

    def handle(value: Any) -> tuple[Key, Any]:
        key, out = (handler or handler_of(value))(value)
        return general(key), out

    return handle


# -- what keys say ----------------------------------------------------------------------------


def spec_of(key: Key, const: bool = False) -> Spec | constexpr:
    """What the front end is told of an argument with this key. const: pointers are `tl.const`."""
    if isinstance(key, Const):
        return constexpr(constant(key))
    if not key or not isinstance(key[0], str):
        return like(key, [spec_of(k, const) for k in key])
    element = dt.from_name(key[0]).ir
    assert isinstance(element, ir.Scalar)
    return ArgSpec(ir.Pointer(element, const) if len(key) == 3 else element, 16 if key[1] else 1)


def leaves(key: Key) -> list[Key]:
    """The keys in a tuple's key, in order; a list of one for other keys."""
    if isinstance(key, Const) or (key and isinstance(key[0], str)):
        return [key]
    return [leaf for k in key for leaf in leaves(k)]


def place_of(key: Key) -> Any:
    """Where the array with this key lives; None for numbers and constants."""
    return key[2] if len(key) == 3 and isinstance(key[0], str) else None
