# The developer's index; `make help` lists it. Every target sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= demo
SCHEME ?= int8
SUITE  ?= en-quick
GATES  ?= default
FORMAT ?=
PORT   ?= 8000
# Your clone, for a system that runs from one.
CHECKOUT ?=
# A calibration set; for a bare graph (MODEL=onnx:graph.onnx) the .npz with its inputs.
CALIBRATION ?=
# Any text as one word of the shell.
quote   = '$(subst ','\'',$(1))'
# `demo` and `voice.onnx` name their outputs; for any other MODEL a checksum follows its last word, because two
# folders may hold voices of one name.
NAME    = $(shell model=$(call quote,$(MODEL)); \
	name=$$(printf %s "$$model" | sed -E 's,\?.*,,; s,/+$$,,; s,.*[:/],,; s,\.onnx$$,,; s,[^A-Za-z0-9._-],-,g'); \
	[ "$$name" = "$${model%.onnx}" ] || name=$$name-$$(printf %s "$$model" | cksum | cut -d' ' -f1); echo "$$name")
OUT    ?= out/$(NAME)-$(SCHEME)
REPORT ?= $(OUT)-report

INSTALL := -m pip --disable-pip-version-check install --quiet
# Installing it writes into the checkout, which environments that are set up side by side share.
ALONE := $(if $(shell command -v flock),flock pyproject.toml)
PIP := $(VENV)/bin/python $(INSTALL) -c constraints.txt
# setuptools would tell every user of an editable installation to be careful with names of folders.
export PYTHONWARNINGS ?= ignore:Editable installation
# A process for each core, each with one thread; they start many others, which share compiled files.
# Tests that share what their fixtures make are kept together (--dist).
WORKERS ?= auto
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(1)/bin/pytest --numprocesses $(WORKERS) --maxprocesses 8
# Systems whose packages do not go together have an environment each.
F5             := $(VENV)-f5
PARLER         := $(VENV)-parler
GPT_SOVITS     := $(VENV)-gpt-sovits
NATURALSPEECH2 := $(VENV)-naturalspeech2
DOCS           := $(VENV)-docs
# Written by npm into the packages of the browser's examples.
WEB := examples/web/node_modules/.package-lock.json
HOME_f5-tts         := $(F5)
HOME_parler-tts     := $(PARLER)
HOME_gpt-sovits     := $(GPT_SOVITS)
HOME_naturalspeech2 := $(NATURALSPEECH2)
HOME_OF = $(or $(HOME_$(firstword $(subst :, ,$(MODEL)))),$(VENV))
# Systems that run from a clone are timed where one is named.
BENCH_HOMES = $(F5) $(PARLER) $(if $(TTS_COMPRESS_GPT_SOVITS),$(GPT_SOVITS)) \
	$(if $(TTS_COMPRESS_AMPHION),$(NATURALSPEECH2))
RUN := $(HOME_OF)/bin/tts-compress
# Where an environment's systems have their tests of `test-gpu`.
GPU_TESTS := tests/families/transformers tests/families/pocket_tts
GPU_TESTS_f5 := tests/families/f5
GPU_TESTS_parler := tests/families/parler
GPU_TESTS_gpt-sovits := tests/families/gpt_sovits
GPU_TESTS_naturalspeech2 := tests/families/naturalspeech2
SENTENCE := Good morning, the coffee is ready.
CHROMIUM := chromium --headless --no-sandbox --disable-gpu --hide-scrollbars
CLONE := $(if $(CHECKOUT),--checkout $(call quote,$(CHECKOUT)))
# In the common environment only these need torch: voices of transformers, Pocket-TTS, a checkpoint.
TORCH := $(if $(filter transformers:%,$(MODEL)),.transformers,$(if $(filter %.ckpt pocket-tts:%,$(MODEL)),.developer))
SETUP := $(HOME_OF)/$(or $(if $(filter $(VENV),$(HOME_OF)),$(TORCH)),.user)
# A bare graph does not speak: it has no words to compare.
SPEAKS := $(if $(filter onnx:%,$(MODEL)),,yes)

.DEFAULT_GOAL := help
.PHONY: help install quantize evaluate gate report check test test-slow test-processors test-f5 \
	test-parler test-gpt-sovits test-naturalspeech2 test-web web qat bench bench-torch bench-gpu test-gpu bench-qat \
	bench-vocoder bench-voices bench-voices-haswell bench-web prove docs media package fuzz kills clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

install: $(VENV)/.developer  ## set up the virtual environment for development: 2.9 GB, some minutes

quantize: $(SETUP)  ## compress MODEL by SCHEME into OUT, evaluate it, write the report (CALIBRATION=feeds.npz for a bare graph)
	$(RUN) quantize $(call quote,$(MODEL)) --scheme $(SCHEME) $(if $(FORMAT),--format $(FORMAT)) $(CLONE) \
		$(if $(CALIBRATION),--calibration $(call quote,$(CALIBRATION))) --output $(call quote,$(OUT)) --force
	$(if $(SPEAKS),$(RUN) evaluate $(call quote,$(MODEL)) $(call quote,$(OUT)) --suite $(call quote,$(SUITE)) $(CLONE) \
		--output $(call quote,$(REPORT)) --force)
	@echo artifact: $(call quote,$(OUT)); $(if $(SPEAKS),echo report: $(call quote,$(REPORT)/report.html))

evaluate: $(SETUP)  ## compare OUT with MODEL on SUITE, write REPORT
	$(RUN) evaluate $(call quote,$(MODEL)) $(call quote,$(OUT)) --suite $(call quote,$(SUITE)) $(CLONE) \
		--output $(call quote,$(REPORT)) --force

gate: $(SETUP)  ## pass or fail REPORT by GATES (GATES="default cost")
	$(RUN) gate $(call quote,$(REPORT)) $(GATES:%=--gates %)

qat: $(SETUP) $(if $(filter $(VENV),$(HOME_OF)),$(VENV)/.developer)  ## compress MODEL by training it without data, evaluate it (QAT="--steps 200")
	$(RUN) qat $(call quote,$(MODEL)) $(QAT) $(CLONE) $(if $(CALIBRATION),--texts $(call quote,$(CALIBRATION))) \
		--output out/$(NAME)-int8-qat --force
	$(if $(SPEAKS),$(RUN) evaluate $(call quote,$(MODEL)) out/$(NAME)-int8-qat --suite $(call quote,$(SUITE)) $(CLONE) \
		--output out/$(NAME)-int8-qat-report --force)

report:  ## measure the shipped demo voice on en-full into eval/reports
	$(MAKE) quantize SUITE=en-full REPORT=out/demo-int8-full
	cp out/demo-int8-full/report.json eval/reports/demo-int8.json
	cp out/demo-int8-full/report.md eval/reports/demo-int8.md

docs: $(DOCS)/.user  ## build the docs site into out/site; warnings and broken links are errors
	$(DOCS)/bin/zensical build --strict

media: report  ## the sounds and the picture of README and docs, from the demo voice and its report
	$(RUN) synthesize demo "$(SENTENCE)" --output docs/media/demo-fp32.wav --force
	$(RUN) synthesize out/demo-int8 "$(SENTENCE)" --output docs/media/demo-int8.wav --force
	$(CHROMIUM) --window-size=1200,1455 --screenshot=docs/media/report.png \
		file://$(CURDIR)/out/demo-int8-full/report.html
	$(VENV)/bin/python -c 'from PIL import Image; \
		Image.open("docs/media/report.png").convert("RGB").quantize(256, dither=0).save( \
		"docs/media/report.png", optimize=True)'

check: $(VENV)/.developer  ## lint, formatting, types (the first time after `install`)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: $(VENV)/.developer  ## the fast tests, 4 minutes on two cores of a Zen 3 (the first time after `install`)
	$(call PYTEST,$(VENV)) --dist loadfile -m "not slow and not processors" --durations 10 --durations-min 4

test-slow: $(VENV)/.developer  ## the tests that take more than about a second and a half
	$(call PYTEST,$(VENV)) --dist loadfile --no-loadscope-reorder -m slow --ignore tests/web

test-web: $(VENV)/.developer $(WEB)  ## voices in Node, Chromium, OpenVINO and sherpa-onnx
	$(call PYTEST,$(VENV)) --dist loadfile tests/web

test-processors: $(VENV)/.developer  ## compressed here, played by kernels of x86 without AVX512 or VNNI, and of ARM64
	$(call PYTEST,$(VENV)) --dist loadfile --no-loadscope-reorder tests/processors

test-f5: $(F5)/.user  ## the tests of F5-TTS, in its own environment
	$(call PYTEST,$(F5)) --dist loadscope tests/families/f5 \
		tests/export/test_f5.py tests/export/test_vocos.py tests/models/test_stand_ins.py tests/numerics/test_spectra.py

test-parler: $(PARLER)/.user  ## the tests of Parler-TTS, in its own environment
	$(call PYTEST,$(PARLER)) --dist loadscope tests/families/parler tests/export/test_dac.py

test-gpt-sovits: $(GPT_SOVITS)/.user  ## the tests of GPT-SoVITS (TTS_COMPRESS_GPT_SOVITS=DIR)
	$(call PYTEST,$(GPT_SOVITS)) tests/families/gpt_sovits tests/models/gpt_sovits

test-naturalspeech2: $(NATURALSPEECH2)/.user  ## the tests of NaturalSpeech2 (TTS_COMPRESS_AMPHION=DIR)
	$(call PYTEST,$(NATURALSPEECH2)) tests/families/naturalspeech2 tests/models/naturalspeech2

bench: $(VENV)/.developer $(if $(filter kokoro matcha,$(BENCH)),$(VENV)/.bench)  ## time FP32, stock quantization and our schemes into out/bench (BENCH="--voices kokoro --threads 1")
	PYTHONPATH=$(VENV)/bench $(VENV)/bin/python -m benchmarks --output out/bench $(BENCH)

bench-torch: $(BENCH_HOMES:%=%/.user)  ## time whole networks in torch (GPT-SoVITS, NaturalSpeech2: as test-…)
	$(foreach home,$(BENCH_HOMES),$(home)/bin/python $(INSTALL) --no-deps torchao==0.18.0 && \
		$(home)/bin/python -m benchmarks.networks $(BENCH) \
			--output out/bench/$(patsubst $(VENV)-%,%,$(home)).json &&) true

GPU_HOMES := $(filter-out $(NATURALSPEECH2),$(BENCH_HOMES))
bench-gpu: $(GPU_HOMES:%=%/.user)  ## time FP32, 16 and 8 bits on an NVIDIA GPU into eval/reports (GPT-SoVITS: as test-…)
	$(foreach home,$(GPU_HOMES),$(home)/bin/python $(INSTALL) --no-deps torchao==0.18.0 && \
		$(home)/bin/python -m benchmarks.gpu $(BENCH) &&) true

test-gpu: $(VENV)/.developer $(F5)/.user $(PARLER)/.user  ## what needs an NVIDIA GPU, in every system at hand; skipped without one
	$(foreach home,$(VENV) $(BENCH_HOMES),$(home)/bin/pytest -m gpu $(or $(GPU_TESTS_$(patsubst $(VENV)-%,%,$(home))),$(GPU_TESTS)) &&) true

bench-qat: $(VENV)/.developer  ## train a vocoder in 8 and 4 bits into eval/reports (BENCH="--steps 100")
	$(VENV)/bin/python -m benchmarks.qat $(BENCH)

bench-vocoder: $(VENV)/.developer  ## judge a vocoder in FP32, our INT8 and stock INT8 by sound and words into eval/reports
	PYTHONPATH=$(VENV)/listen $(VENV)/bin/python -m benchmarks.vocoder $(BENCH)

bench-voices: $(VENV)/.developer  ## every way to INT8 on trained voices, by speed and sound, into eval/reports (BENCH="--only demo")
	$(VENV)/bin/python -m benchmarks.front $(BENCH)

bench-voices-haswell: $(VENV)/.developer  ## the same without speed, played by the kernels of a processor without AVX512
	$(VENV)/bin/python -m benchmarks.front --processor haswell $(BENCH)

web: $(VENV)/.user $(WEB)  ## build the browser's demo in out/web and serve it (PORT=8000)
	$(VENV)/bin/python examples/web/build.py out/web
	@echo "open http://127.0.0.1:$(PORT)/"
	$(VENV)/bin/python -m http.server $(PORT) --bind 127.0.0.1 --directory out/web

bench-web: $(VENV)/.developer $(WEB)  ## play and time a voice in Node, Chromium and OpenVINO (BENCH="voice.onnx --rounds 30")
	$(VENV)/bin/python -m benchmarks.web $(BENCH)

prove: $(VENV)/.developer  ## false alarms and power of the reports' intervals into eval/reports (PROVE=--help)
	$(VENV)/bin/python -m benchmarks.power $(PROVE)
	$(VENV)/bin/python -m benchmarks.sound

package:  ## build wheel and sdist into dist, check them, use the wheel in an empty environment
	.ci/package $(PYTHON)

fuzz: $(VENV)/.developer  ## mutated files and texts, each read in a watched process (FUZZ="--cases 500 --kind onnx")
	$(VENV)/bin/python -m benchmarks.fuzz $(FUZZ)

kills: $(VENV)/.developer  ## commands killed at random moments and run again: nothing half, the same results (KILLS="--moments 4")
	$(VENV)/bin/python -m benchmarks.kills $(KILLS)

clean:  ## remove outputs and the virtual environment
	rm -rf out build dist $(VENV) $(F5) $(PARLER) $(GPT_SOVITS) $(NATURALSPEECH2) $(DOCS)

# Without npm, or a registry that it reaches, tests in Node and browsers are skipped with the reason.
$(WEB): examples/web/package-lock.json
	npm ci --prefix examples/web --ignore-scripts --no-audit --no-fund \
		|| echo "onnxruntime-web is not installed"
	test ! -d examples/web/node_modules || touch $@

$(VENV)/.user: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(ALONE) $(PIP) -e '.[piper,evaluate]'
	touch $@

$(VENV)/.developer: $(VENV)/.user
	$(PIP) torch
	$(ALONE) $(PIP) -e '.[piper,evaluate,search,sweep,ray,torch,inc,qat,qat-logs,whisper,onnx-asr,moonshine,transformers,pocket-tts]' --group dev
	# Apart, for their own tests: where they are found, every import or evaluation takes longer.
	$(PIP) --upgrade --target $(VENV)/torchao --no-deps torchao==0.18.0
	$(PIP) --upgrade --target $(VENV)/listen --no-deps speechmos==0.0.1.1 resemblyzer==0.1.4
	$(PIP) --upgrade --target $(VENV)/openvino --no-deps onnxruntime-openvino==1.24.1 || true  # only for x86
	touch $@

$(VENV)/.transformers: $(VENV)/.user
	$(PIP) torch
	$(ALONE) $(PIP) -e '.[piper,evaluate,transformers-tts]'
	touch $@

# Builders of voices of true size, without what they train and speak with; matcha-tts is compiled.
$(VENV)/.bench: $(VENV)/.developer
	$(PIP) --upgrade --target $(VENV)/bench --no-deps kokoro==0.9.4 loguru==0.7.3 \
		matcha-tts==0.0.7.2 conformer==0.3.2 diffusers==0.42.1 einops==0.8.2
	touch $@

$(F5)/.user: pyproject.toml constraints-f5.txt
	test -x $(F5)/bin/python || $(PYTHON) -m venv $(F5)
	$(F5)/bin/python $(INSTALL) --upgrade pip
	$(F5)/bin/python $(INSTALL) -c constraints-f5.txt torch
	$(ALONE) $(F5)/bin/python $(INSTALL) -c constraints-f5.txt -e '.[f5,qat,evaluate]' hypothesis pytest pytest-xdist
	$(F5)/bin/python $(INSTALL) -c constraints-f5.txt --no-deps f5-tts vocos encodec
	touch $@

$(PARLER)/.user: pyproject.toml constraints-parler.txt
	test -x $(PARLER)/bin/python || $(PYTHON) -m venv $(PARLER)
	$(PARLER)/bin/python $(INSTALL) --upgrade pip
	$(PARLER)/bin/python $(INSTALL) -c constraints-parler.txt torch
	$(ALONE) $(PARLER)/bin/python $(INSTALL) -c constraints-parler.txt -e '.[parler,qat,evaluate]' hypothesis pytest pytest-xdist
	$(PARLER)/bin/python $(INSTALL) -c constraints-parler.txt --no-deps \
		parler-tts descript-audio-codec-unofficial
	touch $@

$(GPT_SOVITS)/.user: pyproject.toml constraints-gpt-sovits.txt
	test -x $(GPT_SOVITS)/bin/python || $(PYTHON) -m venv $(GPT_SOVITS)
	$(GPT_SOVITS)/bin/python $(INSTALL) --upgrade pip
	$(GPT_SOVITS)/bin/python $(INSTALL) -c constraints-gpt-sovits.txt torch
	$(ALONE) $(GPT_SOVITS)/bin/python $(INSTALL) -c constraints-gpt-sovits.txt \
		-e '.[gpt-sovits,qat,evaluate,whisper]' hypothesis pytest pytest-xdist
	touch $@

$(NATURALSPEECH2)/.user: pyproject.toml constraints-naturalspeech2.txt
	test -x $(NATURALSPEECH2)/bin/python || $(PYTHON) -m venv $(NATURALSPEECH2)
	$(NATURALSPEECH2)/bin/python $(INSTALL) --upgrade pip
	$(NATURALSPEECH2)/bin/python $(INSTALL) -c constraints-naturalspeech2.txt torch
	$(ALONE) $(NATURALSPEECH2)/bin/python $(INSTALL) -c constraints-naturalspeech2.txt \
		-e '.[naturalspeech2,qat,evaluate]' hypothesis pytest pytest-xdist
	$(NATURALSPEECH2)/bin/python $(INSTALL) -c constraints-naturalspeech2.txt --no-deps encodec
	touch $@

$(DOCS)/.user: constraints-docs.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(INSTALL) --upgrade pip
	$(DOCS)/bin/python $(INSTALL) -c constraints-docs.txt zensical mkdocstrings-python ruff
	touch $@
