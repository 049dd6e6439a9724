# SPDX-License-Identifier: Apache-2.0
# Entry points; `make help` lists them. CMake presets (CMakePresets.json) and scripts/ do the work.
#
#   JOBS=N          parallel compilations (default: one per CPU, fewer if memory is short)
#   CTEST_PARALLEL_LEVEL=N  concurrent tests (default: 3 times JOBS)
#   UNITY=OFF       build, test: compile build/dev file by file from now on (default of a new tree: several sources as one)
#   PREFIX=/usr     prefix of `install` (default: /usr/local); DESTDIR is honoured
#   DEMO_ARGS=...   arguments of `gpushm demo`
#   ALL=1           lint: clang-tidy over every file, not only changed files and a tenth of the rest; aarch64: the same for files
#                   that are compiled separately
#   BENCH=NAME...   bench: only these programs; BENCH_ARGS=... are arguments of each
#   FUZZ_SECONDS=N  for each fuzz program (default: 60)
#   IMAGE_ARGS=...  arguments of scripts/image.sh, for instance "--archive gpushm.tar"

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

# Compiling a translation unit with Asio and GoogleTest takes up to 1.2 GiB.
JOBS ?= $(shell awk -v cpus="$$(nproc)" '/^MemAvailable/ {j = int($$2 / 1200000)} \
          END {print j < 1 ? 1 : j < cpus ? j : cpus}' /proc/meminfo)
PREFIX ?= /usr/local
DEMO_ARGS ?=
ALL ?=
BENCH ?=
BENCH_ARGS ?=
FUZZ_SECONDS ?= 60
IMAGE_ARGS ?=
export UNITY ?=
# Tests wait much: three at a time leave a third of two cores idle, six a tenth.
export CTEST_PARALLEL_LEVEL ?= $(shell echo $$(( $(JOBS) * 3 )))

.PHONY: help deps deps-demo deps-test deps-lint deps-sanitize deps-image deps-aarch64 deps-install deps-bench deps-dev deps-dist deps-packages deps-python deps-docs \
        build demo test test-long bench format lint asan tsan aarch64 coverage fuzz install dist check-dist packages image wheel wheel-aarch64 python-test docs clean

help: ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

deps: ## install the packages for all targets but `packages` (apt, with sudo when not root; pip, in build)
	@scripts/deps.sh
	@scripts/python.sh deps
	@scripts/docs.sh deps

deps-demo:
	@scripts/deps.sh build clang
deps-test:
	@scripts/deps.sh build agent bench gtest clang runtimes test gstreamer
deps-lint:
	@scripts/deps.sh build agent clang lint
deps-sanitize:
	@scripts/deps.sh build agent bench gtest clang runtimes test sanitize
deps-image:
	@scripts/deps.sh build agent image
deps-aarch64:
	@scripts/deps.sh build gtest aarch64
	@scripts/foreign_packages.sh arm64 build/aarch64-packages libyaml-dev libseccomp-dev libsodium-dev

deps-install:
	@scripts/deps.sh build agent pages
deps-bench:
	@scripts/deps.sh build agent bench
deps-dev:
	@scripts/deps.sh build agent bench gtest clang runtimes gstreamer
deps-dist:
	@scripts/deps.sh build agent bench gtest dist pages gstreamer

deps-packages:
	@scripts/deps.sh build agent pages packages

deps-python:
	@scripts/deps.sh build python
	@scripts/python.sh deps

deps-docs:
	@scripts/deps.sh docs
	@scripts/docs.sh deps

build: deps-dev ## build everything for development (build/dev)
	@scripts/build.sh dev $(JOBS)

demo: deps-demo ## build the command and share one segment between two processes
	@scripts/build.sh demo $(JOBS)
	build/demo/apps/gpushm/gpushm demo $(DEMO_ARGS)

test: deps-test build ## run every test that this machine can run
	@scripts/ctest.sh dev

test-long: deps-test build ## run tests with all their rounds, of which `make test` runs a few
	@scripts/test_long.sh dev

bench: deps-bench ## run the benchmarks; JSON results in build/bench
	@scripts/build.sh bench $(JOBS) bench/all gpushm
	@BENCH_ARGS='$(BENCH_ARGS)' scripts/bench.sh build/release build/bench $(BENCH)

format: deps-lint ## format the sources
	@scripts/lint.sh --fix-format

lint: deps-lint ## clang-format, clang-tidy, cppcheck, shellcheck and project rules
	@ALL='$(ALL)' scripts/lint.sh

asan: deps-sanitize ## unit and process tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/build.sh asan $(JOBS)
	@scripts/ctest.sh asan

tsan: deps-sanitize ## unit and process tests under ThreadSanitizer
	@scripts/build.sh tsan $(JOBS)
	@scripts/ctest.sh tsan

aarch64: deps-aarch64 ## cross-compile for aarch64, and run some unit tests in an emulator, with 64 KiB pages
	@ALL='$(ALL)' scripts/build.sh aarch64 $(JOBS)
	@scripts/ctest.sh aarch64

coverage: deps-test ## all tests with gcov counters (build/coverage)
	@scripts/build.sh coverage $(JOBS)
	@scripts/ctest.sh coverage

fuzz: deps-sanitize ## run every fuzz program for FUZZ_SECONDS
	@scripts/build.sh fuzz $(JOBS)
	@scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS)

install: deps-install ## install the release build under PREFIX
	@scripts/build.sh release $(JOBS)
	cmake --install build/release --strip --prefix "$(PREFIX)"

dist: deps-dist ## build and check the self-contained tarballs of the product and of the test kit in build/dist
	@scripts/build.sh dist $(JOBS)
	@scripts/dist.sh build/release build/dist

check-dist: ## unpack the tarballs of `make dist`, use the product and run tests of the test kit, also with an old glibc
	@scripts/try_dist.sh build/dist
	@scripts/try_floor.sh build/dist || [ $$? = 77 ]

packages: deps-packages ## build .deb and .rpm packages in build/packages, and check them: lintian, rpmlint, installation, removal
	@scripts/packages.sh $(JOBS)

image: deps-image ## build the container image of the agent (podman or buildah, no registry)
	@scripts/build.sh release $(JOBS) gpushmd gpushm-brokerd gpushm-keeper gpushm gpushm-cdi-hook gpushm-ipc gpushm-pair
	@scripts/image.sh build/release $(IMAGE_ARGS)

wheel: deps-python ## build the Python package's wheel in build/python/dist
	@scripts/python.sh wheel

wheel-aarch64: deps-python deps-aarch64 ## cross-compile the wheel for aarch64 in build/python/dist-aarch64, and import it in an emulator
	@scripts/wheel_aarch64.sh

python-test: wheel deps-dev deps-lint ## install the wheel in build/python/venv; check its sources and types, and run its tests
	@scripts/build.sh dev $(JOBS) gpushm run-with-fake-gpus
	@scripts/python.sh install
	@scripts/python.sh lint
	@scripts/python.sh test

docs: deps-docs ## build the site of the documents in build/docs/html
	@scripts/docs.sh build

clean: ## remove the build trees
	rm -rf build
