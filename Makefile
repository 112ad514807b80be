# Everything runs in .venv, made by Python's own venv and pip.
#   make demo        one kernel, shown at every level
#   make test        what CI runs: 6.5 minutes on 2 cores
#   make test-full   every configuration, and the golden tests by lit itself
#   make test-torch  the tests that need torch, which it installs: a build for CPUs will do
#   make test-gpu    the tests that need a GPU
#   make check       ruff and mypy
#   make bench       the benchmarks (GPU; those of compile time run anywhere)

PYTHON ?= python3
JOBS ?= 2
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-full test-torch test-gpu check bench clean

demo: $(STAMP)
	TILEC_DUMP=tile,gpu,lowered,llir,ptx $(BIN)/python examples/01_vector_add.py float32

test: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS)

test-full: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not gpu and not torch"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lit -q tests/lit

test-torch: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pytest -q -m torch tests/runtime/test_torch.py

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks.compile_time
	$(BIN)/python -m benchmarks.launch
	$(BIN)/python -m benchmarks.memory_bound
	$(BIN)/python -m benchmarks.matmul
	$(BIN)/python -m benchmarks.hopper
	$(BIN)/python -m benchmarks.interpreter
	$(BIN)/python -m benchmarks.simulator

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
