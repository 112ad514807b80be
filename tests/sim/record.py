"""Runs the catalogue of instruction forms on the GPU that is there and stores their results.

    python -m tests.sim.record --output tests/sim/recorded

Forms run in child processes, so that one that hangs or faults costs itself alone. Of those that are
to fault the error is stored. Every other form that gave no result is named at the end, and the exit
status is then 1.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.sim.forms import CATALOGUES, catalogue, store
from tests.sim.forms.base import HEADER, Form
from tilec.codegen.cubin import link
from tilec.runtime import device
from tilec.target import Target

BATCH = 80
TIME_LIMIT = 45  # seconds for the forms of a batch that are left
CHILDREN = 6


def assemble(forms: Sequence[Form]) -> bytes:
    """One cubin with all these forms."""
    text = HEADER + "".join(form.text for form in forms)
    return link(text, Target.parse("sm_90a"), name=forms[0].entry).cubin


# -- in a child ----------------------------------------------------------------------------------

def run_batch(forms: Sequence[Form], folder: Path) -> None:
    """Run the forms in order; each leaves the bytes of its outputs in a file named by its entry."""
    cu = device.driver()
    device.use(device.current_device())
    error, module = cu.cuModuleLoadData(assemble(forms))
    device.check(error, "cuModuleLoadData")
    for form in forms:
        error, function = cu.cuModuleGetFunction(module, form.entry.encode())
        device.check(error, "cuModuleGetFunction")
        data = b"".join(launch(function, form))
        unfinished = folder / f"{form.entry}.part"
        unfinished.write_bytes(data)
        unfinished.rename(folder / form.entry)


def launch(function: Any, form: Form) -> list[bytes]:
    """Run one form; the bytes of its outputs."""
    cu = device.driver()
    arrays = [*form.outputs, *form.inputs]
    buffers = [device.DeviceBuffer.of(np.ascontiguousarray(a).view(np.uint8).tobytes())
               for a in arrays]
    held: list[Any] = [ctypes.c_uint64(buffer.pointer) for buffer in buffers]
    addresses = [ctypes.addressof(value) for value in held]
    for tensor_map in form.maps:
        buffer, address = tensor_map.encoded(buffers[tensor_map.array].pointer)
        held.append(buffer)
        addresses.append(address)
    params = (ctypes.c_void_p * len(addresses))(*addresses)
    if form.shared > device.DEFAULT_SHARED:
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = cu.cuFuncSetAttribute(function, attribute, form.shared)
        device.check(error, "cuFuncSetAttribute")
    (error,) = cu.cuLaunchKernel(function, form.grid, 1, 1, form.block, 1, 1, form.shared, 0,
                                 ctypes.addressof(params), 0)
    device.check(error, "cuLaunchKernel")
    device.synchronize()
    return [bytes(buffer.read()) for buffer in buffers[: len(form.outputs)]]


# -- in the parent -------------------------------------------------------------------------------

def record(name: str, forms: Sequence[Form], folder: Path) -> dict[str, str]:
    """Run forms of a catalogue in children; what went wrong, by form."""
    numbers = {form: str(i) for i, form in enumerate(catalogue(name))}
    failed: dict[str, str] = {}
    while left := [form for form in forms
                   if form.name not in failed and not (folder / form.entry).exists()]:
        command = [sys.executable, "-m", "tests.sim.record", "--batch", name,
                   *(numbers[form.name] for form in left), "--output", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        except subprocess.TimeoutExpired:
            reason = f"no result within {TIME_LIMIT} s"
        missing = next((form for form in left if not (folder / form.entry).exists()), None)
        if missing is not None:
            failed[missing.name] = reason
        if missing is left[0] and "ptxas" in reason:  # no form of the batch can run
            return failed | {form.name: reason for form in left}
    return failed


def record_catalogue(name: str, path: Path, what: dict[str, str]) -> dict[str, str]:
    """Run a catalogue and write its recording; what went wrong against expectation, by form."""
    forms = catalogue(name)
    sound = [form for form in forms.values() if not form.fault]
    batches = [sound[first : first + BATCH] for first in range(0, len(sound), BATCH)]
    batches += [[form] for form in forms.values() if form.fault]
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(CHILDREN) as pool:
        folder = Path(temporary)
        for part in [pool.submit(record, name, batch, folder) for batch in batches]:
            failed |= part.result()
        results = {form.name: (form.checksum, (folder / form.entry).read_bytes())
                   for form in forms.values() if (folder / form.entry).exists()}
    faults = {form.name: (form.checksum, failed.pop(form.name))
              for form in forms.values() if form.fault and form.name in failed}
    store.write(path, store.Recording(what, results, faults))
    print(f"{path}: {len(results)} results and {len(faults)} faults of {len(forms)} forms, "
          f"{path.stat().st_size} bytes")
    return failed


def made() -> dict[str, str]:
    """What the results are from."""
    cu = device.driver()
    _, version = cu.cuDriverGetVersion()
    path = Path("/proc/driver/nvidia/version")
    build = path.read_text().splitlines()[0] if path.exists() else ""
    return {"gpu": device.name_of(device.current_device()), "cuda": str(version),
            "driver": build, "date": datetime.date.today().isoformat()}


def main() -> int:
    parser = argparse.ArgumentParser(description="record the instruction forms on this GPU")
    parser.add_argument("--output", type=Path, default=store.FOLDER)
    parser.add_argument("--batch", nargs="+", metavar=("CATALOGUE", "FORM"), help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=list(CATALOGUES), action="append")
    options = parser.parse_args()
    if options.batch:
        forms = list(catalogue(options.batch[0]).values())
        run_batch([forms[int(i)] for i in options.batch[1:]], options.output)
        return 0
    failed: dict[str, str] = {}
    for name in options.only or CATALOGUES:
        failed |= record_catalogue(name, store.path_of(name, options.output), made())
    for form, reason in failed.items():
        print(f"no result: {form}: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
