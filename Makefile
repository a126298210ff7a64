# Every target sets up what it needs; only `fix`, `protos` and `bench*` write outside .venv and build.
PYTHON ?= python3
BIN := .venv/bin
DEV := .venv/.installed-dev
DEMO := .venv/.installed-demo
INNER ?= (slow or not slow)

.PHONY: help demo test check fix sim bench bench-peers protos wheel clean
help: ; @grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16
demo: $(DEMO) ; @$(BIN)/kudu-py demo --dir build/demo  ## a cluster of real processes, the flights pipeline on Spark, and a report
test: $(DEV) build/bin/grpcurl ; $(BIN)/python -m pytest -q -n 2 -m "$(INNER) and not integration and not spark" $(PYTEST_ARGS) && $(BIN)/python -m pytest -m "integration or spark" $(PYTEST_ARGS)  ## all tests, real daemons and real Spark among them
check: $(DEV) ; $(BIN)/python tests/gate.py  ## the read-only gate: format, lint, types, layers, protos, fast tests
fix: $(DEV) ; $(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .  ## format, and mend what can be mended
sim: $(DEV) ; KUDU_SIM_SEEDS=$(or $(SEEDS),40) $(BIN)/python -m pytest -q -n 2 -m "slow and not spark and not integration"  ## the slow ring: many more seeds of the simulated faults; SEEDS=1000 for a soak
bench: $(DEV) ; $(BIN)/python -m tests.bench  ## benchmarks of this machine, into build/bench.json
bench-peers: $(DEV) ; $(BIN)/python -m tests.bench.peers  ## the same work by upstream, its Spark connector, Delta Lake and etcd, and the ratios
protos: $(DEV) ; $(BIN)/python protos/generate.py  ## regenerate kudu_py/pb
wheel: $(DEV) ; $(BIN)/python -m build --outdir build/dist .  ## wheel and source distribution
clean: ; rm -rf build .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python: ; $(PYTHON) -m venv .venv
$(DEMO): pyproject.toml | $(BIN)/python ; @echo "Installing into .venv (once) ..." && $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo]' && touch $@
$(DEV): pyproject.toml | $(BIN)/python ; @echo "Installing into .venv (once) ..." && $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]' && touch $@ $(DEMO)
build/bin/grpcurl: ; @mkdir -p build/bin && if command -v go >/dev/null; then GOBIN=$(CURDIR)/build/bin go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3; else echo "no Go here: tests call the services with buf curl instead of grpcurl"; fi
