# Every target sets up what it needs in .venv: by uv where it is installed, else by venv and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 6
FUZZ_RUNS ?= 300000
FUZZ_QUICK ?= 1000000
FUZZ_SLOW := fuzz-frame fuzz-weight fuzz-archive fuzz-native
FUZZ := $(FUZZ_SLOW) fuzz-blob fuzz-envelope fuzz-anthropic fuzz-openai-chat fuzz-openai-responses \
	fuzz-gemini fuzz-setup fuzz-url fuzz-http fuzz-sql

# Keep compiled modules even where the shell says not to: a run starts some thousand Pythons, which would compile anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup hooks demo fleet test test-all crash attack fuzz $(FUZZ) lint format bench docs site screenshots audit release-check clean

# $(call install,ARGUMENTS): pip install these into .venv. An environment made by uv has no pip of its own.
define install
@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python $(1); else \
	$(BIN)/python -m ensurepip >/dev/null && $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' \
		&& $(BIN)/python -m pip install --quiet $(1); fi
endef

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "Variables: PYTHON=$(PYTHON)  WORKERS=$(WORKERS) (processes of a test run)  CLEW_SEED=… (repeats a test-all)  LOCKED=1 (setup by hashes)"

# What .venv holds, group by group. The files with a dot say that a group is installed.

$(VENV)/.ready: pyproject.toml
	@if command -v uv >/dev/null 2>&1; then uv venv --quiet --allow-existing $(VENV); else \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
			|| { echo "Clew needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11"; exit 1; }; \
		$(PYTHON) -m venv $(VENV); fi
	$(call install,$(if $(LOCKED),--require-hashes -r requirements-dev.txt,-e . --group dev))
	$(if $(LOCKED),$(call install,--no-deps -e .))
	@touch $@

$(VENV)/.peers $(VENV)/.temporal $(VENV)/.fuzz $(VENV)/.docs $(VENV)/.release $(VENV)/.audit: $(VENV)/.%: $(VENV)/.ready
	$(call install,--group $*)
	@touch $@

$(VENV)/.oci: $(VENV)/.ready
	$(call install,-e '.[oci]')
	@touch $@

$(VENV)/.clis: $(VENV)/.ready tests/servers/npm.py
	@$(BIN)/python -m tests.servers.npm
	@if [ -d $@ ]; then touch $@; fi

##@ Start here

setup: $(VENV)/.ready ## Make .venv with everything for development

hooks: $(VENV)/.release ## Check every commit with ruff and mypy, before it is made
	$(BIN)/pre-commit install

demo: $(VENV)/.ready ## See an agent killed with SIGKILL inside a tool, and resumed, offline
	@$(BIN)/python -m clew demo

fleet: $(VENV)/.temporal ## See a fleet: store, Temporal, workers, inspector. Kill what you like and watch
	@$(BIN)/python -m tools.fleet

##@ Before every commit

format: $(VENV)/.ready ## Put the code in shape with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.ready ## Check with ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(VENV)/.ready ## Run the tests for every change: the same in each run, within four minutes
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" -p no:schemathesis

docs: $(VENV)/.ready ## Run every example in the guides
	$(BIN)/python -m pytest tests/test_docs.py

##@ Longer proofs

test-all: $(VENV)/.ready $(VENV)/.clis $(VENV)/.oci $(VENV)/.temporal ## Run the rest: slow tests, and all samples drawn anew
	CLEW_SEED=$${CLEW_SEED:-random} $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "slow or crash or hypothesis"

crash: $(VENV)/.ready $(VENV)/.clis $(VENV)/.temporal ## Run the long matrices whole: every kill, every torn byte
	CLEW_CRASH=full $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m crash

attack: $(VENV)/.ready ## Attack all ways: floods and malformed requests; forged logs, archives, sessions, databases, pages
	CLEW_CRASH=full $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m attack

fuzz: $(FUZZ) ## Give eleven million inputs to everything that reads bytes from outside (-j 2 uses two cores)

$(FUZZ): fuzz-%: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz $* $(if $(filter $@,$(FUZZ_SLOW)),$(FUZZ_RUNS),$(FUZZ_QUICK))

bench: $(VENV)/.peers $(VENV)/.temporal ## Measure: one table of ratios against the floors and the peers
	$(BIN)/python -m bench

##@ Documentation and releases

site: $(VENV)/.docs ## Build the guides and the reference as a web site into build/site, offline
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tools/check_site.py build/site

screenshots: $(VENV)/.ready ## Take pictures of the inspector into docs/images, by Chromium
	$(BIN)/python -m tests.server.inspector.screenshots

audit: $(VENV)/.audit ## Ask PyPI for known weaknesses of every package in requirements-dev.txt (needs the network)
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements-dev.txt

release-check: $(VENV)/.release ## Build, check and try the packages of a release (FINAL=1: ready to be published)
	$(BIN)/python tools/release.py $(if $(FINAL),--final)

clean: ## Remove everything make made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
