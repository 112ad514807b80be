"""The disk cache: round trips, damage, sharing between processes, folders it cannot write."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilec import knobs
from tilec.compiler import Compiled, Options
from tilec.runtime import cache, entry
from tilec.runtime.cache import MANIFEST, MAX_ENTRY_BYTES, STALE_S, DiskCache
from tilec.target import Target

KEY = "0123456789abcdef" * 2
FILES = {"kernel.ptx": b".version 8.0\n", "kernel.cubin": bytes(range(256)), "meta.json": b"{}"}
ROOT = Path(__file__).parents[2]


def test_round_trip(tmp_path):
    disk = DiskCache(tmp_path)
    assert disk.get(KEY) is None
    disk.put(KEY, FILES)
    assert disk.get(KEY) == FILES
    assert DiskCache(tmp_path).get(KEY) == FILES
    assert [p.name for p in tmp_path.iterdir()] == [KEY]  # nothing temporary is left


def test_entries_are_plain_files(tmp_path):
    disk = DiskCache(tmp_path)
    disk.put(KEY, FILES)
    assert disk.folder(KEY) == tmp_path / KEY
    assert (tmp_path / KEY / "kernel.ptx").read_bytes() == FILES["kernel.ptx"]
    names = {p.name for p in (tmp_path / KEY).iterdir()}
    assert names == {*FILES, MANIFEST}


def test_empty_entry(tmp_path):
    disk = DiskCache(tmp_path)
    disk.put(KEY, {})
    assert disk.get(KEY) == {}


@pytest.mark.parametrize("key", ["", "../x", "a/b", "."])
def test_keys_are_digests(tmp_path, key):
    with pytest.raises(ValueError, match="not a cache key"):
        DiskCache(tmp_path).get(key)


def listed(**changes: object) -> str:
    """A manifest of FILES with some entries changed."""
    return json.dumps({name: cache._entry(data) for name, data in FILES.items()} | changes)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def instead(target: str):
    def damage(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)
    return damage


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def sparse(path: Path) -> None:
    os.truncate(path, 1 << 40)


ONE = FILES["kernel.ptx"]
# What may have happened to a file of an entry, by the file.
DAMAGES = {
    "cut": ("kernel.cubin", lambda p: p.write_bytes(FILES["kernel.cubin"][:100])),
    "flipped": ("kernel.cubin", lambda p: p.write_bytes(bytes(range(255)) + b"\0")),
    "longer": ("kernel.cubin", lambda p: p.write_bytes(FILES["kernel.cubin"] + b"\0")),
    "sparse": ("kernel.cubin", sparse),
    "gone": ("kernel.ptx", Path.unlink),
    "fifo": ("kernel.ptx", fifo),
    "device": ("kernel.ptx", instead("/dev/zero")),
    "folder": ("kernel.ptx", folder_instead),
    "manifest gone": (MANIFEST, Path.unlink),
    "manifest sparse": (MANIFEST, sparse),
    "manifest fifo": (MANIFEST, fifo),
    "manifest device": (MANIFEST, instead("/dev/zero")),
} | {f"manifest {text[:30]}": (MANIFEST, lambda p, text=text: p.write_text(text)) for text in (
    "", "{\0", "5", "null", "true", "[1]", '["kernel.ptx"]', "NaN", "[" * 60000, '{"a":' * 9000,
    "9" * 6000, '{"kernel.ptx": 5}', '{"kernel.ptx": [5]}', '{"kernel.ptx": [true, "x"]}',
    listed(**{"kernel.ptx": [-1, "x"]}), listed(**{"kernel.ptx": [MAX_ENTRY_BYTES + 1, "x"]}),
    listed(**{"/etc/hostname": [1, "x"]}), listed(**{"../x": [1, "x"]}), listed(**{"": [1, "x"]}),
    listed(**{"kernel.ptx": cache._entry(ONE)[::-1]}), listed(**{"kernel.ptx": [len(ONE), ""]}))}


@pytest.mark.parametrize("name, damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entry_is_missing_and_then_replaced(tmp_path, name, damage):
    disk = DiskCache(tmp_path)
    disk.put(KEY, FILES)
    damage(tmp_path / KEY / name)
    assert disk.get(KEY) is None
    disk.put(KEY, FILES)
    assert disk.get(KEY) == FILES
    assert [p.name for p in tmp_path.iterdir()] == [KEY]


@pytest.mark.parametrize("path", ["{0}/other", "../other", "a/../../other"])
def test_names_in_a_manifest_stay_in_the_entry(tmp_path, path):
    """Even where the file is there and its digest right."""
    disk = DiskCache(tmp_path)
    disk.put(KEY, {"a": b""})
    (tmp_path / KEY / "a").unlink()
    (tmp_path / KEY / "a").mkdir()
    (tmp_path / "other").write_bytes(b"x")
    name = path.format(tmp_path)
    assert (tmp_path / KEY / name).read_bytes() == b"x"
    (tmp_path / KEY / MANIFEST).write_text(json.dumps({name: cache._entry(b"x")}))
    assert disk.get(KEY) is None


def test_file_in_place_of_an_entry(tmp_path):
    disk = DiskCache(tmp_path)
    (tmp_path / KEY).write_text("")
    assert disk.get(KEY) is None
    disk.put(KEY, FILES)
    assert disk.get(KEY) == FILES


META = {"name": "k", "threads": 128, "shared": 0, "maps": [], "checks": [], "linked": {
    "n_regs": 8, "n_spills": 0, "stack": 0, "static_shared": 0, "assembler": "a", "log": ""}}
MAP = [[64, 64], "f16", 128, 2, "x", 0, ["64", "$1"], ["64"], [[1, "y"]], False, [], [], False]


CHECK = [[["k.py", 3, 4, 9], ["k.py", 12, 0, 0]], "reads x", "mask it off", 4]


def kernel_files(meta: object, **files: bytes) -> dict[str, bytes]:
    return {"meta.json": json.dumps(meta).encode(), "cubin": b"c", "ptx": b"p", "ll": b"l"} | files


def loaded(files: dict[str, bytes]) -> Compiled | None:
    return entry.from_files(files, Target.parse("sm_90a"), Options())


def test_kernel_entry_round_trip():
    made = loaded(kernel_files(META | {"maps": [MAP], "checks": [CHECK]}))
    assert made.maps[0].extents == ("64", "$1") and made.maps[0].apart == ((1, "y"),)
    (check,) = made.checks
    assert [str(p) for p in check.loc.chain()] == ["k.py:3:5", "k.py:12:1"] and check.element == 4
    again = loaded(entry.to_files(made))
    assert again == made and again.linked == made.linked


def odd(value: object, kind: object) -> Iterator[object]:
    """The value with one part of it of another kind, for each part."""
    yield from (x for x in (None, 5, "x", True, 1.5, [], {}, [5], {"x": 5})
                if type(x) is not type(value))
    if isinstance(value, dict):
        for name in value:
            yield {k: v for k, v in value.items() if k != name}
            for other in odd(value[name], None):
                yield value | {name: other}
        yield value | {"more": 1}
    if isinstance(value, list):
        for i, item in enumerate(value):
            for other in odd(item, None):
                yield [*value[:i], other, *value[i + 1:]]


def test_kernel_entry_of_odd_kinds_is_none():
    """With right checksums, as whoever edits an entry may leave it."""
    cases = list(odd(META | {"maps": [MAP], "checks": [CHECK]}, None))
    assert len(cases) > 150
    for meta in cases:
        assert loaded(kernel_files(meta)) is None, meta
    for index, value in ((1, "f12"), (2, 77)):
        bad = [*MAP]
        bad[index] = value
        assert loaded(kernel_files(META | {"maps": [bad]})) is None
    for name in ("ptx", "ll", "meta.json"):
        assert loaded(kernel_files(META, **{name: b"\xff\xfe"})) is None
        assert loaded({k: v for k, v in kernel_files(META).items() if k != name}) is None
    assert loaded(kernel_files(META, **{"meta.json": b"[" * 100000})) is None
    assert loaded(kernel_files(META, more=b"")) is None


def test_whole_entry_is_kept(tmp_path):
    disk = DiskCache(tmp_path)
    disk.put(KEY, FILES)
    disk.put(KEY, {"other": b"x"})
    assert disk.get(KEY) == FILES


def test_knobs_choose_the_folder_and_switch_it_off(tmp_path):
    disk = DiskCache()
    with knobs.scope(cache_dir=tmp_path / "a" / "b"):
        disk.put(KEY, FILES)
        assert disk.get(KEY) == FILES
        with knobs.scope(cache=False):
            assert disk.get(KEY) is None
            disk.put("ff", FILES)
        assert disk.get("ff") is None
    with knobs.scope(cache_dir=tmp_path / "c"):
        assert disk.get(KEY) is None


def test_folder_that_cannot_be_made_is_noted_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "cache"
    for disk in (DiskCache(root), DiskCache(root)):
        disk.put(KEY, FILES)
        assert disk.get(KEY) is None
    assert capsys.readouterr().err == (
        f"tilec: the cache in {root} cannot be written (Not a directory): kernels are compiled "
        "anew in each process; set TILEC_CACHE_DIR to a folder that can be written, or "
        "TILEC_CACHE=0\n")


def test_threads_share_an_entry(tmp_path):
    disk = DiskCache(tmp_path)
    seen = []

    def work():
        for _ in range(20):
            disk.put(KEY, FILES)
            seen.append(disk.get(KEY))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 80 and all(files == FILES for files in seen)
    assert [p.name for p in tmp_path.iterdir()] == [KEY]


CHILD = """
import sys
from tilec.runtime.cache import DiskCache
disk = DiskCache(sys.argv[1])
files = {"a": b"x" * 100000, "b": b"y" * 1000}
for i in range(60):
    disk.put(f"{i % 5:04x}", files)
    got = disk.get(f"{i % 5:04x}")
    assert got == files or got is None, i
    if sys.argv[2] == "damage":
        try:
            (disk.folder(f"{i % 5:04x}") / "a").write_bytes(b"")
        except OSError:
            pass
"""


def test_processes_share_and_repair(tmp_path):
    run = [[sys.executable, "-c", CHILD, str(tmp_path), kind] for kind in ("damage", "plain")]
    children = [subprocess.Popen(args, cwd=ROOT, stderr=subprocess.PIPE) for args in run]
    for child in children:
        _, stderr = child.communicate(timeout=60)
        assert child.returncode == 0 and stderr == b""
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"{i:04x}" for i in range(5)]


def leave(root: Path, name: str, age: float, locked: bool = True) -> Path:
    """A writer's temporary folder, as it was `age` seconds ago."""
    folder = root / name
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "cubin").write_bytes(b"x")
    if locked:
        (folder / "lock").touch()
    os.utime(folder, (time.time() - age,) * 2)
    return folder


HOLDER = """
import sys, fcntl
lock = open(sys.argv[1], "wb")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_what_dead_writers_left_is_removed(tmp_path):
    """Old, and nobody holds the lock; of what is younger its writer may not have begun to."""
    dead = [leave(tmp_path, ".tmp-a", STALE_S + 60), leave(tmp_path, ".tmp-b", 1e6),
            leave(tmp_path, ".tmp-c", 1e6, locked=False)]
    young = leave(tmp_path, ".tmp-d", STALE_S - 60, locked=False)
    alive, other = leave(tmp_path, ".tmp-e", 1e6), leave(tmp_path, "notes", 1e6)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(alive / "lock")],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    os.utime(alive, (1, 1))
    DiskCache(tmp_path).put(KEY, FILES)
    assert not any(path.exists() for path in dead)
    assert young.exists() and other.exists() and (alive / "new" / "cubin").exists()
    holder.communicate("")
    disk = DiskCache(tmp_path)
    disk.put("ff", FILES)
    assert not alive.exists()
    leave(tmp_path, ".tmp-f", 1e6)
    disk.put("fe", FILES)  # a process looks once
    assert (tmp_path / ".tmp-f").exists()


KILLED = """
import os, signal, sys
from tilec.runtime import cache
cache.DiskCache._install = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cache.DiskCache(sys.argv[1]).put("ab", {"a": b"x"})
"""


def test_a_killed_writer_is_dead(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    assert done.returncode < 0
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".tmp-")
    written = (left / "lock").read_bytes()
    (left / "lock").write_bytes(b"of another machine")
    DiskCache(tmp_path).put(KEY, FILES)
    assert left.exists()
    if written:  # the system says which machine this is: no age is waited for
        (left / "lock").write_bytes(written)
    else:
        os.utime(left, (1, 1))
    DiskCache(tmp_path).put("cd", FILES)
    assert not left.exists()


def test_folder_is_the_users_own(tmp_path, capsys):
    before = os.umask(0)
    try:
        DiskCache(tmp_path / "a" / "b").put(KEY, FILES)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert capsys.readouterr().err == ""


def test_folder_that_everybody_can_write_is_refused(tmp_path, capsys):
    root = tmp_path / "open"
    DiskCache(root).put(KEY, FILES)
    root.chmod(0o777)
    for _ in range(2):
        disk = DiskCache(root)
        assert disk.get(KEY) is None
        disk.put("ff", FILES)
    assert [p.name for p in root.iterdir()] == [KEY]
    assert capsys.readouterr().err == (
        f"tilec: the cache in {root} is not used: everybody can write it, so others could choose "
        "what your kernels are; set TILEC_CACHE_DIR to a folder of your own, or TILEC_CACHE=0\n")
    root.chmod(0o755)
    assert DiskCache(root).get(KEY) == FILES


def test_folder_of_another_user(tmp_path, capsys, monkeypatch):
    """A group's is used if it was named; the default folder is the user's or nobody's."""
    root = tmp_path / "theirs"
    DiskCache(root).put(KEY, FILES)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid() == 0:
        os.chown(root, 12345, os.getgid())
    assert DiskCache(root).get(KEY) is None
    assert "is not used: it is another user's" in capsys.readouterr().err
    root.chmod(0o770)
    assert DiskCache(root).get(KEY) == FILES
    monkeypatch.setattr(cache.knobs, "is_set", lambda name: False)
    with knobs.scope(cache_dir=root):
        assert DiskCache().get(KEY) is None
    monkeypatch.setattr(os, "getgroups", list)
    monkeypatch.setattr(os, "getegid", lambda: os.getgid() + 1)
    assert DiskCache(root).get(KEY) is None


@pytest.mark.parametrize("name, value", [("HOME", ""), ("TILEC_CACHE_DIR", "")])
def test_no_folder_is_known(name, value):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    env.pop("TILEC_CACHE_DIR", None)
    code = ("from tilec.runtime.cache import DiskCache\n"
            "disk = DiskCache(); disk.put('ab', {'a': b''}); print(disk.get('ab'))")
    done = subprocess.run([sys.executable, "-c", code], env=env | {name: value},
                          capture_output=True, text=True)
    assert done.stdout == "None\n" and not Path("ab").exists()
    assert done.stderr.startswith("tilec: there is no folder to keep compiled kernels in")
