"""Launch options: those of a compilation, and those of other compilers, which mean nothing here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tilec.compiler import Options
from tilec.errors import LaunchError, note, shown
from tilec.runtime.arguments import as_plain

COMPILE_OPTIONS = tuple(f.name for f in dataclasses.fields(Options))
OPTION_NAMES = (*COMPILE_OPTIONS, "stream", "target")
# What Triton, its back ends and its forks take beside, none of which changes a result: how they
# schedule, which dialect of PTX they write, what their hardware alone has.
IGNORED = frozenset((
    "allow_flush_denorm allowed_dot_input_precisions arch backend_name cluster_dims "
    "ctas_per_cga default_dot_input_precision deprecated_fp8_dot_operand_dtypes "
    "deprecated_fp8_dtypes device device_type enable_fp_fusion enable_reflect_ftz "
    "enable_warp_specialization extern_libs grf_mode instruction_sched_variant "
    "instrumentation_mode ir_override kpack launch_cooperative_grid matrix_instr_nonkdim "
    "max_num_imprecise_acc_default maxRegAutoWS minRegAutoWS multibuffer "
    "num_buffers_warp_spec num_consumer_groups num_producer_groups optimize_epilogue "
    "pingpongAutoWS ptx_options ptx_version reg_dec_producer reg_inc_consumer "
    "sanitize_overflow schedule_hint supported_fp8_dtypes threads_per_warp warp_size "
    "waves_per_eu").split())


def ignored(name: str, value: Any, kernel: str) -> bool:
    """Whether a launch option is one that means nothing here, which a note says. LaunchError for
    one that asks for what only it can give."""
    if name not in IGNORED:
        return False
    if name == "launch_cooperative_grid" and value:
        raise LaunchError(f"`{kernel}` was launched with launch_cooperative_grid, and there are "
                          "no cooperative grids", None, "launch no more programs than run at one "
                          "time, or end the kernel where all have to wait")
    if value is not None and value is not False:
        note(("option", name), f"`{kernel}` was given {name}={shown(value)}, which means nothing "
             "to tilec; it is left out")
    return True


def compile_options(options: Mapping[str, Any]) -> Options:
    """The compile options among launch options, where None stands for the default. TilecError for
    one that cannot be."""
    return Options(**{name: as_plain(value) for name, value in options.items()
                      if name in COMPILE_OPTIONS and value is not None})
