"""Argument types of a compiled kernel: `ArgSpec` and its text, as in "*fp32:16" or "i32".

A type in a signature is a text, a `tl` dtype, an IR type or an `ArgSpec`; ":16" says that the
value, or the address, is divisible by 16. "tensordesc<bf16[128, 64]>" is a tensor descriptor with
blocks of that shape; ":16" after it is about its address, its last extent and its strides; with
", nan" before the ">" what lies outside reads as NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilec.errors import CompilationError, TilecError, did_you_mean, shown
from tilec.frontend.function import Function
from tilec.ir import types as ir
from tilec.language import dtypes as dt
from tilec.language.descriptors import check_form
from tilec.language.values import constexpr, like

_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[(\d+(?:, *\d+)*)\](?:, *(\w+))?>(:.*)?")
MAX_NESTING = 32  # of tuples in one another
_KNOWN = [prefix + name for t in dt.ALL for name in (t.short, t.name) for prefix in ("", "*", "*k")]


@dataclass(frozen=True)
class ArgSpec:
    """The IR type of a run-time argument, and a divisor of its value (1 if none is known)."""

    type: ir.Element
    divisibility: int = 1

    def __str__(self) -> str:
        short = dt.of_ir(self.type).short
        return f"{short}:{self.divisibility}" if self.divisibility > 1 else short


# A tuple argument: a spec for each element, or a constexpr for one that is baked in.
Spec = ArgSpec | tuple["Spec | constexpr", ...]


def check_nesting(given: Sequence[Any], what: str, depth: int = 1) -> None:
    """CompilationError for tuples and lists nested more than MAX_NESTING deep, as a list is that
    holds itself."""
    if depth > MAX_NESTING:
        raise CompilationError(f"{what} has tuples nested more than {MAX_NESTING} deep", None,
                               "give a flat one")
    for part in given:
        if isinstance(part, (tuple, list)):
            check_nesting(part, what, depth + 1)


def parse_spec(given: Any, name: str = "") -> Spec:
    """An ArgSpec of any spelling; tuples and lists stay tuples, `tl.constexpr(value)` in them is
    kept. CompilationError, naming the parameter `name`, if it is no type of an argument."""
    if isinstance(given, ArgSpec):
        return given
    if isinstance(given, (tuple, list)):
        check_nesting(given, f"the type of `{name}`")
        parts = [g if isinstance(g, constexpr) else parse_spec(g, f"{name}[{i}]")
                 for i, g in enumerate(given)]
        return like(tuple(given) if isinstance(given, list) else given, parts)
    where = f"the type of `{name}`" if name else "an argument type"
    if isinstance(given, str):
        return _parse_text(given.strip(), where)
    try:
        found = dt.from_any(given)
    except TilecError as e:
        raise CompilationError(f"{where} is {shown(given)}: {e.message}", None,
                               'give a text such as "*fp32" or "i32", or a tl dtype') from None
    return ArgSpec(_element(found, str(given), where))


def _parse_text(text: str, where: str) -> Spec:
    described = _DESCRIPTOR.fullmatch(text)
    if described is not None:
        return _descriptor(described, where)
    base, colon, number = text.partition(":")
    base = base.strip()
    try:
        found = dt.from_name(base)
    except TilecError:
        if base == "constexpr":
            advice = "leave it out of the signature and put its value into `constexprs`"
        else:
            advice = did_you_mean(base, _KNOWN) or \
                'types are "i32", "fp16", "*fp32" (a pointer), "*kfp32" (a const pointer), ...'
        raise CompilationError(f"{where} is {text!r}, which is no type", None, advice) from None
    divisibility = 1
    if colon:
        if not number.strip().isdigit() or int(number) < 1:
            raise CompilationError(f"{where} is {text!r}: `{number.strip()}` is no divisor", None,
                                   f'write "{base}:16", or "{base}" alone')
        divisibility = int(number)
    return ArgSpec(_element(found, text, where), divisibility)


def _descriptor(found: re.Match[str], where: str) -> Spec:
    """What a tensor descriptor counts as: an array, extents, strides but the last, and a form."""
    name, block, padding, divisor = found.groups("")
    pointer = _parse_text(f"*{name}{divisor}", where)
    assert isinstance(pointer, ArgSpec)
    extents = tuple(map(int, block.split(",")))
    form = check_form(extents, padding or "zero", dt.from_name(name), where)
    divides, outer = pointer.divisibility, len(extents) - 1
    shape = (ArgSpec(ir.i32),) * outer + (ArgSpec(ir.i32, divides),)
    return pointer, shape, (ArgSpec(ir.i64, divides),) * outer, constexpr(form)


def _element(found: dt.dtype, text: str, where: str) -> ir.Element:
    if found.ir is None or found.is_block():
        raise CompilationError(f"{where} is {text!r}, which no argument can have", None,
                               "arguments are scalars and pointers")
    return found.ir


def check_names(fn: Function, given: Iterable[str]) -> None:
    """CompilationError for a name that is no parameter of `fn`."""
    names = [p.name for p in fn.params]
    for name in given:
        if name not in names:
            raise CompilationError(
                f"`{fn.name}` has no parameter `{name}`", fn.def_location,
                did_you_mean(name, names) or f"its parameters are {', '.join(names)}")


def parse_signature(fn: Function, signature: Mapping[str, Any]) -> dict[str, Spec]:
    """The specs of `signature`, in the order of the parameters. CompilationError for a name that
    is no parameter, or a type that is none."""
    check_names(fn, signature)
    names = [p.name for p in fn.params]
    return {name: parse_spec(signature[name], name) for name in names if name in signature}


def format_spec(spec: Spec | constexpr) -> str:
    """The text of a spec."""
    if isinstance(spec, constexpr):
        return f"={spec.value!r}"
    if isinstance(spec, tuple):
        return "(" + ", ".join(map(format_spec, spec)) + ")"
    return str(spec)
