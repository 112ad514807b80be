"""A compiled kernel onto a device: its cubin, or its PTX through the driver's own compiler."""

from __future__ import annotations

from tilec.codegen.cubin import result_of
from tilec.compiler import Compiled
from tilec.errors import DriverError
from tilec.ir.remarks import remark
from tilec.runtime import device
from tilec.runtime.device import LoadedKernel


def load(made: Compiled, index: int) -> LoadedKernel:
    """Load a kernel that was compiled down to the cubin.

    Where no ptxas was found to keep a kernel's setmaxnreg, the driver compiles the PTX, which
    `made.linked` then says; if it cannot, the cubin without setmaxnreg is loaded after all.
    """
    linked = made.linked
    assert linked is not None
    if not linked.drops_setmaxnreg:
        return device.load(linked.cubin, made.name, made.shared, index)
    try:
        loaded, log = device.load_ptx(made.ptx, made.name, made.shared, index)
    except DriverError as e:
        remark(None, "assembler", f"the driver's JIT does not take the PTX ({e.message}): compiled "
               f"by {linked.assembler}, which leaves out setmaxnreg", assembler=linked.assembler)
        return device.load(linked.cubin, made.name, made.shared, index)
    made.linked = result_of(linked.cubin, log, made.name, "the driver's JIT")
    remark(None, "assembler", "compiled by the driver's JIT, since ptxas was not found and "
           "nvJitLink leaves out setmaxnreg", assembler=made.linked.assembler)
    for line in made.linked.advisories:
        remark(None, "assembler", line, advisory=True)
    return loaded
