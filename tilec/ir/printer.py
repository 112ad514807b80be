"""Module -> text. One uniform format for every op; deterministic; `parse(print(m)) == m`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from tilec.errors import Location
from tilec.ir.core import UNKNOWN, Block, Func, Module, Op, Value
from tilec.ir.layouts import Layout
from tilec.ir.types import MemDesc, Tensor, TensorMap, Type

_NOT_A_NAME = re.compile(r"[^\w.$]")


def print_module(module: Module, locations: bool = False, names: bool = True) -> str:
    """The text of a module.

    locations: add `loc(...)` to every op. names: keep the author's names; else number all values
    (two modules are equal when their numbered texts are).
    """
    return _Printer(locations, names).module(module)


def print_op(op: Op) -> str:
    """The text of one op (with its regions), for messages; operands keep their hints."""
    printer = _Printer(False, True)
    printer.op(op, 0)
    return "\n".join(printer.lines)


def equal(a: Module, b: Module) -> bool:
    """Whether two modules are the same but for names and locations."""
    return print_module(a, names=False) == print_module(b, names=False)


class _Printer:
    def __init__(self, locations: bool, names: bool) -> None:
        self.locations, self.keep_names = locations, names
        self.lines: list[str] = []
        self.aliases: dict[str, str] = {}
        self.names: dict[Value, str] = {}
        self.taken: dict[str, int] = {}

    def module(self, module: Module) -> str:
        for func in module.funcs:
            self.func(func)
        head = [f"{alias} = {text}" for text, alias in self.aliases.items()]
        attrs = self.attrs(module.attributes)
        head.append(f"module attributes {attrs} {{" if attrs else "module {")
        return "\n".join([*head, *self.lines, "}"]) + "\n"

    def func(self, func: Func) -> None:
        self.names, self.taken = {}, {}
        params = []
        for arg, attributes in zip(func.args, func.arg_attrs, strict=True):
            attrs = self.attrs(attributes)
            params.append(f"{self.value(arg)}: {self.type(arg.type)}" + (f" {attrs}" * bool(attrs)))
        self.lines.append(f"  func @{func.name}({', '.join(params)}) {{")
        for op in func.body:
            self.op(op, 2)
        self.lines.append("  }" + self.loc(func.loc))

    def op(self, op: Op, depth: int) -> None:
        pad = "  " * depth
        names = ", ".join(map(self.value, op.results))
        text = f"{pad}{names} = " if names else pad
        text += f"{op.name}({', '.join(map(self.value, op.operands))})"
        attrs = self.attrs(op.attributes)
        if attrs:
            text += f" {attrs}"
        for i, block in enumerate(op.regions):
            self.lines.append(text + self.region_head(block))
            for inner in block:
                self.op(inner, depth + 1)
            text = pad + "}" if i + 1 == len(op.regions) else pad + "},"
        if op.results:
            text += " : " + ", ".join(self.type(r.type) for r in op.results)
        self.lines.append(text + self.loc(op.loc))

    def region_head(self, block: Block) -> str:
        if not block.args:
            return " {"
        args = ", ".join(f"{self.value(a)}: {self.type(a.type)}" for a in block.args)
        return f" {{ ^({args}):"

    def value(self, value: Value) -> str:
        if value not in self.names:
            hint = _NOT_A_NAME.sub("_", value.name) if self.keep_names else ""
            hint = "" if hint.isdigit() else hint  # numbers are for values without a name
            count = self.taken.get(hint, 0)
            name = f"{hint}_{count}" if hint and count else hint or str(count)
            while hint and name in self.taken:
                count += 1
                name = f"{hint}_{count}"
            self.taken[hint] = count + 1
            self.taken.setdefault(name, 1)
            self.names[value] = f"%{name}"
        return self.names[value]

    def type(self, t: Type) -> str:
        return t.text(self.layout) if isinstance(t, (Tensor, MemDesc, TensorMap)) else str(t)

    def layout(self, layout: Layout) -> str:
        text = str(layout)
        if text not in self.aliases:
            letter = layout.name[0]
            same = sum(a[1] == letter for a in self.aliases.values())
            self.aliases[text] = f"#{letter}{same}"
        return self.aliases[text]

    def attrs(self, attributes: dict[str, Any]) -> str:
        if not attributes:
            return ""
        return "{" + ", ".join(f"{k} = {self.attr(v)}" for k, v in attributes.items()) + "}"

    def attr(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, float)):
            return repr(value)
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, Type):
            return self.type(value)
        if isinstance(value, Layout):
            return self.layout(value)
        assert isinstance(value, Iterable), f"attribute of type {type(value).__name__}"
        return "[" + ", ".join(map(self.attr, value)) + "]"

    def loc(self, loc: Location) -> str:
        if not self.locations or loc is UNKNOWN:
            return ""
        sites = (f"{json.dumps(p.file)}:{p.line}:{p.col + 1}" for p in loc.chain())
        return f" loc({' at '.join(sites)})"
