"""The IR's data structures: values with use lists, ops, blocks, functions, modules, the builder.

An op class declares its operands, attributes and regions once, as class fields; constructor,
printer, parser and structural verifier derive from them. A region holds exactly one block, so an
op's regions are its `Block`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from tilec.errors import IRError, Location, shown
from tilec.ir.types import Type, refines

UNKNOWN = Location("<unknown>", 0)
# What `Op.infer` may raise, beside IRError, on operands of a kind that it takes for granted.
UNFIT = (AssertionError, AttributeError, IndexError, ValueError)


class Value:
    """An SSA value: the result of an op or an argument of a block.

    name is the author's name, a hint for printing. uses holds (op, operand index) pairs in the
    order of their making; only `Op.set_operand` and `Op.drop` touch it.
    """

    __slots__ = ("type", "name", "uses", "owner", "index")

    def __init__(self, type: Type, owner: Op | Block, index: int, name: str = "") -> None:
        self.type = type
        self.name = name
        self.owner = owner
        self.index = index
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def op(self) -> Op | None:
        """The defining op; None for a block argument."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def users(self) -> list[Op]:
        """Ops that use this value, each once."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def replace_by(self, other: Value) -> None:
        """Make every user of this value use `other`."""
        if other is self:
            return
        for op, index in list(self.uses):
            op.set_operand(index, other)
        if not other.name:
            other.name = self.name

    def __repr__(self) -> str:
        return f"%{self.name or id(self)}: {self.type}"


class _Field:
    """Base of the descriptors that make up an op declaration."""

    name = ""
    index = -1

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class OperandField(_Field):
    """One operand, an optional trailing one, or a variadic trailing one."""

    def __init__(self, optional: bool = False, variadic: bool = False) -> None:
        self.optional, self.variadic = optional, variadic

    def __get__(self, op: Op | None, cls: type) -> Any:
        if op is None:
            return self
        if self.variadic:
            return tuple(op.operands[self.index:])
        if self.optional and self.index >= len(op.operands):
            return None
        return op.operands[self.index]


LEAST, MOST = -(1 << 31), (1 << 31) - 1  # of an attribute that says nothing else


class AttrField(_Field):
    """An attribute; `kind` is int, float, bool, str, tuple, Type, Layout or object (any of them),
    `of` the kind of a tuple's elements. Integers, in tuples too, are from `least` to `most`; what
    has `choices` is one of these. `doc`: its meaning, where no class has it.

    An attribute that equals its default is neither stored nor printed.
    """

    def __init__(self, kind: type, default: Any, choices: tuple[Any, ...] = (),
                 least: int = LEAST, most: int = MOST, of: type = int, name: str = "",
                 doc: str = "") -> None:
        self.kind, self.default, self.choices = kind, default, choices
        self.least, self.most, self.of = least, most, of
        self.name, self.doc = name, doc

    def __get__(self, op: Op | None, cls: type) -> Any:
        return self if op is None else op.attributes.get(self.name, self.default)

    def __set__(self, op: Op, value: Any) -> None:
        if value == self.default and type(value) is type(self.default):
            op.attributes.pop(self.name, None)
        else:
            op.attributes[self.name] = value

    def check(self, value: Any) -> str:
        """What is wrong with `value`, or an empty string."""
        if self.kind is tuple and isinstance(value, tuple):
            fits = all(self._fits(v, self.of) for v in value)
        else:
            fits = self._fits(value, self.kind)
        if fits and (not self.choices or value in self.choices):
            return ""
        return f"attribute `{self.name}` is {shown(value)}, expected {self.values()}"

    def _fits(self, value: Any, kind: type) -> bool:
        if kind is int and isinstance(value, bool):
            return False
        return self.least <= value <= self.most if kind is int and isinstance(value, int) else \
            isinstance(value, kind)

    def values(self) -> str:
        """What the attribute may be, in words."""
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        kind = self.of if self.kind is tuple else self.kind
        text = f"{_KINDS.get(kind, kind.__name__)}{'s' if self.kind is tuple else ''}"
        if kind is int and (self.least, self.most) != (LEAST, MOST):
            text += f" from {self.least}" + (f" to {self.most}" if self.most < MOST else " up")
        return f"a list of {text}" if self.kind is tuple else text


_KINDS: dict[type, str] = {int: "int", bool: "true or false", str: "str"}


class RegionField(_Field):
    """One region."""

    def __get__(self, op: Op | None, cls: type) -> Any:
        return self if op is None else op.regions[self.index]


MISSING: Any = object()


def operand(*, optional: bool = False) -> Any:
    """Declare an operand; optional ones come last and are left off from the right."""
    return OperandField(optional=optional)


def operands() -> Any:
    """Declare the rest of the operands, any number of them."""
    return OperandField(variadic=True)


def attr(kind: type, default: Any = MISSING, choices: tuple[str, ...] = (), *,
         least: int = LEAST, most: int = MOST, of: type = int) -> Any:
    """Declare an attribute; without a default it must be given. See AttrField."""
    return AttrField(kind, default, choices, least, most, of)


def region() -> Any:
    """Declare a region."""
    return RegionField()


OP_CLASSES: dict[str, type[Op]] = {}


class Op:
    """Base of all ops.

    A class keyword `name` declares an op; without it a class is a base of others. Facts, also
    keywords: `commutative`, `terminator`, and `effects`, a set out of "read", "write" (global
    memory), "read_shared", "write_shared", "barrier", "io" (assert, print). An op without effects
    is pure. `isolated`: passes keep values from outside out of its regions. `speculatable`: may
    run, if pure, where the program would not.

    stage, op_order: in a loop with num_stages, in which stage of its pipeline the op runs (-1: the
    last, a pure op wherever its result is used), and where among the body's ops, first of all.
    """

    stage: int = attr(int, -1, least=-1)
    op_order: int = attr(int, 0)
    name: ClassVar[str] = ""
    commutative: ClassVar[bool] = False
    terminator: ClassVar[bool] = False
    isolated: ClassVar[bool] = False
    speculatable: ClassVar[bool] = True
    class_effects: ClassVar[frozenset[str]] = frozenset()
    operand_fields: ClassVar[tuple[OperandField, ...]] = ()
    attr_fields: ClassVar[dict[str, AttrField]] = {}
    region_fields: ClassVar[tuple[RegionField, ...]] = ()
    required_attrs: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, name: str = "", commutative: bool = False, terminator: bool = False,
                          effects: Iterable[str] = ()) -> None:
        cls.commutative = commutative or cls.commutative
        cls.terminator = terminator or cls.terminator
        cls.class_effects = frozenset(effects) or cls.class_effects
        fields = [f for base in reversed(cls.__mro__) for f in vars(base).values()
                  if isinstance(f, _Field)]
        cls.operand_fields = tuple(f for f in fields if isinstance(f, OperandField))
        cls.attr_fields = {f.name: f for f in fields if isinstance(f, AttrField)}
        cls.region_fields = tuple(f for f in fields if isinstance(f, RegionField))
        cls.required_attrs = frozenset(f.name for f in cls.attr_fields.values()
                                       if f.default is MISSING)
        for kind in (cls.operand_fields, cls.region_fields):
            for i, f in enumerate(kind):
                f.index = i
        if name:
            assert cls.__doc__, f"op {cls.__name__} needs a docstring"
            assert name not in OP_CLASSES, f"two ops are called {name}"
            cls.name = name
            OP_CLASSES[name] = cls

    def __init__(self, *args: Value | Sequence[Value] | None, types: Sequence[Type] | None = None,
                 loc: Location = UNKNOWN, **named: Any) -> None:
        """Operands by position (a sequence for a variadic field); attributes and regions by name.

        types: result types; needed by ops whose types cannot be inferred, checked otherwise.
        Raises IRError when they do not fit.
        """
        self.loc = loc
        self.parent: Block | None = None
        self.prev: Op | None = None
        self.next: Op | None = None
        self.attributes: dict[str, Any] = {}
        self.regions: list[Block] = [named.pop(f.name) for f in self.region_fields]
        for block in self.regions:
            block.owner = self
        for key, value in named.items():
            if key not in self.attr_fields:
                raise self.fail(f"there is no attribute `{key}`")
            if wrong := self.attr_fields[key].check(value):
                raise self.fail(wrong)
            setattr(self, key, value)
        self.operands: list[Value] = []
        self.set_operands([value for arg in args if arg is not None
                           for value in ((arg,) if isinstance(arg, Value) else arg)])
        self.results: list[Value] = []
        self.given_types = None if types is None else tuple(types)
        inferred = self.infer()
        chosen = inferred if types is None else self.merge_types(inferred, types)
        self.results += [Value(t, self, i) for i, t in enumerate(chosen)]

    # -- meaning, for subclasses ------------------------------------------------------------

    def infer(self) -> Sequence[Type]:
        """Result types from operands, attributes and regions; raises IRError if they do not fit.

        A tensor type without a layout leaves the layout free. An op has no results by default.
        """
        return ()

    def check(self) -> None:
        """More that must hold of a finished op; raises IRError."""

    def fail(self, message: str, advice: str = "") -> IRError:
        """An IRError about this op, to be raised."""
        loc = self.loc if self.loc is not UNKNOWN else None
        return IRError(f"{self.name}: {message}", loc, advice)

    def merge_types(self, inferred: Sequence[Type], given: Sequence[Type]) -> Sequence[Type]:
        """`given`, after a check that it refines `inferred` (by layouts left free)."""
        if len(inferred) != len(given):
            raise self.fail(f"{len(given)} result types given, expected {len(inferred)}")
        for have, want in zip(given, inferred, strict=True):
            if not refines(have, want):
                raise self.fail(f"result type is {have}, expected {want}")
        return given

    # -- access ---------------------------------------------------------------------------

    @property
    def result(self) -> Value:
        """The only result."""
        assert len(self.results) == 1, f"{self.name} has {len(self.results)} results"
        return self.results[0]

    @property
    def effects(self) -> frozenset[str]:
        """The class's effects and those of all ops inside its regions."""
        out = self.class_effects
        for block in self.regions:
            for op in block:
                out |= op.effects
        return out

    @property
    def pure(self) -> bool:
        """No effects: may be removed when unused, and merged with an equal op."""
        return not self.terminator and not self.effects

    def set_operand(self, index: int, value: Value) -> None:
        """Replace one operand, keeping both use lists right."""
        self.operands[index].uses.pop((self, index))
        self.operands[index] = value
        value.uses[(self, index)] = None

    def set_operands(self, values: Sequence[Value]) -> None:
        """Replace all operands."""
        for i, v in enumerate(self.operands):
            v.uses.pop((self, i))
        self.operands = list(values)
        for i, v in enumerate(self.operands):
            v.uses[(self, i)] = None

    # -- place ----------------------------------------------------------------------------

    def remove(self) -> Op:
        """Unlink from the block; operands stay."""
        block = self.parent
        assert block is not None
        if self.prev is not None:
            self.prev.next = self.next
        else:
            block.first = self.next
        if self.next is not None:
            self.next.prev = self.prev
        else:
            block.last = self.prev
        self.parent = self.prev = self.next = None
        return self

    def drop(self) -> None:
        """Let go of all operands, here and in nested ops."""
        for i, v in enumerate(self.operands):
            v.uses.pop((self, i), None)
        for block in self.regions:
            for op in block:
                op.drop()

    def erase(self) -> None:
        """Remove and drop; the results must be unused."""
        for r in self.results:
            assert not r.uses, f"erasing {self.name} whose result {r!r} is in use"
        self.drop()
        if self.parent is not None:
            self.remove()

    def replace_by(self, values: Sequence[Value]) -> None:
        """Make users of the results use `values`, then erase this op."""
        for old, new in zip(self.results, values, strict=True):
            old.replace_by(new)
        self.erase()

    def move_before(self, other: Op) -> None:
        """Move to just before `other`."""
        self.remove()
        assert other.parent is not None
        other.parent.insert(self, other)

    def walk(self) -> Iterator[Op]:
        """This op, then all nested ops, in textual order."""
        yield self
        for block in self.regions:
            yield from block.walk()

    def ancestors(self) -> Iterator[Op]:
        """The ops around this one, innermost first."""
        block = self.parent
        while block is not None and isinstance(block.owner, Op):
            yield block.owner
            block = block.owner.parent

    def clone(self, values: dict[Value, Value]) -> Op:
        """A copy whose operands are mapped by `values`; adds its results (and nested ones)."""
        copy = object.__new__(type(self))
        copy.loc, copy.parent, copy.prev, copy.next = self.loc, None, None, None
        copy.attributes = dict(self.attributes)
        copy.given_types = self.given_types
        copy.operands = []
        copy.set_operands([values.get(v, v) for v in self.operands])
        copy.regions = [block.clone(values) for block in self.regions]
        for block in copy.regions:
            block.owner = copy
        copy.results = [Value(r.type, copy, r.index, r.name) for r in self.results]
        values.update(zip(self.results, copy.results, strict=True))
        return copy

    def __repr__(self) -> str:
        return f"<{self.name} {self.loc}>"


class Block:
    """A list of ops with arguments; the only block of its region. `owner` is the op around it."""

    def __init__(self, arg_types: Sequence[Type] = (), names: Sequence[str] = ()) -> None:
        self.owner: Op | Func | None = None
        self.first: Op | None = None
        self.last: Op | None = None
        self.args: list[Value] = []
        for i, t in enumerate(arg_types):
            self.add_arg(t, names[i] if i < len(names) else "")

    def add_arg(self, type: Type, name: str = "") -> Value:
        """Append an argument."""
        self.args.append(Value(type, self, len(self.args), name))
        return self.args[-1]

    def remove_arg(self, index: int) -> None:
        """Remove an unused argument."""
        assert not self.args[index].uses
        del self.args[index]
        for i, a in enumerate(self.args):
            a.index = i

    def insert(self, op: Op, before: Op | None = None) -> Op:
        """Insert `op` before another, or at the end."""
        assert op.parent is None
        op.parent = self
        op.next = before
        op.prev = self.last if before is None else before.prev
        if op.prev is not None:
            op.prev.next = op
        else:
            self.first = op
        if before is not None:
            before.prev = op
        else:
            self.last = op
        return op

    def __iter__(self) -> Iterator[Op]:
        """Ops in order; the current op may be erased or moved while iterating."""
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = following

    def __reversed__(self) -> Iterator[Op]:
        op = self.last
        while op is not None:
            preceding = op.prev
            yield op
            op = preceding

    def walk(self) -> Iterator[Op]:
        """All ops inside, nested ones included, in textual order."""
        for op in self:
            yield from op.walk()

    @property
    def terminator(self) -> Op:
        """The last op, which must be a terminator."""
        assert self.last is not None and self.last.terminator, "block without terminator"
        return self.last

    @property
    def parent_op(self) -> Op | None:
        """The op whose region this is; None for a function body."""
        return self.owner if isinstance(self.owner, Op) else None

    def clone(self, values: dict[Value, Value]) -> Block:
        """A copy; `values` gains the new arguments and results."""
        copy = Block([a.type for a in self.args], [a.name for a in self.args])
        values.update(zip(self.args, copy.args, strict=True))
        for op in self:
            copy.insert(op.clone(values))
        return copy


class Func:
    """A kernel: a name, a body whose arguments are the parameters, attributes per parameter."""

    def __init__(self, name: str, body: Block, arg_attrs: Sequence[dict[str, Any]] = (),
                 loc: Location = UNKNOWN) -> None:
        self.name = name
        self.body = body
        self.loc = loc
        self.arg_attrs = list(arg_attrs) or [{} for _ in body.args]
        body.owner = self

    @property
    def args(self) -> list[Value]:
        """The parameters."""
        return self.body.args

    def walk(self) -> Iterator[Op]:
        """All ops inside, in textual order."""
        return self.body.walk()


class Module:
    """Functions and attributes: `level` ("tile", "gpu", "lowered"), `target`, `num_warps`, ..."""

    def __init__(self, funcs: Sequence[Func] = (),
                 attributes: dict[str, Any] | None = None) -> None:
        self.funcs = list(funcs)
        self.attributes = dict({"level": "tile"} if attributes is None else attributes)

    @property
    def level(self) -> str:
        """The level of the IR: "tile", "gpu" or "lowered"."""
        return str(self.attributes.get("level", "tile"))

    @property
    def num_warps(self) -> int:
        """Warps per CTA."""
        return int(self.attributes.get("num_warps", 4))

    @property
    def num_ctas(self) -> int:
        """CTAs per cluster."""
        return int(self.attributes.get("num_ctas", 1))

    def walk(self) -> Iterator[Op]:
        """All ops of all functions."""
        return (op for func in self.funcs for op in func.walk())

    def clone(self) -> Module:
        """A deep copy."""
        return Module([Func(f.name, f.body.clone({}), [dict(a) for a in f.arg_attrs], f.loc)
                       for f in self.funcs], self.attributes)


class Builder:
    """Inserts ops at a point: at the end of a block, or before an op."""

    def __init__(self, block: Block | None = None, before: Op | None = None,
                 loc: Location = UNKNOWN) -> None:
        self.block = block if before is None else before.parent
        self.before = before
        self.loc = loc

    def insert(self, op: Op) -> Op:
        """Insert `op`; it takes the builder's location if it has none."""
        assert self.block is not None
        if op.loc is UNKNOWN:
            op.loc = self.loc
        self.block.insert(op, self.before)
        return op

    def emit(self, op: Op) -> Value:
        """Insert `op` and return its only result."""
        return self.insert(op).result
