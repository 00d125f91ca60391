# The commands a person needs. Everything they use is set up by them, below this folder.

PYTHON ?= python3
WORKERS ?= 2
# Another Python gets an environment of its own: make quick PYTHON=python3.13
VENV := $(if $(filter python3.%,$(notdir $(PYTHON))),.venv-$(notdir $(PYTHON)),.venv)
BIN := $(VENV)/bin
SERVER := $(VENV)/server/bin/python
SOURCES := $(shell find src -name '*.py') pyproject.toml
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# Without compiled files every process of the tests would compile all that it imports once more.
unexport PYTHONDONTWRITEBYTECODE
# Node and npm come from a wheel, which has put them beside Python.
export PATH := $(abspath $(BIN)):$(PATH)
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help run demo quick test test-random test-long coverage check format conformance bench requirements clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: $(VENV)/.run ## set up what is needed and start the server on port 4437
	$(BIN)/headwater serve

demo: $(VENV)/.spark ## set up what is needed and show streams becoming tables on Spark
	$(BIN)/python -m demo

quick: $(VENV)/.dev ## tests that need no Spark, no database and no killed process, in two minutes
	$(PYTEST) --quick

test: $(VENV)/.test ## set up what is needed and pass all tests, in two processes (WORKERS=0: in one)
	HEADWATER_TEST_BUILD=compiled $(PYTEST)

test-random: $(VENV)/.test ## all tests in random order; a seed repeats one (SEED=42)
	HEADWATER_TEST_BUILD=compiled $(PYTEST) -p randomly $(if $(SEED),-p "randomly_seed=$(SEED)")

test-long: $(VENV)/.test ## what make test leaves out: every kill, power cut, variant and example (hours)
	HEADWATER_TEST_BUILD=compiled HEADWATER_TEST_SPARK=default HEADWATER_TEST_EFFORT=10 \
		HEADWATER_CRASH_KILLS=200 HEADWATER_SPARK_KILLS=30 $(PYTEST) --timeout 7200
	$(PYTEST) tests/crash tests/conformance tests/fuzz tests/server

coverage: $(VENV)/.dev ## measure which lines the quick tests run, by area (COVERAGE_OF=all: all tests)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(if $(filter all,$(COVERAGE_OF)),,--quick)
	$(BIN)/coverage combine --quiet
	@$(BIN)/python -m tests.support.coverage_by_area

check: $(VENV)/.dev ## format, lint, types, import rules and vocabulary
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.vocabulary

format: $(VENV)/.dev ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

conformance: $(VENV)/.test ## the public conformance suite alone
	$(BIN)/python -m pytest tests/conformance

bench: $(VENV)/.server node_modules/.installed ## measure beside npm's server (BENCH="--only A1,R1 --quick")
ifdef BENCH
	$(BIN)/python -m bench --python $(SERVER) $(BENCH)
else
	$(BIN)/python -m bench --python $(SERVER) --store memory
	$(BIN)/python -m bench --python $(SERVER) --store disk
	$(BIN)/python -m bench --python $(SERVER) --store disk --peer ours --only L1 --repeats 9
	$(BIN)/python -m bench.client
	$(BIN)/python -m bench.runs
	$(BIN)/python -m bench.state
	$(SERVER) -m bench.spark
endif

requirements: $(VENV)/.dev ## compile the pinned requirements anew
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header --no-annotate pyproject.toml -o requirements/run.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header --no-annotate --extra spark --extra jdk pyproject.toml -o requirements/spark.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header --no-annotate --group dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header --no-annotate --group build -o requirements/build.txt
	echo "ministack==1.5.33" | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
		- -o requirements/ministack.txt

clean: ## remove what the other commands set up
	rm -rf .venv .venv-* node_modules .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Headwater needs Python 3.11 or newer, which $(PYTHON) is not. Name one that is:" \
			"make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12"; exit 1; }
	@# A half-made one would be taken for a whole one by the next make.
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.run: $(BIN)/python requirements/run.txt pyproject.toml
	@echo "Setting up Headwater in $(VENV) ..."
	$(PIP) --require-hashes -r requirements/run.txt
	$(PIP) --no-deps -e .
	@touch $@

$(VENV)/.spark: $(BIN)/python requirements/spark.txt pyproject.toml
	@echo "Setting up Headwater with Spark in $(VENV) ..."
	$(PIP) --require-hashes -r requirements/spark.txt
	$(PIP) --no-deps -e .
	@touch $@ $(VENV)/.run

$(VENV)/.dev: $(BIN)/python requirements/dev.txt pyproject.toml
	@echo "Setting up Headwater with its development tools in $(VENV) ..."
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) --no-deps -e .
	@touch $@ $(VENV)/.run $(VENV)/.spark

$(VENV)/.test: $(VENV)/.dev $(VENV)/spark-classes.jsa $(VENV)/.compiled node_modules/.installed
	@touch $@

$(VENV)/.compiled: $(VENV)/.dev $(SOURCES)
	@echo "Compiling the server, where there is a C compiler ..."
	@$(BIN)/python -m tests.support.compiled
	@touch $@

$(VENV)/spark-classes.jsa: $(VENV)/.dev tests/support/spark_classes.py tests/support/java.py
	@echo "Keeping Java's classes for the Sparks of the tests ..."
	@$(BIN)/python -m tests.support.spark_classes 2> $(VENV)/spark-classes.log || { cat $(VENV)/spark-classes.log; exit 1; }

# What is measured: on a Python that is built as the peer's Node is, where there is one, and compiled as a
# release is.
$(VENV)/.interpreter: $(VENV)/.dev requirements/spark.txt requirements/build.txt
	$$($(BIN)/python -m bench.interpreters) -m venv --clear --without-pip $(VENV)/server
	for each in spark build; do \
		$(BIN)/python -m pip --python $(SERVER) install --quiet --disable-pip-version-check \
			--require-hashes -r requirements/$$each.txt || exit 1; \
	done
	@touch $@

$(VENV)/.server: $(VENV)/.interpreter $(SOURCES)
	@command -v cc >/dev/null || { \
		echo "The server is compiled to be measured: install a C compiler (apt-get install gcc python3-dev)."; exit 1; }
	@echo "Compiling the server ..."
	rm -rf $(VENV)/dist && $(SERVER) -m hatchling build --target sdist --directory $(VENV)/dist
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(BIN)/python -m pip --python $(SERVER) install --quiet \
		--disable-pip-version-check --no-deps --no-build-isolation --force-reinstall $(VENV)/dist/*.tar.gz
	@touch $@

node_modules/.installed: package.json package-lock.json | $(VENV)/.dev
	@echo "Installing the public conformance suite, client and peer from npm ..."
	npm install --no-save --ignore-scripts --silent
	@touch $@
