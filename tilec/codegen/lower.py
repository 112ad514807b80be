"""Tile IR at level `lowered` -> LLVM IR text: the driver. One small rule an op, in the files
beside this one; importing them fills the tables."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.codegen import (  # noqa: F401  (their rules)
    affine,
    atomics,
    casts,
    cluster,
    control,
    debug,
    dot,
    elementwise,
    hopper,
    inline_asm,
    mathfns,
    mathfns64,
    memory,
    reduce,
    roles,
    shape,
    shared,
    wgmma,
)
from tilec.codegen.checks import Check, Checks
from tilec.codegen.context import SMEM, CodeGen, lower
from tilec.codegen.emit import Reg, llvm_element
from tilec.codegen.explain import explain
from tilec.errors import CompilationError
from tilec.ir.core import UNKNOWN, Func, Module, Value
from tilec.ir.descriptors import TENSOR_MAP_BYTES
from tilec.ir.ops.gpu import GridDependencyWait
from tilec.ir.remarks import recorded
from tilec.ir.types import MemDesc, Pointer, Scalar, TensorMap, Token, bf16, element_of
from tilec.target import Lack, Target


@dataclass(frozen=True)
class LLIR:
    """LLVM IR of one kernel. params: the types of the author's parameters in order, for the
    launcher. checks: those that are in it, by their numbers, from 1 on."""

    text: str
    name: str
    shared_bytes: int
    num_warps: int
    params: tuple[str, ...]
    checks: tuple[Check, ...] = ()


def to_llir(module: Module, target: Target) -> LLIR:
    """LLVM IR of the module's kernel. Every tensor must have a layout and every op that needs
    scratch memory its offset. Raises CompilationError where an op has no lowering."""
    (func,) = module.funcs
    _refuse_unlowered(func)
    if lack := target.lacks("cvt.bf16"):
        _refuse_bf16(func, target, lack)
    if module.attributes.get("launch_pdl", False):
        _refuse_early(func)
    if module.num_ctas > 1 and (lack := target.lacks("barrier.cluster")):
        raise CompilationError(f"@{func.name} has num_ctas = {module.num_ctas}, which needs "
                               f"{lack.needs}, the target is {target}",
                               None if func.loc is UNKNOWN else func.loc, "leave num_ctas out")
    cg = CodeGen(func, module.num_warps, target)
    if recorded():
        explain(cg)
    if module.attributes.get("checks", False):
        cg.checks = Checks(cg)
    for i, arg in enumerate(func.args):
        cg.env[arg] = _argument(cg, arg, i)
    for op in func.body:
        cg.op(op)
    name = symbol(func.name)
    text = _module_text(cg, func, name, int(module.attributes.get("maxnreg", 0)), module.num_ctas)
    return LLIR(text, name, int(module.attributes.get("shared", 0)),
                module.num_warps, tuple(str(a.type) for a in func.args),
                () if cg.checks is None else tuple(cg.checks.found))


def _refuse_unlowered(func: Func) -> None:
    for op in func.walk():
        if lower.get(type(op)) is None and not op.terminator:
            raise CompilationError(f"{op.name} is not lowered yet",
                                   None if op.loc is UNKNOWN else op.loc)


def _refuse_bf16(func: Func, target: Target, lack: Lack) -> None:
    for op in func.walk():
        for value in (*op.operands, *op.results):
            if isinstance(value.type, MemDesc | TensorMap | Token):
                continue
            element = element_of(value.type)
            if bf16 in (element, getattr(element, "pointee", None)):
                raise CompilationError(f"bf16 needs {lack.needs}, the target is {target}",
                                       op.loc, lack.advice)


def _refuse_early(func: Func) -> None:
    if not any(isinstance(op, GridDependencyWait) for op in func.body):
        raise CompilationError(f"@{func.name} has launch_pdl, but does not wait for the grids "
                               "before it outside of branches and loops",
                               None if func.loc is UNKNOWN else func.loc,
                               "put a gpu.grid_dependency_wait before its first access")


def symbol(name: str) -> str:
    """A kernel's name as PTX can spell it."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_$") else f"_{ord(c):x}_"
                   for c in name)


def _is_bool(value: Value) -> bool:
    return isinstance(value.type, Scalar) and value.type.is_bool


def _argument(cg: CodeGen, arg: Value, index: int) -> Reg:
    if isinstance(arg.type, TensorMap):
        return Reg(f"%p{index}", "ptr")
    if not _is_bool(arg):
        return Reg(f"%p{index}", cg.element(arg))
    byte = Reg(f"%p{index}", "i8")
    return cg.e.compare("ne", byte, cg.e.const(0, "i8"))


def _parameters(cg: CodeGen, func: Func) -> str:
    """The function's; before the tensor maps that a launch makes, those of the checks."""
    shown = []
    for i, (arg, attrs) in enumerate(zip(func.args, func.arg_attrs, strict=True)):
        if isinstance(arg.type, TensorMap):
            shown.append(f"ptr byval([{TENSOR_MAP_BYTES} x i8]) align 64 "
                         f'"nvvm.grid_constant" %p{i}')
            continue
        elem = "i8" if _is_bool(arg) else llvm_element(element_of(arg.type))
        if isinstance(arg.type, Pointer):
            elem += f" align {max(arg.type.pointee.bytes, attrs.get('divisibility', 1))}"
        shown.append(f"{elem} %p{i}")
    if cg.checks is not None:
        at = sum(not isinstance(arg.type, TensorMap) for arg in func.args)
        shown[at:at] = cg.checks.parameters()
    return ", ".join(shown)


def _module_text(cg: CodeGen, func: Func, name: str, maxnreg: int, num_ctas: int) -> str:
    e, threads = cg.e, 32 * cg.num_warps
    parts = [*e.globals.values(), f"{SMEM} = external addrspace(3) global [0 x i8], align 1024",
             *sorted(e.declared.values())]
    parts.append(f"define ptx_kernel void @{name}({_parameters(cg, func)}) #0 "
                 f"!dbg !{cg.debug.subprogram} {{")
    parts += ["start:", *e.locals.values(), *e.entry, *e.lines, "}"]
    limit = f' "nvvm.maxnreg"="{maxnreg}"' if maxnreg else ""
    if roles.give_registers(func, maxnreg):
        limit = ' "nvvm.minctasm"="1"'  # setmaxnreg shares out what the launch bounds grant
    if num_ctas > 1:
        limit += f' "nvvm.cluster_dim"="{num_ctas},1,1"'
    # noimplicitfloat keeps LLVM from merging accesses: they are as wide as they should be, and it
    # would read past the end of a buffer to fill a vector.
    parts.append(f'attributes #0 = {{ nounwind noimplicitfloat "nvvm.reqntid"="{threads},1,1"'
                 f"{limit} }}")
    return "\n".join(parts) + "\n" + cg.debug.text()
