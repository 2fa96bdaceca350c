# Every target makes or reuses the virtual environment by itself; nothing else has to be set up.
#
#   make quickstart   train and measure every mixer, write tables and figures
#   make gallery      docs/gallery.md: every kind of figure, from published rows
#   make pages        conf/options.json, docs/families, a page per family, and tables of other pages
#   make test         linters, types, import rules, tests; FAMILY=gla, TASK=mqar, RUNNER=decode: the quick tests of one alone
#   make parity       outputs and gradients beside other public implementations
#   make slurm      sweeps on a real SLURM, on a machine that can be thrown away (root; apt-get install slurm-wlm munge)
#   make docs         the documentation as a site, in build/site
#   make campaign     faults at random: kills, full disks, torn files, bad command lines, ... (an hour)
#   make release      both archives, checked and tried, and what is new; publishes nothing
#   make environments  the wheel with the oldest and the newest dependencies, and other Pythons
#   make documented    all commands and Python of README and docs, from the wheel (hours)
#   make format | lint | types | wheel | clean
#
# PYTHON=python3.12 chooses the interpreter, VENV=DIR another environment.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Test processes with one thread each, one more than there are cores: those that run sweeps wait now and then.
PROCESSES ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
USUAL := not compile and not network and not parity and not slurm
# Where the tests of one family, task or runner are.
QUICK = $(if $(FAMILY),tests/models/families tests/literal tests/models/initial_values tests/contracts)$(if $(TASK),tests/tasks tests/lra/composition)$(if $(RUNNER),tests/runners/measures tests/reports/sections tests/lra/composition)
SPREAD := -n $(PROCESSES) --maxprocesses 8 --dist worksteal
# Bytecode is kept, whatever the shell says: tests start hundreds of processes.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help quickstart gallery pages test slurm format lint types rules tree docs pytest parity campaign wheel release environments documented clean

help:
	@sed -n 's/^#   //p' Makefile

quickstart: $(VENV)/.runtime
	$(BIN)/lra run +experiment=quickstart

gallery: $(VENV)/.runtime
	$(BIN)/python docs/site/gallery.py

pages: $(VENV)/.runtime
	$(BIN)/python docs/site/option_table.py
	$(BIN)/python docs/site/family_pages.py
	$(BIN)/python docs/site/family_lists.py
	$(BIN)/python docs/site/quickstart.py
	$(BIN)/python docs/site/program_tables.py
	$(BIN)/python docs/site/archive.py
	$(BIN)/python docs/site/ledger.py

# Types and documents are checked beside the tests, which leave a core idle now and then.
test: lint $(VENV)/.dev
ifneq ($(FAMILY)$(TASK)$(RUNNER),)
	$(ONE_THREAD) $(BIN)/python -m pytest -q $(SPREAD) -k "$(FAMILY)$(TASK)$(RUNNER)" -m "$(USUAL)" $(QUICK)
else
	$(MAKE) --no-print-directory -j 2 types rules docs pytest
endif

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev tree
	$(BIN)/mypy

rules: $(VENV)/.dev tree
	cd build/tree && $(abspath $(BIN))/lint-imports --config ../../pyproject.toml

# lra as the wheel has it, of links: tools that read sources follow no `__path__`.
tree:
	@rm -rf build/tree && mkdir -p build/tree/lra
	@cd build/tree/lra && ln -s $(addprefix ../../../,conf models reports runners tasks) ../../../lra/[!_]* ../../../lra/__*.py .

# No network; a warning, a link or an anchor that leads nowhere fails. Material speaks of its own future otherwise.
docs: $(VENV)/.dev tree
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site lies in build/site: open index.html; to search it, $(BIN)/python -m http.server -d build/site"

# torch.compile cannot trace through the comparison of shapes, so its tests run without it; the
# files that have some are named, since to collect all takes longer.
pytest: $(VENV)/.dev
	$(ONE_THREAD) $(BIN)/python -m pytest -q $(SPREAD) -m "$(USUAL)"
	LRA_SHAPES=0 $(ONE_THREAD) $(BIN)/python -m pytest -q $(SPREAD) -m compile $$(grep -rl mark.compile tests --include=*.py)

# The generated faults of the tests, FUZZ times as many as in make test, and then the parts of
# tests/campaign: CAMPAIGN="--only torn --cases 50" chooses among them.
FUZZ ?= 60
CAMPAIGN ?=
campaign: $(VENV)/.dev
	LRA_FUZZ=$(FUZZ) $(ONE_THREAD) $(BIN)/python -m pytest -q $(SPREAD) -m "fuzz or share"
	$(ONE_THREAD) $(BIN)/python -m tests.campaign --out build/campaign $(CAMPAIGN)

# LRA_PARITY makes a missing package a failure instead of a skipped test.
parity: $(VENV)/.parity
	LRA_PARITY=1 $(ONE_THREAD) $(BIN)/python -m pytest -q $(SPREAD) tests/parity

slurm: $(VENV)/.dev
	$(ONE_THREAD) $(BIN)/python -m pytest -q tests/slurm

wheel: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

# Builds both archives, checks them, and tries each in an environment of its own. Publishes nothing.
release: $(VENV)/.dev
	rm -rf dist
	$(INSTALL) build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	for archive in dist/*; do $(TRY) $$archive --python $(PYTHON) || exit 1; done
	awk '/^## / { part++; next } part == 1' CHANGELOG.md > dist/NOTES.md
	@echo "tried: $$(ls dist/*.whl dist/*.tar.gz); what is new: dist/NOTES.md; the next steps: .github/RELEASE.md"

# The wheel with the oldest dependencies and the newest; of other Pythons that are here, without torch.
TRY := $(BIN)/python -m tests.from_wheel.environments
OTHERS ?= python3.12 python3.13 python3.14
environments: wheel
	$(TRY) dist/*.whl --python $(PYTHON) --dependencies oldest
	$(TRY) dist/*.whl --python $(PYTHON) --dependencies newest
	for python in $(OTHERS); do $$python -c '' || continue; $(TRY) dist/*.whl --python $$python --without-torch || exit 1; done

# Whatever README and docs show, run in an empty folder; LIMIT are seconds of a command.
LIMIT ?= 600
documented: wheel
	rm -rf build/documented && $(PYTHON) -m venv build/documented
	build/documented/bin/pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[dashboard,notebook,search,tensorboard]" transformers
	$(BIN)/python -m tests.from_wheel.documents build/documented/bin --limit $(LIMIT) --log build/documented.log

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than the two files that say what is installed, or it is installed again.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what is needed into $(VENV) (one to three minutes the first time)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what is needed, with the tools for tests, into $(VENV) (one to three minutes the first time)"
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.parity: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the other implementations, with what they need, into $(VENV) (one to three minutes the first time)"
	$(INSTALL) --editable '.[dev,parity]'
	@touch $@ $(VENV)/.dev $(VENV)/.runtime

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) on PATH: install Python 3.11 or newer, or run make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1), wanted 3.11 or newer: run make PYTHON=python3.12, or whichever you have"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
