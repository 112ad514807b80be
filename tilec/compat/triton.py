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
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any

from tilec.compat.names import MODULES, VERSION

_MISSING = "docs/from-triton.md lists what is missing"


class _Module(types.ModuleType):
    """One of Triton's modules, whose names are found in tilec when they are asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"Triton's names in `{name}`, backed by tilec.")
        self.__version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        inner, names = f"{self.__name__}.{name}", MODULES[self.__name__]
        if inner in MODULES:
            return importlib.import_module(inner)  # which sets the attribute
        module, _, attribute = names.others.get(name, names.module).partition(":")
        found = getattr(importlib.import_module(module), attribute or name, None) \
            if module and not name.startswith("__") else None
        if found is None:
            raise AttributeError(f"tilec has no `{inner}`; {_MISSING}", name=name, obj=self)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        names = MODULES[self.__name__]
        inner = [m.rpartition(".")[2] for m in MODULES if m.rpartition(".")[0] == self.__name__]
        return sorted({*vars(self), *names.others, *inner})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of `MODULES`, in place of any that are installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """A spec of each name under `triton`."""
        if name.partition(".")[0] != "triton":
            return None
        if name not in MODULES:
            # Without `name=`: with it `from triton import x` would say less, and not where to look.
            raise ModuleNotFoundError(f"tilec has no `{name}`; {_MISSING}")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A module whose names come later."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Copy the names of tilec's module: what kernels use, a launch finds without a search."""
        name = module.__name__
        backing = MODULES[name].module
        if backing:
            vars(module).update({
                n: v for n, v in vars(importlib.import_module(backing)).items()
                if f"{name}.{n}" not in MODULES and (n == "__all__" or not n.startswith("__"))})


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
    """Run a script, or with -m a module, with the arguments that follow; SystemExit of 2, after a
    line that says why, where there is none."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] == "-m" and len(arguments) < 2:
        _stop("usage: python -m tilec.compat.triton (SCRIPT | -m MODULE) [ARGUMENT ...]")
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        if _absent(arguments[1]):
            _stop(f"tilec.compat.triton: there is no module `{arguments[1]}` to run")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not any(map(os.path.isfile, (arguments[0], os.path.join(arguments[0], "__main__.py")))):
        _stop(f"tilec.compat.triton: there is no script {arguments[0]}")
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))  # as Python has it for a script
    runpy.run_path(arguments[0], run_name="__main__")


def _absent(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module}.__main__")
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module}.".startswith(f"{problem.name}."):
            raise  # it is there, and imports what is not
        return True
    return spec is None


def _stop(line: str) -> None:
    print(line, file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    # One finder: what a script imports by this name is the module that it runs in.
    sys.modules["tilec.compat.triton"] = sys.modules["__main__"]
    main()
else:
    install()
