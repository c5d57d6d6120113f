# `make` alone lists what there is. Everything runs in .venv, which every target makes when needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Which Redis the tests run on: installed, redis8, valkey9, or the path of a program.
SERVER ?= installed
# How many processes share the suite, each with a cluster and a database of its own.
JOBS ?= 2
MATRIX := $(VENV)/matrix/.installed
MATRIX_IF_CHOSEN := $(if $(filter redis8 valkey9,$(SERVER)),$(MATRIX))

export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help install run demo test bench chaos mutations check lint types proto proto-check format lock clean \
	machine machine-for-test matrix

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: machine $(INSTALLED)  ## make .venv from requirements.lock, with client and service editable

run: install  ## the whole service on this machine, in the foreground, with a demo product
	@$(BIN)/python -m deploy.local run

demo: install  ## one flash sale with a server process, a worker and a Redis master killed in the middle
	@$(BIN)/python -m deploy.demo

test: machine-for-test $(INSTALLED) $(MATRIX_IF_CHOSEN)  ## the whole suite on a real Redis Cluster and MySQL
	@INVENTORY_TEST_REDIS=$(SERVER) $(BIN)/python -m pytest --numprocesses $(JOBS) --no-loadscope-reorder --reruns 1

bench: install  ## measure throughput and latency on this machine
	@$(BIN)/python -m tests.bench

chaos: install  ## break the service in every way under load (FAULT=F07 SEED=3: one way)
	@$(BIN)/python -m tests.chaos $(FAULT) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

mutations: machine-for-test $(INSTALLED)  ## take away each mechanism of the kernel: its test must fail
	@$(BIN)/python -m pytest tests/mutations -m '' --numprocesses $(JOBS)

check: lint types proto-check test  ## exactly what CI runs

lint: install  ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: install  ## mypy, strict
	@$(BIN)/mypy

proto: install  ## generate client/inventory/v1 from protos/
	@deploy/proto generate client

proto-check: install  ## generated code is current, the contract is well formed and breaks nobody
	@deploy/proto check

format: install  ## let ruff repair and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

matrix: $(MATRIX)  ## servers that the tests may run on, Redis 8 and Valkey 9, into .venv

lock: machine  ## resolve the newest allowed versions into the lock files
	@PYTHON=$(PYTHON) deploy/lock

clean:  ## remove .venv and what tools leave behind
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

machine:
	@PYTHON=$(PYTHON) deploy/bootstrap

machine-for-test:
	@PYTHON=$(PYTHON) deploy/bootstrap --for test

# The order-only prerequisite lets bootstrap install python3-venv first, and never makes .venv stale.
$(INSTALLED): requirements.lock pyproject.toml client/pyproject.toml | machine
	@deploy/venv $(PYTHON) $(VENV)
	@touch $@

$(MATRIX): requirements-matrix.lock | $(INSTALLED)
	@$(BIN)/python -m pip --quiet --disable-pip-version-check install --upgrade --no-deps \
		--require-hashes --requirement $< --target $(@D)
	@touch $@
