"""Random programs as data: statements, the kernel's text that they print as, and the machine that
gives them their meaning in numpy, one program of the grid after another.

A statement `Let` applies one operation of `tests.fuzz.ops.OPS` to names and numbers. Where a
program has no single meaning - it stores poison, leaves an allocation, lets two programs meet,
or has a float result that the order of a sum decides - the machine raises `Reject`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product as every
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.numerics import NUMPY, Reject, cast, constant, index_type, is_float, kind

MOST_ROUNDS = 40  # of a loop; more would only take time
USED = 1 << 20  # marks a claim of which the old value was used


@dataclass(frozen=True)
class Value:
    """A tile. x: elements, of pointers int64 offsets into `owner`, an index of the argument a lane;
    poison: lanes that must not be used; rounded: a product that an fma would not round; exact and
    bound: what a function's result should be, and how far from it it may be, in float64."""

    x: np.ndarray
    dtype: str  # "*float32" points to float32
    poison: np.ndarray
    rounded: bool = False
    exact: np.ndarray | None = None
    bound: np.ndarray | None = None
    owner: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def type(self) -> tuple[Any, ...]:
        """What a name keeps while its value changes."""
        return (self.dtype, self.shape)

    def moved(self, f: Callable[[np.ndarray], np.ndarray]) -> Value:
        """What a function that only moves elements gives."""
        parts = {name: None if part is None else np.asarray(f(part))
                 for name, part in (("exact", self.exact), ("bound", self.bound),
                                    ("owner", self.owner))}
        return Value(np.asarray(f(self.x)), self.dtype, np.asarray(f(self.poison)), self.rounded,
                     **parts)


def value(x: Any, dtype: str, *poisons: np.ndarray, **more: Any) -> Value:
    """A value; a lane is poison where one of `poisons` is."""
    x = np.asarray(x)
    if not dtype.startswith("*"):
        assert x.dtype == NUMPY[dtype], (x.dtype, dtype)
    poison = np.zeros(x.shape, bool)
    for p in poisons:
        poison = poison | p
    return Value(x, dtype, poison, **more)


@dataclass(frozen=True)
class Record:
    """A tensor descriptor or block pointer. axes: extents, strides and offsets; checked by what
    loads and stores it."""

    form: str  # "descriptor" or "block_pointer"
    owner: int
    base: int
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    offsets: tuple[int, ...]
    block: tuple[int, ...]
    padding: str = "zero"

    @property
    def type(self) -> tuple[Any, ...]:
        return (self.form, self.dtype, self.block, self.padding)


@dataclass
class Argument:
    """An array or a number that the kernel is given. fill: how its elements are drawn ("whole",
    "bits", "poison", "zero", "number"); shift: elements before it in its allocation; block: of a
    tensor descriptor of the shape `extents`, or None."""

    name: str
    dtype: str
    size: int
    fill: str
    seed: int = 0
    shift: int = 0
    number: Any = None
    extents: tuple[int, ...] = ()
    block: tuple[int, ...] | None = None

    def text(self) -> str:
        names = ("dtype", "size", "fill", "seed", "shift", "number")
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.block is not None:
            given |= {"extents": self.extents, "block": self.block}
        return f"Argument({self.name!r}, " + ", ".join(
            f"{k}={v!r}" for k, v in given.items() if v is not None) + ")"


Arg = Any  # a name, or a Python number


@dataclass
class Let:
    """names = op(*args), or an effect if there are no names."""

    op: str
    names: tuple[str, ...]
    args: tuple[Arg, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        from_table = OPS[self.op].text
        shown = [a if isinstance(a, str) else literal(a) for a in self.args]
        text = from_table(*shown, **self.attrs) if callable(from_table) else \
            from_table.format(*shown, **self.attrs)
        names = ", ".join(self.names)
        if not names or "\n" in text:
            return text.replace("{out}", names).split("\n")
        return [f"{names} = {text}"]

    def run(self, m: Machine) -> None:
        results = OPS[self.op].rule(m, *[m.read(a) for a in self.args], **self.attrs)
        if self.names:
            many = results if isinstance(results, tuple) else (results,)
            for name, result in zip(self.names, many, strict=True):
                m.assign(name, result)

    def blocks(self) -> list[list[Statement]]:
        return []


@dataclass
class For:
    """for var in range(lo, hi, step), or tl.range with options, or tl.static_range."""

    var: str
    lo: Arg
    hi: Arg
    step: Arg
    body: list[Statement]
    options: dict[str, Any] = field(default_factory=dict)
    over: str = "range"

    def lines(self) -> list[str]:
        shown = ", ".join([*map(str, (self.lo, self.hi, self.step)),
                           *(f"{k}={v}" for k, v in self.options.items())])
        return [f"for {self.var} in {self.over}({shown}):", *indented(self.body)]

    def run(self, m: Machine) -> None:
        lo, hi, step = (int(m.scalar(a)) for a in (self.lo, self.hi, self.step))
        rounds = range(lo, hi, step) if step else range(0)
        if step <= 0 and isinstance(self.step, str) or len(rounds) > MOST_ROUNDS:
            raise Reject("too many rounds, or a step that is not positive")
        before = set(m.env)
        for i in rounds:
            if self.over != "tl.static_range":  # where it is a number of Python's
                m.env[self.var] = m.index(self.args, i)
            m.block(self.body)
            m.env = {k: v for k, v in m.env.items() if k in before}
            if m.ends_loop():
                break

    @property
    def args(self) -> tuple[Arg, ...]:
        return (self.lo, self.hi, self.step)

    def blocks(self) -> list[list[Statement]]:
        return [self.body]


@dataclass
class While:
    """while counter < limit, the counter going up by one."""

    counter: str
    limit: Arg
    body: list[Statement]
    option: str = "{}"

    def lines(self) -> list[str]:
        cond = self.option.format(f"{self.counter} < {self.limit}")
        return [f"while {cond}:", *indented(self.body), f"    {self.counter} += 1"]

    def run(self, m: Machine) -> None:
        before, rounds = set(m.env), 0
        while int(m.scalar(self.counter)) < int(m.scalar(self.limit)):
            m.block(self.body)
            m.env = {k: v for k, v in m.env.items() if k in before}
            if m.ends_loop():
                break
            m.env[self.counter] = value(np.int32(int(m.scalar(self.counter)) + 1), "int32")
            rounds += 1
            if rounds > MOST_ROUNDS:
                raise Reject("too many rounds")

    @property
    def args(self) -> tuple[Arg, ...]:
        return (self.counter, self.limit)

    def blocks(self) -> list[list[Statement]]:
        return [self.body]


@dataclass
class If:
    cond: Arg
    then: list[Statement]
    other: list[Statement]

    def lines(self) -> list[str]:
        lines = [f"if {self.cond}:", *indented(self.then)]
        return lines + ["else:", *indented(self.other)] if self.other else lines

    def run(self, m: Machine) -> None:
        before = set(m.env)
        m.block(self.then if bool(m.scalar(self.cond)) else self.other)
        m.env = {k: v for k, v in m.env.items() if k in before}

    @property
    def args(self) -> tuple[Arg, ...]:
        return (self.cond,)

    def blocks(self) -> list[list[Statement]]:
        return [self.then, self.other]


@dataclass
class Leave:
    """How control leaves where `cond` holds: "return" leaves the program, "break" the loop,
    "continue" its round."""

    cond: Arg
    how: str = "return"

    def lines(self) -> list[str]:
        return [f"if {self.cond}:", f"    {self.how}"]

    def run(self, m: Machine) -> None:
        m.done = self.how if bool(m.scalar(self.cond)) else ""

    @property
    def args(self) -> tuple[Arg, ...]:
        return (self.cond,)

    def blocks(self) -> list[list[Statement]]:
        return []


Statement = Let | For | While | If | Leave


def indented(block: Sequence[Statement]) -> list[str]:
    return ["    " + line for s in block for line in s.lines()] or ["    pass"]


def literal(x: Any) -> str:
    """A number as kernels write it."""
    if isinstance(x, float) and not np.isfinite(x):
        return f'float("{x}")'
    negative = isinstance(x, (int, float)) and not isinstance(x, bool) and x < 0
    return f"({x!r})" if negative else repr(x)


def walk(block: Sequence[Statement]) -> Iterator[Statement]:
    for s in block:
        yield s
        for inner in s.blocks():
            yield from walk(inner)


@dataclass
class Op:
    """text: a format string of the arguments and attributes, or a function that gives it; what
    takes several lines says `{out}` itself. rule: its meaning, of a machine and values."""

    text: str | Callable[..., str]
    rule: Callable[..., Any]
    prelude: str = ""  # functions that stand before the kernel


OPS: dict[str, Op] = {}


def op(name: str, text: str | Callable[..., str], prelude: str = "") -> Callable[..., Any]:
    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        assert name not in OPS, name
        OPS[name] = Op(text, rule, prelude)
        return rule

    return register


class Memory:
    """The arguments' arrays while a grid runs. reader, writer, claimed: the program that reads,
    writes or updates each element, -1 none, -2 several; kind: of the atomics that do; exact, bound:
    of approximate ones."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arrays: list[np.ndarray] = []
        self.reader: list[np.ndarray] = []
        self.writer: list[np.ndarray] = []
        self.weight: list[np.ndarray] = []  # of what atomics added
        self.claimed: list[np.ndarray] = []
        self.kind: list[np.ndarray] = []
        self.exact: dict[int, np.ndarray] = {}
        self.bound: dict[int, np.ndarray] = {}
        for a in arguments:
            self.give(a)

    def give(self, a: Argument) -> None:
        x = fill(a)
        self.arrays.append(x)
        for notes in (self.reader, self.writer, self.claimed, self.kind):
            notes.append(np.full(x.shape, -1, np.int64))
        self.weight.append(np.zeros(x.shape))

    def copy(self) -> Memory:
        new = Memory.__new__(Memory)
        for name in ("arrays", "reader", "writer", "weight", "claimed", "kind"):
            setattr(new, name, [x.copy() for x in getattr(self, name)])
        new.exact = {k: v.copy() for k, v in self.exact.items()}
        new.bound = {k: v.copy() for k, v in self.bound.items()}
        return new


class Machine:
    """One program of the grid."""

    def __init__(self, program: tuple[int, ...], grid: tuple[int, ...], memory: Memory,
                 arguments: Sequence[Argument]) -> None:
        self.program, self.grid, self.memory = program, grid, memory
        self.number = program[0] + grid[0] * program[1]
        self.done = ""  # how control has left the statements that follow
        self.env: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self.types: dict[str, Any] = {}
        for i, a in enumerate(arguments):
            self.give(i, a)

    def give(self, i: int, a: Argument) -> None:
        """Make argument i known by its name."""
        if a.block is not None:
            strides = tuple(prod(a.extents[d + 1:]) for d in range(len(a.extents)))
            self.given[a.name] = Record("descriptor", i, 0, a.dtype, a.extents, strides,
                                        (0,) * len(a.block), a.block)
        elif a.fill == "number":
            self.given[a.name] = value(constant(a.number, a.dtype), a.dtype)
        else:
            self.given[a.name] = value(np.int64(0), "*" + a.dtype, owner=np.asarray(i))

    def read(self, a: Arg) -> Any:
        if not isinstance(a, str):
            return a
        found = self.env.get(a, self.given.get(a))
        if found is None:
            raise Reject(f"{a} is not defined")
        return found

    def scalar(self, a: Arg) -> Any:
        """The number of a scalar, or a tile of one element, that control flow uses."""
        x = self.read(a)
        if isinstance(x, Value):
            if x.x.size != 1 or x.poison.any() or x.bound is not None:
                raise Reject("not a scalar that may be used")
            return x.x.reshape(())
        return x

    def index(self, bounds: Sequence[Arg], i: int) -> Value:
        """`i` as the variable of a loop with these bounds and this step."""
        t = index_type(map(self.read, bounds))
        return value(np.asarray(i, NUMPY[t]), t)

    def assign(self, name: str, result: Any) -> None:
        old = self.env.get(name)
        if old is not None and old.type != result.type:
            raise Reject(f"{name} changes its type")
        self.env[name] = result
        self.types[name] = result.type

    def block(self, statements: Sequence[Statement]) -> None:
        for s in statements:
            if not self.done:
                s.run(self)

    def ends_loop(self) -> bool:
        """Whether the round that has run is the loop's last, and what has left it ends here."""
        left = self.done
        if left != "return":
            self.done = ""
        return left in ("return", "break")

    # -- memory
    def lanes(self, p: Value, mask: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(argument, lanes, their offsets) for each argument that unmasked lanes point into."""
        assert p.owner is not None
        if (p.poison & mask).any():
            raise Reject("a poisoned address")
        found = []
        owner = np.broadcast_to(p.owner, p.shape)
        for i in np.unique(owner[mask]):
            here = mask & (owner == i)
            at = p.x[here]
            if at.min() < 0 or at.max() >= self.memory.arrays[i].size:
                raise Reject("outside of the allocation")
            found.append((int(i), here, at))
        return found

    def touch(self, i: int, at: np.ndarray, writes: bool) -> None:
        """Note an access; Reject if another program and this one meet."""
        reader, writer = self.memory.reader[i], self.memory.writer[i]
        others = (writer[at] >= 0) & (writer[at] != self.number)
        if writes:
            others |= (reader[at] != -1) & (reader[at] != self.number)
        if others.any() or self.claimed_by_others(i, at):
            raise Reject("two programs touch one element")
        if writes:
            writer[at] = self.number
        else:
            seen = reader[at]
            reader[at] = np.where((seen == -1) | (seen == self.number), self.number, -2)

    def claimed_by_others(self, i: int, at: np.ndarray) -> bool:
        claimed = self.memory.claimed[i][at]
        return bool(((claimed >= 0) & (claimed % USED != self.number) | (claimed == -2)).any())


@dataclass
class Program:
    """A kernel, what it is launched with, and how it is compiled."""

    arguments: list[Argument]
    body: list[Statement]
    grid: tuple[int, int]
    target: str = "sm_90a"
    options: dict[str, Any] = field(default_factory=dict)
    constexprs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def used(self) -> list[Argument]:
        """Arguments that a statement names."""
        names = {a for s in walk(self.body) for a in s.args if isinstance(a, str)}
        for s in walk(self.body):
            if isinstance(s, Let):
                names |= {v for v in s.attrs.values() if isinstance(v, str)}
        return [a for a in self.arguments if a.name in names]

    def initial(self) -> list[np.ndarray]:
        """The arrays of the arguments at the launch."""
        return [fill(a) for a in self.used()]

    def source(self) -> str:
        typed = [a.name + (f": tl.{a.dtype}" if a.fill == "number" and a.dtype != "int32" else "")
                 for a in self.used()]
        names = ", ".join([*typed, *(f"{k}: tl.constexpr" for k in self.constexprs)])
        preludes = dict.fromkeys(OPS[s.op].prelude for s in walk(self.body) if isinstance(s, Let))
        return "".join([HEADER, *preludes, f"@tilec.jit\ndef kernel({names}):\n",
                        "\n".join(indented(self.body)), "\n"])

    def expected(self, types: dict[str, Any] | None = None) -> Memory:
        """The arguments after the launch; Reject if that is not determined. types: becomes the
        type of every name."""
        arguments = self.used()
        memory = Memory(arguments)
        with np.errstate(all="ignore"):
            for y, x in every(range(self.grid[1]), range(self.grid[0])):
                machine = Machine((x, y, 0), (*self.grid, 1), memory, arguments)
                machine.types = {} if types is None else types
                machine.given |= self.constexprs
                try:
                    machine.block(self.body)
                except (ValueError, IndexError, TypeError, AttributeError, KeyError) as e:
                    raise Reject(f"ill-typed: {e}") from e
        return memory


def fill(a: Argument) -> np.ndarray:
    """The elements of an argument at the launch."""
    if a.fill == "number":
        return np.zeros(1, NUMPY[a.dtype])
    rng, dtype = np.random.default_rng(a.seed), NUMPY[a.dtype]
    if a.fill == "poison":
        out = np.empty(a.size, dtype)
        out.view(np.uint8)[...] = 1 if a.dtype == "int1" else 0xA5
        return out
    if a.fill == "zero":
        return np.zeros(a.size, dtype)
    if a.dtype == "int1":
        return rng.integers(0, 2, a.size).astype(bool)
    if a.fill == "bits":
        raw = rng.integers(0, 256, a.size * dtype.itemsize, np.uint8).view(dtype)
        if not is_float(a.dtype):
            return raw
        special = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan], np.float64)
        some = rng.integers(0, 4, a.size) == 0
        return np.where(some, cast(special, "float64", a.dtype)[rng.integers(0, 7, a.size)], raw)
    low = 0 if kind(a.dtype) == 1 and a.dtype.startswith("u") else -4
    return cast(rng.integers(low, 5, a.size, np.int64), "int64", a.dtype)


HEADER = ("import tilec\nimport tilec.language as tl\n"
          "import tilec.language.gpu as tlg\n\n\n")
