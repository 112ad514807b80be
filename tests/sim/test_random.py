"""Random LLVM IR, compiled to PTX and simulated, against the same IR compiled for the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.sim.test_llvm import TARGETS, compile_ir
from tilec import sim

Array = np.ndarray[Any, Any]
THREADS = 96
INTS = ["i8", "i16", "i32", "i64"]
FLOATS = ["float", "double"]
SHORT = {"float": "f32", "double": "f64"}
FCMP = "oeq one olt ole ogt oge ueq une ult ule ugt uge ord uno".split()
ICMP = "eq ne slt sle sgt sge ult ule ugt uge".split()


class Program:
    """IR text of `step(x, y, t)`: straight code, diamonds and loops over typed values."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.count = 0
        self.block = "entry"
        self.values: dict[str, list[str]] = {t: [] for t in [*INTS, *FLOATS, "i1"]}

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def value(self, ty: str) -> str:
        """A value of the type: mostly a recent one, now and then a constant."""
        known = self.values[ty]
        if ty != "i1" and (not known or self.rng.random() < 0.1):
            if ty in FLOATS:
                return str(self.pick(["0.0", "1.0", "-2.5", "1024.0"]))
            return str(self.pick([0, 1, -1, 7, 100, -128]))
        if not known:
            return self.emit("i1", f"icmp slt i32 {self.value('i32')}, {self.value('i32')}")
        return known[max(0, len(known) - 1 - int(self.rng.integers(6)))]

    def emit(self, ty: str, text: str) -> str:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        self.values[ty].append(name)
        return name

    def call(self, result: str, intrinsic: str, args: list[tuple[str, str]]) -> str:
        types = ", ".join(t for t, _ in args)
        self.declared[intrinsic] = f"declare {result} @{intrinsic}({types})"
        return self.emit(
            result, f"call {result} @{intrinsic}({', '.join(f'{t} {v}' for t, v in args)})"
        )

    def integer(self) -> None:
        ty = self.pick(INTS)
        a, b, c = (self.value(ty) for _ in range(3))
        bits = int(ty[1:])
        kind = int(self.rng.integers(9))
        if kind <= 1:
            self.emit(ty, f"{self.pick(['add', 'sub', 'mul', 'and', 'or', 'xor'])} {ty} {a}, {b}")
        elif kind == 2:
            odd = self.emit(ty, f"or {ty} {b}, 1")
            odd = self.emit(ty, f"and {ty} {odd}, {(1 << bits - 1) - 1}")
            self.emit(ty, f"{self.pick(['sdiv', 'udiv', 'srem', 'urem'])} {ty} {a}, {odd}")
        elif kind == 3:
            amount = self.emit(ty, f"and {ty} {b}, {bits - 1}")
            self.emit(ty, f"{self.pick(['shl', 'lshr', 'ashr'])} {ty} {a}, {amount}")
        elif kind == 4:
            self.emit("i1", f"icmp {self.pick(ICMP)} {ty} {a}, {b}")
        elif kind == 5:
            name = self.pick(["smin", "smax", "umin", "umax", "sadd.sat", "uadd.sat", "ssub.sat",
                              "usub.sat"])  # fmt: skip
            self.call(ty, f"llvm.{name}.{ty}", [(ty, a), (ty, b)])
        elif kind == 6:
            name = self.pick(["ctpop", "bitreverse"] + (["bswap"] if bits > 8 else []))
            self.call(ty, f"llvm.{name}.{ty}", [(ty, a)])
        elif kind == 7:
            name = self.pick(["ctlz", "cttz", "abs"])
            self.call(ty, f"llvm.{name}.{ty}", [(ty, a), ("i1", "false")])
        else:
            self.call(ty, f"llvm.{self.pick(['fshl', 'fshr'])}.{ty}", [(ty, a), (ty, b), (ty, c)])

    def floating(self) -> None:
        ty = self.pick(FLOATS)
        a, b, c = (self.value(ty) for _ in range(3))
        short = SHORT[ty]
        kind = int(self.rng.integers(6))
        if kind <= 1:
            self.emit(ty, f"{self.pick(['fadd', 'fsub', 'fmul', 'fdiv'])} {ty} {a}, {b}")
        elif kind == 2:
            self.emit("i1", f"fcmp {self.pick(FCMP)} {ty} {a}, {b}")
        elif kind == 3:
            name = self.pick(["floor", "ceil", "trunc", "rint", "fabs", "sqrt"])
            self.call(ty, f"llvm.{name}.{short}", [(ty, a)])
        elif kind == 4:
            self.call(ty, f"llvm.fma.{short}", [(ty, a), (ty, b), (ty, c)])
        else:
            name = self.pick(["minimum", "maximum", "copysign"] if ty == "float" else ["copysign"])
            self.call(ty, f"llvm.{name}.{short}", [(ty, a), (ty, self.number(ty, b))])

    def number(self, ty: str, value: str) -> str:
        """The value, or 0 where it is NaN, whose sign and payload differ between machines."""
        nan = self.emit("i1", f"fcmp uno {ty} {value}, {value}")
        return self.emit(ty, f"select i1 {nan}, {ty} 0.0, {ty} {value}")

    def convert(self) -> None:
        source, to = self.pick([*INTS, *FLOATS]), self.pick([*INTS, *FLOATS])
        a = self.value(source)
        if source in INTS and to in INTS:
            if int(source[1:]) < int(to[1:]):
                self.emit(to, f"{self.pick(['sext', 'zext'])} {source} {a} to {to}")
            elif source != to:
                self.emit(to, f"trunc {source} {a} to {to}")
        elif source in INTS:
            self.emit(to, f"{self.pick(['sitofp', 'uitofp'])} {source} {a} to {to}")
        elif to in INTS:
            name = self.pick(["fptosi", "fptoui"])
            self.call(to, f"llvm.{name}.sat.{to}.{SHORT[source]}", [(source, a)])
        elif source != to:
            self.emit(to, f"{'fpext' if to == 'double' else 'fptrunc'} {source} {a} to {to}")
        else:
            whole = {"float": "i32", "double": "i64"}[source]
            self.emit(whole, f"bitcast {source} {self.number(source, a)} to {whole}")

    def select(self) -> None:
        ty = self.pick([*INTS, *FLOATS, "i1"])
        c, a, b = self.value("i1"), self.value(ty), self.value(ty)
        self.emit(ty, f"select i1 {c}, {ty} {a}, {ty} {b}")

    def straight(self, length: int) -> None:
        steps: list[Callable[[], None]] = [self.integer, self.integer, self.floating,
                                           self.floating, self.convert, self.select]  # fmt: skip
        for _ in range(length):
            self.pick(steps)()

    def snapshot(self) -> dict[str, list[str]]:
        return {t: list(v) for t, v in self.values.items()}

    def diamond(self, depth: int) -> None:
        """An if with values that only one arm computes, joined by phis."""
        condition = self.value("i1")
        self.count += 1
        n = self.count
        self.lines.append(f"  br i1 {condition}, label %then{n}, label %else{n}\nthen{n}:")
        before = self.snapshot()
        ends = []
        for arm in ("then", "else"):
            if arm == "else":
                self.lines.append(f"else{n}:")
                self.values = {t: list(v) for t, v in before.items()}
            self.block = f"{arm}{n}"
            self.body(depth - 1)
            ends.append((self.block, {t: self.value(t) for t in [*INTS, *FLOATS]}))
            self.lines.append(f"  br label %join{n}")
        self.lines.append(f"join{n}:")
        self.block, self.values = f"join{n}", before
        for ty in [*INTS, *FLOATS]:
            arms = ", ".join(f"[{vals[ty]}, %{block}]" for block, vals in ends)
            self.emit(ty, f"phi {ty} {arms}")

    def loop(self, depth: int) -> None:
        """A loop whose trip count differs between threads."""
        count = self.emit("i32", f"and i32 {self.value('i32')}, 7")
        first = {t: self.value(t) for t in ("i32", "float")}
        self.count += 1
        n, entry = self.count, self.block
        self.lines.append(f"  br label %loop{n}\nloop{n}:")
        at = len(self.lines)
        i, x, f = (f"%{k}{n}" for k in "ixf")
        before = self.snapshot()
        self.values["i32"] += [x, i]
        self.values["float"].append(f)
        self.block = f"loop{n}"
        self.body(depth - 1)
        nx, nf = self.value("i32"), self.value("float")
        self.lines.insert(
            at, f"  {f} = phi float [{first['float']}, %{entry}], [{nf}, %{self.block}]"
        )
        self.lines.insert(at, f"  {x} = phi i32 [{first['i32']}, %{entry}], [{nx}, %{self.block}]")
        self.lines.insert(at, f"  {i} = phi i32 [0, %{entry}], [%n{n}, %{self.block}]")
        self.lines.append(f"  %n{n} = add i32 {i}, 1\n  %c{n} = icmp ult i32 %n{n}, {count}")
        self.lines.append(f"  br i1 %c{n}, label %loop{n}, label %after{n}\nafter{n}:")
        self.block, self.values = f"after{n}", before
        self.emit("i32", f"add i32 {nx}, %n{n}")
        self.emit("float", f"fadd float {nf}, 0.5")

    def body(self, depth: int) -> None:
        self.straight(6)
        if depth > 0:
            (self.diamond if self.rng.random() < 0.6 else self.loop)(depth)
            self.straight(4)

    def text(self) -> str:
        self.values["i32"].append("%x")
        self.values["float"].append("%y")
        for to in ("i8", "i16"):
            self.emit(to, f"trunc i32 %x to {to}")
        self.emit("i64", "mul i64 %wide, 6364136223846793005")
        self.emit("double", "fpext float %y to double")
        for _ in range(3):
            self.body(2)
        results = "".join(
            f"  %o{i} = getelementptr [8 x i64], ptr %out, i32 %t, i32 {i}\n"
            f"  store {ty} {self.value(ty)}, ptr %o{i}\n" for i, ty in enumerate([*INTS, *FLOATS])
        )  # fmt: skip
        head = (
            "entry:\n  %xp = getelementptr i32, ptr %in, i32 %t\n  %x = load i32, ptr %xp\n"
            "  %yp = getelementptr float, ptr %fin, i32 %t\n  %y = load float, ptr %yp\n"
            "  %wide = sext i32 %x to i64\n"
        )
        return (
            "\n".join(self.declared.values())
            + "\ndeclare i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n"
            + "define HEAD {\n"
            + head.replace("entry:\n", "entry:\nTID")
            + "\n".join(self.lines)
            + f"\n{results}  ret void\n}}\n"
        )


def on_cpu(text: str, args: list[Array]) -> None:
    """Run the IR once per thread number with LLVM's JIT for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = text.replace("declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()", "")
    text = text.replace("HEAD", "void @k(ptr %in, ptr %fin, ptr %out, i32 %t)").replace("TID", "")
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
    engine.finalize_object()
    pointers = [ctypes.c_void_p] * 3
    call = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int)(engine.get_function_address("k"))
    for t in range(THREADS):
        call(*(a.ctypes.data for a in args), t)


def inputs(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = (rng.integers(-(2**31), 2**31, THREADS) >> rng.integers(0, 31, THREADS)).astype(np.int32)
    y = (rng.standard_normal(THREADS) * 10.0 ** rng.integers(-3, 12, THREADS)).astype(np.float32)
    y[:4] = [np.inf, -0.0, np.nan, 1e-41]
    return x, y


def check(seed: int) -> None:
    program = Program(seed)
    text = program.text()
    x, y = inputs(seed)
    want = np.zeros((THREADS, 8), np.int64)
    on_cpu(text, [x, y, want])
    device = text.replace("HEAD", f'ptx_kernel void @k(ptr %in, ptr %fin, ptr %out) '
                          f'"nvvm.reqntid"="{THREADS}"')  # fmt: skip
    device = device.replace("TID", "  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n")
    cpu, features = TARGETS[seed % len(TARGETS)]
    ptx = compile_ir(device, cpu, features, level=seed % 3)
    got = np.zeros_like(want)
    sim.run(ptx, "k", [x, y, got], (1, 1, 1), seed=None if seed % 2 else seed)
    for column, kind in ((4, np.float32), (5, np.float64)):
        nan = np.isnan(np.ascontiguousarray(want[:, column]).view(np.float64)) if column == 5 else (
            np.isnan(want[:, column].astype(np.uint32).view(np.float32)))  # fmt: skip
        mine = np.isnan(np.ascontiguousarray(got[:, column]).view(np.float64)) if column == 5 else (
            np.isnan(got[:, column].astype(np.uint32).view(np.float32)))  # fmt: skip
        assert np.array_equal(nan, mine), kind
        got[nan, column] = want[nan, column]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed: int) -> None:
    check(seed)
