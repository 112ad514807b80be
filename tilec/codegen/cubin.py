"""PTX text to a cubin, by nvJitLink in process or, for kernels with setmaxnreg, by ptxas; and the
cubin's SASS by nvdisasm.

None needs a GPU or a driver. Source: nvJitLink documentation; ptxas's own messages.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilec.codegen import ptxas
from tilec.errors import (
    CompilationError,
    InternalError,
    IRError,
    Location,
    OutOfResources,
    ToolError,
)
from tilec.target import Target


@dataclass(frozen=True)
class LinkResult:
    """A cubin and what ptxas said about the kernel in it.

    assembler: what made it, "nvJitLink 13.0", "ptxas 13.0.88" or "the driver's JIT"; of the last
    there is no cubin to be had, and `cubin` is what nvJitLink made, without setmaxnreg.
    n_spills: bytes of spill stores; stack: bytes of local memory a thread; static_shared: bytes
    of shared memory declared in the PTX with a size (dynamic shared memory is not in a cubin).
    """

    cubin: bytes = field(repr=False)
    log: str = field(repr=False)
    n_regs: int
    n_spills: int
    stack: int
    static_shared: int
    assembler: str

    @property
    def drops_setmaxnreg(self) -> bool:
        """Whether nvJitLink has left out the kernel's setmaxnreg."""
        return self.assembler.startswith("nvJitLink") and "(C7504)" in self.log

    @property
    def advisories(self) -> list[str]:
        """The log's lines with a (C75xx) code: ptxas serialised or repaired wgmma code, or
        ignored setmaxnreg. Each means slower code than the PTX asked for."""
        return [line.strip() for line in self.log.splitlines() if _ADVISORY.search(line)]


_ADVISORY = re.compile(r"\(C75\d\d\)")
_PTX_ERROR = re.compile(r"line (\d+); (?:error|fatal)\s*: (.*)")
_TOO_MUCH_SHARED = re.compile(r"too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")
_TOO_FEW_REGISTERS = re.compile(r"Insufficient registers \((\d+)\) to compile instruction at line "
                                r"(\d+).* register target of (\d+)")
_NO_REGISTERS = re.compile(r"Register allocation failed with register count of '(\d+)'")


@functools.cache
def _nvjitlink() -> Any:
    """cuda.bindings.nvjitlink with its library loaded; ToolError where there is none."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except (ImportError, RuntimeError) as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        where = f" on {sys.platform}" if sys.platform not in ("linux", "win32") else ""
        raise ToolError(
            f"nvJitLink is not available{where}, so compiling stops at PTX here ({reason})",
            advice="NVIDIA ships it for Linux and Windows: "
            "pip install cuda-python nvidia-nvjitlink; k.asm['ptx'] works without it",
        ) from None
    return nvjitlink


def available() -> bool:
    """Whether PTX can be made into a cubin on this machine."""
    try:
        _nvjitlink()
    except ToolError:
        return False
    return True


def version() -> str:
    """nvJitLink's version, "13.0"; "none" where it is not available."""
    return ".".join(map(str, _nvjitlink().version())) if available() else "none"


def link(ptx: str, target: Target, *, name: str) -> LinkResult:
    """The cubin of `ptx`; `name` is the kernel whose statistics are wanted.

    A kernel with setmaxnreg is made by ptxas where there is one, since nvJitLink leaves that out.
    Raises IRError with the PTX line that ptxas rejects, OutOfResources where static shared
    memory does not fit, ToolError where nvJitLink is missing, CompilationError where ptxas ends
    badly.
    """
    if "setmaxnreg." in ptx and (path := ptxas.find()) is not None:
        made = ptxas.assemble(path, ptx, target)
        if made.cubin is None:
            raise _link_error(made.log, ptx, "ptxas")
        return result_of(made.cubin, made.log, name, ptxas.label(path))
    return _by_nvjitlink(ptx, target, name)


def _by_nvjitlink(ptx: str, target: Target, name: str) -> LinkResult:
    nvjitlink = _nvjitlink()
    # What nvJitLink takes from its cache comes without a log, so without statistics and advisories.
    options = [f"-arch={target.name}", "-O3", "-verbose", "-no-cache"]
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as e:
        raise ToolError(f"nvJitLink {version()} refuses {target.name}: {e}",
                        advice="install an nvidia-nvjitlink that knows this target") from None
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        info = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, info)
    except nvjitlink.nvJitLinkError as e:
        text = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, text)
        raise _link_error(_decode(text) or str(e), ptx, "nvJitLink") from None
    finally:
        nvjitlink.destroy(handle)
    return result_of(bytes(cubin), _decode(info), name, f"nvJitLink {version()}")


def _decode(log: bytearray) -> str:
    return log.decode(errors="replace").rstrip("\0 \n")


def result_of(cubin: bytes, log: str, name: str, assembler: str) -> LinkResult:
    """A cubin with statistics from ptxas's part of the log; zero where this version does not print
    them."""
    _, _, part = log.partition(f"Compiling entry function '{name}'")
    part = part.partition("Compiling entry function")[0]

    def number(pattern: str) -> int:
        found = re.search(pattern, part)
        return int(found[1]) if found else 0

    return LinkResult(cubin, log, n_regs=number(r"Used (\d+) registers"),
                      n_spills=number(r"(\d+) bytes spill stores"),
                      stack=number(r"(\d+) bytes stack frame"),
                      static_shared=number(r"Used \d+ registers.*?(\d+) bytes smem"),
                      assembler=assembler)


def _inline_place(ptx: str, number: int) -> Location | None:
    """Where the author wrote the inline PTX in which a line of the PTX stands, if one does."""
    before = "".join(ptx.splitlines(keepends=True)[:number])
    if before.rfind("// begin inline asm") <= before.rfind("// end inline asm"):
        return None
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"(.*)"', ptx, re.M))
    places = re.findall(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)", before, re.M)
    if not places or places[-1][0] not in files:
        return None
    file, line, column = places[-1]
    return Location(files[file], int(line), int(column) - 1)


def _link_error(log: str, ptx: str, tool: str
                ) -> IRError | OutOfResources | InternalError | CompilationError:
    if found := _TOO_MUCH_SHARED.search(log):
        return OutOfResources("shared memory", int(found[1], 16), int(found[2], 16))
    lines = ptx.splitlines()
    error = None
    if found := _TOO_FEW_REGISTERS.search(log):
        limit, line, required = map(int, found.groups())
        error = OutOfResources("registers a thread", required, limit,
                               f"  PTX, line {line}: {lines[line - 1].strip()[:80]}"
                               if 0 < line <= len(lines) else "")
    elif found := _NO_REGISTERS.search(log):
        required = int(found[1]) + 1
        error = OutOfResources("registers a thread", required, int(found[1]),
                               f"  {required} or more: ptxas does not say how many")
    if error is not None:
        error.advice = "allow more (`maxnreg`), or use smaller tiles"
        return error
    shown = []
    for number, what in _PTX_ERROR.findall(log):
        n = int(number)
        if (place := _inline_place(ptx, n)) is not None:
            return CompilationError(f"ptxas rejects the inline PTX: {what}", place,
                                    "docs/semantics.md, section 6, says how it is written")
        shown.append(f"PTX, line {n}: {what}")
        if 0 < n <= len(lines):
            shown.append(f"    {lines[n - 1].strip()}")
    if shown:
        return IRError("ptxas rejects the PTX\n" + "\n".join(shown))
    return InternalError(f"{tool} failed:\n{log}")


@functools.cache
def _nvdisasm() -> str:
    """The path of nvdisasm: from its wheel, else from PATH."""
    spec = importlib.util.find_spec("nvidia")
    exe = "nvdisasm.exe" if sys.platform == "win32" else "nvdisasm"
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob(f"*/bin/{exe}")):
            return str(path)
    if path_found := shutil.which("nvdisasm"):
        return path_found
    raise ToolError("nvdisasm was not found", advice="pip install nvidia-cuda-nvdisasm")


def sass(cubin: bytes) -> str:
    """The SASS of a cubin (about 0.5 s). Raises ToolError where nvdisasm is missing or fails."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(cubin)
            done = subprocess.run([_nvdisasm(), "-c", str(path)], capture_output=True, text=True)
    except OSError as e:
        raise ToolError(f"nvdisasm cannot be run: {e.strerror or e}") from None
    if done.returncode != 0:
        raise ToolError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def sass_counts(sass: str) -> Counter[str]:
    """How often each opcode occurs, modifiers dropped: {"LDG": 4, "HGMMA": 4, ...}."""
    found = (_INSTRUCTION.match(line) for line in sass.splitlines())
    return Counter(m[1].split(".")[0] for m in found if m)
