"""Recorded results: one compressed file a catalogue, with what made them."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.sim.forms.base import Array, Form

_FILTER = {"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 2, "lp": 2}  # words of four bytes
FOLDER = Path(__file__).parent.parent / "recorded"


def path_of(catalogue: str, folder: Path = FOLDER) -> Path:
    return folder / f"{catalogue}.xz"


class Recording(NamedTuple):
    """`made` says gpu, driver and date; `results` holds, by form, its checksum and its outputs'
    bytes one after another; `faults`, for forms that end in an error, checksum and error."""

    made: dict[str, str]
    results: dict[str, tuple[int, bytes]]
    faults: dict[str, tuple[int, str]]

    def outputs(self, form: Form) -> list[Array]:
        """The recorded outputs of a form, shaped as its own."""
        data, found, at = self.results[form.name][1], [], 0
        for like in form.outputs:
            held = np.frombuffer(data, like.dtype, like.size, at)
            found.append(held.reshape(like.shape))
            at += like.nbytes
        assert at == len(data), form.name
        return found


def write(path: Path, recording: Recording) -> None:
    """A line of JSON and the results' bytes, compressed by lzma."""
    index = {name: [checksum, len(data)] for name, (checksum, data) in recording.results.items()}
    meta = json.dumps({"made": recording.made, "forms": index, "faults": recording.faults}).encode()
    data = b"".join(data for _, data in recording.results.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(meta + b"\n" + data, filters=[_FILTER]))


def read(path: Path) -> Recording:
    meta, _, data = lzma.decompress(path.read_bytes()).partition(b"\n")
    held: dict[str, Any] = json.loads(meta)
    results, at = {}, 0
    for name, (checksum, size) in held["forms"].items():
        results[name] = (checksum, data[at : at + size])
        at += size
    faults = {name: (checksum, error) for name, (checksum, error) in held["faults"].items()}
    return Recording(held["made"], results, faults)
