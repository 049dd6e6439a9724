# SPDX-License-Identifier: Apache-2.0
# The front door; `make help` lists it. The work is done by CMake presets (CMakePresets.json) and scripts/.
#
#   JOBS=N          parallel compilations and tests (default: one a CPU, fewer when memory is short)
#   PREFIX=/usr     where `install` goes (default: /usr/local); DESTDIR is honoured
#   DEMO_ARGS=...   given to `gpushm demo`
#   FUZZ_SECONDS=N  for each fuzz program (default: 60)
#   IMAGE_ARGS=...  given to scripts/image.sh, for instance "--archive gpushm.tar"

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

# A translation unit with Asio and GoogleTest in it takes up to 1.2 GiB.
JOBS ?= $(shell awk -v cpus="$$(nproc)" '/^MemAvailable/ {j = int($$2 / 1200000)} \
          END {print j < 1 ? 1 : j < cpus ? j : cpus}' /proc/meminfo)
PREFIX ?= /usr/local
DEMO_ARGS ?=
FUZZ_SECONDS ?= 60
IMAGE_ARGS ?=
# Without intercept_tls_get_addr=0 the leak check of GCC 12 now and then takes the thread-local block of a library that was
# opened at run time for a header of an older glibc, by its address alone, and crashes ("Tracer caught signal 11").
export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1:intercept_tls_get_addr=0
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1
export CTEST_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: help deps deps-build deps-test deps-lint deps-fuzz deps-image build demo test bench format lint asan tsan \
        coverage fuzz install dist image clean

help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

deps: ## install what everything below needs (apt, with sudo when not root)
	@scripts/deps.sh

deps-build:
	@scripts/deps.sh build
deps-test:
	@scripts/deps.sh build agent test
deps-lint:
	@scripts/deps.sh build agent lint
deps-fuzz:
	@scripts/deps.sh build agent test fuzz
deps-image:
	@scripts/deps.sh build agent test image

build: deps-test ## build everything for development (build/dev)
	@scripts/build.sh dev $(JOBS)

demo: deps-build ## build the command and share one segment between two processes
	@scripts/build.sh demo $(JOBS)
	build/demo/apps/gpushm/gpushm demo $(DEMO_ARGS)

test: build ## run every test that this machine can run
	@scripts/ctest.sh dev

bench: deps-test ## run the benchmarks; JSON results in build/bench
	@scripts/build.sh release $(JOBS)
	@scripts/bench.sh build/release build/bench

format: deps-lint ## format the sources
	@scripts/lint.sh --fix-format

lint: deps-lint ## clang-format, clang-tidy, cppcheck, shellcheck and own rules
	@scripts/lint.sh

asan: deps-test ## unit and process tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/build.sh asan $(JOBS)
	@scripts/ctest.sh asan -L 'unit|process'

tsan: deps-test ## unit and process tests under ThreadSanitizer
	@scripts/build.sh tsan $(JOBS)
	@scripts/ctest.sh tsan -L 'unit|process' -LE grpc

coverage: deps-test ## all tests with gcov counters (build/coverage)
	@scripts/build.sh coverage $(JOBS)
	@scripts/ctest.sh coverage

fuzz: deps-fuzz ## run every fuzz program for FUZZ_SECONDS
	@scripts/build.sh fuzz $(JOBS)
	@scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS)

install: deps-test ## install the release build under PREFIX
	@scripts/build.sh release $(JOBS)
	cmake --install build/release --prefix "$(PREFIX)"

dist: deps-test ## make and check the self-contained tarball in build/dist
	@scripts/build.sh release $(JOBS)
	@scripts/dist.sh build/release build/dist

image: deps-image ## make the container image of the agent (podman or buildah, no registry)
	@scripts/build.sh release $(JOBS) gpushmd gpushm gpushm-cdi-hook gpushm-pair
	@scripts/image.sh build/release $(IMAGE_ARGS)

clean: ## remove the build trees
	rm -rf build
