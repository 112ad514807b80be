"""What a module and the parameters of its kernels may say: one declaration for each attribute, from
which the parser's and the verifier's checks derive, and the tables in docs/levels.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tilec.errors import TilecError, did_you_mean
from tilec.ir.clusters import CLUSTER_SIZES
from tilec.ir.core import AttrField, Func
from tilec.ir.descriptors import tma_boxes
from tilec.ir.ops.scf import MAX_STAGES
from tilec.ir.types import Pointer, Scalar, TensorMap, Type
from tilec.target import Target

LEVELS = ("tile", "gpu", "lowered")
MAX_MODULE_WARPS = 64  # more than a CTA may have are refused where resources are counted
MAX_DIVISIBILITY = 1 << 30
MAX_SHARED = 1 << 24  # bytes; what a target has is checked where resources are counted
Table = Mapping[str, AttrField]


class _Target(AttrField):
    """The name of a target."""

    def check(self, value: Any) -> str:
        if message := super().check(value):
            return message
        try:
            Target.parse(value)
        except TilecError as e:
            return f"attribute `{self.name}`: {e.message}"
        return ""


def _table(*fields: AttrField) -> Table:
    return {field.name: field for field in fields}


def _flag(name: str, doc: str) -> AttrField:
    return AttrField(bool, False, name=name, doc=doc)


def _int(name: str, least: int, most: int, doc: str, default: int = 0) -> AttrField:
    return AttrField(int, default, least=least, most=most, name=name, doc=doc)


def _list(name: str, of: type, doc: str) -> AttrField:
    return AttrField(tuple, (), of=of, least=0, name=name, doc=doc)


MODULE: Table = _table(
    AttrField(str, "tile", choices=LEVELS, name="level", doc="how far the passes have come"),
    _Target(str, "", name="target", doc="what the passes compile for"),
    _int("num_warps", 1, MAX_MODULE_WARPS, "warps a CTA", 4),
    _int("num_stages", 1, MAX_STAGES, "stages of loops that ask for no number of their own", 3),
    AttrField(int, 1, choices=CLUSTER_SIZES, name="num_ctas", doc="CTAs a cluster"),
    _flag("debug", "assertions stay"),
    _flag("checks", "accesses, promises and waits are checked when the kernel runs"),
    _int("maxnreg", 0, 256, "most registers a thread, 0 for no limit"),
    _flag("launch_pdl", "the kernel may begin before the one before it in the stream has ended"),
    AttrField(bool, True, name="find_boxes", doc="tiles of pointers may go by TMA"),
    _int("shared", 0, MAX_SHARED, "bytes of shared memory, set by allocate_shared"))

# Those after the first one are of a tensor map that the launch makes; see tensor_maps.py.
PARAMETER: Table = _table(
    _int("divisibility", 1, MAX_DIVISIBILITY, "a divisor of the argument (of the address)", 1),
    _int("base", 0, 1 << 16, "the number of the parameter that points to the tensor"),
    _list("extents", str, "expressions over parameters, one a dimension"),
    _list("strides", str, "expressions over parameters, in elements"),
    _list("apart", int, "parameters that must not be the same buffer"),
    _flag("stored", "rows must be multiples of 16 bytes"),
    _list("places", str, "where blocks begin, of a map that an author's pointers make up"),
    _list("reach", int, "the blocks' extents"),
    _flag("narrow", "the blocks' addresses had 32 bits"))


def wrong(table: Table, name: str, value: Any) -> tuple[str, str]:
    """What is wrong with an attribute, or an empty string; and advice."""
    if name not in table:
        return f"there is no attribute `{name}`", did_you_mean(name, table) or \
            f"there are {', '.join(table)}"
    return table[name].check(value), ""


def wrong_parameters(func: Func) -> Iterator[tuple[int, str]]:
    """(number of a parameter, what is wrong with its type or attributes)."""
    for i, (arg, have) in enumerate(zip(func.args, func.arg_attrs, strict=True)):
        for name, value in have.items():
            if message := wrong(PARAMETER, name, value)[0]:
                yield i, message
        if "base" in have:
            yield from ((i, message) for message in _wrong_map(func, arg.type, have))


def _wrong_map(func: Func, t: Type, have: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(t, TensorMap):
        yield "only a tensor map has a base"
        return
    numbers = [have["base"], *have.get("apart", ())]
    if any(not isinstance(n, int) or not 0 <= n < len(func.args) or
           not isinstance(func.args[n].type, Pointer) for n in numbers):
        yield f"base and apart are {numbers}, expected numbers of pointers among the parameters"
    for name in ("extents", "strides"):
        for text in have.get(name, ()):
            if any(int(n) >= len(func.args) or not _is_integer(func.args[int(n)].type)
                   for n in re.findall(r"\$(\d{1,9})", text)):
                yield f"{name} is over $n, expected numbers n of integers among the parameters"
    names = ["extents", "strides"] + ["reach"] * bool(have.get("places"))
    for name in names:
        if len(have.get(name, ())) != len(t.shape):
            yield f"{name} has {len(have.get(name, ()))} entries, the map {len(t.shape)} dimensions"
    try:
        tma_boxes(t)
    except ValueError as e:
        yield str(e)


def _is_integer(t: Type) -> bool:
    return isinstance(t, Scalar) and t.is_int


def describe(table: Table) -> str:
    """The attributes as a Markdown table, which docs/levels.md prints."""
    rows = [("attribute", "values", "default", "meaning"), ("---",) * 4]
    rows += [(f"`{name}`", field.values(), _shown(field.default), field.doc)
             for name, field in table.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _shown(default: Any) -> str:
    return "" if default in ("", ()) else str(default).lower()

