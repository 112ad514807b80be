"""The disk cache: round trips, damage, sharing between processes, folders it cannot write."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tilec import knobs
from tilec.runtime import cache
from tilec.runtime.cache import MANIFEST, DiskCache

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


def damage_truncate(folder: Path) -> None:
    (folder / "kernel.cubin").write_bytes(FILES["kernel.cubin"][:100])


def damage_flip(folder: Path) -> None:
    data = bytearray(FILES["kernel.cubin"])
    data[17] ^= 1
    (folder / "kernel.cubin").write_bytes(data)


def damage_delete(folder: Path) -> None:
    (folder / "kernel.ptx").unlink()


def damage_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b"{\0")


def damage_manifest_list(folder: Path) -> None:
    (folder / MANIFEST).write_text('["kernel.ptx"]')


def damage_no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


@pytest.mark.parametrize(
    "damage",
    [damage_truncate, damage_flip, damage_delete, damage_manifest, damage_manifest_list,
     damage_no_manifest],
)
def test_damaged_entry_is_missing_and_then_replaced(tmp_path, damage):
    disk = DiskCache(tmp_path)
    disk.put(KEY, FILES)
    damage(tmp_path / KEY)
    assert disk.get(KEY) is None
    disk.put(KEY, FILES)
    assert disk.get(KEY) == FILES
    assert [p.name for p in tmp_path.iterdir()] == [KEY]


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


def fingerprint_in(folder: Path) -> str:
    code = "from tilec.runtime.cache import source_fingerprint as f; print(f())"
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def copy_sources(to: Path) -> None:
    """The few modules that cache.py needs, so that a copy of the package can be edited."""
    for name in ("errors.py", "knobs.py", "target.py", "codegen/llvm.py", "codegen/cubin.py",
                 "codegen/ptxas.py", "runtime/cache.py"):
        (to / "tilec" / name).parent.mkdir(parents=True, exist_ok=True)
        (to / "tilec" / name).write_bytes((ROOT / "tilec" / name).read_bytes())
    for name in ("__init__.py", "codegen/__init__.py", "runtime/__init__.py"):
        (to / "tilec" / name).write_text("")


def test_fingerprint_follows_contents_alone(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    copy_sources(first)
    copy_sources(second)
    os.utime(second / "tilec" / "knobs.py", (1, 1))
    before = fingerprint_in(first)
    assert before == fingerprint_in(second)
    (second / "tilec" / "ir").mkdir()
    (second / "tilec" / "ir" / "grammar.lark").write_text("start: A\n")
    with_grammar = fingerprint_in(second)
    assert with_grammar != before
    (second / "tilec" / "ir" / "grammar.lark").write_text("start: B\n")
    assert fingerprint_in(second) not in (before, with_grammar)


def test_fingerprint_names_the_tool_chain(monkeypatch):
    parts = cache._toolchain()
    assert parts[0].startswith("llvmlite-") and parts[1].startswith("nvidia_nvjitlink-")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(cache.llvm, "version", lambda: "22.1.0")
    monkeypatch.setattr(cache.cubin, "version", lambda: "99.9")
    monkeypatch.setattr(cache.ptxas, "identity", lambda: "ptxas none")
    assert cache._toolchain() == ["llvmlite-22.1.0", "nvidia_nvjitlink-99.9", "ptxas none"]


def test_fingerprint_loads_no_compiler():
    code = (
        "import sys; from tilec.runtime.cache import source_fingerprint as f; f();"
        "print([m for m in ('llvmlite', 'numpy', 'cuda', 'lark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
