# What a contributor runs. `make` lists it; CONTRIBUTING.md explains it.
# Other interpreter: make setup PYTHON=python3.13. Other server: make test TESTS=tests/sql PG=system

PYTHON ?= python3
TESTS ?= tests
PG ?= auto
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup test lint format generate docs db bench faults

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: ## Make .venv with all extras, and install the commit hooks
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[embedded,test,docs,dev]'
	$(BIN)/pre-commit install

test: ## Run the tests: TESTS=tests/sql PG=system
	pytest --pg=$(PG) $(TESTS)

lint: ## Check style, types, SQL, spelling and generated files
	.ci/lint

format: ## Format the code and sort the imports
	ruff check --fix .
	ruff format .

generate: ## Write the blocking shell, the initial migration, the SQL reference, and the tables of rights, verbs and options
	python tools/blocking.py
	python tools/migration.py
	python tools/sqlreference.py
	python tools/rights.py
	python tools/verbs.py
	python tools/options.py

docs: ## Build the site in build/site, with warnings as errors
	sphinx-build -W --keep-going -n -b html docs build/site

db: ## Start the embedded server, with the schema in it, and print its DSN
	pgqueue server start
	pgqueue migrate up
	pgqueue server dsn

bench: ## Run the benchmarks shortly and print their table; docs/ stays as it is
	python -m benchmarks --quick

faults: ## Run the fault rig shortly and print its table
	python -m faults --short
