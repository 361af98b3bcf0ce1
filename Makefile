# Nothing needs to be there but Python >= 3.11 with venv: the first target that needs it makes .venv.
# PYTHON=/path/to/python says which one to make it with.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
SOURCES := $(wildcard monarch tests examples benchmarks docs)

# Tests run in a process a core and one more, for many wait, and take over from each other at the end. Each test has folders
# and ports of its own.
WORKERS := -n $(shell cores=$$(nproc); echo $$((cores < 7 ? cores + 1 : 8))) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup check format test test-all test-ray test-models test-programs test-lowest test-slow test-devices test-debian lab test-lab browser test-browser soak fuzz bench demo dist publish-check site docs

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1   \2/p' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with the package and its development tools
	@echo 'setup: $(VENV) is ready'

# Once, and again when the dependencies may have changed. A .venv that works is kept, one that does not is made anew.
$(READY): pyproject.toml
	@if ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		for python in $(CANDIDATES) ''; do \
			[ -n "$$python" ] && "$$python" -c '$(USABLE)' >/dev/null 2>&1 && break; \
		done; \
		if [ -z "$$python" ]; then \
			echo 'setup: no Python >= 3.11 with the modules venv and ensurepip among: $(strip $(CANDIDATES)).' >&2; \
			echo 'setup: install one (on Debian and Ubuntu: python3.11 and python3.11-venv), or name one: make setup PYTHON=/path/to/python' >&2; \
			exit 1; \
		fi; \
		"$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo 'setup: installing the package, its tools and PyTorch into $(VENV) (once; PyTorch is large, this can take minutes)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

check: $(READY)  ## style, format and types
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo 'check: run `make format`' >&2; exit 1; }
	@$(BIN)/mypy --strict
	@$(BIN)/pyright --pythonpath tests/public/types/python_alone

format: $(READY)  ## let ruff format everything
	@$(BIN)/ruff check --quiet --fix $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)

# What depends on which thread reads.
WAITING := $(addprefix tests/procs/test_,waits.py interrupts.py other_loops.py)
# Have a target of their own.
APART := not slow and not device and not lab and not browser and not ray and not models
# Tests that choose by themselves who reads, or do not depend on it.
BY_ITSELF := a_few_seconds or xdist

test: $(READY)  ## every promise once, in under four minutes on two cores
	@$(BIN)/python -m pytest -q $(WORKERS) --hypothesis-profile quick -m 'not full and $(APART)'

test-all: $(READY)  ## all tests, but for those marked slow or device
	@$(BIN)/python -m pytest -q $(WORKERS) -m '$(APART)'
	@for who in always never; do \
		echo "test-all: who waits reads: $$who"; \
		MONARCH_WAITERS_READ=$$who $(BIN)/python -m pytest -q $(WORKERS) -m '$(APART)' -k 'not ($(BY_ITSELF))' $(WAITING) || exit 1; \
	done

test-ray: $(READY)  ## the tests that need Ray, which is installed for them
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev-ray]'
	@$(BIN)/python -m pytest -q -m ray

test-models: $(READY)  ## tiny models of transformers, timm and torchvision, which are installed for them, beside plain torch
	@$(BIN)/python -c 'import importlib.util as u; assert all(map(u.find_spec, ("accelerate", "transformers", "timm", "torchvision")))' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev-models]'
	@$(BIN)/python -m pytest -q -m models

test-programs: $(READY)  ## programs as libraries write them, with their times; beside torchmonarch and torchrun
	@$(BIN)/python -m tests.programs

test-lowest: $(READY)  ## the tests that touch other packages, with each at its lower bound, in .venv-lowest
	@$(BIN)/python -m tests.support.lowest

test-slow: $(READY)  ## the tests marked slow: what goes on for long, and most seeds
	@$(BIN)/python -m pytest -q -m 'slow and not device'

test-devices: $(READY)  ## the tests that need a GPU or an RDMA device, with the reason of each that is skipped
	@$(BIN)/python -m pytest tests -q -rs -m device

test-debian:  ## README's own commands on a fresh Debian, which is made for it (as root): make test-debian SUITE=trixie
	@tests/fresh_debian.sh $(or $(SUITE),trixie)

LABS := slurm-wlm munge openssh-server openssh-client util-linux fuse3 zsh fish

lab:  ## install what the labs need: Slurm, munge, sshd, FUSE, shells (as root, on Debian)
	@missing=$$(for package in $(LABS); do \
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || echo $$package; done); \
	if [ -z "$$missing" ]; then echo 'lab: everything is installed'; exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo "lab: no apt-get here; install what Debian calls $(LABS) with this system's own tools" >&2; exit 1; fi; \
	if [ "$$(id -u)" -ne 0 ]; then echo "lab: not installed:" $$missing'; run this as root: sudo make lab' >&2; exit 1; fi; \
	echo "lab: installing" $$missing; \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing >/dev/null

test-lab: $(READY)  ## tests on a real Slurm and real sshds, each as a lab of its own on this machine
	@$(BIN)/python -m pytest -q -rs tests/lab -m 'not slow'

browser:  ## install what the browser tests need: Chromium (as root, on Debian)
	@if command -v chromium >/dev/null; then echo 'browser: everything is installed'; exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo "browser: no apt-get here; install Chromium with this system's own tools, so that 'chromium' is on PATH" >&2; exit 1; fi; \
	if [ "$$(id -u)" -ne 0 ]; then echo 'browser: not installed: chromium; run this as root: sudo make browser' >&2; exit 1; fi; \
	echo 'browser: installing chromium'; \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null

test-browser: $(READY)  ## the pages of dashboard and site in a real Chromium
	@$(BIN)/python -m pytest -q -rs tests/browser

soak: $(READY)  ## random programs against a model: make soak SEEDS=10000
	@$(BIN)/python -m tests.soak --seeds $(or $(SEEDS),2000)
	@$(BIN)/python -m tests.soak --faults --seeds $(or $(SEEDS),2000)
	@$(BIN)/python -m tests.soak --processes --seeds 200

fuzz: $(READY)  ## hostile input at every door, an hour in all: make fuzz MINUTES=5 TARGETS=http SEED=1
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(TARGETS)

bench: $(READY)  ## all benchmarks, ours beside the floor and the peers
	@$(BIN)/python benchmarks/run_all.py

demo: $(READY)  ## train a small GPT with DDP over four processes
	@$(BIN)/python examples/ddp.py

dist: $(READY)  ## wheel and sdist in dist/, tried in an environment of their own
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python -m tests.support.clean_install dist

publish-check: dist  ## what would be uploaded, in empty Debians of this and the last release (as root)
	@for suite in $(or $(SUITE),bookworm trixie); do \
		TAKE=dist PACKAGES='ca-certificates python3 python3-venv' \
			tests/fresh_debian.sh $$suite 'python3 -m tests.support.clean_install dist' || exit 1; \
	done

site: $(READY)  ## the documentation as pages for a browser: docs/_site/index.html
	@rm -rf docs/_site
	@$(BIN)/python -m sphinx -q -W --keep-going -n -b html -d docs/_site/.doctrees $(if $(EDIT),-D 'edit_address=$(EDIT)') docs docs/_site
	@$(BIN)/python docs/site_links.py docs/_site
	@echo 'site: open docs/_site/index.html'

docs: $(READY)  ## the snippets of the documentation and the examples run
	@$(BIN)/python -m pytest -q tests/examples
