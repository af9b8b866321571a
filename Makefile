# Two commands matter: `make run` starts everything here, `make test` checks all but what takes minutes (`make test-long`).
# `make PYTHON=/path/to/python3.12 ...` picks another interpreter for the virtual environment.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --progress-bar off --require-hashes
# Compiled modules are kept, also where the machine's environment forbids it: else each process of the tests compiles them again.
export PYTHONDONTWRITEBYTECODE :=
# One more than there are processors, since a test waits for other processes a quarter of its time.
PROCESSES := $(shell expr $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1)
# What needs no browser, no server and no patience (CONTRIBUTING.md says what that is); `make test` runs the rest too.
FAST := not (slow or browser or postgres or chaos)
# What ran on SQLite and says nothing of the browser, the broker or of processes that have a PostgreSQL of their own.
AGAIN_ON_POSTGRES := not (browser or postgres or chaos or (redis and long) or sweep(on='sqlite'))

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: run
run: .venv/run.stamp  ## Start the desk, a worker and the sweep (PORT=8000)
	@exec $(BIN)/python manage.py up

.PHONY: test
test: .venv/dev.stamp services lint  ## Lint, then all tests but those that take minutes (test-long)
	$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal -m 'not long'

.PHONY: test-long
test-long: .venv/dev.stamp services  ## Tests that take minutes: workers stopped at every moment, and the database tests on PostgreSQL
	$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal -m "long and not sweep(on='postgresql')"
	$(BIN)/python -m tools.services $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal -m "$(AGAIN_ON_POSTGRES)" --database-only

.PHONY: test-fast
test-fast: .venv/dev.stamp  ## Tests that need no other process, in under a minute
	$(BIN)/python -m pytest -n auto --dist worksteal -m '$(FAST)'

.PHONY: lint
lint: .venv/dev.stamp  ## Formatting, types, templates, migrations, deployment settings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	find templates -name '*.html' -print0 | xargs -0r $(BIN)/djade --check --target-version 5.2
	DATABASE_URL=sqlite://:memory: $(BIN)/python manage.py makemigrations --check --dry-run
	@export DATABASE_URL=sqlite://:memory: TRUSTED_PROXIES=1 STATIC_ROOT=$$(mktemp -d); trap 'rm -r "$$STATIC_ROOT"' EXIT; set -x; \
	  $(BIN)/python manage.py collectstatic --noinput -v 0 && $(BIN)/python manage.py check --deploy --fail-level WARNING

.PHONY: wheel
wheel: .venv/dev.stamp  ## Build the wheel in dist/
	$(BIN)/python -m tools.clean_environment dist

.PHONY: format
format: .venv/dev.stamp  ## Format the sources, and list the modules
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find templates -name '*.html' -print0 | xargs -0r $(BIN)/djade --target-version 5.2
	$(BIN)/python -m tools.module_map

.PHONY: bench
bench: .venv/dev.stamp services  ## All benchmarks, next to other engines, on SQLite and PostgreSQL: benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

.PHONY: screenshots
screenshots: .venv/dev.stamp services  ## Take the pictures in docs/images/ again
	$(BIN)/python -m tools.screenshots

.PHONY: lock
lock: .venv/dev.stamp  ## Pin the dependencies of pyproject.toml (UPGRADE=--upgrade takes the newest)
	for lock in 'run --extra desk' 'dev --extra desk --group dev'; do set -- $$lock; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --custom-compile-command 'make lock' $(UPGRADE) pyproject.toml "$${@:2}" -o requirements/$$1.txt || exit 1; done
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command 'make lock' $(UPGRADE) benchmarks/rivals/requirements.in -o benchmarks/rivals/requirements.txt

.PHONY: audit
audit: .venv/dev.stamp  ## Look up known vulnerabilities of the pinned packages; says so if it cannot
	@$(BIN)/python -m tools.audit

.PHONY: services
services:
	@scripts/fetch-services

.PHONY: clean
clean:  ## Remove the virtual environment and caches; keep databases
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis staticfiles

.venv/created.stamp:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'AgentState needs Python 3.11 or newer; name one with PYTHON=/path/to/python3.' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip' || \
	  { echo 'This Python cannot make virtual environments. On Debian: apt-get install python3-venv' >&2; exit 1; }
	@echo 'Making the virtual environment .venv...'
	@"$(PYTHON)" -m venv --clear .venv
	@touch $@

.venv/%.stamp: requirements/%.txt .venv/created.stamp
	@echo 'Installing $< into .venv; the first time this takes a minute or two...'
	@set -o pipefail; $(PIP) --requirement $< | { number=0; while read -r line; do case $$line in \
	  'Collecting '*) number=$$((number + 1)); [ $$((number % 10)) -ne 0 ] || echo "  $$number packages fetched";; \
	  'Installing collected '*) echo "  $$number packages fetched; installing them";; \
	esac; done; }
	@touch $@
