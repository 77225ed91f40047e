# make demo: see it work. make test: the whole suite. make check: the full gate.
# Everything is installed into .venv by an interpreter that has a plyvel wheel, or from source.

VENV ?= .venv
SEEDS ?= 200
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

PIPELINE := $(VENV)/.pipeline

.PHONY: pipeline-demo demo test check fast bench micro crash fuzz simulate clean

demo: $(STAMP)
	$(VENV)/bin/zonemta demo

test: $(STAMP)-test
	./run-tests $(PY)

check: $(STAMP)-test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	./run-tests $(PY)

fast: $(STAMP)-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -m "not crash" --ignore=tests/cli --ignore=tests/end_to_end

crash: $(STAMP)-test
	$(PY) -m tests.crash --kills 500

fuzz: $(STAMP)-test
	for target in $$($(PY) -c 'from tests.fuzz.targets import TARGETS; print(*TARGETS)'); do \
		$(PY) -m tests.fuzz $$target -max_total_time=300 || exit 1; done

simulate: $(STAMP)-test
	$(PY) -m tests.simulation --seeds 1-$(SEEDS)

micro: $(STAMP)-test
	$(PY) -m benchmarks.calls
	$(PY) -m pytest -q benchmarks/micro

pipeline-demo: $(PIPELINE)
	$(VENV)/bin/zonemta pipeline demo

bench: $(STAMP)
	$(VENV)/bin/zonemta bench

$(STAMP): pyproject.toml setup-venv
	./setup-venv $(VENV) .
	touch $@

$(STAMP)-test: pyproject.toml setup-venv setup-java setup-tools
	./setup-venv $(VENV) '.[test,pipeline,redis,s3]'
	./setup-java
	./setup-tools $(VENV)
	touch $@ $(STAMP)

$(PIPELINE): pyproject.toml setup-venv setup-java
	./setup-venv $(VENV) '.[pipeline]'
	./setup-java
	touch $@ $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
