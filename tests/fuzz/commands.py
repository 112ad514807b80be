"""Odd command lines of every tool.

    python -m tests.fuzz.commands --cases 1000 --seed 0
    python -m tests.fuzz.commands --file FAILURE.json

Each is a good command line with one to three changes: odd numbers, files of the wrong kind,
options that are missing, twice or unknown; some have a reader that goes away or are interrupted. A
tool runs in a forked process of 4 GiB and has 10 s. It must end with 0, or with 1 or 2 and a
message; a message that speaks of a bug of tilec's, or a traceback, is a failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from tests.fuzz.texts import report
from tests.fuzz.texts_corpus import KERNELS, Text, corpus
from tests.fuzz.texts_pool import FAILURES, Outcome, run_all, serve

TOOLS = ("opt", "run", "compile", "sim", "layout", "bisect")
SECONDS = 9.5  # a tool's; the pool's limit is above it
MEMORY = 4 << 30
LAYOUT = "blocked<{sizePerThread = [1, 2], threadsPerWarp = [4, 8], warpsPerCTA = [2, 1], " \
    "order = [1, 0]}>"
ODD = ("", "-1", "0", "1", "2", "3", "64", "1025", "999999999999", "9" * 400, "1e3", "nan", "x",
       "--", "-", "0x10", "1,2,3,4", "1x-1", ",", "sm_75", "sm_1", "sm_90a", "true", "caf\u00e9",
       "a\0b", "\udcff", "*fp32:16", "16x16:fp32:0", "99999x99999:fp32:0", "1:nothing:0",
       "4:fp8:arange", "4:i1:nan", ":::", "@missing.npy", "@bad.npy", "@object.npy", "@empty",
       "@/dev/null", "@.", "canonicalize,cse", "nothing", "pipeline{num_stages=x}", "cse{", "all",
       "{" * 300, "k" * 5000)
FILES = ("missing.tir", "missing.ptx", ".", "/dev/null", "/dev/zero", "/proc/self/mem", "", "a\0b",
         "empty", "latin.tir", "latin.ptx", "latin.py:k", "bytes.ll", "n" * 300 + ".tir", "-",
         "broken.py:k", "exits.py:k", "kernels.py", "kernels.py:nothing", ":k", "kernels.py:",
         "folder.tir", "deep.tir", "two.tir", "none.tir", "\udcff.tir")
OUTPUTS = ("/proc/x", "/dev/null/x", ".", "", "a\0b", "kernels.py", "out", "/dev/full")
WORDS = ("--nothing", "--seed", "--grid", "--arg", "--help", "--level", "--passes", "--check",
         "--count=json", "--verify-only", "--all", "-o", "--target", "--func", "--shared", "--save")


def good(rng: random.Random) -> tuple[str, list[str]]:
    """A tool and a command line that it accepts."""
    tool, at = rng.choice(TOOLS), rng.randrange(len(KERNELS))
    kernel, signature, constexprs, args, grid = KERNELS[at]
    given = [f"--arg={a}" for a in args] + ["--grid", grid]
    name = kernel.__name__
    text = ", ".join(f"{k}={v}" for k, v in (signature | constexprs).items())
    match tool:
        case "opt":
            return tool, [f"{name}.tir", "--passes", "canonicalize,cse"]
        case "run":
            kind = rng.choice(("tir", "ptx", "ll"))
            more = ["--level", rng.choice(("gpu", "lowered", "ptx"))] if kind == "tir" else []
            return tool, [f"{name}.{kind}", *given, *more, "--seed", "1"]
        case "compile":
            return tool, [f"kernels.py:{name}", "--signature", text, "-o", "out",
                          "--num-warps", "2"]
        case "sim":
            return tool, [f"{name}.ptx", *given, "--seed", "1", "--count"]
        case "layout":
            return tool, [LAYOUT, "8x16", "--rows", "4"]
    return tool, [f"{name}.tir", *given, "--passes", "canonicalize", "-o", "out"]


def changed(argv: list[str], rng: random.Random) -> list[str]:
    """The command line with one to three changes."""
    argv = list(argv)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(argv)) if argv else 0
        match rng.randrange(9):
            case 0:
                del argv[at:at + 1]
            case 1:
                argv[at:at] = argv[at:at + 1]
            case 2:
                argv[at:at] = [rng.choice(WORDS), rng.choice(ODD)]
            case 3 | 4:
                argv[:1] = [rng.choice(FILES)]
            case 5:
                argv += [rng.choice(("-o", "--save", "--svg")), rng.choice(OUTPUTS)]
            case 6 if argv and "=" in argv[at]:
                argv[at] = f"{argv[at].partition('=')[0]}={rng.choice(ODD)}"
            case _:
                argv[at:at + 1] = [rng.choice(ODD)]
    return argv


def cases(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Seeded command lines."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        tool, argv = good(rng)
        mode = rng.choices(("plain", "pipe", "interrupt"), (8, 1, 1))[0]
        yield {"kind": tool, "name": f"{tool} {mode}", "seed": f"{seed}/{number}", "mode": mode,
               "argv": changed(argv, rng) if mode == "plain" else argv,
               "after": rng.random()}


@cache
def temporary() -> tempfile.TemporaryDirectory[str]:
    """This process's own, which goes with it."""
    return tempfile.TemporaryDirectory(prefix="fuzz-commands-")


@cache
def folder() -> Path:
    """A folder with good and bad files."""
    path = Path(temporary().name)
    for text in [t for texts in corpus().values() for t in texts if is_first(t)]:
        (path / f"{text.name.split('/')[0].split('.')[0]}.{text.kind}").write_text(text.text)
    source = Path(__file__).with_name("texts_corpus.py").read_text(encoding="utf-8")
    (path / "kernels.py").write_text("import tilec\nimport tilec.language as tl\n\n\n" + source[
        source.index("@tilec.jit"):source.index("KERNELS: ")])
    for name, content in {
            "empty": b"", "latin.tir": b"module { // \xe9\n}", "latin.ptx": b".version 8.0 // \xe9",
            "latin.py": b"x = '\xe9'", "bytes.ll": bytes(range(256)),
            "broken.py": b"import nothing",
            "exits.py": b"import sys; sys.exit(0)", "bad.npy": b"\x93NUMPY\x01\x00v\x00{'descr'",
            "deep.tir": b"module attributes {a = " + b"[" * 3000, "none.tir": b"module {}",
            "two.tir": b"module { func @a() { func.return() } func @b() { func.return() } }",
    }.items():
        (path / name).write_bytes(content)
    np.save(path / "object.npy", np.array([{}], object), allow_pickle=True)
    (path / "folder.tir").mkdir()
    return path


def is_first(text: Text) -> bool:
    """Whether this is what a kernel begins with, or its LLVM IR or PTX."""
    return text.kind != "tir" or text.name.endswith("00-frontend.tir")


def run(case: dict[str, Any]) -> Outcome:
    """One command line, in a forked process."""
    main = importlib.import_module(f"tilec.tools.{case['kind']}").main
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        return _run(main, case, out, err)


def _run(main: Callable[[Sequence[str]], int], case: dict[str, Any], out: IO[bytes],
         err: IO[bytes]) -> Outcome:
    child = os.fork()
    if child == 0:
        os._exit(_inside(main, case, out.fileno(), err.fileno()))
    if case["mode"] == "interrupt":
        time.sleep(case["after"])
        os.kill(child, signal.SIGINT)
    end = time.monotonic() + SECONDS
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    if done[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Outcome("hang", f"more than {SECONDS} s")
    err.seek(0)
    return judged(os.waitstatus_to_exitcode(done[1]), err.read().decode(errors="replace"), case)


def _inside(main: Callable[[Sequence[str]], int], case: dict[str, Any], out: int, err: int) -> int:
    """What the forked process does; its exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(folder())
    if case["mode"] == "pipe":
        reader, out = os.pipe()
        os.close(reader)
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    try:
        status = main(case["argv"])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        status = 120
    sys.stderr.flush()
    return status


def judged(status: int, errors: str, case: dict[str, Any]) -> Outcome:
    """What an exit status and the messages mean."""
    if status < 0:
        return Outcome("died", f"by signal {-status}: {errors[-500:]}")
    if "Traceback" in errors and "help: `python -X dev" not in errors or status not in (0, 1, 2):
        return Outcome("traceback", f"status {status}\n{errors[-3000:]}")
    if "this is a bug in tilec" in errors or "help: `python -X dev" in errors:
        return Outcome("internal error", errors[-3000:])
    silent = not errors.strip() and status and (case["kind"], status) != ("bisect", 1) and \
        case["mode"] == "plain"
    if silent:
        return Outcome("wrong", f"status {status} without a word")
    return Outcome("clean error" if status else "accepted", errors[-300:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print the table; 1 if there is a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.commands", description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", help="run a saved case, and print what the tool says")
    parser.add_argument("--out", default="fuzz-commands", help="folder of the failures' cases")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        folder()
        serve(run)
        return 0
    if args.file:
        outcome = run(json.loads(Path(args.file).read_text()))
        print(f"{outcome.kind}: {outcome.detail}")
        return int(outcome.kind in FAILURES)
    return report(run_all("tests.fuzz.commands", cases(args.cases, args.seed), args.jobs),
                  Path(args.out), list(TOOLS))


if __name__ == "__main__":
    sys.exit(main())
