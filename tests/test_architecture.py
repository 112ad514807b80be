"""What DESIGN promises of the code's shape: import arrows, lazy imports, sizes, complete tables."""

from __future__ import annotations

import ast
import functools
import importlib
import io
import pkgutil
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import tilec
from tilec.ir.core import OP_CLASSES, Op
from tilec.ir.ops import Elementwise
from tilec.ir.rules import Rules

ROOT = Path(tilec.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What the modules of each folder (or top-level module) may import, beside their own folder.
BASE = {"errors", "knobs", "target"}
IR = BASE | {"ir"}
EVAL = IR | {"eval"}
SIBLINGS = EVAL | {"interp", "passes", "codegen", "frontend", "language"}
COMPILER = SIBLINGS | {"compiler", "instruments"}
RUNTIME = COMPILER | {"sim", "runtime"}
MAY_IMPORT = {
    "errors": set(), "knobs": BASE, "target": BASE, "sim": BASE, "ir": BASE, "eval": IR,
    "interp": EVAL, "passes": EVAL, "codegen": EVAL, "frontend": EVAL | {"language"},
    "language": EVAL | {"frontend"}, "compiler": COMPILER, "instruments": COMPILER,
    "runtime": RUNTIME, "testing": RUNTIME, "tools": RUNTIME | {"tools"},
    "compat": RUNTIME | {"compat"},
}
# Lines of code that groups of folders may have: budgets, of which something is deleted first.
BUDGETS = {
    ("ir", "eval", "passes", "codegen", "frontend", "compiler", "instruments"): 19_000,
    ("sim",): 8_000, ("interp",): 3_300, ("language",): 5_500, ("runtime", "tools"): 7_000,
}
HEAVY = ("numpy", "llvmlite", "lark", "cuda", "ml_dtypes", "torch")

# Ops that a table of rules leaves out, and why.
ENDS = {"Yield", "Condition"}  # the op around them reads them
MACHINE = {  # memory, control flow and the grid are the interpreter's, which has rules for them
    "AllocShared", "Assert", "Assume", "AsyncCommit", "AsyncCopy", "AsyncWait", "AtomicCas",
    "AtomicRmw", "Barrier", "Breakpoint", "ClusterBarrier", "ClusterRank", "DescriptorAtomic",
    "DescriptorLoad", "DescriptorStore", "Elect", "FenceAsync", "For", "GridDependencyLaunch",
    "GridDependencyWait", "If", "Load", "MbarrierArrive", "MbarrierExpect", "MbarrierInit",
    "MbarrierWait", "MemdescIndex", "MemdescTrans", "NamedBarrierArrive", "NamedBarrierSync",
    "NumPrograms", "PrefetchTensormap", "Print", "ProgramId", "Reduce", "RemoteArrive",
    "RemoteLoad", "Scan", "SharedLoad", "SharedStore", "Store", "TmaLoad", "TmaMulticast",
    "TmaStore", "TmaStoreCommit", "TmaStoreWait", "WarpRole", "WarpSpecialize",
    "WarpgroupBarrier", "Wgmma", "WgmmaWait", "While",
}
# They are rewritten, or become TMA copies, before code is generated.
DESCRIPTORS = {"DescriptorAtomic", "DescriptorLoad", "DescriptorStore"}
EXEMPT = {
    "eval": MACHINE | ENDS | {"Return"}, "ring eval": MACHINE | ENDS | {"Return"},
    # What the interpreter does not know itself it gives to the eval rules.
    "interp": {cls.__name__ for cls in OP_CLASSES.values()} - MACHINE - {"Hint"} | ENDS,
    "axis analysis": set(),
    "operand layout": set(),
    "result layout": set(),
    "LLVM lowering": ENDS | DESCRIPTORS,
    # Called through the LLVM lowering of Elementwise.
    "elementwise lowering": {cls.__name__ for cls in OP_CLASSES.values()
                             if not issubclass(cls, Elementwise)},
}


def unit(path: Path) -> str:
    """The folder of tilec that a file is in, or its own name at the top."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, imported module) for all imports in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            if node.module == "tilec":
                yield from ((node, f"tilec.{alias.name}") for alias in node.names)
            else:
                yield node, node.module or ""


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def places(found: Iterable[tuple[Path, int, str]]) -> str:
    return "\n".join(f"{path.relative_to(ROOT)}:{line}: {what}" for path, line, what in found)


def against_the_arrows(path: Path) -> Iterator[tuple[Path, int, str]]:
    here = unit(path)
    for node, module in imports(tree_of(path)):
        parts = module.split(".")
        if parts[0] != "tilec" or here == "__init__":
            continue
        if len(parts) == 1 and here not in ("runtime", "tools"):
            yield path, node.lineno, "name the module"  # its lazy attributes may be anything
        elif len(parts) > 1 and parts[1] != here and parts[1] not in MAY_IMPORT[here]:
            yield path, node.lineno, f"{here} must not import {module}"


def test_imports_follow_the_arrows() -> None:
    assert not places(found for path in FILES for found in against_the_arrows(path))


def inside_functions(path: Path) -> Iterator[tuple[Path, int, str]]:
    for function in ast.walk(tree_of(path)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if unit(path) == "__init__" and getattr(function, "name", "") == "__getattr__":
            continue
        yield from ((path, node.lineno, module) for node, module in imports(function)
                    if module.split(".")[0] == "tilec")


def test_no_tilec_import_inside_a_function() -> None:
    assert not places(found for path in FILES for found in inside_functions(path))


def test_import_tilec_loads_nothing_heavy() -> None:
    code = f"import sys, tilec; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=ROOT.parent)
    assert out.stdout.strip() == "[]"


def code_lines(path: Path) -> int:
    """Lines that hold code: no blanks, comments or docstrings; an import is one line, however many
    names it lists."""
    text = path.read_text(encoding="utf-8")
    held: set[int] = set()
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
            tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and \
                ast.get_docstring(node, clean=False) is not None:
            doc = node.body[0]
            held.difference_update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            held.difference_update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return len(held)


def test_code_line_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    counts: dict[str, int] = {}
    for path in FILES:
        counts[unit(path)] = counts.get(unit(path), 0) + code_lines(path)
    sums = {group: sum(counts.get(name, 0) for name in group) for group in BUDGETS}
    with capsys.disabled():
        print("\ncode lines: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
        print("; ".join(f"{' + '.join(g)} {sums[g]} of {BUDGETS[g]}" for g in BUDGETS))
    for group, budget in BUDGETS.items():
        assert sums[group] <= budget, group


def test_files_and_functions_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    long: list[str] = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        if text.count("\n") > 500:
            long.append(f"{name} has {text.count(chr(10))} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > 60:
                    long.append(f"{name}: {node.name} has {lines} lines")
    with capsys.disabled():
        for line in long:
            print(f"\nlonger than the soft limit: {line}", end="")
    assert len(long) < 10, "soft limits are for exceptions"


def tables() -> dict[str, Rules]:
    """Every table of rules in the compiler's folders, by its concern."""
    found: dict[str, Rules] = {}
    for info in pkgutil.walk_packages(tilec.__path__, "tilec."):
        if info.name.split(".")[1] not in SIBLINGS - BASE:
            continue
        module = importlib.import_module(info.name)
        found |= {v.concern: v for v in vars(module).values() if isinstance(v, Rules)}
    return found


def test_every_table_of_rules_is_known() -> None:
    assert set(tables()) == set(EXEMPT)


@pytest.mark.parametrize("concern", EXEMPT)
def test_tables_of_rules_are_complete(concern: str) -> None:
    assert tables()[concern].missing(OP_CLASSES.values()) == EXEMPT[concern]


def test_every_op_is_declared_under_tile_gpu_scf_or_func() -> None:
    def concrete(cls: type[Op]) -> Iterator[type[Op]]:
        for sub in cls.__subclasses__():
            if "name" in vars(sub) and sub.__module__.startswith("tilec."):
                yield sub
            yield from concrete(sub)

    classes = set(concrete(Op))
    assert classes == set(OP_CLASSES.values())
    for cls in classes:
        assert cls.name.split(".")[0] in ("tile", "gpu", "scf", "func")
        assert not cls.operand_fields or all(f.name for f in cls.operand_fields)


def without_docstrings(path: Path) -> Iterator[tuple[Path, int, str]]:
    tree = tree_of(path)
    if tree.body and not ast.get_docstring(tree):
        yield path, 1, "no docstring"
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and \
                not node.name.startswith("_") and not ast.get_docstring(node):
            yield path, node.lineno, f"{node.name} has no docstring"


def test_modules_and_public_classes_have_docstrings() -> None:
    assert not places(found for path in FILES for found in without_docstrings(path))
