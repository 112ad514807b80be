"""The pipeline, one literal list, and the driver that runs it from tile IR down to a cubin.

Dumps, timing, verification and overriding are instruments around passes (`Instrument`); they see
every stage as text and know nothing of what a pass does.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tilec.codegen.cubin import LinkResult, link
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import to_llir
from tilec.errors import InternalError, IRError, TilecError
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.assign_layouts import AssignLayouts
from tilec.passes.base import Pass
from tilec.passes.canonicalize import Canonicalize
from tilec.passes.coalesce import Coalesce
from tilec.passes.combine import Combine
from tilec.passes.cse import Cse
from tilec.passes.dce import Dce
from tilec.passes.form_fma import FormFma
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.licm import Licm
from tilec.passes.remove_layout_conversions import RemoveLayoutConversions
from tilec.passes.reorder import Reorder
from tilec.passes.reorder_broadcast import ReorderBroadcast
from tilec.passes.unroll import Unroll
from tilec.target import Target


class Step(NamedTuple):
    """A pass in the pipeline: the level its result is at, and why it stands where it does."""

    level: str
    run: Pass
    reason: str


PIPELINE: tuple[Step, ...] = (
    Step("tile", Canonicalize(), "first: the front end emits plainly and leaves cleaning to it"),
    Step("tile", Combine(), "needs folded constants; before broadcasts hide address chains"),
    Step("tile", ReorderBroadcast(), "elementwise work on the small tile, before it is counted"),
    Step("tile", FormFma(), "once, before any scheduling, so that numerics do not depend on it"),
    Step("tile", Cse(), "after the rewrites above have made equal things look equal"),
    Step("tile", Licm(), "after cse: one copy to hoist"),
    Step("tile", Unroll(), "after licm: hoisted work is not copied"),
    Step("tile", Canonicalize(), "folds what unrolling made constant"),
    Step("tile", Dce(), "last at this level: layouts are worked out for what is left"),
    Step("gpu", AssignLayouts(), "tile to gpu; every tile gets some layout"),
    Step("gpu", Coalesce(), "memory accesses get the layouts that the hardware wants"),
    Step("gpu", RemoveLayoutConversions(), "lets the accesses' layouts flow to everything else"),
    Step("gpu", Cse(), "rematerialisation leaves equal copies"),
    Step("gpu", Reorder(), "loads first, once their addresses are settled"),
    Step("gpu", Dce(), "drops what only conversions used"),
    Step("lowered", AllocateShared(), "gpu to lowered; after the last op that needs scratch"),
    Step("lowered", InsertBarriers(), "needs the offsets: only overlapping accesses wait"),
)
IR_LEVELS = ("tile", "gpu", "lowered")
LEVELS = (*IR_LEVELS, "llir", "ptx", "cubin")


@dataclass(frozen=True)
class Options:
    """What a launch may ask for. num_warps: warps per program, a power of two up to 32.
    num_stages: depth of software pipelines. debug: keep device asserts."""

    num_warps: int = 4
    num_stages: int = 3
    debug: bool = False

    def __post_init__(self) -> None:
        for name in ("num_warps", "num_stages"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TilecError(f"{name} is {value!r}, expected an integer")
        if self.num_warps not in (1, 2, 4, 8, 16, 32):
            raise TilecError(f"num_warps is {self.num_warps}, expected 1, 2, 4, 8, 16 or 32")
        if not 1 <= self.num_stages <= 16:
            raise TilecError(f"num_stages is {self.num_stages}, expected 1 to 16")


class Stage(NamedTuple):
    """The state after a step. name: the pass or "frontend", "llir", "ptx", "cubin"."""

    index: int
    name: str
    level: str
    content: Module | str | bytes

    @property
    def text(self) -> str:
        """The stage as text, with locations; empty for a cubin."""
        if isinstance(self.content, Module):
            return print_module(self.content, locations=True)
        return self.content if isinstance(self.content, str) else ""

    @property
    def file(self) -> str:
        """The name under which the stage is saved."""
        number = f"{self.index:02}"
        if self.level in IR_LEVELS:
            return f"{number}-{self.name}.tir"
        return f"{number}.{'ll' if self.level == 'llir' else self.level}"


class Instrument:
    """Sees the stages of one compilation. Methods do nothing unless overridden."""

    def after(self, stage: Stage, seconds: float) -> None:
        """Called after every stage; a Module must not be kept, for it goes on changing."""

    def finish(self) -> None:
        """Called once at the end."""


@dataclass
class Compiled:
    """What a compilation made, as far as it went. The modules are there only if they were asked
    to be kept. params: type names of the launch arguments; shared: bytes of shared memory."""

    target: Target
    options: Options
    name: str = ""
    modules: dict[str, Module] = field(default_factory=dict)
    llir_text: str = ""
    params: tuple[str, ...] = ()
    shared: int = 0
    ptx: str = ""
    linked: LinkResult | None = None


def compile_module(build: Callable[[], Module], target: Target, options: Options, *,
                   stop_at: str = "cubin", instruments: Sequence[Instrument] = (),
                   keep: bool = False, verify_all: bool = False,
                   override: Path | None = None) -> Compiled:
    """Take the tile module that `build` makes down to `stop_at`.

    keep: hold a copy of the module at each IR level. verify_all: verify after every pass, not
    only at level ends. override: a folder of saved stages; the latest one there that differs from
    what would be made replaces it. Raises CompilationError, OutOfResources, or InternalError (a
    bug in tilec), whose advice names a reproducer.
    """
    out = Compiled(target, options)
    content: Module | str = build()
    assert isinstance(content, Module)
    out.name = content.funcs[0].name
    start = 0
    if override is not None:
        found = find_override(build(), target, override)
        if found is not None:
            start, content = found
    try:
        for _ in stages(content, target, start=start, stop_at=stop_at, keep=out, copy=keep,
                        verify_all=verify_all, instruments=instruments):
            pass
    except PassFailure as e:
        raise _with_reproducer(e, build, target) from e
    for instrument in instruments:
        instrument.finish()
    return out


def find_override(module: Module, target: Target, folder: Path) -> tuple[int, Module | str] | None:
    """The latest saved stage in `folder` that differs from what is made: its number and content.

    None if no file differs. IRError names the line of an edited file that is wrong.
    """
    found: tuple[Stage, Path] | None = None
    try:
        for stage in stages(module, target, stop_at="ptx"):
            path = folder / stage.file
            if path.is_file() and path.read_text() != stage.text:
                found = Stage(stage.index, stage.name, stage.level, ""), path
    except TilecError:
        # What the source makes may itself not compile; an edited stage before that still counts.
        if found is None:
            raise
    if found is None:
        return None
    stage, path = found
    return stage.index, content_from_file(path.read_text(), stage.level, str(path))


def stages(module: Module | str, target: Target, *, start: int = 0, stop_at: str = "cubin",
           keep: Compiled | None = None, copy: bool = False, verify_all: bool = False,
           instruments: Sequence[Instrument] = ()) -> Iterator[Stage]:
    """Run the pipeline after stage number `start` and give each stage as it comes.

    module: the content of stage `start`: a Module, or the text of an llir or ptx stage.
    """
    last = LEVELS.index(stop_at)
    clock = time.perf_counter()

    def made(index: int, name: str, level: str, content: Module | str | bytes) -> Stage:
        nonlocal clock
        stage = Stage(index, name, level, content)
        seconds = time.perf_counter() - clock
        for instrument in instruments:
            instrument.after(stage, seconds)
        if keep is not None and copy and isinstance(content, Module) and _ends_level(index):
            keep.modules[level] = content.clone()
        clock = time.perf_counter()
        return stage

    if isinstance(module, Module):
        if start == 0:
            yield made(0, "frontend", "tile", module)
        for i, step in enumerate(PIPELINE[start:], start + 1):
            if LEVELS.index(step.level) > last:
                return
            _run_pass(step, module, i, verify_all or _ends_level(i))
            yield made(i, step.run.name, step.level, module)
    yield from _below(module, target, start, last, keep, made)


def _below(content: Module | str, target: Target, start: int, last: int, keep: Compiled | None,
           made: Callable[[int, str, str, Module | str | bytes], Stage]) -> Iterator[Stage]:
    """The stages after the IR: llir, ptx, cubin."""
    n = len(PIPELINE)
    edited = isinstance(content, str)
    if last >= 3 and start < n + 1:
        assert isinstance(content, Module)
        llir = to_llir(content, target)
        if keep is not None:
            keep.llir_text, keep.params, keep.shared = llir.text, llir.params, llir.shared_bytes
        content = llir.text
        yield made(n + 1, "llir", "llir", content)
    if last >= 4 and start < n + 2:
        assert isinstance(content, str)
        # An edited file may hold anything, and LLVM's back end ends the process on errors.
        content = emit_ptx(content, target, isolated=edited)
        if keep is not None:
            keep.ptx = content
        yield made(n + 2, "ptx", "ptx", content)
    if last >= 5:
        assert isinstance(content, str)
        linked = link(content, target, name=keep.name if keep is not None else "kernel")
        if keep is not None:
            keep.linked = linked
        yield made(n + 3, "cubin", "cubin", linked.cubin)


def _ends_level(index: int) -> bool:
    """Whether stage `index` is the last of its IR level."""
    here = PIPELINE[index - 1].level if index else "tile"
    return index == len(PIPELINE) or PIPELINE[index].level != here


class PassFailure(Exception):
    """A pass broke, or left IR that does not verify."""

    def __init__(self, index: int, name: str, cause: Exception) -> None:
        super().__init__(f"pass `{name}` failed: {type(cause).__name__}: {cause}")
        self.index = index


def _run_pass(step: Step, module: Module, index: int, check: bool) -> None:
    try:
        step.run.run(module)
        if check:
            verify(module)
    except (IRError, AssertionError, LookupError, AttributeError, TypeError, ValueError,
            RecursionError) as e:
        raise PassFailure(index, step.run.name, e) from e


def _with_reproducer(failure: PassFailure, build: Callable[[], Module], target: Target
                     ) -> InternalError:
    """An InternalError that names a file with the IR before the pass, and how to run from it."""
    text, name = "", "kernel"
    for stage in stages(build(), target, stop_at="lowered"):
        if isinstance(stage.content, Module):
            text, name = stage.text, stage.content.funcs[0].name
        if stage.index == failure.index - 1:
            break
    folder = Path(tempfile.mkdtemp(prefix="tilec-"))
    path = folder / f"{name}-before-{failure.index:02}.tir"
    passes = ",".join(str(s.run) for s in PIPELINE[failure.index - 1:])
    path.write_text(f"// tilec-opt {path} --target={target} --passes='{passes}'\n{text}")
    return InternalError(f"{failure}; this is a bug in tilec", None,
                         f"the IR before the pass, with the command that shows the failure, is in "
                         f"{path}")


def content_from_file(text: str, level: str, filename: str) -> Module | str:
    """The content of a stage from its saved text; IRError names the line that is wrong."""
    if level not in IR_LEVELS:
        return text
    module = parse(text, filename)
    verify(module)
    return module


def stage_level(index: int) -> str:
    """The level of stage number `index`."""
    n = len(PIPELINE)
    if index <= n:
        return PIPELINE[index - 1].level if index else "tile"
    return LEVELS[3 + index - n - 1]


def kernel_hash(*parts: object) -> str:
    """A digest that names one specialisation of a kernel, the same in every process."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
