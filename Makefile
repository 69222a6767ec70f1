# make plan   plans the example         make test    every test, ruff and mypy
# make quick  tests for daily work      make bench   times whole solves
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: plan test quick bench clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

plan: $(READY)
	$(BIN)/apss-cp solve examples/llama2-70b-a800-256.yaml

test: $(READY)
	$(BIN)/python -m pytest

quick: $(READY)
	$(BIN)/python -m pytest -m "not slow" -x

bench: $(READY)
	$(BIN)/python -m benchmarks.solve_time

clean:
	rm -rf $(VENV) build dist *.egg-info
