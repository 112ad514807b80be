"""The disk cache: a folder of files for each compiled kernel, found by the hash of its inputs.

Entries appear whole (written aside, then renamed) and carry checksums, so any number of
processes may share a cache and a damaged entry counts as a missing one.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilec import knobs
from tilec.codegen import cubin, llvm, ptxas
from tilec.errors import note

MANIFEST = "manifest.json"
_SOURCE_SUFFIXES = (".py", ".lark")
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.EACCES)  # the last is how Windows says it


class DiskCache:
    """Files by key. Obeys TILEC_CACHE and TILEC_CACHE_DIR, unless given a `root` of its own."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = None if root is None else Path(root)

    def folder(self, key: str) -> Path:
        """Where the entry of `key` lies, or would lie. Keys are hex digests."""
        if not key.isalnum():
            raise ValueError(f"not a cache key: {key!r}")
        return (self._root or Path(knobs.cache_dir)) / key

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files of an entry by name; None when there is none, or it is damaged."""
        if not knobs.cache:
            return None
        folder = self.folder(key)
        try:
            sums = json.loads((folder / MANIFEST).read_bytes())
            files = {name: (folder / name).read_bytes() for name in sums}
        except (OSError, ValueError):
            return None
        whole = isinstance(sums, dict) and all(_digest(files[n]) == sums[n] for n in files)
        return files if whole else None

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Store an entry. A cache that cannot be written is reported once and then ignored."""
        if not knobs.cache:
            return
        folder = self.folder(key)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _scratch(folder.parent) as scratch:
                fresh = scratch / "new"
                fresh.mkdir()
                for name, data in files.items():
                    (fresh / name).write_bytes(data)
                sums = {name: _digest(data) for name, data in files.items()}
                (fresh / MANIFEST).write_text(json.dumps(sums, indent=1))
                self._install(key, fresh, folder, scratch / "old")
        except OSError as e:
            note(folder.parent, f"the cache in {folder.parent} cannot be written "
                 f"({e.strerror or e}): kernels are compiled anew in each process; set "
                 "TILEC_CACHE_DIR to a folder that can be written, or TILEC_CACHE=0")

    def _install(self, key: str, fresh: Path, folder: Path, aside: Path) -> None:
        """Rename `fresh` to `folder`; an entry already there stays if it is whole."""
        try:
            fresh.rename(folder)
            return
        except OSError as e:
            if e.errno not in _TAKEN:
                raise
        if self.get(key) is None:
            # Another process may be repairing the same entry: whoever comes second finds the
            # name taken or the damaged folder gone, and both leave a whole entry behind.
            with contextlib.suppress(OSError):
                folder.rename(aside)
            with contextlib.suppress(OSError):
                fresh.rename(folder)


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix=".tmp-", dir=parent)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@functools.cache
def source_fingerprint() -> str:
    """A digest of whatever, beside a kernel's own source, decides what it compiles to: tilec's
    sources, LLVM, nvJitLink, ptxas and Python. Computed once a process, in a few milliseconds."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (*_toolchain(), sys.implementation.cache_tag or sys.version):
        digest.update(part.encode() + b"\0")
    for name, path in sorted(_sources(Path(__file__).parents[1])):
        with open(path, "rb", buffering=0) as f:
            digest.update(name.encode() + b"\0" + f.read() + b"\0")
    return digest.hexdigest()


def _sources(package: Path) -> Iterator[tuple[str, str]]:
    """(path inside the package, full path) of every source file."""
    pending = [(str(package), "")]
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SOURCE_SUFFIXES):
                    yield prefix + entry.name, entry.path
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    pending.append((entry.path, prefix + entry.name + "/"))


def _toolchain() -> list[str]:
    """LLVM's and nvJitLink's versions, by the names of their packages' metadata folders: asking
    the libraries would load them (0.2 s), which a cache hit has no other need for. ptxas is named
    by its file."""
    wanted = {"llvmlite-": llvm.version, "nvidia_nvjitlink-": cubin.version}
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                for prefix in wanted:
                    if name.startswith(prefix):
                        found.setdefault(prefix, name)
    return [*(found.get(prefix) or prefix + ask() for prefix, ask in wanted.items()),
            ptxas.identity()]
