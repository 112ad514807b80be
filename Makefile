# Everything runs in .venv, made by Python's own venv and pip.
#   make demo        one kernel, shown at every level
#   make test        what CI runs: 6 minutes on 2 cores
#   make test-full   every configuration, and the golden tests by lit itself
#   make test-torch  those that need torch, or a library written for Triton; in .venv-torch, 4 minutes
#   make test-gpu    the tests that need a GPU
#   make check       ruff and mypy
#   make bench       the benchmarks (GPU; those of compile time run anywhere)

PYTHON ?= python3
JOBS ?= 2
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A build of torch for CPUs will do. What follows it is what the libraries import at once.
TORCH_VENV := .venv-torch
TORCH_BIN := $(TORCH_VENV)/bin
TORCH_STAMP := $(TORCH_VENV)/.installed
TORCH_NEEDS := einops==0.8.2 huggingface_hub==2.4.0 tokenizers==0.23.3 safetensors==0.8.0 regex

.PHONY: demo test test-full test-torch test-gpu check bench clean

demo: $(STAMP)
	TILEC_DUMP=tile,gpu,lowered,llir,ptx $(BIN)/python examples/01_vector_add.py float32

test: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS)

test-full: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not gpu and not torch"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lit -q tests/lit

test-torch: $(TORCH_STAMP)
	$(TORCH_BIN)/python -m pytest -q -n $(JOBS) -m torch tests/runtime/test_torch.py tests/compat

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

$(TORCH_STAMP): pyproject.toml tests/compat/libraries.txt
	test -x $(TORCH_BIN)/python || $(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]' \
		'$(TORCH)' $(TORCH_NEEDS)
	$(TORCH_BIN)/python -m pip install -q --disable-pip-version-check --no-deps \
		-r tests/compat/libraries.txt
	touch $@

clean:
	rm -rf $(VENV) $(TORCH_VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
