"""Configuration of lit: `lit tests/lit` runs the golden tests; `pytest tests/test_lit.py` too."""

import sys
from pathlib import Path

import lit.formats

root = Path(__file__).parents[2]
python = sys.executable

config.name = "tilec"  # noqa: F821  (lit defines config)
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".tir"]  # noqa: F821
config.test_source_root = str(Path(__file__).parent)  # noqa: F821
config.test_exec_root = str(root / "build" / "lit")  # noqa: F821
config.environment["PYTHONPATH"] = str(root)  # noqa: F821
config.substitutions += [  # noqa: F821
    (r"\btilec-opt\b", f"{python} -m tilec.tools.opt"),
    (r"\bfilecheck\b", f"{python} -m filecheck"),
]
