"""Every TILEC_* flag: its type, default and one-line meaning.

Flags are read from the environment at each use, so they also act on kernels that are already
compiled; `with knobs.scope(dump="coalesce"):` overrides them for a block (for notebooks).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilec.errors import BRIEF, TilecError, did_you_mean, note

# The knobs as attributes of this module. These are declarations for readers and type checkers;
# __getattr__ below looks the value up at each access.
dump: str
dump_dir: str
override_dir: str
print_loc: bool
time: bool
remarks: str
verify: bool
validate: bool
eval: str
cache: bool
cache_dir: str
seed: int
check: str
strict: bool
run: str
interpret: bool
target: str
print_autotuning: bool

RUN_LEVELS = ("tile", "gpu", "lowered", "ptx")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


def _text(value: object) -> str:
    return str(value).strip()


def _path(value: object) -> str:
    """A path; empty for one in a home folder that nobody knows."""
    text = str(value).strip()
    if "\0" in text:
        raise ValueError("a path, which holds no NUL")
    homeless = os.environ.get("HOME") == "" or os.path.expanduser("~") == "~"
    return "" if homeless and f"{text}/".startswith("~/") else os.path.expanduser(text)


def _flag(value: object) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("1 or 0")


def _check(value: object) -> str:
    """"" for none, else "1" or "gpu"."""
    text = str(value).strip().lower()
    try:
        return "gpu" if text == "gpu" else "1" if _flag(text) else ""
    except ValueError:
        raise ValueError("1, 0 or gpu") from None


def _natural(value: object) -> int:
    try:
        number = int(str(value), 0)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise ValueError("an integer from 0 to 2**63 - 1")
    return number


def _run_level(value: object) -> str:
    text = str(value).strip().lower()
    if text and text not in RUN_LEVELS:
        raise ValueError("one of " + ", ".join(RUN_LEVELS))
    return text


def _arithmetic(value: object) -> str:
    text = str(value).strip().lower()
    if text not in ("", "ring"):
        raise ValueError("ring, or nothing")
    return text


def _remarks(value: object) -> str:
    """"" for none, else "text" or "json"."""
    text = str(value).strip().lower()
    if text == "json":
        return text
    try:
        return "text" if text == "text" or _flag(text) else ""
    except ValueError:
        raise ValueError("1, 0 or json") from None


@dataclasses.dataclass(frozen=True)
class Knob:
    """One flag. `parse` raises ValueError naming what it expects; `launch` says whether a set
    value changes what launching an already compiled kernel does."""

    name: str
    values: str
    default: str
    doc: str
    parse: Callable[[object], Any]
    launch: bool = True

    @property
    def env(self) -> str:
        return "TILEC_" + self.name.upper()

    def read(self, value: object, where: str) -> Any:
        try:
            return self.parse(value)
        except ValueError as e:
            raise TilecError(f"{where} is {value!r}, which tilec does not understand",
                             advice=f"give {e}") from None


KNOBS: tuple[Knob, ...] = (
    Knob("dump", "all, diff, passes or levels by comma", "",
         "print the IR to stderr after those passes or at those levels; "
         "diff: what each pass changed", _text),
    Knob("dump_dir", "folder", "",
         "write every level, one file a pass, to `<folder>/<kernel>-<hash>/`", _path),
    Knob("override_dir", "folder", "",
         "a file there that was edited replaces that level; compiling goes on from it", _path),
    Knob("print_loc", "0, 1", "0", "print source locations in dumps to stderr", _flag),
    Knob("time", "0, 1", "0", "print the time of each pass and level to stderr", _flag),
    Knob("remarks", "0, 1, json", "0",
         "print what was decided for a kernel, and why, to stderr; json: one object a line",
         _remarks),
    Knob("verify", "0, 1", "0", "verify the IR after every pass, not only at levels", _flag),
    Knob("validate", "0, 1", "0",
         "run the IR before and after every pass, and name the pass, op and line that change a "
         "result", _flag),
    Knob("eval", "ring", "", "ring: IR levels on a CPU compute with floats as integers modulo a "
         "prime, so that the order of sums changes no bit", _arithmetic, launch=False),
    Knob("cache", "0, 1", "1", "0: neither read nor write the disk cache", _flag, launch=False),
    Knob("cache_dir", "folder", "~/.cache/tilec", "where compiled kernels are kept", _path,
         launch=False),
    Knob("seed", "integer", "0",
         "order of programs and warps, and of async completions, when run on a CPU",
         _natural, launch=False),
    Knob("check", "0, 1, gpu", "0",
         "1: look for races and uninitialised values in what runs as PTX on a CPU; gpu: put checks "
         "of accesses and promises into every kernel, as `debug=True` does", _check),
    Knob("strict", "0, 1", "1",
         "0: in the interpreter, masked-off lanes without `other` are 0, and hints are not checked",
         _flag, launch=False),
    Knob("run", ", ".join(RUN_LEVELS), "",
         "run every launch at that level on the CPU", _run_level),
    Knob("interpret", "0, 1", "0", "1: short for TILEC_RUN=tile", _flag),
    Knob("target", "sm_XX", "", "what to compile for, instead of the GPU in use "
         "(sm_90a without one)", _text),
    Knob("print_autotuning", "0, 1", "0", "print what the tuner chose, and in what time, to stderr",
         _flag, launch=False),
)

_BY_NAME: Mapping[str, Knob] = {k.name: k for k in KNOBS}
_NO_OVERRIDES: Mapping[str, Any] = {}
_overrides: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar(
    "tilec_knobs", default=_NO_OVERRIDES)

# os.environ.get encodes the name and decodes the value, about 1 us a flag. A launch asks about
# all of them, so it looks into the dict behind os.environ with names encoded beforehand.
_LAUNCH_KEYS = tuple(getattr(os.environ, "encodekey", str)(k.env) for k in KNOBS if k.launch)
_LAUNCH_NAMES = frozenset(k.name for k in KNOBS if k.launch)


@functools.cache
def _note_unknown_flags() -> None:
    known = [knob.env for knob in KNOBS]
    for name in os.environ:
        if name.startswith("TILEC_") and name not in known:
            note(name, f"{name} is no flag; " +
                 (did_you_mean(name, known, 0.8) or f"there are {', '.join(known)}"))


def _lookup(name: str) -> tuple[Any, bool]:
    """The value of a knob, and whether it was set at all."""
    _note_unknown_flags()
    overrides = _overrides.get()
    if name in overrides:
        return overrides[name], True
    knob = _BY_NAME[name]
    text = os.environ.get(knob.env)
    if text is None:
        return knob.parse(knob.default), False
    return knob.read(text, knob.env), True


@BRIEF
def __getattr__(name: str) -> Any:
    if name not in _BY_NAME:
        raise AttributeError(f"module 'tilec.knobs' has no attribute {name!r}")
    value, given = _lookup(name)
    if name == "run" and not given and _lookup("interpret")[0]:
        return "tile"
    return value


def is_set(name: str) -> bool:
    """Whether a knob was set, in the environment or by a scope."""
    return _lookup(name)[1]


def snapshot_key() -> tuple[tuple[str, Any], ...] | None:
    """The knobs that act on a launch, as a hashable key; None when none of them is set.

    Costs about 0.2 us in the None case, so that a launcher may ask on every call.
    """
    environ = os.environ
    data: Any = getattr(environ, "_data", environ)
    overrides = _overrides.get()
    if overrides is _NO_OVERRIDES and data.keys().isdisjoint(_LAUNCH_KEYS):
        return None
    pairs = ((name, _lookup(name)) for name in _BY_NAME if name in _LAUNCH_NAMES)
    return tuple((name, value) for name, (value, given) in pairs if given) or None


def scope_token() -> object:
    """An object that is another one in each `scope` block."""
    return _overrides.get()


@BRIEF
def scope(**overrides: object) -> contextlib.AbstractContextManager[None]:
    """Override knobs for a block, in this thread: `with knobs.scope(dump="all", verify=True):`.

    Values are those of the environment variables, or bool, int and path objects. None puts the
    default back. Raises TilecError for an unknown name or a value that does not parse.
    """
    merged = dict(_overrides.get())
    for name, value in overrides.items():
        if name not in _BY_NAME:
            raise _unknown(name)
        knob = _BY_NAME[name]
        given = knob.default if value is None else value
        merged[name] = knob.read(given, f"knobs.scope({name}=...)")
    return _overridden(merged)


@contextlib.contextmanager
def _overridden(values: Mapping[str, Any]) -> Iterator[None]:
    token = _overrides.set(values)
    try:
        yield
    finally:
        _overrides.reset(token)


def _unknown(name: str) -> TilecError:
    plain = name.lower().removeprefix("tilec_")
    advice = did_you_mean(plain, _BY_NAME) or "knobs: " + ", ".join(_BY_NAME)
    return TilecError(f"there is no knob named `{name}`", advice=advice)


def describe() -> str:
    """All knobs as a Markdown table (README prints it)."""
    rows = [("flag", "values", "default", "what it does"), ("---",) * 4]
    for k in KNOBS:
        rows.append((f"`{k.env}`", k.values, k.default, k.doc))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


class _KnobsModule(types.ModuleType):
    """Assigning `knobs.dump = ...` would shadow the flag and miss half its effects."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _BY_NAME:
            with BRIEF:
                raise TilecError(f"knobs.{name} cannot be assigned",
                                 advice=f"write `with tilec.knobs.scope({name}={value!r}):` or set "
                                 f"{_BY_NAME[name].env} in os.environ")
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _KnobsModule
