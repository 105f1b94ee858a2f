# make demo    answer questions by iterative retrieval, through a real server
# make serve   serve the default model on 127.0.0.1, ports 8000 to 8002 (ARGS="--model ..." for other options)
# make test    run the tests (ARGS="-k name" for some of them)
# make lint    ruff and mypy
# make browser-check  the tests of the gateway's page in a Chromium, which leave pictures of it in screenshots/
# make equivalence  compare embeddings in chunks with whole ones: a table (ARGS="--texts 3 --longest 256 --dtype float32" for a quick one)
# make soak    10,000 requests, many cancelled, late or wrong, and a ledger of their answers (ARGS="--requests 500" for fewer)
# make gpu-check  is the engine right on this device, and how fast: tests, comparison with the CPU, speed beside a roofline
#               (DEVICE=cuda or cpu; TINY=1 in small shapes, to check the check; ARGS="--only checks" for a part)
# make loadtest  put a target under load and measure it (ARGS="run mix-50-50 --target orthrus")
# make perf-analyzer  NVIDIA's perf_analyzer on a server of its own: unary and streaming, times of each token
# make docker-check  carry out the steps of docker/Dockerfile.cpu in a Debian root, up to a served request (as root; minutes)
# make clean   remove the virtual environment, caches and what builds leave
#
# Each makes .venv first, or brings it up to date, when a project file has changed. pip's own settings apply.

# The server needs numpy 1, of which there is no wheel for Python 3.13.
USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
	$$python -c "$(USABLE)" 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
INSTALLED := .venv/installed
ARGS ?=
DEVICE ?=
TINY ?=

.PHONY: help demo serve test lint browser-check equivalence soak gpu-check loadtest perf-analyzer docker-check install clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \?//;/^$$/q;p' Makefile

install: $(INSTALLED)

$(INSTALLED): pyproject.toml client/pyproject.toml requirements.lock
	@$(or $(PYTHON),false) -c "$(USABLE)" || { echo "$(or $(PYTHON),what is on PATH) will not do:" \
		"Python 3.11 or 3.12 with venv is needed; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint requirements.lock --editable ".[dev,loadtest]" --editable "./client[demo,gateway]"
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python client/examples/demo.py $(ARGS)

serve: $(INSTALLED)
	$(BIN)/orthrus serve $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses=3 $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

browser-check: $(INSTALLED)
	@$(BIN)/python -m tests.gateway.chromium
	ORTHRUS_SCREENSHOTS=screenshots $(BIN)/python -m pytest tests/gateway/test_browser.py $(ARGS)

equivalence: $(INSTALLED)
	$(BIN)/python -m tools.equivalence $(ARGS)

soak: $(INSTALLED)
	$(BIN)/python -m tools.soak $(ARGS)

gpu-check: $(INSTALLED)
	$(BIN)/python -m tools.gpu_check $(if $(DEVICE),--device=$(DEVICE)) $(if $(filter-out 0,$(TINY)),--tiny) $(ARGS)

loadtest: $(INSTALLED)
	$(BIN)/python -m loadtest $(ARGS)

perf-analyzer: $(INSTALLED)
	$(BIN)/python -m loadtest.perf_analyzer $(ARGS)

docker-check: $(INSTALLED)
	$(BIN)/python -m tools.docker_check $(ARGS)

clean:
	rm -rf screenshots .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis client/build client/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
