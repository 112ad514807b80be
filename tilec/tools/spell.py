"""Tile IR as a kernel in Python, for the ops that an author can write."""

from __future__ import annotations

import keyword
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tilec.frontend.signature import ArgSpec
from tilec.ir import ops
from tilec.ir.core import Block, Func, Module, Op, Value
from tilec.ir.ops.elementwise import MathUnary
from tilec.ir.types import Pointer, Scalar, Type, element_of, shape_of
from tilec.language import dtypes as dt
from tilec.runtime.aot import specialized
from tilec.tools.compile import load, split_signature

HEADER = "import tilec\nimport tilec.language as tl\n\n\n"
INFIX: dict[type[Op], str] = {
    ops.Add: "+", ops.Sub: "-", ops.Mul: "*", ops.Rem: "%", ops.And: "&", ops.Or: "|",
    ops.Xor: "^", ops.Shl: "<<", ops.Shr: ">>", ops.AddPtr: "+"}
FLOATS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
          "fp8e4nv": "float8e4nv", "fp8e5": "float8e5"}
COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Python(NamedTuple):
    """A kernel's source, and the types of its arguments as tilec-compile takes them."""

    source: str
    signature: str


class Unspeakable(Exception):
    """An op that an author cannot write."""


def spelled(module: Module) -> Python | None:
    """The first function of a tile module as a kernel; None where an op has no spelling."""
    func = module.funcs[0]
    if module.level != "tile" or not all(isinstance(a.type, (Scalar, Pointer)) for a in func.args):
        return None
    try:
        source = _Speller(func).source()
    except Unspeakable:
        return None
    specs = [ArgSpec(element_of(a.type), have.get("divisibility", 1))
             for a, have in zip(func.args, func.arg_attrs, strict=True)]
    return Python(source, ", ".join(map(str, specs)))


def module_of(python: Python, like: Module) -> Module:
    """The tile module that the front end makes of a source, with another module's attributes.
    Raises TilecError."""
    name = like.funcs[0].name
    with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
        path = Path(folder) / f"{name}_reduced.py"
        path.write_text(python.source)
        fn = load(path, name)
        signature, constexprs = split_signature(fn, python.signature)
        made = specialized(fn, signature, constexprs, num_warps=like.num_warps,
                           target=like.attributes.get("target"))
        module = made.build()
    module.attributes |= like.attributes
    return module


class _Speller:
    """Writes one function, line by line; each value has a name."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.names: dict[Value, str] = {}
        self.taken = {"tl", "tilec", "range", func.name}
        self.lines: list[str] = []
        self.helpers: list[str] = []

    def source(self) -> str:
        """The file's text."""
        names = ", ".join(map(self.name, self.func.args))
        self.block(self.func.body, "    ")
        body = "\n".join(self.lines or ["    pass"])
        return HEADER + "".join(self.helpers) + \
            f"@tilec.jit\ndef {self.func.name}({names}):\n{body}\n"

    def name(self, value: Value) -> str:
        """The value's name, of its own in the file."""
        if value not in self.names:
            wish = value.name if value.name.isidentifier() and value.name.isascii() and \
                not keyword.iskeyword(value.name) else "v"
            n, name = 0, wish if wish != "v" else "v0"
            while name in self.taken:
                n += 1
                name = f"{wish}_{n}" if wish != "v" else f"v{n}"
            self.names[value] = name
            self.taken.add(name)
        return self.names[value]

    def all(self, values: Sequence[Value]) -> str:
        """Names by comma."""
        return ", ".join(map(self.name, values))

    def block(self, block: Block, indent: str) -> None:
        """The ops of a block but for its end."""
        for op in block:
            if isinstance(op, ops.For):
                self.loop(op, indent)
            elif isinstance(op, ops.If):
                self.branch(op, indent)
            elif not op.terminator:
                text = self.expression(op)
                target = f"{self.all(op.results)} = " if op.results else ""
                self.lines.append(f"{indent}{target}{text}")

    def assign(self, targets: Sequence[Value], sources: Sequence[Value], indent: str) -> None:
        """One assignment of several values at once."""
        if targets:
            self.lines.append(f"{indent}{self.all(targets)} = {self.all(sources)}")

    def loop(self, op: ops.For, indent: str) -> None:
        """A for loop; its results have the names of what it carries."""
        carried = op.body.args[1:]
        self.assign(carried, op.init, indent)
        self.lines.append(f"{indent}for {self.name(op.body.args[0])} in "
                          f"range({self.all((op.lo, op.hi, op.step))}):")
        self.body(op.body, carried, indent)
        self.assign(op.results, carried, indent)

    def branch(self, op: ops.If, indent: str) -> None:
        """An if statement."""
        self.lines.append(f"{indent}if {self.name(op.cond)}:")
        self.body(op.then, op.results, indent)
        self.lines.append(f"{indent}else:")
        self.body(op.orelse, op.results, indent)

    def body(self, block: Block, targets: Sequence[Value], indent: str) -> None:
        """A region, whose end assigns to `targets`."""
        before = len(self.lines)
        self.block(block, indent + "    ")
        self.assign(targets, block.terminator.operands, indent + "    ")
        if len(self.lines) == before:
            self.lines.append(f"{indent}    pass")

    def expression(self, op: Op) -> str:
        """What an op computes or does."""
        names = [self.name(v) for v in op.operands]
        if type(op) in INFIX:
            return f"{names[0]} {INFIX[type(op)]} {names[1]}"
        for kind, spell in SPELLINGS.items():
            if isinstance(op, kind):
                return spell(self, op, names)
        raise Unspeakable(op.name)

    def helper(self, op: ops.Combining) -> str:
        """The name of a function that does what the region of a reduction or scan does."""
        inner = _Speller(Func(f"combine_{len(self.helpers)}", Block()))
        inner.taken |= self.taken
        names = inner.all(op.body.args)
        inner.block(op.body, "    ")
        inner.lines.append(f"    return {inner.all(op.body.terminator.operands)}")
        self.taken.add(inner.func.name)
        lines = "\n".join(inner.lines)
        self.helpers.append(f"@tilec.jit\ndef {inner.func.name}({names}):\n{lines}\n\n\n")
        return inner.func.name


def _dtype(t: Type) -> str:
    element = element_of(t)
    if isinstance(element, Pointer):
        return f"tl.pointer_type({_dtype(element.pointee)})"
    name = dt.of_ir(element).name
    return f"tl.{FLOATS.get(name, name)}"


def _shape(t: Type) -> str:
    return str(shape_of(t))


def _literal(value: Any) -> str:
    return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'


def _access(op: ops.Load | ops.Store | ops.Atomic, name: str, first: int,
            names: Sequence[str]) -> str:
    """A call with the optional operands by name, and the attributes."""
    parts = [*names[:first], *(f"{k}={v}" for k, v in zip(("mask", "other"), names[first:]))]
    shown = {"cache": "cache_modifier", "eviction": "eviction_policy", "sem": "sem",
             "scope": "scope", "volatile": "volatile"}
    parts += [f"{word}={op.attributes[k]!r}" for k, word in shown.items() if k in op.attributes]
    return f"tl.{name}({', '.join(parts)})"


def _cast(s: _Speller, op: ops.Cast, n: Sequence[str]) -> str:
    rounding = "" if op.rounding == "rtne" else f", fp_downcast_rounding={op.rounding!r}"
    return f"{n[0]}.to({_dtype(op.result.type)}{rounding})"


def _dot(s: _Speller, op: ops.Dot, n: Sequence[str]) -> str:
    return (f"tl.dot({', '.join(n)}, input_precision={op.input_precision!r}, "
            f"out_dtype={_dtype(op.result.type)})")


def _combining(s: _Speller, op: ops.Combining, n: Sequence[str]) -> str:
    inputs = n[0] if len(n) == 1 else f"({', '.join(n)})"
    name, rest = "reduce", ""
    if isinstance(op, ops.Scan):
        name, rest = "associative_scan", f", reverse={op.reverse}"
    return f"tl.{name}({inputs}, {op.axis}, {s.helper(op)}{rest})"


SPELLINGS: dict[type[Op], Callable[[_Speller, Any, Sequence[str]], str]] = {
    ops.Constant: lambda s, op, n: f"tl.full({_shape(op.result.type)}, {_literal(op.value)}, "
                                   f"{_dtype(op.result.type)})",
    ops.ProgramId: lambda s, op, n: f"tl.program_id({op.axis})",
    ops.NumPrograms: lambda s, op, n: f"tl.num_programs({op.axis})",
    ops.Arange: lambda s, op, n: f"tl.arange({op.start}, {op.end})",
    ops.Splat: lambda s, op, n: f"tl.broadcast_to({n[0]}, {_shape(op.result.type)})",
    ops.Broadcast: lambda s, op, n: f"tl.broadcast_to({n[0]}, {_shape(op.result.type)})",
    ops.ExpandDims: lambda s, op, n: f"tl.expand_dims({n[0]}, {op.axis})",
    ops.Reshape: lambda s, op, n: f"tl.reshape({n[0]}, {_shape(op.result.type)})",
    ops.Gather: lambda s, op, n: f"tl.gather({n[0]}, {n[1]}, {op.axis})",
    ops.Histogram: lambda s, op, n: f"tl.histogram({n[0]}, {op.bins})",
    ops.Trans: lambda s, op, n: f"tl.permute({n[0]}, {op.order})",
    ops.Join: lambda s, op, n: f"tl.join({n[0]}, {n[1]})",
    ops.Split: lambda s, op, n: f"tl.split({n[0]})[{op.index}]",
    ops.Div: lambda s, op, n: f"tl.div_rn({n[0]}, {n[1]})" if op.rounded else
                              f"{n[0]} {'/' if _is_float(op) else '//'} {n[1]}",
    ops.Cmp: lambda s, op, n: f"{n[0]} {COMPARED[op.predicate]} {n[1]}",
    ops.Minimum: lambda s, op, n: f"tl.minimum({n[0]}, {n[1]}, {op.propagate_nan})",
    ops.Maximum: lambda s, op, n: f"tl.maximum({n[0]}, {n[1]}, {op.propagate_nan})",
    ops.Select: lambda s, op, n: f"tl.where({', '.join(n)})",
    ops.Fma: lambda s, op, n: f"tl.fma({', '.join(n)})",
    ops.Neg: lambda s, op, n: f"-{n[0]}", ops.Not: lambda s, op, n: f"~{n[0]}",
    ops.Abs: lambda s, op, n: f"tl.abs({n[0]})",
    MathUnary: lambda s, op, n: f"tl.{op.name.removeprefix('tile.')}({n[0]})",
    ops.Cast: _cast, ops.Dot: _dot, ops.Combining: _combining,
    ops.Bitcast: lambda s, op, n: f"{n[0]}.to({_dtype(op.result.type)}, bitcast=True)",
    ops.Load: lambda s, op, n: _access(op, "load", 1, n),
    ops.Store: lambda s, op, n: _access(op, "store", 2, n),
    ops.AtomicRmw: lambda s, op, n: _access(op, f"atomic_{op.kind}", 2, n),
    ops.AtomicCas: lambda s, op, n: _access(op, "atomic_cas", 3, n),
    ops.Print: lambda s, op, n: f"tl.device_print({', '.join([repr(op.prefix), *n])}, "
                                f"hex={op.hex})",
    ops.Assume: lambda s, op, n: f"tl.assume({n[0]})",
    ops.Barrier: lambda s, op, n: "tl.debug_barrier()",
}


def _is_float(op: Op) -> bool:
    element = element_of(op.operands[0].type)
    return isinstance(element, Scalar) and element.is_float
