"""`TensorDescriptor`: a tensor as an argument of a kernel, which reads and writes it in blocks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilec.errors import BRIEF, LaunchError, shown
from tilec.eval.storage import storage_of
from tilec.language import dtypes as dt
from tilec.language.descriptors import DescriptorForm, check_form
from tilec.runtime import host
from tilec.runtime.arguments import Composite, Const, Key, described, handler_of, place_of


@dataclass(eq=False, init=False)
class TensorDescriptor(Composite):
    """A tensor: the memory of `base`, seen with a shape (32 bits) and strides (in elements; the
    last one is 1). In a kernel it is what tl.make_tensor_descriptor makes, in blocks of
    block_shape; padding, "zero" or "nan", is what elements outside of it read as.

    Its attributes may be assigned anew between launches, as a tuner's hooks do with block_shape.
    For a tensor map of a .tir kernel, block_shape may be left out; given, it is checked against
    what the kernel copies.
    """

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int] = ()
    padding: str = "zero"

    @BRIEF
    def __init__(self, base: Any, shape: Sequence[int], strides: Sequence[int],
                 block_shape: Sequence[int] = (), padding: str = "zero") -> None:
        self.base, self.shape, self.strides = base, shape, strides
        self.block_shape, self.padding = block_shape, padding

    @classmethod
    @BRIEF
    def from_tensor(cls, tensor: Any, block_shape: Sequence[int], padding: str = "zero"
                    ) -> TensorDescriptor:
        """The whole of an array, with its own shape and strides."""
        return cls(tensor, *host.geometry(tensor), block_shape, padding)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("shape", "strides", "block_shape"):
            try:
                value = tuple(map(operator.index, value))
            except Exception:
                with BRIEF:
                    raise LaunchError(f"the {name} of a TensorDescriptor is {described(value)}, "
                                      "expected integers", None, "give a list of them") from None
        super().__setattr__(name, value)
        self.__dict__["_fixed"] = None  # the keys and values of all but the array

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.base, self.shape, self.strides[:-1], self.form)

    @property
    def form(self) -> DescriptorForm:
        """What is baked in."""
        return self._form_of(handler_of(self.base)(self.base)[0])

    def _form_of(self, key: Key) -> DescriptorForm:
        if place_of(key) is None:
            raise LaunchError(f"a TensorDescriptor of {described(self.base)}, expected one of "
                              "an array", None, "give an array of numpy, torch or cupy")
        if not isinstance(self.padding, str):
            raise LaunchError(f"a TensorDescriptor has the padding {shown(self.padding)}", None,
                              'give "zero" or "nan"')
        return _form(self.block_shape, self.padding, key[0])

    def read(self) -> tuple[Key, tuple[Any, ...]]:
        key, address = handler_of(self.base)(self.base)
        fixed = self.__dict__["_fixed"]
        if fixed is None or place_of(key) is None:
            fixed = self.__dict__["_fixed"] = _fix(self.shape, self.strides,
                                                  self._form_of(key))
        keys, values = fixed
        return (key, *keys), (address, *values)

    def as_numpy(self) -> Any:
        """The tensor as a view of host memory; LaunchError if the array ends before it does."""
        from numpy.lib.stride_tricks import as_strided  # a kernel on the CPU needs numpy anyway

        array = host.as_numpy(self.base)
        size, start = array.itemsize, array.ctypes.data
        strides = tuple(s * size for s in self.strides)
        low, high = storage_of(array)
        first, last = host.View(start, array.dtype, tuple(self.shape), strides).span()
        if all(self.shape) and not (low <= first and last <= high):
            raise LaunchError(
                f"a tensor of shape {self.shape} and strides {self.strides} in an array of shape "
                f"{array.shape} begins {max(low - first, 0) // size} elements before it and ends "
                f"{max(last - high, 0) // size} past it", None,
                "give the extents that the array has; where blocks end is seen to")
        # as_strided knows plain types only.
        return as_strided(array.view(f"V{size}"), self.shape, strides).view(array.dtype)


# Kernels are launched with new descriptors of old shapes again and again.
@lru_cache(maxsize=1024)
def _form(block_shape: tuple[int, ...], padding: str, short: str) -> DescriptorForm:
    return check_form(block_shape, padding, dt.from_name(short), "a TensorDescriptor")


@lru_cache(maxsize=4096)
def _fix(shape: tuple[int, ...], strides: tuple[int, ...], form: DescriptorForm
         ) -> tuple[tuple[Key, ...], tuple[Any, ...]]:
    """The keys and values of all but the array."""
    wrong = advice = ""
    if not len(shape) == len(strides) == len(form.block_shape):
        wrong = f"shape {shape}, strides {strides} and blocks of {form.block_shape}, expected " \
            "equal numbers of dimensions"
        advice = "give an extent, a stride and a block's extent for each dimension of the tensor"
    elif not all(0 <= n < 1 << 31 for n in shape):
        wrong = f"shape {shape}, expected extents from 0 to 2**31 - 1"
        advice = "describe a part of the array"
    elif strides[-1] != 1:
        wrong = f"strides {strides}, expected 1 as the last one"
        advice = "neighbours in a row must lie side by side: describe the transpose, or copy it"
    elif not all(-(1 << 63) <= s < 1 << 63 for s in strides):
        wrong = f"strides {strides}, expected 64 bits"
        advice = "strides count elements"
    if wrong:
        raise LaunchError(f"a TensorDescriptor has {wrong}", None, advice)
    outer = strides[:-1]
    # TMA has no strides below 1: such a tensor moves by pointers.
    return ((tuple(("i32", n % 16 == 0) for n in shape),
             tuple(("i64", s % 16 == 0 and s > 0) for s in outer), Const(DescriptorForm, form)),
            (*shape, *outer, form))
