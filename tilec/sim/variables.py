"""Where the variables of a kernel lie: those of the module, shared, local, and parameters."""

from __future__ import annotations

import numpy as np

from tilec.sim import flow
from tilec.sim.memory import GLOBAL_BASE, SHARED_START, Global
from tilec.sim.parser import shared_variables
from tilec.sim.ptx import TYPE_BYTES, Kernel, Module, Variable, align_up


class Variables:
    """Addresses of a kernel's variables, by the variable's id; the module's get room in `arena`.

    `in_frames` has offsets of `.local` variables and call parameters in the memory of a thread, by
    frame and id.
    """

    def __init__(self, module: Module, kernel: Kernel, flat: flow.Flat, arena: Global) -> None:
        self.module, self.kernel, self.arena = module, kernel, arena
        self.addresses: dict[int, int] = {}
        self.in_frames: dict[tuple[int, int], int] = {}
        self.place_module_variables()
        self.static_shared = self.place_shared()
        self.local_bytes = self.place_locals(flat)
        self.param_offsets, self.param_bytes = layout(kernel.params)

    def place_module_variables(self) -> None:
        """Give `.global` and `.const` variables of the module an address."""
        for variable in self.module.scope.variables.values():
            if variable.space in ("global", "const"):
                made = self.arena.reserve(variable.size, variable.align, variable.name)
                made.constant = variable.space == "const"
                made.writable = not made.constant
                self.addresses[id(variable)] = made.start
        self.module_allocations = len(self.arena.allocations)

    def place_shared(self) -> int:
        """Addresses of static shared variables; dynamic memory follows them. Returns bytes used."""
        at = SHARED_START
        dynamic = [v for scope in (self.module.scope, self.kernel.scope)
                   for v in scope.variables.values() if v.space == "shared" and v.extern]
        for variable in (*shared_variables(self.module, self.kernel), *dynamic):
            at = align_up(at, variable.align)
            self.addresses[id(variable)] = at
            at += variable.size
        return at - SHARED_START

    def place_locals(self, flat: flow.Flat) -> int:
        """Offsets of `.local` variables and call parameters in every frame; bytes per thread."""
        at = 0
        seen: set[tuple[int, int]] = set()
        for entry in flat.entries:
            for scope in entry.instr.scope.chain() if entry.instr else ():
                if (entry.frame, id(scope)) in seen:
                    break
                seen.add((entry.frame, id(scope)))
                for variable in scope.variables.values():
                    kernel_param = entry.frame == 0 and variable in self.kernel.params
                    if variable.space in ("local", "param") and not kernel_param:
                        at = align_up(at, max(variable.align, 8))
                        self.in_frames[entry.frame, id(variable)] = at
                        at += max(variable.size, TYPE_BYTES[variable.type])
        return at

    def initialise(self) -> None:
        """Write the initial values of module variables into a freshly built arena."""
        for variable in self.module.scope.variables.values():
            if variable.space not in ("global", "const"):
                continue
            start = self.addresses[id(variable)] - GLOBAL_BASE
            memory = self.arena.bytes[start : start + variable.size]
            memory[:] = 0
            width = TYPE_BYTES[variable.type]
            for i, value in enumerate(variable.init):
                if isinstance(value, tuple):
                    name, plus = value
                    target = self.module.scope.variables.get(name)
                    value = (self.addresses.get(id(target), 0) if target else 0) + plus
                data = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
                memory[i * width : (i + 1) * width] = np.frombuffer(data, np.uint8)


def layout(params: list[Variable]) -> tuple[dict[str, int], int]:
    """Offset of every kernel parameter, and their total size."""
    offsets, at = {}, 0
    for variable in params:
        at = align_up(at, variable.align)
        offsets[variable.name] = at
        at += variable.size
    return offsets, at
