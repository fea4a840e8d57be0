# Every target sets itself up: a fresh clone needs nothing but Python 3.11+ and make.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: help setup fmt check test unit rest floor spark interop interop-shared interop-apart sim soak cov bench demo wheel docs clean

help:
	@echo "make demo      server, producer, consumers and a Spark pipeline on this machine, in a minute or two"
	@echo "make check     ruff, mypy --strict, import contracts"
	@echo "make test      unit tests, wheel included, then Spark, then interop (skipped where Java or Maven is missing)"
	@echo "make unit      unit tests only            make interop   Apache RocketMQ as the counterpart only"
	@echo "make spark     the tests on real Spark only"
	@echo "make floor     the unit tests of some packages, traced: their coverage must not fall"
	@echo "make soak      the long forms             make cov       branch coverage of the unit tests"
	@echo "make sim       whole clusters in virtual time with seeded faults (SEED=1 RUNS=100 ARGS=--small)"
	@echo "make bench     benchmarks (ARGS=--quick)  make fmt       format and fix"
	@echo "make wheel     build dist/*.whl           make docs      write the generated parts of docs/"

setup: $(READY)

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer on PATH; install one or say make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,spark,dashboard]'
	@touch $@

fmt: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache >.lint-imports.out || { cat .lint-imports.out; rm -f .lint-imports.out; exit 1; }
	@tail -2 .lint-imports.out; rm -f .lint-imports.out

# With a second word: what runs pytest.
define pytest
$(BIN)/$(or $(2),pytest) -q -o cache_dir=.pytest_cache/$@ $(1) $(ARGS)
endef

# Tests with processes, browsers and JVMs depend on the machine: in CI those that failed are run once more, by themselves. A
# hiccup refuses nothing, a fault fails twice; the first report stays in the log, and "make test" ends with their names.
define pytest_twice
@rm -f .pytest_cache/again-$@
$(call pytest,$(1),$(2)) $(if $(CI),--cache-clear || { \
	echo "FAILED ONCE; once more by themselves:"; \
	sed -n 's/^ *"\(.*\)": true.*$$/  \1/p' .pytest_cache/$@/v/cache/lastfailed >.pytest_cache/again-$@; \
	$(call pytest,$(1),$(2)) --last-failed --last-failed-no-failures none; })
endef

# Unit tests in two processes; Spark's in one, because they share a JVM.
UNIT := -n 2 -m "not interop and not soak and not spark"
unit: $(READY)
	$(call pytest,$(UNIT))

spark: $(READY)
	$(call pytest_twice,-m "spark and not soak and not interop")

interop: $(READY)
	$(call pytest_twice,-m "interop and not soak")

# The same in two processes: tests that share servers and Java clients; those that start Apache's brokers for themselves.
interop-shared: $(READY)
	$(call pytest_twice,-m "interop and not apart and not soak")

interop-apart: $(READY)
	$(call pytest_twice,-m "interop and apart and not soak")

# Lines and branches that the tests of these packages reach, for each at least so many percent: a little less than there are.
# On Python 3.11 tracing doubles the processor time of a test (16 s became 35), so not all tests are traced: with the broker's and the
# command line's it would take minutes. These take about two on two cores, and "make test" runs them traced only, so
# that no test runs twice. Headers, status_bodies and results are declarations, which other packages' tests use.
FLOORS := model+protocol+balance:97 nameserver:98 transport:90 store:92 access:97 admin:70 client:95
FLOORED := $(foreach floor,$(FLOORS),$(subst +, ,$(firstword $(subst :, ,$(floor)))))
TRACED := $(addprefix tests/,$(FLOORED))
comma := ,
space := $(subst ,, )
TRACER = coverage run --data-file=.coverage.floor --source=$(subst $(space),$(comma),$(addprefix gimbalmq.,$(FLOORED))) -m pytest
floor: $(READY)
	@rm -f .coverage.floor*
	$(call pytest_twice,$(UNIT) $(TRACED),$(TRACER))
	@$(BIN)/coverage combine --quiet --data-file=.coverage.floor
	@code=0; for floor in $(FLOORS); do \
		names=$${floor%:*}; echo "coverage of $$names, at least $${floor#*:} %:"; \
		$(BIN)/coverage report --data-file=.coverage.floor --skip-covered --sort=cover --fail-under=$${floor#*:} \
			--include="*/src/gimbalmq/$${names//+/\/*,*\/src\/gimbalmq\/}/*" \
			--omit='*/headers/*,*/status_bodies.py,*/results.py' || code=$$?; \
	done; exit $$code

# All unit tests but those.
rest: $(READY)
	$(call pytest_twice,$(UNIT) $(addprefix --ignore=,$(TRACED)))

# The last three wait more than they compute, for JVMs that start and clocks that tick: they go side by side.
test: rest floor
	@code=0; $(MAKE) --no-print-directory --jobs=3 --output-sync=target spark interop-shared interop-apart || code=$$?; \
	if cat .pytest_cache/again-* >.pytest_cache/again 2>/dev/null; then \
		echo "needed a second run, each a bug to fix:"; cat .pytest_cache/again; \
	fi; exit $$code

# Whole clusters in virtual time: make sim SEED=1 RUNS=100; failing seeds are printed. The long form, less than an hour on
# two cores: make sim RUNS=10000 ARGS=--small. Replicated brokers: make sim RUNS=10000 ARGS=--replicated.
sim: $(READY)
	$(BIN)/python -m tests.sim.run --seed $(or $(SEED),1) --runs $(or $(RUNS),100) $(ARGS)

soak: $(READY)
	$(BIN)/pytest -q -m soak --timeout 7200 $(ARGS)

cov: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(UNIT) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

bench: $(READY)
	$(BIN)/python benchmarks/report.py $(ARGS)

demo: $(READY)
	@$(BIN)/python examples/demo.py $(ARGS)

wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist
	@ls dist

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf dist build .mypy_cache .ruff_cache .hypothesis .coverage .coverage.floor* .lint-imports.out
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
