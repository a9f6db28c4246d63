# Every target sets up what it needs in .venv: by uv where it is installed, else by venv and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 6
FUZZ_RUNS ?= 165000

.PHONY: help setup demo test test-all crash fuzz lint format bench docs screenshots clean

help: ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

setup: $(VENV)/.ready ## A virtual environment with everything for development

$(VENV)/.ready: pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing $(VENV) && uv pip install --quiet --python $(BIN)/python -e . --group dev; \
	else \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
			|| { echo "Clew needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11"; exit 1; }; \
		$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' \
			&& $(BIN)/python -m pip install --quiet -e . --group dev; \
	fi
	@touch $@

$(VENV)/.peers: $(VENV)/.ready
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python --group peers; \
	else $(BIN)/python -m pip install --quiet --group peers; fi
	@touch $@

$(VENV)/.oci: $(VENV)/.ready
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python -e '.[oci]'; \
	else $(BIN)/python -m pip install --quiet -e '.[oci]'; fi
	@touch $@

$(VENV)/.fuzz: $(VENV)/.ready
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python --group fuzz; \
	else $(BIN)/python -m pip install --quiet --group fuzz; fi
	@touch $@

$(VENV)/.clis: $(VENV)/.ready tests/servers/npm.py
	@$(BIN)/python -m tests.servers.npm
	@if [ -d $@ ]; then touch $@; fi

demo: $(VENV)/.ready ## The main job, offline: an agent killed with SIGKILL inside a tool, and resumed
	@$(BIN)/python -m clew demo

test: $(VENV)/.ready ## The tests for every change: the same in each run, within five minutes
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow"

test-all: $(VENV)/.ready $(VENV)/.clis $(VENV)/.oci ## The rest: slow tests, and all samples drawn anew (CLEW_SEED=… repeats)
	CLEW_SEED=$${CLEW_SEED:-random} $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "slow or crash or hypothesis"

crash: $(VENV)/.ready $(VENV)/.clis ## The long matrices whole: every kill, every torn byte
	CLEW_CRASH=full $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m crash

fuzz: $(VENV)/.fuzz ## A million inputs to everything that reads bytes from outside
	for target in frame weight blob envelope anthropic openai-chat openai-responses; do \
		$(BIN)/python -m tests.fuzz $$target $(FUZZ_RUNS) || exit 1; \
	done
	$(BIN)/python -m tests.fuzz archive $$(($(FUZZ_RUNS) / 5))

lint: $(VENV)/.ready ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready ## Put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.peers ## One table of ratios against the floors and the peers
	$(BIN)/python -m bench

docs: $(VENV)/.ready ## Run every example in the guides
	$(BIN)/python -m pytest tests/test_docs.py

screenshots: $(VENV)/.ready ## Pictures of the inspector's pages into docs/images, by Chromium
	$(BIN)/python -m tests.server.inspector.screenshots

clean: ## Remove what make made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
