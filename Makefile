# Two commands do everything on a machine with Python 3.11 or newer and make: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test test-slow test-all lint docs wheel-test benchmark clean

run: $(READY)
	$(BIN)/fedceo demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

test-slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m slow

test-all: test test-slow

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# NO_MKDOCS_2_WARNING: a message of the theme about its successor, which a build without warnings is better without.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

wheel-test: $(READY)
	sh tests/wheel.sh $(BIN)/python

benchmark: $(READY)
	$(BIN)/python benchmarks/tensors.py
	$(BIN)/python benchmarks/rounds.py

# pip leaves an environment alone that already has what is asked for, so this is quick when only our files changed.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
