# Each target sets up what it needs, in a virtual environment of its own.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo bench docs test lint format clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

setup: .venv/ready  ## make the virtual environment .venv with everything in it

demo: .venv/ready  ## train AR CapsNet on the embedded digits, write a report with figures, and a page to play with
	$(BIN)/arcaps train digits
	$(BIN)/arcaps page "$$(ls -td runs/digits-* | head -n 1)" --to capsules.html
	@echo "the commands above are in .venv/bin: run  . .venv/bin/activate  first"

bench: .venv/ready  ## time the models on this machine, with a table, JSON and a chart in bench/: about a quarter of an hour
	$(BIN)/arcaps bench --growth --save bench

docs: .venv/ready  ## build the API reference from the docstrings, in site/
	$(BIN)/python -W error -m pdoc --docformat markdown --output-directory site arcaps

test: lint  ## run all checks: ruff, mypy, pytest
	$(BIN)/pytest -n auto

lint: .venv/ready  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made, but not runs/ and capsules.html
	rm -rf .venv bench site .hypothesis .mypy_cache .pytest_cache .ruff_cache dist
