"""ptxas as a process: it compiles whole programs, where nvJitLink makes relocatable code and so
ignores setmaxnreg.

Source: CUDA documentation, "ptxas"; its own messages.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tilec.errors import CompilationError
from tilec.target import Target

TIMEOUT_S = 300
# The first release whose ptxas reads PTX 8.7, which tilec emits for sm_90a.
OLDEST = (12, 8)
_EXE = "ptxas.exe" if sys.platform == "win32" else "ptxas"


class Assembled(NamedTuple):
    """What ptxas made of a PTX text: the cubin, None where it rejects the text; and its log."""

    cubin: bytes | None
    log: str


def find() -> Path | None:
    """The ptxas to use, the first of those new enough: on PATH, in CUDA_HOME or CUDA_PATH, in the
    wheel nvidia-cuda-nvcc (`pip install tilec[ptxas]`)."""
    return next((path for path in _candidates() if _release(path) >= OLDEST), None)


def identity() -> str:
    """A text that changes with what `find` may give; asking for it starts no process."""
    shown = []
    for path in _candidates():
        status = path.stat()
        shown.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return f"ptxas {', '.join(shown) or 'none'}"


def version(path: Path) -> str:
    """The version, "13.0.88"; empty where the file does not run."""
    return _version(path, path.stat().st_mtime_ns)


def label(path: Path) -> str:
    """How a cubin names the ptxas that made it."""
    return f"ptxas {version(path)}"


def assemble(path: Path, ptx: str, target: Target) -> Assembled:
    """Run it on a PTX text. CompilationError where it does not run, or not to an end."""
    try:
        with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
            source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
            source.write_text(ptx)
            command = [str(path), f"-arch={target.name}", "-O3", "-v", str(source), "-o",
                       str(cubin)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace",
                                  timeout=TIMEOUT_S)
            made = done.returncode == 0 and cubin.is_file()
            content = cubin.read_bytes() if made else None
    except subprocess.TimeoutExpired:
        raise CompilationError(f"{path} did not end in {TIMEOUT_S} s", None,
                               "smaller tiles, or fewer unrolled rounds, compile faster"
                               ) from None
    except OSError as e:
        raise CompilationError(f"{path} cannot be run: {e.strerror or e}", None,
                               "pip install 'tilec[ptxas]' brings one that can") from None
    log = f"{done.stdout}{done.stderr}".rstrip()
    if done.returncode < 0:
        raise CompilationError(f"{path} was ended by signal {-done.returncode}\n{log}")
    return Assembled(content, log)


def _candidates() -> Iterator[Path]:
    on_path = shutil.which(_EXE)
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    spec = importlib.util.find_spec("nvidia")
    wheels = [path for folder in (spec.submodule_search_locations or [] if spec else [])
              for path in sorted(Path(folder).glob(f"*/bin/{_EXE}"))]
    for path in (*([Path(on_path)] if on_path else []),
                 *(Path(home) / "bin" / _EXE for home in homes), *wheels):
        if path.is_file() and os.access(path, os.X_OK):
            yield path


def _release(path: Path) -> tuple[int, ...]:
    return tuple(map(int, version(path).split(".")[:2])) if version(path) else ()


@functools.cache
def _version(path: Path, _changed: int) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    return found[1] if found else ""
