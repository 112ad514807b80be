"""tilec: a tile compiler for GPU kernels in Python; every level is text and runs on a CPU.

Names load on first use, so that `import tilec` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> (module, attribute; None for the module itself)
_LAZY: dict[str, tuple[str, str | None]] = {
    "jit": ("tilec.runtime.jit", "jit"),
    "JITFunction": ("tilec.runtime.jit", "JITFunction"),
    "compile": ("tilec.runtime.aot", "compile"),
    "CompiledKernel": ("tilec.runtime.kernel", "CompiledKernel"),
    "load": ("tilec.runtime.text", "load"),
    "TensorDescriptor": ("tilec.runtime.descriptors", "TensorDescriptor"),
    "cdiv": ("tilec.runtime.aot", "cdiv"),
    "next_power_of_2": ("tilec.runtime.aot", "next_power_of_2"),
    **{name: ("tilec.runtime.tuner", name) for name in ("autotune", "Config")},
    "constexpr_function": ("tilec.language.values", "constexpr_function"),
    "set_allocator": ("tilec.runtime.driver", "set_allocator"),
    "KernelInterface": ("tilec.runtime.interface", "KernelInterface"),
    **{name: ("tilec.runtime.arguments", name) for name in ("TensorWrapper", "reinterpret")},
    "matmul_tile": ("tilec.runtime.tiles", "matmul_tile"),
    "heuristics": ("tilec.runtime.heuristics", "heuristics"),
    **{name: ("tilec.errors", name) for name in (
        "TilecError", "CompilationError", "CompileTimeAssertionError", "IRError",
        "OutOfResources", "InterpreterError", "SimulatorError", "LaunchError", "DriverError",
        "ToolError", "InternalError")},
    **{name: (f"tilec.{name}", None) for name in (
        "language", "knobs", "interp", "sim", "ir", "passes", "errors", "target", "runtime",
        "compiler", "tools", "testing")},
}
__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tilec' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found: Any = importlib.import_module(module)
    if attribute is not None:
        found = getattr(found, attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


if TYPE_CHECKING:
    from tilec import interp as interp
    from tilec import knobs as knobs
    from tilec import language as language
    from tilec import sim as sim
    from tilec import testing as testing
    from tilec.errors import CompilationError as CompilationError
    from tilec.errors import OutOfResources as OutOfResources
    from tilec.language.values import constexpr_function as constexpr_function
    from tilec.runtime.aot import cdiv as cdiv
    from tilec.runtime.aot import compile as compile
    from tilec.runtime.aot import next_power_of_2 as next_power_of_2
    from tilec.runtime.arguments import TensorWrapper as TensorWrapper
    from tilec.runtime.arguments import reinterpret as reinterpret
    from tilec.runtime.descriptors import TensorDescriptor as TensorDescriptor
    from tilec.runtime.driver import set_allocator as set_allocator
    from tilec.runtime.heuristics import heuristics as heuristics
    from tilec.runtime.interface import KernelInterface as KernelInterface
    from tilec.runtime.jit import JITFunction as JITFunction
    from tilec.runtime.jit import jit as jit
    from tilec.runtime.kernel import CompiledKernel as CompiledKernel
    from tilec.runtime.text import load as load
    from tilec.runtime.tiles import matmul_tile as matmul_tile
    from tilec.runtime.tuner import Config as Config
    from tilec.runtime.tuner import autotune as autotune
