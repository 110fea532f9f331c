# The developer's index; `make help` lists it. Every target sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= demo
SCHEME ?= int8
SUITE  ?= en-quick
GATES  ?= default
TARGET ?= host
FORMAT ?=
OUT    ?= out/$(basename $(notdir $(MODEL)))-$(SCHEME)
REPORT ?= $(OUT)-report

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
RUN := $(VENV)/bin/tts-compress
# Only a training checkpoint needs torch.
SETUP := $(VENV)/$(if $(filter %.ckpt,$(MODEL)),.developer,.user)

.DEFAULT_GOAL := help
.PHONY: help install quantize evaluate gate report check test test-slow bench kernels clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.developer  ## set up the virtual environment for development

quantize: $(SETUP)  ## compress MODEL by SCHEME into OUT, evaluate it, write the report
	$(RUN) quantize $(MODEL) --scheme $(SCHEME) --target $(TARGET) $(if $(FORMAT),--format $(FORMAT)) \
		--output $(OUT) --force
	$(RUN) evaluate $(MODEL) $(OUT) --suite $(SUITE) --output $(REPORT) --force
	@echo "artifact: $(OUT)"; echo "report:   $(REPORT)/report.html"

evaluate: $(SETUP)  ## compare OUT with MODEL on SUITE, write REPORT
	$(RUN) evaluate $(MODEL) $(OUT) --suite $(SUITE) --output $(REPORT) --force

gate: $(SETUP)  ## pass or fail REPORT by GATES
	$(RUN) gate $(REPORT) --gates $(GATES)

report:  ## measure the shipped demo voice on en-full into eval/reports
	$(MAKE) quantize SUITE=en-full REPORT=out/demo-int8-full
	cp out/demo-int8-full/report.json eval/reports/demo-int8.json
	cp out/demo-int8-full/report.md eval/reports/demo-int8.md

check: $(VENV)/.developer  ## lint, formatting, types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: $(VENV)/.developer  ## the fast tests
	$(VENV)/bin/pytest -m "not slow"

test-slow: $(VENV)/.developer  ## the tests that take minutes
	$(VENV)/bin/pytest -m slow

bench: $(VENV)/.developer  ## time FP32, stock quantization, every scheme into out/bench (BENCH=--quick)
	$(VENV)/bin/python -m benchmarks --output out/bench $(BENCH)

kernels: $(VENV)/.developer  ## time equivalent kernels on this processor into out/target.toml
	mkdir -p out
	$(VENV)/bin/python -m benchmarks.kernels --target $(TARGET) --output out/target.toml

clean:  ## remove outputs and the virtual environment
	rm -rf out build $(VENV)

$(VENV)/.user: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -e '.[piper,evaluate]'
	touch $@

$(VENV)/.developer: $(VENV)/.user
	$(PIP) torch
	$(PIP) -e '.[piper,evaluate,torch]' --group dev
	touch $@
