# make plan   plans the example         make test    every test, ruff and mypy
# make quick  tests for daily work      make bench   times whole solves
# make fit    fits and cross-validates the cost model's constants (half an hour)
# make accuracy  writes docs/accuracy.md
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: plan test quick bench fit accuracy clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

plan: $(READY)
	$(BIN)/apss-cp solve examples/llama2-70b-a800-256.yaml

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile

quick: $(READY)
	$(BIN)/python -m pytest -m "not slow" -x

bench: $(READY)
	$(BIN)/python -m benchmarks.solve_time

fit: $(READY)
	$(BIN)/python -m benchmarks.fit

accuracy: $(READY)
	$(BIN)/python -m benchmarks.accuracy

clean:
	rm -rf $(VENV) build dist *.egg-info
