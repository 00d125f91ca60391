# The commands a person needs. Everything they use is set up by them, below this folder.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
SERVER := $(VENV)/server/bin/python
SOURCES := $(shell find src -name '*.py') pyproject.toml
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help run demo test check format conformance kills bench requirements clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: $(VENV)/.run ## set up what is needed and start the server on port 4437
	$(BIN)/headwater serve

demo: $(VENV)/.spark ## set up what is needed and show streams becoming tables on Spark
	$(BIN)/python -m demo

test: $(VENV)/.dev $(VENV)/spark-classes.jsa $(VENV)/.memcached node_modules/.installed ## set up what is needed and pass all tests, in two processes (WORKERS=0: in one)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

check: $(VENV)/.dev ## format, lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

conformance: $(VENV)/.dev node_modules/.installed ## the public conformance suite alone
	$(BIN)/python -m pytest tests/conformance

kills: $(VENV)/.dev $(VENV)/spark-classes.jsa ## the long runs of the crash tests: 200 kills of the server, 30 of Spark (about half an hour)
	HEADWATER_CRASH_KILLS=200 $(BIN)/python -m pytest tests/crash
	HEADWATER_SPARK_KILLS=30 $(BIN)/python -m pytest --timeout 7200 tests/spark/test_kills.py tests/spark/jobs -k kill

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
	rm -rf $(VENV) node_modules .mypy_cache .ruff_cache .import_linter_cache .hypothesis

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

$(VENV)/spark-classes.jsa: $(VENV)/.dev
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

# The one engine of the tests that no wheel holds; the others come with requirements/dev.txt.
$(VENV)/.memcached: $(BIN)/python
	@command -v memcached >/dev/null || { \
		echo "Installing Memcached with apt-get ..."; \
		as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$as_root apt-get update -qq && \
		$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends memcached; \
	} || echo "Memcached can't be installed here; its tests will say so."
	@touch $@

node_modules/.installed: package.json package-lock.json
	@echo "Installing the public conformance suite, client and peer from npm ..."
	npm install --no-save --ignore-scripts --silent
	@touch $@
