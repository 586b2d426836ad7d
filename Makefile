# Everything from a fresh clone: `make run` (a trained layer on four ranks), `make test`. See README.md.
# Each target installs the Debian packages it lacks when root; otherwise it prints the line to run.
PRESET ?= release
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
BUILD := build$(if $(filter-out release,$(PRESET)),-$(PRESET))
FUZZ_SECONDS ?= 15
# Tests that a preset leaves out: sanitizers have nothing to say about source checks, and what runs the same code in another arrangement
# (broken simulators, mutants, the case table between processes) costs them minutes; test_cpu_large would take more memory than there is.
EXCLUDE_asan := ^source_|^sim_(drop|short)|^test_ref_mutants|^test_cpu_large|^cases_(external|processes)|^equalities
EXCLUDE_tsan := ^source_|^sim_|^test_(ref|plan)_|^test_cpu_large|^cases_(external|processes)|^equalities|^cli_
EXCLUDE ?= $(EXCLUDE_$(PRESET))

PACKAGES := build-essential cmake ninja-build pkg-config libopenblas-pthread-dev libcmocka-dev libcjson-dev libopenmpi-dev openmpi-bin
FUZZ_PACKAGES := $(PACKAGES) clang libclang-rt-14-dev

.PHONY: all run test asan tsan fuzz install packages fuzz-packages clean
all: packages
	@cmake --preset $(PRESET) > /dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS)

packages:
	@sh scripts/packages.sh $(PACKAGES)

fuzz-packages:
	@sh scripts/packages.sh $(FUZZ_PACKAGES)

# One trained Qwen3-MoE layer, its real input, on four ranks of this process; compares with the stored output.
run: all
	$(BUILD)/cli/mok run --weights data/qwen3moe-code/layer.safetensors --layer model.layers.2.mlp \
	    --input data/qwen3moe-code/io.safetensors --ranks 4

test: all
	@sh scripts/run_tests.sh $(BUILD) $(JOBS) '$(EXCLUDE)'

# The CPU suite with AddressSanitizer and UndefinedBehaviorSanitizer, and with ThreadSanitizer.
asan tsan: packages
	@$(MAKE) --no-print-directory PRESET=$@ test

# Each fuzz target for FUZZ_SECONDS.
fuzz: fuzz-packages
	@cmake --preset fuzz > /dev/null
	@cmake --build --preset fuzz -j $(JOBS)
	@sh scripts/run_fuzz.sh build-fuzz $(FUZZ_SECONDS)

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz
