"""Triton's module names, backed by tilec, so that existing libraries run unmodified:

    python -m tilec.compat.triton script.py    runs a script that imports triton
    import tilec.compat.triton                 before the first import of triton, in a program

What tilec does not have fails at its use, by name. Masked-off lanes and hints are as lenient as in
Triton (TILEC_STRICT=0, unless the flag says otherwise).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

VERSION = "3.6.0"  # of the Triton whose names these are

# A module of Triton -> tilec's module of the same names, or where each name is.
_MODULES: dict[str, str | Mapping[str, str]] = {
    "triton": {
        **dict.fromkeys(("Config", "JITFunction", "autotune", "cdiv", "compile", "heuristics",
                         "jit", "language", "next_power_of_2", "testing"), "tilec"),
        "OutOfResources": "tilec.errors", "CompilationError": "tilec.errors",
        "TritonError": "tilec.errors:TilecError"},
    "triton.language": "tilec.language",
    "triton.language.core": "tilec.language.core",
    "triton.language.math": "tilec.language.math",
    "triton.language.standard": "tilec.language.standard",
    "triton.language.extra": "tilec.language.extra",
    "triton.language.extra.cuda": "tilec.language.extra.cuda",
    "triton.language.extra.libdevice": "tilec.language.math",
    "triton.language.extra.cuda.libdevice": "tilec.language.math",
    "triton.testing": "tilec.testing",
    "triton.tools": {},
    "triton.tools.tensor_descriptor": {"TensorDescriptor": "tilec"},
    "triton.runtime": {"Config": "tilec", "JITFunction": "tilec", "OutOfResources": "tilec.errors"},
    "triton.runtime.jit": {"JITFunction": "tilec", "jit": "tilec",
                           "KernelInterface": "tilec:JITFunction"},
    "triton.runtime.autotuner": {
        "Config": "tilec", "OutOfResources": "tilec.errors", "autotune": "tilec",
        "heuristics": "tilec"},
    "triton.runtime.errors": {"OutOfResources": "tilec.errors"},
    "triton.backends": {},
    "triton.backends.compiler": {},
    "triton.runtime.cache": {"triton_key": "tilec.runtime.fingerprint:source_fingerprint"},
    "triton.runtime.driver": {},
    "triton.compiler.compiler": {"CompiledKernel": "tilec"},
    "triton.compiler": {"CompilationError": "tilec.errors", "CompiledKernel": "tilec"},
    "triton.compiler.errors": {"CompilationError": "tilec.errors"},
}


class _Module(types.ModuleType):
    """One of Triton's modules, whose names are found in tilec when they are asked for."""

    def __init__(self, name: str, names: Mapping[str, str]) -> None:
        super().__init__(name, f"Triton's names in `{name}`, backed by tilec.")
        self.__path__: list[str] = []
        self.__version__ = VERSION
        self._names = names

    def __getattr__(self, name: str) -> Any:
        where = self._names.get(name)
        if where is None:
            raise AttributeError(f"tilec has no `{self.__name__}.{name}`; docs/from-triton.md "
                                 "lists what is missing", name=name, obj=self)
        module, _, attribute = where.partition(":")
        found = getattr(importlib.import_module(module), attribute or name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of `_MODULES`, in place of any that are installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """A spec of each name under `triton`."""
        if name.partition(".")[0] != "triton":
            return None
        if name not in _MODULES:
            raise ModuleNotFoundError(f"tilec has no module `{name}`; docs/from-triton.md lists "
                                      "what is missing", name=name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """tilec's own module, or one of its names."""
        names = _MODULES[spec.name]
        if isinstance(names, str):
            return importlib.import_module(names)
        return _Module(spec.name, names)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def install() -> None:
    """Have `import triton` find tilec. RuntimeError where another triton is imported already."""
    there = sys.modules.get("triton")
    if there is not None and not isinstance(there, _Module):
        raise RuntimeError(f"triton is imported already, from {getattr(there, '__file__', '?')}: "
                           "import tilec.compat.triton before it")
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        os.environ.setdefault("TILEC_STRICT", "0")


def main() -> None:
    """Run a script, or with -m a module, with the arguments that follow."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] == "-m" and len(arguments) < 2:
        sys.exit("usage: python -m tilec.compat.triton (SCRIPT | -m MODULE) [ARGUMENT ...]")
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
else:
    install()
