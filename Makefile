# Each target works on a machine with nothing but Python 3.11+ and pip; `make up` and `make down` also need Docker.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test check format up down clean

run: .venv/.installed  ## the laptop run: a Ray cluster of two CPU nodes on this machine
	@$(BIN)/rig run configs/laptop.yaml $(ARGS)

test: .venv/.installed
	@$(BIN)/pytest -q -n 2 --dist loadgroup $(ARGS)

check: .venv/.installed  ## format, lint with the import fences, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pytest -q tests/test_fences.py
	@$(BIN)/mypy

format: .venv/.installed
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

.venv/.installed: pyproject.toml .ci/install .ci/install-torch
	@PYTHON=$(PYTHON) .ci/install

up:  ## the same run in Docker: a head, two workers, one submitted job
	@PYTHON=$(PYTHON) docker/up $(JOB)

down:
	@docker compose -f docker/compose.yaml down --volumes --remove-orphans --rmi all
	@docker image prune --force --filter label=org.opencontainers.image.title=staging-rig
	@rm -f docker/.ray_token

clean:
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find staging rig tests -name __pycache__ -prune -exec rm -rf {} +
