"""Turns a kernel into code: registers become arrays, operands views of them, instructions closures.

Every register is an array over the lanes of the CTA that holds raw bits; an instruction sees it
through a view of its own type. Constants and addresses become arrays too, once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim import flow
from tilec.sim.banks import OnShared
from tilec.sim.bulk import Transfers
from tilec.sim.checks import Checks, Watch, Written
from tilec.sim.copies import Copies
from tilec.sim.counters import Counters
from tilec.sim.errors import SimError, Unsupported
from tilec.sim.machine import Array, Code, Machine, Mask, Moves, positioned
from tilec.sim.mbarrier import MBarriers
from tilec.sim.memory import RANK_BITS, Global, Local, Shared, Space, Window
from tilec.sim.ptx import TYPE_BYTES, Instr, Kernel, Module, Operand, Scope, Variable, is_float
from tilec.sim.rules import rule_of
from tilec.sim.specials import special_registers
from tilec.sim.syntax import NAMING, counts, discards, known
from tilec.sim.tensormap import Box
from tilec.sim.undefined import Register, Step, Undefined
from tilec.sim.variables import Variables
from tilec.sim.views import INT, UINT, as_type, numpy_type
from tilec.sim.wgmma import Products, registers

_POOL = 128  # registers of a pool
# Their registers may be wider than their type: PTX ISA, "Operand Size Exceeding Instruction-Type
# Size".
EXTENDING = frozenset({"ld", "ldu", "st", "cvt"})


class Decoder:
    """A kernel decoded for CTAs of `threads` threads; `code[i]` belongs to `where[i]`.

    With `check` its accesses are checked against each other (see sim/checks.py), with `count` they
    are counted (see sim/counters.py). first: the decoder of another CTA of the launch, with which
    this one shares global memory, parameters, and what checks and counts them.
    """

    def __init__(self, module: Module, kernel: Kernel, threads: int, check: bool = False,
                 count: bool = False, first: Decoder | None = None) -> None:
        self.module = module
        self.kernel = kernel
        self.machine = Machine(threads, math.prod(kernel.cluster))
        self.lanes = self.machine.lanes
        self.pools: dict[Any, list[Array]] = {}
        self.pool_used: dict[Any, int] = {}
        self.registers: dict[tuple[int, int, str], Array] = {}
        self.constants: dict[tuple[Any, Any], Array] = {}
        self.carry = np.zeros(self.lanes, bool)
        self.on_print: Callable[[str], None] = print
        self.on_shared: OnShared | None = None
        # Those of the present launch, by handle.
        self.tensor_maps: list[Box] = [] if first is None else first.tensor_maps
        self.specials = special_registers(self.machine, kernel)
        self.arena: Global = Global() if first is None else first.arena
        flat = flow.flatten(module, kernel)
        self.variables: Variables = first.variables if first is not None else \
            Variables(module, kernel, flat, self.arena)
        self.param: Window = first.param if first is not None else \
            Window("param", 0, self.variables.param_bytes, writable=False)
        self.shared = Shared(self.variables.static_shared, math.prod(kernel.cluster))
        self.shared.gone = self.machine.gone
        self.local = Local(self.lanes, self.variables.local_bytes)
        self.spaces: dict[str, Space] = {
            "global": self.arena, "const": self.arena, "shared": self.shared,
            "shared::cluster": self.shared, "local": self.local, "param": self.param,
        }
        self.mbarriers = MBarriers(self)
        self.copies = Copies(self)
        self.transfers = Transfers(self)
        self.products = Products(self, [
            entry.instr for entry in flat.entries if entry.instr and entry.instr.op == "wgmma"])
        self.machine.engines = [self.copies, self.transfers, self.products]
        self.unsupported: list[SimError] = []
        self.code: list[Code] = []
        self.where: list[Instr | None] = []
        self.checks: Checks | None = \
            Checks(self, flat, None if first is None else first.checks) if check else None
        self.undefined = Undefined(self, flat) if check else None
        self.counters: Counters | None = first.counters if first is not None else \
            Counters(self.machine, self.where) if count else None
        self.named: list[Register] = []
        self.assigned: list[Register] = []
        self.moved: set[int] | None = None  # while a twin is decoded: the operands that it moves
        self.step: Step | None = None
        # Whether registers of the present instruction may be wider than its type, and whether it
        # takes the names of variables and special registers.
        self.extends = self.names = False
        self.pc = 0
        self.frame = 0
        self.scope = kernel.scope
        order = flow.schedule(flat)
        self.assemble(order, flat)
        if self.undefined is not None:
            self.undefined.analyse(flat, order)

    def beside(self) -> Decoder:
        """A decoder for another CTA of the launch."""
        made = Decoder(self.module, self.kernel, self.machine.threads, self.checks is not None,
                       first=self)
        made.on_print, made.on_shared = self.on_print, self.on_shared
        return made

    # Registers and operands

    def key(self, name: str) -> Register | None:
        """Which register a name stands for here; None if no scope declares it."""
        found = self.scope.find_reg(name)
        return None if found is None else (self.frame, id(found[0]), name)

    def register(self, name: str) -> Array | None:
        """The array of a register, made when first named; None if no scope declares it."""
        found = self.scope.find_reg(name)
        if found is None:
            return None
        self.named.append(key := (self.frame, id(found[0]), name))
        array = self.registers.get(key)
        if array is None:
            if found[1] == "b128":
                raise Unsupported("128-bit registers")
            kind = np.bool_ if found[1] == "pred" else UINT[TYPE_BYTES[found[1]]]
            array = self.registers[key] = self.allocate(kind)
        return array

    def allocate(self, kind: Any) -> Array:
        """One register of a bit container type, from a pool that is cleared at once."""
        pool = self.pools.setdefault(kind, [])
        if (used := self.pool_used.get(kind, 0)) % _POOL == 0:
            pool.append(np.zeros((_POOL, self.lanes), kind))
        self.pool_used[kind] = used + 1
        row: Array = pool[-1][used % _POOL]
        return row

    def clear_registers(self) -> None:
        """Every register reads zero again."""
        for pool in self.pools.values():
            for block in pool:
                block[...] = 0
        self.carry[...] = False

    def constant(self, value: Any, kind: Any) -> Array:
        """A value in every lane, read-only."""
        key = (struct.pack("d", value) if isinstance(value, float) else value, kind)
        array = self.constants.get(key)
        if array is None:
            array = np.full(self.lanes, value, kind)
            array.flags.writeable = False
            self.constants[key] = array
        return array

    def src(self, operand: Operand, ty: str) -> Array:
        """A source operand as a view of the type, over all lanes.

        A register wider than the type gives its low bits. Raises Unsupported for operands that
        have no such reading.
        """
        kind = numpy_type(ty)
        if self.moved is not None and id(operand) in self.moved:
            return self.moved_source(operand, ty)
        if operand.kind == "reg":
            array = self.register(operand.name)
            if array is None:
                array = self.special(operand.name)
            if array is None:
                return self.address_of(operand.name, 0, kind)
            if operand.negated and kind is not np.bool_:
                raise Unsupported("a negated operand here")
            self.check_size(operand.name, array, kind, ty)
            return as_type(array, kind)
        if operand.kind == "sym" and self.names:
            return self.address_of(operand.name, operand.value, kind)
        if operand.kind == "imm":
            if ty in ("f32", "f64"):
                raise Unsupported(f"the integer {operand.value} where .{ty} is expected")
            if kind is np.bool_:
                return self.constant(bool(operand.value), kind)
            size = np.dtype(kind).itemsize
            value = operand.value & ((1 << 8 * size) - 1)
            return self.constant(value, UINT[size]).view(kind)
        if operand.kind in ("f32", "f64", "float"):
            return self.float_constant(operand, ty)
        raise Unsupported(f"a {operand.kind} operand where a {ty} value is expected")

    def bits(self, operand: Operand, ty: str) -> Array:
        """The bits of a source operand of the type."""
        self.check_kind(operand, ty)
        return self.src(operand, ty).view(UINT[TYPE_BYTES[ty]])

    def special(self, name: str) -> Array | None:
        """A special register; None for the name of a variable. Unsupported where the instruction
        takes neither."""
        if not self.names:
            if name not in self.specials:
                self.symbol(name)
            raise Unsupported(f"'{name}', which is no register, here")
        return self.specials.get(name)

    def check_size(self, name: str, array: Array, kind: Any, ty: str) -> None:
        """Raise Unsupported where a register is no place for a value of the type (PTX ISA, "Operand
        Size Exceeding Instruction-Type Size")."""
        have, want = array.dtype, np.dtype(kind)
        if (have == np.bool_) != (want == np.bool_) or have.itemsize < want.itemsize or \
                have.itemsize > want.itemsize and not self.extends:
            held = "a predicate" if have == np.bool_ else f"{8 * have.itemsize} bits"
            raise Unsupported(f"'{name}', which holds {held}, where .{ty} is expected")

    def check_vector(self, operand: Operand) -> None:
        """Raise Unsupported for a vector of registers of several sizes."""
        sizes = {TYPE_BYTES[held[1]] for item in operand.items
                 if (held := self.scope.find_reg(item.name)) is not None}
        if len(sizes) > 1:
            raise Unsupported(f"a vector of registers of {sorted(sizes)} bytes")

    def check_kind(self, operand: Operand, ty: str) -> None:
        """Raise Unsupported for a register of floats where integers are expected, or the other way
        round; one of bits holds anything."""
        found = self.scope.find_reg(operand.name) if operand.kind == "reg" else None
        kinds = {"float" if is_float(t) else t[0] for t in (found[1] if found else ty, ty)}
        if "float" in kinds and kinds & {"u", "s"}:
            raise Unsupported(f"'{operand.name}', which is declared otherwise, where .{ty} is "
                              "expected")

    def float_constant(self, operand: Operand, ty: str) -> Array:
        """0f, 0d and decimal constants: as bits for a type of their size, else by value."""
        size = {"f32": 4, "f64": 8}.get(operand.kind, 0)
        bits = self.constant(operand.value, UINT[size or 8])
        if TYPE_BYTES[ty] == size and ty[0] in "bf":
            return bits.view(numpy_type(ty))
        if ty in ("f32", "f64"):
            value = bits.view(f"f{size}")[0] if size else operand.name
            return self.constant(float(value), numpy_type(ty))
        raise Unsupported(f"a float constant for type .{ty}")

    def dst(self, operand: Operand, ty: str) -> Array:
        """The array that a result of the type is copied into.

        A register wider than the type is seen in its own width, signed for signed types, so that
        copying extends.
        """
        kind = numpy_type(ty)
        if operand.kind == "sink":
            return self.allocate(kind)
        array = self.register(operand.name) if operand.kind == "reg" else None
        if array is not None:
            self.assigned.append(self.named[-1])
            if self.moved is not None and self.undefined is not None:
                array = self.undefined.bits[self.named[-1]]
        if array is None:
            raise Unsupported(f"a destination that is no declared register: '{operand.name}'")
        self.check_size(operand.name, array, kind, ty)
        if array.dtype.itemsize > np.dtype(kind).itemsize:
            return array.view((INT if np.dtype(kind).kind == "i" else UINT)[array.itemsize])
        return as_type(array, kind)

    def moved_source(self, operand: Operand, ty: str) -> Array:
        """The undefined bits of a source operand, as a view of the type."""
        assert self.undefined is not None
        array = self.register(operand.name) if operand.kind == "reg" else None
        if array is None:
            return self.constant(0, numpy_type(ty))
        return as_type(self.undefined.bits[self.named[-1]], numpy_type(ty))

    def pred(self, operand: Operand) -> Callable[[], Array]:
        """A predicate source, with its negation."""
        array = self.src(operand._replace(negated=False), "pred")
        return (lambda: ~array) if operand.negated else (lambda: array)

    def symbol(self, name: str, scope: Scope | None = None) -> tuple[str, int]:
        """Space and address of a variable: local ones (and call parameters) as thread offsets."""
        variable = (scope or self.scope).find_variable(name)
        if variable is None:
            raise Unsupported(f"the undeclared name '{name}'")
        return self.variable_address(variable)

    def address_of(self, name: str, plus: int, kind: Any) -> Array:
        """The address `plus` bytes into a variable, in every lane.

        In a cluster that of a shared variable has the rank of the lane's CTA in it.
        """
        space, at = self.symbol(name)
        if space != "shared" or self.shared.ranks == 1:
            return self.constant(at + plus, kind)
        made = (self.machine.cta << RANK_BITS) + (at + plus)
        return made.astype(kind)

    def variable_address(self, variable: Variable) -> tuple[str, int]:
        if variable.space in ("local", "param"):
            at = self.variables.in_frames.get((self.frame, id(variable)))
            if at is not None:
                return "local", at
            return "param", self.variables.param_offsets[variable.name]
        return variable.space, self.variables.addresses[id(variable)]

    def call_parameter(self, frame: int, variable: Variable) -> tuple[int, int]:
        """Offset and size of a parameter or return value of a call, in each thread's memory."""
        size = max(variable.size, TYPE_BYTES[variable.type])
        return self.variables.in_frames[frame, id(variable)], size

    # Code

    def assemble(self, order: list[flow.Placed], flat: flow.Flat) -> None:
        """Decode every instruction at its scheduled place."""
        self.starts = {placed.block: placed.pc for placed in order}
        for placed in order:
            self.emit(self.machine.join(len(self.code)), None)
            for index in range(placed.first, placed.last):
                entry = flat.entries[index]
                self.frame, self.pc = entry.frame, len(self.code)
                self.index, self.entry, self.flat = index, entry, flat
                if entry.instr is None:
                    self.emit(_jump(self.starts[flat.block_at[entry.jump]]), None)
                else:
                    self.emit(self.instruction(entry.instr), entry.instr)
            if placed.jump is not None:
                self.emit(_jump(self.starts[placed.jump]), None)
        self.emit(lambda mask: self.machine.retire(mask), None)

    def emit(self, code: Code, instr: Instr | None) -> None:
        self.code.append(code)
        self.where.append(instr)

    def target(self, label: str) -> int:
        """The place of a label in the code."""
        return self.starts[self.flat.block_at[self.flat.label(self.entry, label)]]

    def after_call(self) -> int | None:
        """Where `ret` goes in an inlined function; None in the kernel itself."""
        after = self.flat.frames[self.entry.frame].after
        return None if after is None else self.starts[self.flat.block_at[after]]

    def callee(self) -> tuple[int, int] | None:
        """Frame and start of the function that the present call inlines; None if undefined."""
        frame = self.flat.callee.get(self.index)
        if frame is None:
            return None
        return frame, self.starts[self.flat.block_at[self.flat.frames[frame].first]]

    def instruction(self, instr: Instr) -> Code:
        """One instruction as code; what cannot be decoded raises when it is executed."""
        self.scope = instr.scope
        self.named, self.assigned = [], []
        self.extends, self.names = instr.op in EXTENDING, instr.op in NAMING
        step = self.step = None if self.undefined is None else Step(self, instr)
        try:
            rule = rule_of(instr)
            if rule is None:
                raise Unsupported(f"the instruction '{instr.op}'")
            if not known(instr.op, instr.mods):
                raise Unsupported(".".join((instr.op, *instr.mods)))
            if not counts(instr.op, instr.mods, len(instr.operands)):
                raise Unsupported(f"'{instr.op}' with {len(instr.operands)} operands")
            if not discards(instr):
                raise Unsupported(f"'_' in place of this result of '{instr.op}'")
            for vector in (o for o in instr.operands if o.kind == "vec"):
                self.check_vector(vector)
            code = rule(self, instr)
            if self.undefined is not None and step is not None:
                self.undefined.note(step, self.named, self.assigned)
                code = code if step.synced else self.undefined.after(step, code)
        except (Unsupported, ValueError, IndexError, KeyError) as error:
            reason = str(error) if isinstance(error, Unsupported) else "this form of instruction"
            code = self.failing(positioned(f"the simulator does not know {reason}", instr))
        if instr.op != "wgmma" and any(o.name in self.products.names
                                       for o in registers(instr.operands)):
            code = self.products.watch(instr, code)
        if instr.guard is not None and instr.op != "bra":
            try:
                code = self.guarded(code, instr)
            except Unsupported as error:
                code = self.failing(positioned(f"the simulator does not know {error}", instr))
        if instr.guard is not None and self.undefined is not None and step is not None:
            code = self.undefined.guarded(step, code)
        return code if self.counters is None else self.counters.counted(self.pc, code)

    def watch(self, instr: Instr, data: Written | None = None) -> Watch | None:
        """What must see every access of the present instruction, which writes `data`."""
        if self.moved is not None:
            return None
        checks = None if self.checks is None else self.checks.watch(instr, data)
        counts = None if self.counters is None else self.counters.watch(instr, self.pc)
        if checks is None or counts is None:
            return checks or counts

        def both(memory: Space, threads: Array, offsets: Array, width: int, writes: bool) -> None:
            checks(memory, threads, offsets, width, writes)
            counts(memory, threads, offsets, width, writes)

        return both

    def here(self) -> tuple[Any, ...]:
        """The instruction that is being decoded."""
        return self.scope, self.frame, self.pc, self.index, self.entry

    def go(self, place: tuple[Any, ...]) -> None:
        """Decode for another place, which `here` gave."""
        self.scope, self.frame, self.pc, self.index, self.entry = place

    def twin(self, instr: Instr, moved: set[int]) -> Code:
        """The instruction as code that moves undefined bits."""
        assert self.undefined is not None
        rule, spaces = rule_of(instr), self.spaces
        assert rule is not None
        self.extends, self.names = instr.op in EXTENDING, instr.op in NAMING
        self.moved, self.spaces, self.assigned = moved, self.undefined.spaces, []
        try:
            return rule(self, instr)
        finally:
            self.moved, self.spaces = None, spaces

    def failing(self, failure: SimError) -> Code:
        """Code that raises, for an instruction that could not be decoded."""
        self.unsupported.append(failure)

        def code(mask: Mask) -> None:
            raise failure

        return code

    def synced(self, members: Array, body: Callable[[Mask], None]) -> Code:
        """Run `body` once all lanes of each thread's member mask stand at this instruction."""
        machine, pc = self.machine, self.pc
        if self.moved is not None:
            return body
        if self.undefined is not None and self.step is not None:
            self.step.synced = True
            body = self.undefined.after(self.step, body)
        everyone = not members.flags.writeable and bool((members == 0xFFFFFFFF).all())

        def code(mask: Mask) -> Moves | None:
            if everyone and pc not in machine.blocked and machine.whole_warps(mask):
                body(mask)
                return None
            merged = pc in machine.blocked
            ready = machine.gate(pc, mask, members)
            if np.count_nonzero(ready):
                body(ready)
            if not merged and pc not in machine.blocked:
                return None
            return [(pc + 1, ready)]

        return code

    def warpgroups(self, body: Callable[[Mask], None]) -> Code:
        """Run `body` once all four warps of each thread's warpgroup stand at this instruction."""
        machine, pc = self.machine, self.pc
        if self.undefined is not None and self.step is not None:
            self.step.synced = True
            body = self.undefined.after(self.step, body)

        def code(mask: Mask) -> Moves | None:
            if mask is None and pc not in machine.blocked and self.lanes % 128 == 0:
                body(mask)
                return None
            ready = machine.gate_warpgroups(pc, mask)
            if np.count_nonzero(ready):
                body(ready)
            return [(pc + 1, ready)]

        return code

    def guarded(self, code: Code, instr: Instr) -> Code:
        """Run `code` for the threads whose guard holds; the others go on to the next one."""
        guard, next_pc, lanes = self.guard(instr), self.pc + 1, self.lanes

        def run(mask: Mask) -> int | Moves | None:
            chosen = guard() if mask is None else guard() & mask
            count = np.count_nonzero(chosen)
            if count == 0:
                return None
            if count == lanes:
                return code(None)
            chosen = chosen.copy() if mask is None else chosen
            result = code(chosen)
            if result is None:
                return None
            rest = ~chosen if mask is None else mask & ~chosen
            moves = [(result, chosen)] if isinstance(result, int) else result
            return [*moves, (next_pc, rest)]

        return run

    def guard(self, instr: Instr) -> Callable[[], Array]:
        """The guard predicate of an instruction."""
        assert instr.guard is not None
        return self.pred(Operand("reg", instr.guard, negated=instr.guard_negated))


def _jump(target: int) -> Code:
    return lambda mask: target
