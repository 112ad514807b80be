"""The pipeline, one literal list, and the driver that runs it from tile IR down to a cubin.

Dumps, timing, verification and overriding are instruments around passes (`Instrument`); they see
every stage as text and know nothing of what a pass does.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tilec.codegen.checks import Check
from tilec.codegen.cubin import LinkResult, link
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import LLIR, symbol, to_llir
from tilec.codegen.resources import check_resources
from tilec.errors import (
    CompilationError,
    InternalError,
    IRError,
    OutOfResources,
    ScheduleError,
    TilecError,
    ToolError,
    shown,
)
from tilec.ir.clusters import CLUSTER_SIZES
from tilec.ir.core import Module
from tilec.ir.ops.descriptors import DescriptorOp
from tilec.ir.ops.scf import MAX_STAGES
from tilec.ir.parser import parse, read
from tilec.ir.printer import print_module
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import MapRecipe, recipes
from tilec.ir.verifier import check_one_kernel, verify
from tilec.ir.warps import MAX_WARPS
from tilec.passes.accelerate_matmul import AccelerateMatmul
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.assign_layouts import AssignLayouts
from tilec.passes.async_dots import AsyncDots
from tilec.passes.base import Pass
from tilec.passes.canonicalize import Canonicalize
from tilec.passes.coalesce import Coalesce
from tilec.passes.combine import Combine
from tilec.passes.cse import Cse
from tilec.passes.dce import Dce
from tilec.passes.find_boxes import FindBoxes
from tilec.passes.flatten import Flatten
from tilec.passes.form_fma import FormFma
from tilec.passes.guard_masks import GuardMasks
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.licm import Licm
from tilec.passes.optimize_dot_operands import OptimizeDotOperands
from tilec.passes.pipeline import Pipeline
from tilec.passes.prefetch import Prefetch
from tilec.passes.remove_layout_conversions import RemoveLayoutConversions
from tilec.passes.reorder import Reorder
from tilec.passes.reorder_broadcast import ReorderBroadcast
from tilec.passes.rewrite_descriptors import RewriteDescriptors
from tilec.passes.schedule import Schedule
from tilec.passes.specialize_warps import SpecializeWarps
from tilec.passes.store_by_tma import StoreByTma
from tilec.passes.unroll import Unroll
from tilec.passes.wait_for_grid import WaitForGrid
from tilec.target import Target


class Step(NamedTuple):
    """A pass in the pipeline: the level its result is at, and why it stands where it does."""

    level: str
    run: Pass
    reason: str


PIPELINE: tuple[Step, ...] = (
    Step("tile", RewriteDescriptors(), "before cleaning: it emits as plainly as the front end"),
    Step("tile", Canonicalize(), "the front end emits plainly and leaves cleaning to it"),
    Step("tile", Combine(), "needs folded constants; before broadcasts hide address chains"),
    Step("tile", ReorderBroadcast(), "elementwise work on the small tile, before it is counted"),
    Step("tile", FormFma(), "once, before any scheduling, so that numerics do not depend on it"),
    Step("tile", Cse(), "after the rewrites above have made equal things look equal"),
    Step("tile", Licm(), "after cse: one copy to hoist"),
    Step("tile", FindBoxes(flat=True), "before flatten: a nest that TMA feeds stays one"),
    Step("tile", Flatten(), "after licm: what is computed in every round is what must be"),
    Step("tile", Unroll(), "after licm: hoisted work is not copied"),
    Step("tile", Canonicalize(), "folds what unrolling made constant"),
    Step("tile", FindBoxes(), "loops are what they will be: what TMA is to feed stays a loop"),
    Step("tile", GuardMasks(), "after find_boxes: only in loops that TMA feeds"),
    Step("tile", Canonicalize(), "folds what a guard compares"),
    Step("tile", RewriteDescriptors(), "a loop that TMA was to feed may be gone: it had one round"),
    Step("tile", Canonicalize(), "cleans what that emitted; nothing else is left to do"),
    Step("tile", Dce(), "last at this level: layouts are worked out for what is left"),
    Step("gpu", AssignLayouts(), "tile to gpu; every tile gets some layout"),
    Step("gpu", Coalesce(), "memory accesses get the layouts that the hardware wants"),
    Step("gpu", AccelerateMatmul(), "before layouts flow: those of a dot count more than a load's"),
    Step("gpu", RemoveLayoutConversions(), "lets the accesses' layouts flow to everything else"),
    Step("gpu", OptimizeDotOperands(), "before the schedule: a pipeline keeps what is loaded"),
    Step("gpu", Cse(), "rematerialisation leaves equal copies"),
    Step("gpu", Schedule(), "once layouts are settled: what feeds a dot, and how wide it is read"),
    Step("gpu", SpecializeWarps(), "needs the schedule, and carries a part of it out itself"),
    Step("gpu", Pipeline(), "carries the schedule out"),
    Step("gpu", AsyncDots(), "needs the buffers that their operands lie in"),
    Step("gpu", StoreByTma(), "once layouts are settled: the value goes through a buffer"),
    Step("gpu", Prefetch(), "needs its buffers; 4 to 19 registers fewer in bf16 products, k = 64"),
    Step("gpu", Cse(), "the copies that run ahead repeat address arithmetic"),
    Step("gpu", Licm(), "a dot's operand that the loop does not change is converted before it"),
    Step("gpu", Reorder(), "loads first, once their addresses are settled"),
    Step("gpu", Dce(), "drops what only conversions used"),
    Step("lowered", AllocateShared(), "gpu to lowered; after the last op that needs scratch"),
    Step("lowered", InsertBarriers(), "needs the offsets: only overlapping accesses wait"),
    Step("lowered", WaitForGrid(), "last: no access moves before the wait any more"))
IR_LEVELS = ("tile", "gpu", "lowered")
LEVELS = (*IR_LEVELS, "llir", "ptx", "cubin")


@dataclass(frozen=True)
class Options:
    """What a launch may ask for. num_warps: warps per program, a power of two up to 32, or for a
    kernel of the explicit level the sum of its roles' warps. num_stages: depth of software
    pipelines. debug: keep device asserts, and check accesses, promises and waits (docs/levels.md).
    maxnreg: most registers a thread, so that more programs share an SM; 0 leaves it to ptxas.
    launch_pdl: programmatic dependent launch: the kernel may begin while the one before it in the
    stream ends, and waits for that before it accesses memory. find_boxes: tiles of pointers that
    are boxes of a matrix may go by TMA. num_ctas: programs a cluster, consecutive along axis 0 of
    the grid."""

    num_warps: int = 4
    num_stages: int = 3
    debug: bool = False
    maxnreg: int = 0
    launch_pdl: bool = False
    find_boxes: bool = True
    num_ctas: int = 1

    def __post_init__(self) -> None:
        for name in ("num_warps", "num_stages", "maxnreg", "num_ctas"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise self._wrong(name, "an integer")
        if not 1 <= self.num_warps <= MAX_WARPS:
            raise self._wrong("num_warps", f"1 to {MAX_WARPS}")
        if self.num_ctas not in CLUSTER_SIZES:
            raise self._wrong("num_ctas", "1, 2, 4 or 8")
        if not 1 <= self.num_stages <= MAX_STAGES:
            raise self._wrong("num_stages", f"1 to {MAX_STAGES}")
        for name in ("debug", "launch_pdl", "find_boxes"):
            if not isinstance(getattr(self, name), bool):
                raise self._wrong(name, "True or False")
        if self.maxnreg and not 16 <= self.maxnreg <= 256:
            raise self._wrong("maxnreg", "16 to 256, or 0 for no limit")

    def _wrong(self, name: str, expected: str) -> TilecError:
        return TilecError(f"{name} is {shown(getattr(self, name))}, expected {expected}", None,
                          f"leave it out for the default, {getattr(Options, name)!r}")


class Stage(NamedTuple):
    """The state after a step. name: the pass or "frontend", "llir", "ptx", "cubin"."""

    number: int
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
        prefix = f"{self.number:02}"
        if self.level in IR_LEVELS:
            return f"{prefix}-{self.name}.tir"
        return f"{prefix}.{'ll' if self.level == 'llir' else self.level}"


class Instrument:
    """Sees the stages of one compilation. Methods do nothing unless overridden."""

    def after(self, stage: Stage, seconds: float) -> None:
        """Called after every stage; a Module must not be kept, for it goes on changing."""

    def during(self) -> AbstractContextManager[object]:
        """What the whole compilation runs in."""
        return nullcontext()

    def finish(self) -> None:
        """Called once at the end."""


@dataclass
class Compiled:
    """What a compilation made, as far as it went. The modules are there only if they were asked
    to be kept. name: as in the PTX; threads: of a CTA; shared: bytes of shared memory; edited: the
    file of TILEC_OVERRIDE_DIR that it went on from, if any; maps: tensor maps that a launch passes
    after the author's arguments; checks: those that a debug compilation put in, by number."""

    target: Target
    options: Options
    name: str = ""
    modules: dict[str, Module] = field(default_factory=dict)
    llir_text: str = ""
    threads: int = 0
    shared: int = 0
    ptx: str = ""
    linked: LinkResult | None = None
    edited: Path | None = None
    maps: list[MapRecipe] = field(default_factory=list)
    checks: tuple[Check, ...] = ()

    def hold(self, stage: Stage, copy: bool) -> None:
        """Keep the texts, and if `copy` the modules at the ends of levels."""
        if isinstance(stage.content, Module):
            if copy and _ends_level(stage.number):
                self.modules[stage.level] = stage.content.clone()
        elif isinstance(stage.content, str):
            if stage.level == "ptx":
                self.ptx = stage.content
            else:
                self.llir_text = stage.content


def compile_module(build: Callable[[], Module], target: Target, options: Options, *,
                   stop_at: str = "cubin", instruments: Sequence[Instrument] = (),
                   keep: bool = False, verify_all: bool = False,
                   override: Path | None = None, lowered: Module | None = None) -> Compiled:
    """Take the tile module that `build` makes down to `stop_at`.

    keep: hold a copy of the module at each IR level. lowered: what the passes made of it before, to
    go on from. verify_all: verify after every pass, not
    only at level ends. override: a folder of saved stages; the latest one there that differs from
    what would be made replaces it. Raises CompilationError, OutOfResources, or InternalError (a
    bug in tilec), whose advice names a reproducer.
    """
    with ExitStack() as around:
        for instrument in instruments:
            around.enter_context(instrument.during())
        start = 0
        if lowered is not None:
            build, start = lowered.clone, len(PIPELINE)
        return _compile(build, target, options, start, stop_at, instruments, keep, verify_all,
                        override)


def _compile(build: Callable[[], Module], target: Target, options: Options, start: int,
             stop_at: str, instruments: Sequence[Instrument], keep: bool, verify_all: bool,
             override: Path | None) -> Compiled:
    out = Compiled(target, options, threads=32 * options.num_warps)
    began: float | None = time.perf_counter()
    module = build()
    check_one_kernel(module)
    out.name = symbol(module.funcs[0].name)
    edit = None
    if override is not None:
        edit, began = find_override(build, target, override, stop_at, out), None
    try:
        for _ in stages(module, target, start=start, stop_at=stop_at, keep=out, copy=keep,
                        verify_all=verify_all, instruments=instruments, began=began,
                        until=None if edit is None else edit.index):
            pass
        if edit is not None:
            _run_edited(edit, target, stop_at, out, keep, verify_all, instruments)
    except PassFailure as e:
        raise _with_reproducer(e, build if edit is None else edit.build, target,
                               start if edit is None else edit.index) from e
    finally:
        for instrument in instruments:
            instrument.finish()
    return out


@dataclass(frozen=True)
class Edit:
    """A saved stage that was edited: its number, level and file."""

    index: int
    level: str
    path: Path

    def content(self) -> Module | str:
        """The stage; IRError names the line that is wrong."""
        text = read(self.path)
        if self.level not in IR_LEVELS:
            return text
        module = parse(text, str(self.path))
        verify(module)
        check_one_kernel(module)
        if module.level != self.level:
            raise IRError(f"{self.path}: the module is at level {module.level}, expected "
                          f"{self.level}", None, "keep the level in the module's attributes")
        return module

    def build(self) -> Module:
        """The stage, where it is a module."""
        content = self.content()
        assert isinstance(content, Module)
        return content


def find_override(build: Callable[[], Module], target: Target, folder: Path, stop_at: str,
                  out: Compiled) -> Edit | None:
    """The latest saved stage in `folder` that differs from what is made; None if there is none.

    out: gets the size of shared memory, which the text of a lower level does not say.
    """
    found = None
    last = min(stop_at, "ptx", key=LEVELS.index)
    try:
        for stage in stages(build(), target, stop_at=last, keep=out):
            path = folder / stage.file
            if path.is_file() and path.read_bytes() != stage.text.encode():
                found = Edit(stage.number, stage.level, path)
    except OSError as e:
        raise IRError(f"{folder} cannot be read: {e}") from None
    except (TilecError, PassFailure):
        pass  # an edit before this may be the cure; without one, it is met again and reported
    return found


def _run_edited(edit: Edit, target: Target, stop_at: str, out: Compiled, keep: bool,
                verify_all: bool, instruments: Sequence[Instrument]) -> None:
    """Compile on from an edited stage; what is wrong with it is reported with its file."""
    content = edit.content()
    out.edited = edit.path
    try:
        for _ in stages(content, target, start=edit.index, stop_at=stop_at, keep=out, copy=keep,
                        verify_all=verify_all, instruments=instruments):
            pass
    except (IRError, ToolError) as e:
        e.message = f"{edit.path}: {e.message}"
        raise


def stages(module: Module | str, target: Target, *, start: int = 0, stop_at: str = "cubin",
           keep: Compiled | None = None, copy: bool = False, verify_all: bool = False,
           instruments: Sequence[Instrument] = (), until: int | None = None,
           began: float | None = None) -> Iterator[Stage]:
    """Run the pipeline from stage number `start` and give each stage as it comes.

    module: the content of stage `start`: a Module, or the text of an llir or ptx stage. until:
    the number of the first stage that is not made, if not all down to `stop_at` are. began: when
    the first stage was begun.
    """
    n = len(PIPELINE)
    last = n + LEVELS.index(stop_at) - 2
    if last <= n:
        last = max(i for i in range(n + 1) if stage_level(i) == stop_at)
    if until is not None:
        last = min(last, until - 1)
    clock = time.perf_counter() if began is None else began

    def made(number: int, content: Module | str | bytes) -> Stage:
        nonlocal clock
        stage = Stage(number, _stage_name(number), stage_level(number), content)
        seconds = time.perf_counter() - clock
        for instrument in instruments:
            instrument.after(stage, seconds)
        if keep is not None:
            keep.hold(stage, copy)
        clock = time.perf_counter()
        return stage

    if start <= last:
        yield made(start, module)
    if isinstance(module, Module):
        for i in range(start + 1, min(last, n) + 1):
            step = PIPELINE[i - 1]
            _run_pass(step, module, i, verify_all or _ends_level(i))
            yield made(i, module)
    content: Module | str | bytes = module
    edited = isinstance(module, str)
    for i in range(max(start, n) + 1, last + 1):
        content = _below(stage_level(i), content, target, keep, edited)
        yield made(i, content)


def compile_from(module: Module, target: Target, stop_at: str = "cubin") -> Compiled:
    """Take a module of any level, in place, through the passes below that level and down to
    `stop_at`; through those of its own level too where they must run: at the tile level, and where
    a gpu module still has descriptors. Raises what `compile_module` does."""
    check_one_kernel(module)
    # More warps than a launch may ask for are refused where resources are counted.
    options = Options(num_warps=min(module.num_warps, MAX_WARPS),
                      num_stages=int(module.attributes.get("num_stages", Options.num_stages)),
                      launch_pdl=bool(module.attributes.get("launch_pdl", False)),
                      find_boxes=bool(module.attributes.get("find_boxes", True)),
                      num_ctas=module.num_ctas)
    module.attributes.pop("checks", None)  # only the launch of a kernel knows what they need
    made = Compiled(target, options, symbol(module.funcs[0].name))
    own = [i for i in range(len(PIPELINE) + 1) if stage_level(i) == module.level]
    early = module.level == "tile" or any(isinstance(op, DescriptorOp) for op in module.walk())
    start = own[0] if early else own[-1]
    try:
        for _ in stages(module, target, start=start, stop_at=stop_at, keep=made):
            pass
    except PassFailure as e:
        raise InternalError(str(e), None, "this is a bug in tilec") from e
    return made


def _below(level: str, content: Module | str | bytes, target: Target, keep: Compiled | None,
           edited: bool) -> str | bytes:
    """The content of the llir, ptx or cubin stage, made of the one before."""
    if level == "llir":
        assert isinstance(content, Module)
        llir = _to_llir(content, target)
        if keep is not None:
            keep.checks = llir.checks
            keep.shared, keep.threads = llir.shared_bytes, 32 * llir.num_warps
            keep.maps = recipes(content.funcs[0])
        return llir.text
    assert isinstance(content, str)
    if level == "ptx":
        # An edited file may hold anything, and LLVM's back end ends the process on errors.
        return emit_ptx(content, target, isolated=edited)
    linked = link(content, target, name=keep.name if keep is not None else "kernel")
    remark(None, "registers", f"{linked.n_regs} registers a thread, {linked.n_spills} bytes of "
           f"spill stores, {linked.stack} bytes of stack", registers=linked.n_regs,
           spills=linked.n_spills, stack=linked.stack)
    if "setmaxnreg." in content:
        remark(None, "assembler", f"compiled by {linked.assembler}" + (
            ", which leaves out setmaxnreg: pip install 'tilec[ptxas]' brings ptxas, which does not"
            if linked.drops_setmaxnreg else ""), assembler=linked.assembler)
    for line in linked.advisories:
        remark(None, "assembler", line, advisory=True)
    if keep is not None:
        keep.linked = linked
    return linked.cubin


def _ends_level(index: int) -> bool:
    """Whether stage `index` is the last of its IR level."""
    here = PIPELINE[index - 1].level if index else "tile"
    return index == len(PIPELINE) or PIPELINE[index].level != here


class PassFailure(Exception):
    """A pass broke, or left IR that does not verify; or code generation did."""

    def __init__(self, index: int, what: str, cause: Exception) -> None:
        super().__init__(f"{what} failed: {type(cause).__name__}: {cause}")
        self.index = index


def _run_pass(step: Step, module: Module, index: int, check: bool) -> None:
    try:
        step.run.run(module)
        if check:
            verify(module)
    except (CompilationError, OutOfResources, ScheduleError):
        raise
    except Exception as e:
        raise PassFailure(index, f"pass `{step.run.name}`", e) from e


def _to_llir(module: Module, target: Target) -> LLIR:
    try:
        check_resources(module, target)
        return to_llir(module, target)
    except TilecError:
        raise
    except Exception as e:
        raise PassFailure(len(PIPELINE) + 1, "code generation", e) from e


def _with_reproducer(failure: PassFailure, build: Callable[[], Module], target: Target, start: int
                     ) -> InternalError:
    """An InternalError that names a file with the IR before the failure, whose first line is the
    command that shows it."""
    module = build()
    for _ in stages(module, target, start=start, until=failure.index):
        pass
    name = module.funcs[0].name
    passes = ",".join(str(s.run) for s in PIPELINE[failure.index - 1:])
    message = f"{failure}; this is a bug in tilec"
    try:
        path = Path(tempfile.mkdtemp(prefix="tilec-")) / f"{name}-before-{failure.index:02}.tir"
        command = f"tilec-opt {path} --passes='{passes}'" if passes else \
            f"tilec-run {path} --level=ptx"
        path.write_text(f"// {command} --target={target}\n{print_module(module, locations=True)}")
    except OSError as e:
        return InternalError(message, None, f"the IR before it cannot be kept: {e.strerror}")
    return InternalError(message, None,
                         f"the IR before it, with the command that shows the failure, is in {path}")


def _stage_name(index: int) -> str:
    """The name of stage number `index`."""
    if 0 < index <= len(PIPELINE):
        return PIPELINE[index - 1].run.name
    return stage_level(index) if index else "frontend"


def stage_level(index: int) -> str:
    """The level of stage number `index`."""
    n = len(PIPELINE)
    if index <= n:
        return PIPELINE[index - 1].level if index else "tile"
    return LEVELS[3 + index - n - 1]


def kernel_hash(*parts: object) -> str:
    """A digest that names one specialisation of a kernel, the same in every process."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
