# make plan       plans the example
# make test       the tests, without later blocks of the brute-force ones (marker full): some four minutes on two cores
# make test-all   every test                      make test-rest  only those that `make test` leaves out
# make lint       ruff and mypy                   make coverage   make test, with branches counted
# make mutants    breaks lines of tests/mutations.yaml one by one; the tests have to notice
# make test-real  what is exported, against the frameworks' own parsers; Ray; the page in a browser
# make bench      times whole solves
# make fit        fits and cross-validates the cost model's constants (half an hour)
# make accuracy   writes docs/accuracy.md, docs/mixed-runs.md, docs/chances.md and docs/recommendations.md
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
REAL := .venv-real
REAL_READY := $(REAL)/.ready
# Tests start the command and its workers many times: compiled modules are kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: plan test test-all test-rest coverage lint mutants test-real real-env bench fit accuracy clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

# Megatron-LM's parser comes with megatron-core from 0.17 on, which asks for Python 3.12 but needs no more than 3.11:
# its wheel is unpacked beside the environment. So is FlagScale's, which is made for one kind of machine only but is
# asked for nothing but Python.
$(REAL_READY): pyproject.toml
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(REAL)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev,real]'
	$(REAL)/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
		--dest $(REAL)/wheels megatron-core==0.19.2
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/megatron_core-0.19.2-*.whl $(REAL)/megatron-0.19
	$(REAL)/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--platform manylinux2014_x86_64 --dest $(REAL)/wheels flag-scale==0.8.0
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/flag_scale-0.8.0-*.whl $(REAL)/flagscale-0.8
	touch $(REAL_READY)

plan: $(READY)
	$(BIN)/apss-cp solve examples/llama2-70b-a800-256.yaml

PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile

test: $(READY)
	$(PYTEST) -m "not full" $(COVER)

test-all: $(READY)
	$(PYTEST)

test-rest: $(READY)
	$(PYTEST) -m full

# Ctrl-C can strike inside the tracer's own lock, which then hangs: that test is left out here.
coverage: COVER := --cov --deselect tests/commands/test_cli.py::test_ctrl_c_in_a_search_ends_with_what_is_known
coverage: test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: $(READY)
	$(BIN)/python -m tools.mutate

real-env: $(REAL_READY)

# The frameworks warn of themselves and of each other: here a warning is no error.
test-real: $(REAL_READY)
	MEGATRON_LM=$(CURDIR)/$(REAL)/megatron-0.19 FLAGSCALE=$(CURDIR)/$(REAL)/flagscale-0.8/flag_scale $(REAL)/bin/python -m pytest -W default -n auto --dist loadfile tests/real tests/cost/test_megatron.py

bench: $(READY)
	$(BIN)/python -m benchmarks.solve_time

fit: $(READY)
	$(BIN)/python -m benchmarks.fit
	$(BIN)/python -m benchmarks.fit_risk

accuracy: $(READY)
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.mixed
	$(BIN)/python -m benchmarks.chances
	$(BIN)/python -m benchmarks.everyday

clean:
	rm -rf $(VENV) $(REAL) build dist *.egg-info
