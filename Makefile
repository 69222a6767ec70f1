# make plan   plans the example         make test    every test, ruff and mypy
# make quick  tests for daily work      make bench   times whole solves
# make test-full  the tests that `make test` leaves out: all of the frozen answers (tests/net)
# make test-real  what is exported, against the frameworks' own parsers; Ray; the page in a browser
# make fit    fits and cross-validates the cost model's constants (an hour)
# make accuracy  writes docs/accuracy.md
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
REAL := .venv-real
REAL_READY := $(REAL)/.ready

.PHONY: plan test test-full quick test-real real-env bench fit accuracy clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

# Megatron-LM's parser comes with megatron-core from 0.17 on, which asks for Python 3.12 but needs no more than 3.11:
# its wheel is unpacked beside the environment.
$(REAL_READY): pyproject.toml
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(REAL)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev,real]'
	$(REAL)/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
		--dest $(REAL)/wheels megatron-core==0.19.2
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/megatron_core-0.19.2-*.whl $(REAL)/megatron-0.19
	touch $(REAL_READY)

plan: $(READY)
	$(BIN)/apss-cp solve examples/llama2-70b-a800-256.yaml

test: $(READY)
	$(BIN)/python -m pytest -m "not full" -n auto --dist loadfile

test-full: $(READY)
	$(BIN)/python -m pytest -m full -n auto

quick: $(READY)
	$(BIN)/python -m pytest -m "not slow and not full" -x

real-env: $(REAL_READY)

test-real: $(REAL_READY)
	MEGATRON_LM=$(CURDIR)/$(REAL)/megatron-0.19 $(REAL)/bin/python -m pytest -n auto --dist loadfile tests/real tests/cost/test_megatron.py

bench: $(READY)
	$(BIN)/python -m benchmarks.solve_time

fit: $(READY)
	$(BIN)/python -m benchmarks.fit

accuracy: $(READY)
	$(BIN)/python -m benchmarks.accuracy

clean:
	rm -rf $(VENV) $(REAL) build dist *.egg-info
