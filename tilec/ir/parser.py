"""Text -> Module, by the grammar in tilec.lark. Every error names the line of the text."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from tilec.errors import IRError, Location, did_you_mean
from tilec.ir import ops  # noqa: F401  (registers the ops)
from tilec.ir.attributes import MODULE, PARAMETER, Table, wrong
from tilec.ir.core import MISSING, OP_CLASSES, UNFIT, UNKNOWN, Block, Func, Module, Op, Value
from tilec.ir.layouts import Layout, layout_from_fields
from tilec.ir.ops.tile import MAX_ELEMENTS
from tilec.ir.types import SCALARS, MemDesc, Pointer, Scalar, Tensor, TensorMap, Token, Type

MAX_NESTING = 64  # of brackets: Python's stack has room for as many regions in every pass
MAX_DIGITS = 20  # of an integer that 64 bits hold
_BRACKETS = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|([\[{(<])|[\]})>]', re.S)

@cache
def _lark(start: str) -> Any:
    from lark import Lark  # loaded on first use: 50 ms

    grammar = Path(__file__).with_name("tilec.lark").read_text()
    return Lark(grammar, parser="lalr", start=start, propagate_positions=True,
                maybe_placeholders=True)


def parse(text: str, filename: str = "<text>") -> Module:
    """The module that `text` spells; IRError, with the place, where it is not well formed."""
    tree = _tree(text, filename, "start")
    return _Parser(filename).module(tree)


def read(path: Path) -> str:
    """The text of a file; IRError where it has none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise IRError(f"{path} cannot be read: {e}", None, "save it as UTF-8") from None


def parse_layout(text: str) -> Layout:
    """A layout from its text, e.g. `blocked<{sizePerThread = [1], ...}>`; IRError if malformed."""
    return _Parser("<layout>").layout(_tree(text, "<layout>", "layout"))


def parse_type(text: str) -> Type:
    """A type from its text, e.g. `tensor<16xf32>`; IRError if malformed."""
    return _Parser("<type>").type(_tree(text, "<type>", "type"))


def _tree(text: str, filename: str, start: str) -> Any:
    from lark.exceptions import UnexpectedInput

    # Carets in errors read the text through linecache, as for a file.
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    _check_text(text, filename)
    try:
        return _lark(start).parse(text)
    except UnexpectedInput as e:
        names = getattr(e, "accepts", None) or getattr(e, "expected", None) or \
            getattr(e, "allowed", None) or ()
        expected = sorted(_spelling(start, n) for n in names if n not in ("WS", "COMMENT"))
        token = getattr(e, "token", None)
        found = "the end of the text" if getattr(token, "type", "") == "$END" else \
            f"`{getattr(e, 'char', '') if token is None else token}`"
        line = e.line if e.line and e.line > 0 else len(text.splitlines())
        loc = Location(filename, line, max(0, (e.column or 1) - 1))
        raise IRError(f"unexpected {found}, expected {' or '.join(expected)}", loc) from None


def _check_text(text: str, filename: str) -> None:
    """IRError where no file could hold the text, or where brackets are nested too deep."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        if found[1]:
            depth += 1
            if depth > MAX_NESTING:
                raise IRError(f"brackets are nested more than {MAX_NESTING} deep",
                              _location(text, filename, found.start()))
        elif found[0] in "]})>":
            depth -= 1
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise IRError("half of a surrogate pair, which is no character",
                      _location(text, filename, e.start)) from None


def _location(text: str, filename: str, at: int) -> Location:
    line = text.rfind("\n", 0, at) + 1
    return Location(filename, text.count("\n", 0, at) + 1, at - line)


def _spelling(start: str, terminal: str) -> str:
    """A terminal as an author writes it, or by its name in the grammar."""
    if terminal == "$END":
        return "the end of the text"
    pattern = _lark(start).get_terminal(terminal).pattern
    return f"`{pattern.value}`" if pattern.type == "str" else terminal


class _Parser:
    """Walks the tree by hand, with a scope of values."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.layouts: dict[str, Layout] = {}
        self.values: dict[str, Value] = {}

    def place(self, node: Any) -> Location:
        meta = getattr(node, "meta", node)
        line = getattr(meta, "line", 0)
        return Location(self.filename, line or 0, (getattr(meta, "column", 1) or 1) - 1)

    def error(self, node: Any, message: str, advice: str = "") -> IRError:
        return IRError(message, self.place(node), advice)

    def module(self, tree: Any) -> Module:
        *aliases, module = tree.children
        for alias in aliases:
            name, layout = alias.children
            if str(name) in self.layouts:
                raise self.error(name, f"{name} is defined twice")
            self.layouts[str(name)] = self.layout(layout)
        attrs, *funcs = module.children
        return Module([self.func(f) for f in funcs], self.declared(attrs, MODULE, "the module"))

    def func(self, tree: Any) -> Func:
        symbol, params, block, loc = tree.children
        self.values = {}
        body = Block()
        arg_attrs = self.params(params, body)
        for op in block.children:
            body.insert(self.op(op))
        return Func(str(symbol)[1:], body, arg_attrs, self.loc(loc))

    def params(self, tree: Any, block: Block) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        for param in tree.children if tree is not None else ():
            name, t, attrs = param.children
            self.define(name, block.add_arg(self.type(t)))
            out.append(self.declared(attrs, PARAMETER, str(name)))
        return out

    def declared(self, tree: Any, table: Table, owner: str) -> dict[str, Any]:
        """Attributes of a module or a parameter, after a check against their declarations."""
        out = self.attrs(tree)
        for name, value in out.items():
            message, advice = wrong(table, name, value)
            if message:
                raise self.error(tree, f"{owner}: {message}", advice)
        return out

    def define(self, token: Any, value: Value) -> None:
        name = str(token)[1:]
        if name in self.values:
            raise self.error(token, f"%{name} is defined twice")
        self.values[name] = value
        value.name = "" if name.isdigit() else name

    def use(self, token: Any) -> Value:
        name = str(token)[1:]
        if name not in self.values:
            raise self.error(token, f"%{name} is not defined here", did_you_mean(name, self.values))
        return self.values[name]

    def op(self, tree: Any) -> Op:
        results, opname, values, attrs, regions, types, loc = tree.children
        cls = OP_CLASSES.get(str(opname))
        if cls is None:
            raise self.error(opname, f"there is no op `{opname}`",
                             did_you_mean(str(opname), OP_CLASSES))
        operands = [self.use(v) for v in values.children] if values is not None else []
        named = self.op_attrs(cls, opname, attrs)
        blocks = [self.region(r) for r in regions.children] if regions is not None else []
        if len(blocks) != len(cls.region_fields):
            raise self.error(opname, f"{opname} has {len(blocks)} regions, expected "
                                     f"{len(cls.region_fields)}")
        named |= {f.name: b for f, b in zip(cls.region_fields, blocks, strict=True)}
        given = [self.type(t) for t in types.children] if types is not None else None
        op = self.build(cls, opname, operands, named, given, self.loc(loc))
        names = results.children if results is not None else []
        if len(names) != len(op.results):
            raise self.error(opname, f"{opname} has {len(op.results)} results, "
                                     f"{len(names)} are named")
        for name, result in zip(names, op.results, strict=True):
            self.define(name, result)
        return op

    def build(self, cls: type[Op], node: Any, operands: Sequence[Value], named: dict[str, Any],
              types: Sequence[Type] | None, loc: Location) -> Op:
        least = sum(not (f.optional or f.variadic) for f in cls.operand_fields)
        most = None if any(f.variadic for f in cls.operand_fields) else len(cls.operand_fields)
        if len(operands) < least or (most is not None and len(operands) > most):
            raise self.error(node, f"{cls.name} has {len(operands)} operands, expected "
                                   f"{least if most == least else f'{least} or more'}")
        if types is None:
            types = []
        try:
            return cls(operands, types=types, loc=loc, **named)
        except IRError as e:
            raise self.error(node, e.message) from None
        except UNFIT as e:
            raise self.error(node, f"{cls.name}: operands do not fit: {e}") from None

    def op_attrs(self, cls: type[Op], node: Any, tree: Any) -> dict[str, Any]:
        out = self.attrs(tree)
        for name in out:
            if name not in cls.attr_fields:
                raise self.error(node, f"{cls.name} has no attribute `{name}`",
                                 did_you_mean(name, cls.attr_fields))
        for name, field in cls.attr_fields.items():
            if field.default is MISSING and name not in out:
                raise self.error(node, f"{cls.name}: attribute `{name}` is missing")
        return out

    def region(self, tree: Any) -> Block:
        params, *body = tree.children
        # Names defined inside end with the region; names from outside stay visible.
        outer = dict(self.values)
        block = Block()
        self.params(params, block)
        for op in body:
            block.insert(self.op(op))
        if block.last is None or not block.last.terminator:
            raise self.error(tree, "a region must end with a terminator such as scf.yield")
        self.values = outer
        return block

    def attrs(self, tree: Any) -> dict[str, Any]:
        if tree is None:
            return {}
        out: dict[str, Any] = {}
        for attr in tree.children:
            name = str(attr.children[0])
            if name in out:
                raise self.error(attr, f"the attribute `{name}` is given twice")
            out[name] = self.attr(attr.children[1])
        return out

    def integer(self, token: Any) -> int:
        if len(str(token)) > MAX_DIGITS or not -1 << 63 <= int(token) < 1 << 64:
            raise self.error(token, "64 bits do not hold this number")
        return int(token)

    def string(self, token: Any) -> str:
        text: str = json.loads(str(token))
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise self.error(token, "half of a surrogate pair, which is no character") from None
        return text

    def attr(self, tree: Any) -> Any:
        match tree.data:
            case "int":
                return self.integer(tree.children[0])
            case "float":
                return float(tree.children[0])
            case "string":
                return self.string(tree.children[0])
            case "true" | "false":
                return tree.data == "true"
            case "list":
                return tuple(self.attr(c) for c in tree.children if c is not None)
            case "alias_use" | "layout_text":
                return self.layout(tree)
        return self.type(tree)

    def type(self, tree: Any) -> Type:
        match tree.data:
            case "scalar":
                name = str(tree.children[0])
                if name == "token":
                    return Token()
                return self.scalar(tree.children[0])
            case "pointer":
                pointee, const = tree.children
                return Pointer(self.scalar(pointee), const is not None)
        dims, element, layout = tree.children
        extents = str(dims)[:-1].split("x")
        shape = tuple(int(n) for n in extents if len(n) <= MAX_DIGITS)
        inner = self.type(element)
        if len(shape) < len(extents) or prod(shape) > MAX_ELEMENTS:
            raise self.error(tree, f"there are more than {MAX_ELEMENTS} elements")
        if min(shape) < 1 or not isinstance(inner, (Scalar, Pointer)):
            raise self.error(tree, f"{dims}{inner} is not a tile")
        if tree.data != "tensor":
            if not isinstance(inner, Scalar):
                raise self.error(tree, f"a {tree.data} cannot hold {inner}")
            cls = MemDesc if tree.data == "memdesc" else TensorMap
            return cls(shape, inner, self.layout(layout))
        return Tensor(shape, inner, None if layout is None else self.layout(layout))

    def scalar(self, token: Any) -> Scalar:
        if str(token) not in SCALARS:
            raise self.error(token, f"there is no type `{token}`", did_you_mean(token, SCALARS))
        return SCALARS[str(token)]

    def layout(self, tree: Any) -> Layout:
        if tree.data == "alias_use":
            alias = str(tree.children[0])
            if alias not in self.layouts:
                raise self.error(tree, f"{alias} is not defined", did_you_mean(alias, self.layouts))
            return self.layouts[alias]
        name, attrs = tree.children
        try:
            return layout_from_fields(str(name), self.attrs(attrs))
        except ValueError as e:
            raise self.error(tree, str(e)) from None

    def loc(self, tree: Any) -> Location:
        if tree is None:
            return UNKNOWN
        out: Location | None = None
        for place in reversed(tree.children):
            file, line, col = place.children
            out = Location(self.string(file), self.integer(line), self.integer(col) - 1, out)
        assert out is not None
        return out
