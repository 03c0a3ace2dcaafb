# From a fresh clone, with nothing but Python 3.11 or newer: `make quickstart`, then `make test`.
#   make quickstart   install everything into .venv and train with GRPO and an ensemble of reward models
#   make test         fast tests of the core and of every plugin
#   make test-ci      the same and the slow ones (real models, several ranks, killed runs), as .ci/run does
#   make test-all     every test; the long ones repeat at full length what a slow one does briefly (before a release)
#   make lint         ruff (rules and format), pyright, structure checks
#   make bench        measure speed and memory on this machine
#   make dist         build a wheel of every distribution into dist/
#   make docs         write docs/reference/ anew from the code
#   make docs-site  the documentation as a site in build/site, which opens without a server or a network
#   make clean        remove .venv and caches (never runs/)
# Settings: PYTHON=python3.12 (used to create the environment), VENV=path, PYTEST_ARGS="-k loss", JOBS=8 (processes of
# tests).

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
JOBS ?= 2
CONSTRAINTS ?= constraints.txt

BIN := $(VENV)/bin
INSTALL := scripts/dev/pip_install.sh $(BIN)/python --constraint $(CONSTRAINTS)
# Every distribution of this repository; the core comes first.
PROJECTS := . $(patsubst %/pyproject.toml,%,$(sort $(wildcard plugins/*/pyproject.toml eval/pyproject.toml extensions/*/pyproject.toml)))
MANIFESTS := $(CONSTRAINTS) $(addsuffix /pyproject.toml,$(PROJECTS))
# Those with a `test` extra: what their own tests need beyond what they need themselves.
TESTED := $(patsubst %/pyproject.toml,%,$(shell grep -ls '^test = ' $(addsuffix /pyproject.toml,$(PROJECTS))))

LINT := lint-style lint-types lint-imports lint-structure lint-reference
.PHONY: quickstart install install-dev test test-slow test-ci test-all lint $(LINT) bench docs docs-site dist clean

quickstart: install
	$(BIN)/rlhf train --algo grpo --reward ensemble

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

# hatchling and editables are installed first and builds are not isolated: no build environment can then
# bring another torch, and twenty editable installs take seconds.
$(VENV)/.installed: $(MANIFESTS)
	@scripts/dev/make_venv.sh "$(PYTHON)" "$(VENV)"
	@echo "Installing into $(VENV). The first time takes a few minutes; torch is the largest part."
	$(INSTALL) -q hatchling editables
	$(INSTALL) --no-build-isolation -e .
	$(INSTALL) -q --no-build-isolation $(addprefix -e ./,$(PROJECTS))
	@touch $@

# setuptools and wheel build the test dependencies that are published as sources only.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) -q setuptools wheel
	$(INSTALL) -q --no-build-isolation -e '.[dev,docs]' $(patsubst %,-e './%[test]',$(TESTED))
	@touch $@

test: install-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not long" $(PYTEST_ARGS)

test-slow: install-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "slow and not long" $(PYTEST_ARGS)

test-ci: install-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not long" $(PYTEST_ARGS)

test-all: install-dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

# Side by side; what each says is printed when it ends, where make can (4.0, not that of macOS).
lint: install-dev
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --keep-going $(addprefix --,$(filter output-sync,$(.FEATURES))) $(LINT)

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check . || { echo "fix: $(BIN)/ruff format ."; exit 1; }
lint-types:
	$(BIN)/pyright --pythonpath $(BIN)/python
lint-imports:
	$(BIN)/lint-imports --no-cache
lint-structure:
	$(BIN)/python -m scripts.check
lint-reference:
	$(BIN)/python -m scripts.reference --check || { echo "fix: make docs, and commit what it writes"; exit 1; }

bench: install-dev
	$(BIN)/python -m scripts.bench

docs: install-dev
	$(BIN)/python -m scripts.reference

docs-site: install-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

dist: install-dev
	$(BIN)/python -m scripts.dist

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
