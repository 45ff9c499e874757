SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Without bytecode every process of the stack compiles all that it imports: a second and more for each start.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
EXTRAS := gateway ingest training kubernetes scoring registry serving tracker cli local demo dev bench
# vLLM for GPUs and vLLM for CPUs are the same module: each has an environment, and a lock file (decision 0076).
GPU_VENV := .venv-gpu
GPU_EXTRAS := $(patsubst serving,serving-gpu,$(EXTRAS))
# In this order: two of the processes begin with what `tests/conftest.py` runs one by one, the third with what fails soonest.
# The gateway's tests, one by one as well, wait while those of training compute.
# Three of them on two cores: much of what runs one by one waits for other processes.
TESTS := tests/serving tests/chaos tests/e2e tests/architecture tests/contract tests/unit tests/simulation \
	tests/integration/gateway tests/training tests/scoring tests/demo tests/integration
# The tests of the rows of docs/proof/reliability.md, those with a full size first. `tests/architecture/test_figures.py` holds the list complete.
CHAOS := tests/chaos tests/simulation tests/integration/kernel/test_crash.py tests/integration/test_*_failpoints.py tests/integration/gateway/test_failpoints.py \
	tests/integration/test_interleavings.py tests/serving/test_families.py tests/e2e/test_families.py tests/e2e/test_sweep.py tests/unit/ops/test_audit.py \
	tests/integration/kernel/test_relay.py tests/integration/kernel/test_leader.py \
	tests/integration/kernel/test_topic_made_again.py tests/integration/local/test_matrices.py \
	tests/integration/test_audit.py tests/integration/test_simulated_stores.py tests/integration/test_backend_local.py tests/integration/test_runner.py \
	tests/integration/test_serving_controller.py tests/integration/gateway/test_away.py \
	tests/training/test_resume.py tests/unit/shared/test_reading.py tests/unit/shared/test_settings.py \
	tests/unit/shared/test_versions.py tests/unit/trainer_agent/test_runner_decide.py
SOAK := tests/chaos/test_soak.py
MINUTES ?= 60
FIGURES = bench/results/$@-$(shell date -u +%F)-$(shell nproc)cores.jsonl
FULL = CHAOS_SCALE=full CHAOS_MINUTES=$(MINUTES) CHAOS_SEED=$(or $(SEED),1) CHAOS_FIGURES=$(FIGURES)
RESOLVE := pip compile --quiet --no-emit-index-url --no-header --generate-hashes pyproject.toml
# Printed at the end of a whole run, and in `build/tests.xml`: where its time went.
DURATIONS := --durations 60 --durations-min 5 --junitxml build/tests.xml
# Two processes a core: a test waits half of its time for others and for Kafka.
# Threads that wait for work spin, which is fast alone; of two trainings at a time each then waits for cores that the other spins on.
TEST = $(if $(T),$(BIN)/pytest $(T),OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest --numprocesses 4 --no-loadscope-reorder $(DURATIONS) $(TESTS))

.PHONY: help setup setup-slurm setup-prometheus setup-collector setup-kubernetes demo up down logs status quick test stress chaos soak gpu screenshots mutants check night lint types imports generated schemas reference lock lock-gpu migration service clean

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## install everything: Python packages, Kafka, Postgres, the S3 server, the page's scripts (cached per user)
	@$(BIN)/python -u -m deploy.local setup
	@$(BIN)/python -u -m deploy.page

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "retune needs Python 3.11, the one it is tested with; set PYTHON=")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@echo "installing Python packages"
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes --no-deps --compile-bytecode -r requirements.lock
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation-package retune -e .
	@# Processes that open tenants' files can write no compiled code.
	@$(BIN)/python -m compileall -q schemas services shared
	@touch $@

setup-slurm: $(VENV)/.installed ## install the distribution's Slurm, which the tests of that cluster backend run on (needs root and apt)
	@$(BIN)/python -m deploy.slurm setup

setup-prometheus: $(VENV)/.installed ## install the distribution's Prometheus, which the tests of alert rules and dashboards run on (needs root and apt)
	@$(BIN)/python -m deploy.prometheus setup

setup-collector: $(VENV)/.installed ## build OpenTelemetry's collector, which the test of the export runs on (a minute, once per user)
	@$(BIN)/python -u -m deploy.collector

setup-kubernetes: $(VENV)/.installed ## build a Kubernetes control plane, which the tests of that backend and of the manifests run on (10 minutes and more, once per user)
	@$(BIN)/python -u -m deploy.kubernetes setup

demo: setup ## the main job on the standard library; PRETRAIN=1 trains its base model again
	@$(BIN)/python -u -m deploy.demo

up: setup ## start the local stack and return when it is healthy
	@$(BIN)/python -u -m deploy.local up --detach

down: ## stop the local stack
	@$(BIN)/python -m deploy.local down

logs: ## follow the logs of the local stack
	@tail -n 20 -F .retune/logs/*.log

status: ## show what of the local stack runs
	@$(BIN)/python -m deploy.local status

quick: $(VENV)/.installed ## unit, contract and architecture tests (< 60 s)
	@$(BIN)/pytest -q tests/unit tests/contract tests/architecture

test: setup ## every test, or T=path
	@$(TEST)

stress: setup ## T=path three times beside four busy processes: what fails there fails on a busy machine one day
	@trap 'kill $$(jobs -p)' EXIT; \
	for _ in 1 2 3 4; do timeout 1800 $(BIN)/python -c 'while True: pass' & done; \
	for _ in 1 2 3; do $(BIN)/pytest -q $(T); done

chaos: setup ## every row of docs/proof/reliability.md at full size, HOURS (the soak MINUTES=60 of them); SEED=n FIGURES=file
	@[ ! -e $(FIGURES) ] || { echo "$(FIGURES) has the figures of an earlier run: move it or set FIGURES=" >&2; exit 1; }
	@$(FULL) $(BIN)/pytest -s $(CHAOS)

soak: setup ## the soak of them alone: everything at once for MINUTES=60; SEED=n FIGURES=file
	@[ ! -e $(FIGURES) ] || { echo "$(FIGURES) has the figures of an earlier run: move it or set FIGURES=" >&2; exit 1; }
	@$(FULL) $(BIN)/pytest -s $(SOAK)

# uv's settings for GPUs come in place of [tool.uv] in pyproject.toml, which keeps Triton out.
$(GPU_VENV)/.installed: requirements-gpu.lock pyproject.toml deploy/images/gpu.toml $(VENV)/.installed
	@[ -x $(GPU_VENV)/bin/python ] || $(PYTHON) -m venv $(GPU_VENV)
	@echo "installing Python packages for GPUs"
	@UV_CONFIG_FILE=deploy/images/gpu.toml $(BIN)/uv pip install --quiet --python $(GPU_VENV)/bin/python --compile-bytecode \
		--require-hashes --constraint requirements-gpu.lock -r pyproject.toml $(addprefix --extra ,$(GPU_EXTRAS))
	@touch $@

gpu: $(VENV)/.installed $(GPU_VENV)/.installed ## on a machine with an NVIDIA GPU: the tests of training, scoring and serving on it, then models of 1B and 8B; CASES='"8b lora default"'
	@$(BIN)/pytest -q -m gpu tests/training tests/scoring
	@$(GPU_VENV)/bin/pytest -q -m gpu tests/serving
	@$(BIN)/python -m bench.training.gpu $(CASES)

screenshots: setup ## PNGs of every page, light and dark, desktop and phone, into build/screenshots; needs Chromium
	@$(BIN)/python -m tests.screenshots

mutants: $(VENV)/.installed ## changes pure code, one place at a time: does a unit test fail? Continues where it was; T='services.scheduler.*' for a part again, SAMPLE=600 SEED=2 for so many drawn at random
	@$(BIN)/python -m bench.mutants $(if $(SAMPLE),--sample $(SAMPLE) --seed $(or $(SEED),1),$(if $(T),'$(T)'))

check: setup ## everything that CI runs, cheapest first
	@$(BIN)/python -m deploy.slurm setup --optional
	@$(BIN)/python -m deploy.prometheus setup --optional
	@$(MAKE) --no-print-directory --jobs 2 lint types imports generated
	@$(TEST)

night: export CHAOS_SCALE := night
night: setup-kubernetes setup-collector check ## the same with more of each: events, kills, races, simulated messages; and the tests of Kubernetes and of OpenTelemetry's collector

lint: $(VENV)/.installed
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --check .

types: $(VENV)/.installed
	@$(BIN)/mypy

imports: $(VENV)/.installed
	@$(BIN)/lint-imports --no-cache

generated: $(VENV)/.installed
	@$(BIN)/python -m deploy.handled --check
	@$(BIN)/python -m schemas.generate --check
	@$(BIN)/python -m deploy.reference --check
	@$(BIN)/python -m deploy.monitoring --check

schemas: $(VENV)/.installed ## regenerate what services handle, JSON Schema, Avro, AsyncAPI and missing samples
	@$(BIN)/python -m deploy.handled
	@$(BIN)/python -m schemas.generate

lock: $(VENV)/.installed ## resolve requirements.lock and requirements-gpu.lock again from pyproject.toml
	@$(BIN)/uv $(RESOLVE) --upgrade $(addprefix --extra ,$(EXTRAS)) -o requirements.lock
	@$(MAKE) --no-print-directory lock-gpu

# What requirements.lock has is taken over wherever it may be.
lock-gpu: $(VENV)/.installed
	@cp requirements.lock requirements-gpu.lock
	@UV_CONFIG_FILE=deploy/images/gpu.toml $(BIN)/uv $(RESOLVE) $(addprefix --extra ,$(GPU_EXTRAS) gpu) -o requirements-gpu.lock

migration: ## a new migration: SERVICE=scheduler NAME=add_priority
	@$(PYTHON) deploy/scaffold.py migration $(SERVICE) $(NAME)

service: ## a new service from the template: NAME=archivist
	@$(PYTHON) deploy/scaffold.py service $(NAME)

reference: $(VENV)/.installed ## regenerate docs/reference and Grafana's dashboards
	@$(BIN)/python -m deploy.reference
	@$(BIN)/python -m deploy.monitoring

clean: down ## stop the stack and delete its state
	@rm -rf .retune mutants
