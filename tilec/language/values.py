"""What a kernel computes with: `tensor`, a tile or scalar known at run time, and `constexpr`.

Operators and methods of `tensor` are attached by the modules that define their meaning, through
`method`; see semantic.py for the operators.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NoReturn, TypeVar

from tilec.errors import BRIEF, TilecError, did_you_mean, shown
from tilec.ir import ops
from tilec.ir import types as ir
from tilec.ir.core import Value
from tilec.ir.types import element_of, shape_of
from tilec.language import dtypes as dt
from tilec.language.context import CallableInKernels, active, current, error
from tilec.language.literals import convert, literal_dtype

F = TypeVar("F", bound=Callable[..., Any])


class tensor:
    """A tile, or a scalar known only at run time (shape ()).

    handle: the IR value. literal: the number it was made of, where the front end turned a Python
    number assigned to a name into a tensor, so that it still serves as a compile-time number.
    """

    def __init__(self, handle: Value, literal: int | float | bool | None = None) -> None:
        self.handle = handle
        self.literal = literal

    @property
    def dtype(self) -> dt.dtype:
        """The element type."""
        return dt.of_ir(element_of(self.handle.type))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents; () for a scalar."""
        return shape_of(self.handle.type)

    @property
    def type(self) -> dt.dtype:
        """The type: `block_type` for a tile, the dtype for a scalar."""
        return dt.block_type(self.dtype, self.shape) if self.shape else self.dtype

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __bool__(self) -> NoReturn:
        raise error(f"{self} is not known at compile time, so it has no truth value here",
                    "use it as the condition of `if`, `while` or tl.where; combine conditions "
                    "with & and |")

    def __index__(self) -> int:
        return const_int(self, "a number known at compile time")

    def __iter__(self) -> NoReturn:
        raise error(f"cannot iterate over or unpack {self}",
                    "a tile is one value; loop over tl.range and load a tile each time")

    def __len__(self) -> int:
        if not self.shape:
            raise error(f"{self} has no len()", "only tiles have one")
        return self.shape[0]

    __hash__ = object.__hash__

    def __str__(self) -> str:
        """What messages call this value: its type and shape."""
        dims = ", ".join(map(str, self.shape))
        return f"{self.dtype.name}[{dims}] tile" if self.shape else f"{self.dtype.name} scalar"

    def __repr__(self) -> str:
        return f"<{self}>"


class Indexed:
    """Base of what kernels index by values known at run time, beside tensors."""


class constexpr:
    """Annotation of a parameter or name known at compile time, and a wrapper of such a value.

    Operators on a wrapper give plain values; a module-level `N = tl.constexpr(4)` may be read by
    kernels.
    """

    __tilec_builtin__ = CallableInKernels()

    def __init__(self, value: Any) -> None:
        self.value = unwrap(value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self.value[unwrap(key)]

    def __getattr__(self, name: str) -> Any:
        if name == "value":  # not set yet, as while being unpickled
            raise AttributeError(name)
        return getattr(self.value, name)

    def __repr__(self) -> str:
        return f"constexpr[{self.value!r}]"


class constexpr_function:
    """Decorator of an ordinary Python function that kernels may call with values known at compile
    time; what it returns is known then, too. Outside of kernels it is the function."""

    __tilec_builtin__ = True

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return unwrap(self.fn(*map(unwrap, args), **{k: unwrap(v) for k, v in kwargs.items()}))
        known = [self._known(x) for x in args]
        named = {k: self._known(x) for k, x in kwargs.items()}
        try:
            return unwrap(self.fn(*known, **named))
        except TilecError:
            raise
        except Exception as e:  # the author's function may raise anything
            raise error(f"{self.fn.__name__}: {type(e).__name__}: {e}",
                        "Python computes this at compile time") from None

    def _known(self, x: Any) -> Any:
        x = unwrap(x)
        if isinstance(x, tuple):
            return like(x, [self._known(part) for part in x])
        if isinstance(x, tensor) and x.literal is None:
            raise error(f"{self.fn.__name__} works on what is known at compile time only, found "
                        f"a run-time {x}", "compute it before the launch, and pass it as a "
                        "tl.constexpr")
        return x.literal if isinstance(x, tensor) else x

    def __repr__(self) -> str:
        return f"<constexpr_function {self.fn.__module__}.{self.fn.__qualname__}>"


def like(model: tuple[Any, ...], items: Sequence[Any]) -> tuple[Any, ...]:
    """A tuple of the class of `model`, a NamedTuple perhaps, with other items."""
    return type(model)(*items) if hasattr(model, "_fields") else tuple(items)


def unwrap(x: Any) -> Any:
    """`x` without a constexpr wrapper; anything else as it is."""
    return x.value if isinstance(x, constexpr) else x


def _forward(name: str, reflected: bool = False) -> None:
    function = getattr(operator, name)

    def forward(self: constexpr, *args: Any) -> Any:
        values = (self.value, *map(unwrap, args))
        return function(*(values[::-1] if reflected else values))

    setattr(constexpr, f"__{'r' if reflected else ''}{name.rstrip('_')}__", forward)


ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
              "lshift", "rshift")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
for _name in (*ARITHMETIC, *COMPARISONS, "neg", "pos", "invert"):
    _forward(_name)
for _name in ARITHMETIC:
    _forward(_name, reflected=True)


# -- builtins -------------------------------------------------------------------------------------

def builtin(fn: F) -> F:
    """Mark a plain function as one that kernels may call, and guard it.

    Constexpr wrappers among the arguments are unwrapped. CompilationError outside of a kernel and
    for arguments that do not fit the signature.
    """
    module = "tlg" if fn.__module__.startswith("tilec.language.gpu") else "tl"
    shown = f"{module}.{fn.__qualname__.rpartition('<locals>.')[2]}"

    @functools.wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with BRIEF:
            current(shown)
        args = tuple([x.value if isinstance(x, constexpr) else x for x in args])
        if kwargs:
            kwargs = {k: unwrap(v) for k, v in kwargs.items()}
        try:
            return fn(*args, **kwargs)
        except TypeError as e:
            check_call(shown, fn, args, kwargs)
            raise error(f"{shown}: {e}", f"the signature is {_signature(shown, fn)}") from e

    guarded.__tilec_builtin__ = True  # type: ignore[attr-defined]
    return guarded  # type: ignore[return-value]


def check_call(shown: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise a CompilationError if the arguments do not fit the signature of `fn`."""
    signature = inspect.signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        known = signature.parameters
        meant = [did_you_mean(k, known) for k in kwargs if k not in known]
        advice = [*filter(None, meant), f"the signature is {_signature(shown, fn)}"]
        raise error(f"{shown}: {e}", " ".join(advice)) from None


def _signature(shown: str, fn: Callable[..., Any]) -> str:
    """The signature of `fn` without annotations."""
    parameters = inspect.signature(fn).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters]
    return f"{shown}{inspect.Signature(plain)}"


def method(*names: str) -> Callable[[F], F]:
    """Attach a function of (tensor, ...) to `tensor` under these names."""
    def attach(fn: F) -> F:
        for name in names:
            setattr(tensor, name, fn)
        return fn

    return attach


# -- compile-time numbers -------------------------------------------------------------------------

def is_number(x: Any) -> bool:
    """Whether `x` is a Python number: bool, int or float."""
    return isinstance(x, (bool, int, float))


def const_value(x: Any, what: str) -> Any:
    """The compile-time value of `x`, wrapper and literal tensor included; CompilationError, saying
    that `what` has to be known, for other tensors."""
    x = unwrap(x)
    if not isinstance(x, tensor):
        return x
    if x.literal is None:
        raise error(f"{what} has to be known at compile time, found a run-time {x}",
                    "pass it as a `tl.constexpr` parameter")
    return x.literal


def const_int(x: Any, what: str) -> int:
    """Like `const_value`, for integers."""
    value = const_value(x, what)
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise error(f"{what} has to be an integer, found {shown(value)}",
                    "sizes and axes are whole numbers; `//` divides to one")
    number = operator.index(value)
    if abs(number) >= 1 << 64:
        raise error(f"{what} is {shown(number)}, which 64 bits do not hold", "give a smaller one")
    return number


def const_ints(x: Any, what: str) -> tuple[int, ...]:
    """Like `const_int`, for one integer or a sequence of them."""
    x = unwrap(x)
    if isinstance(x, (tuple, list)):
        return tuple(const_int(v, what) for v in x)
    return (const_int(x, what),)


def varargs(args: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """The integers of `f(2, 3)` or `f((2, 3))`."""
    if len(args) == 1:
        return const_ints(args[0], what)
    return const_ints(args, what)


def describe(x: Any) -> str:
    """What messages call a value: type and shape of a tensor, else the Python value."""
    x = unwrap(x)
    if isinstance(x, tensor):
        return str(x)
    if is_number(x):
        return f"the number {shown(x)}"
    return f"{shown(x)} ({type(x).__name__})"


# -- constants ------------------------------------------------------------------------------------

def constant(value: bool | int | float, t: dt.dtype, shape: tuple[int, ...] = ()) -> tensor:
    """A scalar, or a tile filled with it, of a number converted to `t` as casts do."""
    if not isinstance(t.ir, ir.Scalar):
        raise error(f"there are no constants of type {t}", "make a pointer from an integer, as by "
                    "tl.full(shape, 0, tl.int64).to(pointer type)" if t.is_ptr() else
                    "give a type of numbers, such as tl.float32")
    full_type = ir.Tensor(shape, t.ir) if shape else t.ir
    op = ops.Constant(value=convert(value, t), types=[full_type])
    return tensor(current().builder.emit(op))


def to_tensor(x: Any) -> tensor:
    """`x` as a tensor; a Python number becomes a constant of its literal's type (`1` is int32,
    `1.0` float32) that remembers the number. CompilationError for what no tensor can hold."""
    x = unwrap(x)
    if isinstance(x, tensor):
        return x
    if is_number(x):
        out = constant(x, literal_dtype(x))
        out.literal = x
        return out
    advice = ""
    if isinstance(x, (tuple, list)):
        advice = "a tuple is not a tile; use its elements one by one"
    elif x is None:
        advice = "does a function return nothing, or is an optional argument missing?"
    raise error(f"expected a tile or a number, found {describe(x)}", advice)
