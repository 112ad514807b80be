"""The disk cache: a folder of files for each compiled kernel, found by the hash of its inputs.

Entries appear whole (written aside, then renamed) and carry sizes and checksums, so any number of
processes may share a cache, and what is damaged, in whatever way, counts as missing. The folder is
the user's own, since whoever can write there chooses what runs on the GPU.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tilec import knobs
from tilec.errors import note

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
# Of a manifest, and of all files of an entry: far beyond what kernels need, and read into memory.
MAX_MANIFEST_BYTES, MAX_ENTRY_BYTES = 1 << 16, 1 << 28
# Nobody writes an entry for so long. Locks alone do not tell: a writer begins without one, and
# some network file systems keep them to one host, which is why a lock says where it was taken.
STALE_S = 600
_TEMPORARY, _LOCK = ".tmp-", "lock"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.EACCES)  # the last is how Windows says it


class DiskCache:
    """Files by key. Obeys TILEC_CACHE and TILEC_CACHE_DIR, unless given a `root` of its own."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = None if root is None else Path(root)
        self._swept: set[Path] = set()

    def folder(self, key: str) -> Path:
        """Where the entry of `key` lies, or would lie. Keys are hex digests."""
        if not key.isalnum():
            raise ValueError(f"not a cache key: {key!r}")
        return (self._root or Path(knobs.cache_dir)) / key

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files of an entry by name; None when there is none, or it is damaged."""
        folder = self.folder(key)
        if not self._usable(folder.parent):
            return None
        try:
            listed = _manifest(_read(folder / MANIFEST, MAX_MANIFEST_BYTES))
            files = {name: _read(folder / name, size) for name, (size, _) in listed.items()}
        except (OSError, ValueError):
            return None
        whole = all(_entry(files[name]) == listed[name] for name in files)
        return files if whole else None

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Store an entry. A cache that cannot be written is reported once and then ignored."""
        folder = self.folder(key)
        if not self._usable(folder.parent) or sum(map(len, files.values())) > MAX_ENTRY_BYTES:
            return
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep(folder.parent)
            with _scratch(folder.parent) as scratch:
                fresh = scratch / "new"
                fresh.mkdir()
                for name, data in files.items():
                    (fresh / name).write_bytes(data)
                listed = {name: _entry(data) for name, data in files.items()}
                (fresh / MANIFEST).write_text(json.dumps(listed, indent=1))
                self._install(key, fresh, folder, scratch / "old")
        except OSError as e:
            note(folder.parent, f"the cache in {folder.parent} cannot be written "
                 f"({e.strerror or e}): kernels are compiled anew in each process; set "
                 "TILEC_CACHE_DIR to a folder that can be written, or TILEC_CACHE=0")

    def _usable(self, root: Path) -> bool:
        """Whether to look into `root`; a note says, once, why not."""
        if not knobs.cache:
            return False
        if self._root is None and not knobs.cache_dir:
            note("no cache", "there is no folder to keep compiled kernels in: TILEC_CACHE_DIR or "
                 "HOME is empty, or HOME unknown; set TILEC_CACHE_DIR, or TILEC_CACHE=0")
            return False
        danger = _danger(root, self._root is not None or knobs.is_set("cache_dir"))
        if danger:
            note(root, f"the cache in {root} is not used: {danger}, so others could choose what "
                 "your kernels are; set TILEC_CACHE_DIR to a folder of your own, or TILEC_CACHE=0")
        return not danger

    def _sweep(self, root: Path) -> None:
        """Remove, once, what writers left that ended before they were done."""
        if root in self._swept:
            return
        self._swept.add(root)
        with os.scandir(root) as entries:
            left = [Path(e.path) for e in entries if e.name.startswith(_TEMPORARY)]
        for folder in left:
            with contextlib.suppress(OSError):  # another process may be removing it, too
                old = time.time() - folder.stat().st_mtime > STALE_S
                if (old or _taken_here(folder)) and not _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)

    def _install(self, key: str, fresh: Path, folder: Path, aside: Path) -> None:
        """Rename `fresh` to `folder`; an entry already there stays if it is whole."""
        try:
            fresh.rename(folder)
            return
        except OSError as e:
            if e.errno not in (*_TAKEN, errno.ENOTDIR):
                raise
        if self.get(key) is None:
            # Another process may be repairing the same entry: whoever comes second finds the
            # name taken or the damaged folder gone, and both leave a whole entry behind.
            with contextlib.suppress(OSError):
                folder.rename(aside)
            with contextlib.suppress(OSError):
                fresh.rename(folder)


def parse_json(data: bytes) -> Any:
    """What JSON text says; ValueError for any other, and for what is nested too deep to read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def conforms(value: Any, kind: Any) -> bool:
    """Whether a value out of JSON is of a declared kind: a type; {name: kind} for an object of
    just these; [kind] for a list of any length, (kind, ...) for one of these items."""
    if isinstance(kind, type):
        return type(value) is kind
    if isinstance(kind, dict):
        return type(value) is dict and value.keys() == kind.keys() and all(
            conforms(value[name], kind[name]) for name in kind)
    if type(value) is not list:
        return False
    if isinstance(kind, list):
        return all(conforms(item, kind[0]) for item in value)
    return len(value) == len(kind) and all(map(conforms, value, kind))


def _manifest(data: bytes) -> dict[str, list[Any]]:
    """Size and digest of each file, by name; ValueError for what is no manifest."""
    listed = parse_json(data)
    if not isinstance(listed, dict) or not all(
            _NAME.fullmatch(name) and conforms(entry, (int, str)) and entry[0] >= 0
            for name, entry in listed.items()):
        raise ValueError("not a manifest")
    if sum(size for size, _ in listed.values()) > MAX_ENTRY_BYTES:
        raise ValueError("too large")
    return listed


def _entry(data: bytes) -> list[Any]:
    """What a manifest says of a file."""
    return [len(data), hashlib.blake2b(data, digest_size=16).hexdigest()]


def _read(path: Path, most: int) -> bytes:
    """A file of at most so many bytes; OSError for a larger one, and for what is no plain file,
    which might block or never end."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as f:
        status = os.fstat(f.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise OSError(errno.EINVAL, "no file of an entry")
        return f.read(most)


def _danger(root: Path, named: bool) -> str:
    """Who else may write a folder; empty for one of the user's, of the system's, and for one of a
    group of the user's that was `named`."""
    if os.name != "posix":
        return ""
    try:
        status = root.stat()
    except OSError:
        return ""  # it will be made, or noted when it cannot be
    if status.st_mode & stat.S_IWOTH:
        return "everybody can write it"
    if status.st_uid in (0, os.geteuid()):
        return ""
    ours = status.st_gid in (os.getegid(), *os.getgroups())
    return "" if named and ours and status.st_mode & stat.S_IWGRP else "it is another user's"


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder to write in, which nobody takes for a dead writer's while it is in use."""
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
    try:
        with open(folder / _LOCK, "wb") as lock:
            _take(lock)
            lock.write(_boot())
            lock.flush()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _boot() -> bytes:
    """This run of this machine, which no other one shares; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return b""


def _taken_here(folder: Path) -> bool:
    """Whether the writer of a temporary folder took its lock in this run of this machine."""
    return bool(_boot()) and _read(folder / _LOCK, len(_boot())) == _boot()


def _locked(folder: Path) -> bool:
    """Whether the writer of a temporary folder holds its lock."""
    try:
        with open(os.open(folder / _LOCK, os.O_RDWR | getattr(os, "O_NONBLOCK", 0)), "wb") as lock:
            return not _take(lock)
    except OSError:  # there is none, as its writer ended at once
        return False


def _take(lock: BinaryIO) -> bool:
    """Lock a file; False where another process has done so. Where there are no locks, all who ask
    get one, and the age of a folder alone says whether it is in use."""
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        return not isinstance(e, BlockingIOError)
    return True
