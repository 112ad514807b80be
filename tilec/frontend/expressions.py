"""Handlers of expressions that compute: literals, operators, comparisons, subscripts, f-strings."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tilec.errors import TilecError
from tilec.frontend.merge import RUN_TIME, plain
from tilec.frontend.scope import refuse_pointer
from tilec.frontend.visitor import Visitor, handles
from tilec.language import control
from tilec.language import dtypes as dt
from tilec.language.casting import cast
from tilec.language.literals import convert
from tilec.language.values import Indexed, describe, tensor, to_tensor

MAX_BITS = 4096  # of an integer at compile time
MAX_ITEMS = 1 << 20  # of a tuple or string


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        _check_bits((a.bit_length() - 1) * b)  # at least so many
    return a ** b


def _shifted(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        _check_bits(a.bit_length() + b)
    return a << b


def _product(a: Any, b: Any) -> Any:
    for items, times in ((a, b), (b, a)):
        if isinstance(items, str | tuple) and isinstance(times, int) and \
                len(items) * times > MAX_ITEMS:
            raise OverflowError(f"it has more than {MAX_ITEMS} items")
    return a * b


def _items(numbers: range) -> tuple[int, ...]:
    if len(numbers) > MAX_ITEMS:
        raise OverflowError(f"it has more than {MAX_ITEMS} items")
    return tuple(numbers)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise OverflowError(f"an integer of more than {MAX_BITS} bits")


_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", _product),
    ast.Div: ("/", operator.truediv), ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod), ast.Pow: ("**", _power),
    ast.LShift: ("<<", _shifted), ast.RShift: (">>", operator.rshift),
    ast.BitAnd: ("&", operator.and_), ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor), ast.MatMult: ("@", operator.matmul)}
_UNARY: dict[type[ast.unaryop], tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("-", operator.neg), ast.UAdd: ("+", operator.pos),
    ast.Invert: ("~", operator.invert)}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne), ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt), ast.GtE: (">=", operator.ge)}
_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError)


@handles(ast.Constant)
def visit_constant(v: Visitor, node: ast.Constant) -> Any:
    """A literal; numbers stay Python numbers inside an expression."""
    if isinstance(node.value, (complex, bytes)) or node.value is Ellipsis:
        raise v.error(node, f"the literal {node.value!r} has no meaning in a kernel",
                      "kernels know bools, integers, floats and strings")
    return node.value


@handles(ast.BinOp)
def visit_binop(v: Visitor, node: ast.BinOp) -> Any:
    """lhs op rhs."""
    return binary(v, node, type(node.op), v.visit(node.left), v.visit(node.right))


def binary(v: Visitor, node: ast.AST, op: type[ast.operator], a: Any, b: Any) -> Any:
    """A binary operator on values: by the tensor's operators, or Python's own at compile time."""
    symbol, function = _BINARY[op]
    v.at(node)
    result = _apply(v, node, symbol, function, a, b)
    if isinstance(result, tensor) and result.literal is None:
        _remember(result, symbol, function, plain(a), plain(b))
    return result


def _remember(result: tensor, symbol: str, function: Callable[[Any, Any], Any], x: Any,
              y: Any) -> None:
    """Keep the number that an operator on literal integers gives, so that `n = 4; n * 2` is still
    known at compile time. Left out: where Python's operator and run time's may differ."""
    t = result.dtype
    if type(x) is not int or type(y) is not int or not t.is_int() or t.is_bool():
        return
    if symbol in ("+", "-", "*", "&", "|", "^") or symbol in ("//", "%") and x >= 0 and y > 0 or \
            symbol == "<<" and 0 <= y < t.primitive_bitwidth:
        result.literal = convert(function(x, y), t)


def _apply(v: Visitor, node: ast.AST, symbol: str, function: Callable[..., Any], *args: Any) -> Any:
    if not any(isinstance(x, tensor) for x in args):
        return static(v, node, lambda: function(*args))
    try:
        return function(*args)
    except TypeError as e:
        for x in args:
            if not isinstance(x, (tensor, bool, int, float)):
                shown = " and ".join(map(describe, args))
                raise v.error(node, f"`{symbol}` does not apply to {shown}",
                              _operand_advice(x)) from None
        if "unsupported operand" in str(e) or "bad operand" in str(e):
            raise v.error(node, f"`{symbol}` is not defined for {describe(args[0])}",
                          "write it with functions of tilec.language, such as tl.exp2, tl.dot"
                          ) from None
        raise


def _operand_advice(x: Any) -> str:
    if x is None:
        return "one side is None: an optional argument that was not given?"
    if callable(x):
        return "call it: the name alone is the function"
    return "operators work on tiles and numbers"


def static(v: Visitor, node: ast.AST, compute: Callable[[], Any]) -> Any:
    """The result of an operation on compile-time values; Python's errors become the author's."""
    try:
        result = compute()
        if isinstance(result, int):
            _check_bits(result.bit_length())
        return result
    except TilecError:
        raise
    except _FAILURES as e:
        raise v.error(node, f"at compile time: {str(e) or type(e).__name__}",
                      "all operands here are known at compile time, and Python computes with them"
                      ) from None


@handles(ast.UnaryOp)
def visit_unary(v: Visitor, node: ast.UnaryOp) -> Any:
    """`-x`, `+x`, `~x`, `not x`."""
    x = v.visit(node.operand)
    v.at(node)
    if isinstance(node.op, ast.Not):
        known = plain(x)
        return as_bool(v, node, x).__invert__() if known is RUN_TIME else \
            static(v, node, lambda: not known)
    symbol, function = _UNARY[type(node.op)]
    return _apply(v, node, symbol, function, x)


def as_bool(v: Visitor, node: ast.AST, x: Any) -> Any:
    """A value as a tensor of int1: whether it is not zero, a pointer's address among them."""
    x = to_tensor(x)
    if x.dtype.is_ptr():
        x = cast(x, dt.int64)
    return x if x.dtype.is_bool() else x != 0


def truth(v: Visitor, node: ast.AST, x: Any) -> bool | None:
    """The truth of a compile-time value; None if it is only known at run time."""
    known = plain(x)
    if known is RUN_TIME:
        return None
    return bool(static(v, node, lambda: bool(known)))


@handles(ast.BoolOp)
def visit_boolop(v: Visitor, node: ast.BoolOp) -> Any:
    """`and`, `or`: Python's at compile time, element-wise and not short-circuit on tensors."""
    is_and = isinstance(node.op, ast.And)
    result = v.visit(node.values[0])
    for operand in node.values[1:]:
        known = truth(v, node, result)
        if known is not None:
            if known != is_and:
                return result
            result = v.visit(operand)
            continue
        other = v.visit(operand)
        v.at(node)
        a, b = as_bool(v, node, result), as_bool(v, node, other)
        result = a & b if is_and else a | b
    return result


@handles(ast.Compare)
def visit_compare(v: Visitor, node: ast.Compare) -> Any:
    """Comparisons, chained ones too: `a < b < c` is `a < b and b < c`, b computed once."""
    left = v.visit(node.left)
    result: Any = None
    for i, (op, right_node) in enumerate(zip(node.ops, node.comparators, strict=True)):
        right = v.visit(right_node)
        v.at(node)
        one = _compare(v, node, op, left, right)
        if i == 0:
            result = one
        else:
            result = as_bool(v, node, result) & as_bool(v, node, one) \
                if truth(v, node, result) is None else one
        if truth(v, node, result) is False:
            return False
        left = right
    return result


def _compare(v: Visitor, node: ast.AST, op: ast.cmpop, a: Any, b: Any) -> Any:
    if isinstance(op, (ast.Is, ast.IsNot)):
        return _identity(v, node, isinstance(op, ast.IsNot), a, b)
    x, y = plain(a), plain(b)
    if isinstance(op, (ast.In, ast.NotIn)):
        if x is RUN_TIME or y is RUN_TIME:
            raise v.error(node, "`in` needs values known at compile time",
                          "compare with == and combine with |")
        return static(v, node, lambda: (x in y) != isinstance(op, ast.NotIn))
    symbol, function = _COMPARE[type(op)]
    if x is not RUN_TIME and y is not RUN_TIME:
        return static(v, node, lambda: function(x, y))
    if x is None or y is None:
        if symbol in ("==", "!="):  # a run-time value is not None, as `is` would say
            return symbol == "!="
        raise v.error(node, f"`{symbol}` does not apply to {describe(a)} and {describe(b)}",
                      _operand_advice(None))
    return _apply(v, node, symbol, function, a, b)


def _identity(v: Visitor, node: ast.AST, negated: bool, a: Any, b: Any) -> bool:
    x, y = plain(a), plain(b)
    if (x is RUN_TIME or y is RUN_TIME) and x is not None and y is not None:
        raise v.error(node, "`is` compares compile-time objects", "use == for run-time values")
    singletons = (None, True, False)
    one = x is y or (x not in singletons and type(x) is type(y) and bool(x == y)) \
        if x is not RUN_TIME and y is not RUN_TIME else False
    return one != negated


@handles(ast.Tuple, ast.List)
def visit_tuple(v: Visitor, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
    """A tuple; a list is one too."""
    return tuple(items(v, node.elts))


def items(v: Visitor, nodes: Sequence[ast.expr]) -> list[Any]:
    """The values of a list of expressions, those of starred ones spread out."""
    out: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            out += sequence(v, node.value, v.visit(node.value))
        else:
            out.append(v.visit(node))
    return out


def sequence(v: Visitor, node: ast.AST, value: Any) -> tuple[Any, ...]:
    """The elements of a compile-time sequence."""
    value = plain(value)
    if isinstance(value, range):
        return static(v, node, lambda: _items(value))
    if isinstance(value, (tuple, list)):
        return tuple(value)
    if isinstance(value, (control.range, control.static_range)):
        bounds = [plain(x) for x in (value.lo, value.hi, value.step)]
        if all(type(x) is int for x in bounds):
            return static(v, node, lambda: _items(range(*bounds)))
    raise v.error(node, f"expected a tuple, found {_shown(value)}",
                  "only tuples and ranges with constexpr bounds have elements that are known at "
                  "compile time")


def _shown(value: Any) -> str:
    return "a run-time value" if value is RUN_TIME else describe(value)


@handles(ast.Subscript)
def visit_subscript(v: Visitor, node: ast.Subscript) -> Any:
    """`x[:, None]` of a tile, `t[0]` of a tuple."""
    base = v.visit(node.value)
    index = v.visit(node.slice)
    v.at(node)
    if isinstance(base, (tensor, Indexed)):
        return operator.getitem(base, index)  # type: ignore[call-overload]
    if plain(index) is RUN_TIME:
        raise v.error(node, f"the index is {describe(index)}, but {type(base).__name__}s are "
                      "indexed at compile time",
                      "use a constexpr index, or tl.static_range for the loop around")
    known = plain(index)
    if base == () and isinstance(node.value, ast.Attribute) and not isinstance(known, slice):
        refuse_pointer(v, node.value, v.visit(node.value.value))  # `p.shape[0]`
    if not hasattr(type(base), "__getitem__"):
        raise v.error(node, f"{describe(base)} cannot be indexed",
                      "launch with f[grid](...) from Python only; in a kernel call f(...)"
                      if callable(base) else "")
    return static(v, node, lambda: base[known])


@handles(ast.Slice)
def visit_slice(v: Visitor, node: ast.Slice) -> slice:
    """A slice with compile-time bounds."""
    parts = [None if p is None else plain(v.visit(p)) for p in (node.lower, node.upper, node.step)]
    if any(p is RUN_TIME for p in parts):
        raise v.error(node, "slice bounds must be known at compile time",
                      "load the part you need through pointers")
    return slice(*parts)


@handles(ast.JoinedStr)
def visit_fstring(v: Visitor, node: ast.JoinedStr) -> str:
    """An f-string over compile-time values."""
    return "".join(v.visit(part) for part in node.values)


@handles(ast.FormattedValue)
def visit_formatted(v: Visitor, node: ast.FormattedValue) -> str:
    """One `{...}` of an f-string."""
    value = plain(v.visit(node.value))
    if value is RUN_TIME:
        raise v.error(node.value, "an f-string can only show compile-time values",
                      "print run-time values with tl.device_print(prefix, x)")
    spec = "" if node.format_spec is None else v.visit(node.format_spec)
    if node.conversion == ord("r"):
        value = repr(value)
    elif node.conversion != -1:
        value = str(value)
    return str(static(v, node, lambda: format(value, spec)))
