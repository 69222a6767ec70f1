# make plan       plans the example
# make test       tests of every kind: three and a half minutes on two slow cores
# make test-all   more of every kind              make test-rest  only those that `make test` leaves out
# make test-night the many cases that are alike, which CI leaves out
# make lint       ruff and mypy                   make coverage   make test, with branches counted
# make attack     random problems against every plan of them, hostile inputs, answers against each other (a night)
# make mutants    breaks lines of tests/mutations.yaml one by one; the tests have to notice
# make test-real  what is exported, against the frameworks' own parsers; Ray; the page in a browser
# make docs       the documents as a site, in site/: strict about links and about pages that the menu lacks
# make bench      times whole solves
# make fit        fits and cross-validates the cost model's constants (half an hour)
# make accuracy   writes docs/accuracy.md, docs/mixed-runs.md, docs/chances.md and docs/recommendations.md
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
REAL := .venv-real
REAL_READY := $(REAL)/.ready
DOCS_READY := $(VENV)/.ready-docs
# Tests start the command and its workers many times: compiled modules are kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: plan test test-all test-rest test-night coverage lint attack mutants test-real real-env docs translations bench fit accuracy clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

# Megatron-LM's parser comes with megatron-core from 0.17 on, which asks for Python 3.12 but needs no more than 3.11:
# its wheel is unpacked beside the environment. So are FlagScale's, which is made for one kind of machine only but is
# asked for nothing but Python, and those of frameworks whose configuration is read without what they would train with.
# Few of all these modules are ever imported: they are compiled then.
$(REAL_READY): pyproject.toml
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/pip install --no-compile --quiet --disable-pip-version-check torch==2.13.0
	$(REAL)/bin/pip install --no-compile --quiet --disable-pip-version-check --editable '.[dev,real]'
	$(REAL)/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
		--dest $(REAL)/wheels megatron-core==0.19.2
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/megatron_core-0.19.2-*.whl $(REAL)/megatron-0.19
	$(REAL)/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--platform manylinux2014_x86_64 --dest $(REAL)/wheels flag-scale==0.8.0
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/flag_scale-0.8.0-*.whl $(REAL)/flagscale-0.8
	$(REAL)/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
		--dest $(REAL)/wheels megatron-bridge==0.6.2 verl==0.9.1 paddleformers==1.2.0 mindformers==2.1.0
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/megatron_bridge-0.6.2-*.whl $(REAL)/megatron-bridge-0.6
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/verl-0.9.1-*.whl $(REAL)/verl-0.9
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/paddleformers-1.2.0-*.whl $(REAL)/paddleformers-1.2
	$(REAL)/bin/python -m zipfile -e $(REAL)/wheels/mindformers-2.1.0-*.whl $(REAL)/mindformers-2.1
	$(REAL)/bin/pip install --no-compile --quiet --disable-pip-version-check --no-deps \
		--target $(REAL)/mindspore-2.10 mindspore==2.10.0 \
		"protobuf>=7.34" asttokens astunparse wheel dill ml_dtypes tiktoken sentencepiece setproctitle
	$(REAL)/bin/pip install --no-compile --quiet --disable-pip-version-check --no-deps \
		--target $(REAL)/paddle-3.3 paddlepaddle==3.3.1 \
		opt_einsum decorator astor colorlog ml_dtypes binpacking tiktoken sentencepiece importlib_metadata zipp
	touch $(REAL_READY)

plan: $(READY)
	$(BIN)/apss-cp solve examples/llama2-70b-a800-256.yaml

PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile

test: $(READY)
	$(PYTEST) -m "not full and not night" $(COVER)

test-all: $(READY)
	$(PYTEST) -m "not night"

test-rest: $(READY)
	$(PYTEST) -m "full and not night"

test-night: $(READY)
	$(PYTEST) -m night

# Ctrl-C can strike inside the tracer's own lock, which then hangs: that test is left out here.
coverage: COVER := --cov --deselect tests/commands/test_cli.py::test_ctrl_c_in_a_search_ends_with_what_is_known
coverage: test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# ARGS="--minutes 30 --seed 7" say
attack: $(READY)
	$(BIN)/python -m tools.attack $(ARGS)

mutants: $(READY)
	$(BIN)/python -m tools.mutate

real-env: $(REAL_READY)

# The frameworks warn of themselves and of each other: here a warning is no error.
test-real: $(REAL_READY)
	MEGATRON_LM=$(CURDIR)/$(REAL)/megatron-0.19 FLAGSCALE=$(CURDIR)/$(REAL)/flagscale-0.8/flag_scale \
		MEGATRON_BRIDGE=$(CURDIR)/$(REAL)/megatron-bridge-0.6 VERL=$(CURDIR)/$(REAL)/verl-0.9 \
		PADDLE=$(CURDIR)/$(REAL)/paddle-3.3:$(CURDIR)/$(REAL)/paddleformers-1.2 \
		MINDFORMERS=$(CURDIR)/$(REAL)/mindspore-2.10:$(CURDIR)/$(REAL)/mindformers-2.1 \
		$(REAL)/bin/python -m pytest -W default -n auto --dist loadfile tests/real tests/cost/test_megatron.py

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	touch $(DOCS_READY)

docs: $(DOCS_READY)
	rm -rf site
	$(BIN)/sphinx-build -q -W --keep-going -c tools/site -d build/doctrees . site
	$(BIN)/sphinx-build -q -W --keep-going -c tools/site -d build/doctrees-zh -D language=zh_CN . site/zh
	$(BIN)/python -m tools.translations --check

translations: $(DOCS_READY)
	$(BIN)/python -m tools.translations

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
	rm -rf $(VENV) $(REAL) site build dist *.egg-info
