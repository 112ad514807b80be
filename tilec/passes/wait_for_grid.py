"""wait_for_grid: a kernel that may begin before the grid before it has ended waits for that."""

from __future__ import annotations

from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.core import Builder, Func, Module, Op
from tilec.passes.base import Pass
from tilec.target import DEFAULT, Target

GLOBAL = frozenset({"read", "write"})


class WaitForGrid(Pass):
    """In a module with `launch_pdl`, what its author left out of a programmatic dependent launch: a
    wait for the grids before, and then leave for the next one to begin. The wait stands outside of
    branches and loops, before the first access to global memory: every program waits, one without
    an access too, since a grid that ends is taken to have seen the end of those before it.

    load(%p) --> grid_dependency_wait ; grid_dependency_launch ; load(%p)
    """

    def run(self, module: Module) -> None:
        if not module.attributes.get("launch_pdl", False):
            return
        target = Target.parse(module.attributes.get("target", DEFAULT))
        for func in module.funcs:
            if lack := target.lacks("griddepcontrol"):
                raise CompilationError(f"`{func.name}`: launch_pdl needs {lack.needs}, the target "
                                       f"is {target}", None, "leave launch_pdl out")
            _complete(func)


def _complete(func: Func) -> None:
    wait: Op | None = next((op for op in func.body if isinstance(op, ops.GridDependencyWait)), None)
    if wait is None:
        first = next((op for op in func.body if op.effects & GLOBAL), func.body.terminator)
        wait = Builder(before=first, loc=first.loc).insert(ops.GridDependencyWait())
    if not any(isinstance(op, ops.GridDependencyLaunch) for op in func.walk()):
        assert func.body is wait.parent
        func.body.insert(ops.GridDependencyLaunch(loc=wait.loc), wait.next)
