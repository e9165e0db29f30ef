# `make help` lists what can be made.

PREFIX ?= /usr/local
CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
UNDERPASS = $(TARGET)/release/underpass

.DEFAULT_GOAL := help
.PHONY: help run bench build test examples brokered loom miri aarch64 soak daemon-faults fuzz wire hostile octets tpdus
.PHONY: sharing churn gauntlet fresh lint c-programs licences generate ptx install uninstall clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: rust ## install what is missing, build, and show kernel TCP against Underpass on real programs, 3 minutes
	packaging/packages run
	$(CARGO) build --release --locked --package underpass-cli --package underpass-preload
	$(UNDERPASS) demo

bench: rust ## install what is missing, build, and take all measurements, without writing a record
	packaging/packages bench
	$(CARGO) build --release
	$(UNDERPASS) bench all

build: rust ## the commands and the library, in target/release
	$(CARGO) build --release

# Third-party suites that need nothing fetched or built, half a minute in all. `make gauntlet` has the others.
BRIEF_SUITES = programs cpython

# The tests of the library drive real programs and wait most of their time. So three times as many run at a time as
# there are processors, and what only computes runs beside them, while a processor has nothing else to do. The lints
# come last: cargo would keep the tests from beginning while it compiles for them.
test: rust ## everything that continuous integration checks: lints, licences, tests
	packaging/packages test
	$(CARGO) fetch --locked
	$(CARGO) build --release --package underpass-preload
	$(CARGO) test --workspace --no-run
	@$(BESIDE) $(WHEN_IDLE) $(MAKE) --no-print-directory c-programs loom aarch64 licences lint & others=$$!; \
	$(MAKE) --no-print-directory test-programs; programs=$$?; \
	wait $$others && exit $$programs

# What a shell starts in the background ignores Ctrl-C.
BESIDE = env --default-signal=INT,QUIT
WHEN_IDLE = nice -n 19 $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0)

# The first line builds what the others run. Built by itself, with fewer features of its dependencies, each would be
# built anew.
.PHONY: test-programs
test-programs: export UNDERPASS_TEST_COMMAND = $(abspath $(TARGET)/debug/underpass)
test-programs: export UNDERPASS_TEST_DAEMON = $(abspath $(TARGET)/debug/underpassd)
test-programs:
	RUST_TEST_THREADS=$$((3 * $$(nproc))) $(CARGO) test --workspace --no-fail-fast
	for example in $(notdir $(EXAMPLES)); do $(TARGET)/debug/examples/$$example || exit 1; done
	$(TARGET)/debug/gauntlet --brief --allow-skipped $(BRIEF_SUITES)

brokered: rust ## the parity scenarios and the kills, with a library whose connections all meet through underpassd
	UNDERPASS_TEST_MODE=brokered $(CARGO) test --package underpass-tests --test parity --test programs -- plain deaths

# Each checks its own results, and fails if they are wrong.
EXAMPLES = checksum/packet link/hosts engine/connection
examples: rust ## the short programs in the examples folders of the crates checksum, link and engine
	@for example in $(EXAMPLES); do \
	    echo "--- crates/$${example%/*}/examples/$${example#*/}.rs"; \
	    $(CARGO) run --quiet --package underpass-$${example%/*} --example $${example#*/} || exit 1; \
	done

# The code of the library itself, compiled for the model checker: in a folder of its own, and slow unless that and the
# checker are optimized.
OPTIMIZED = --config 'profile.test.package.$(1).opt-level=2'
LOOM = CARGO_TARGET_DIR=$(TARGET)/loom RUSTFLAGS="--cfg loom" $(CARGO)
LOOM_LIBRARIES = --package underpass-segment --package underpass-link
loom: rust ## models of the orderings: every order of the steps of two threads, as far as they are bounded
	$(LOOM) $(foreach it,underpass-segment underpass-link loom generator,$(call OPTIMIZED,$(it))) \
	    test $(LOOM_LIBRARIES) --lib models::

# NEON's variant is compiled for a processor that this host may not have, and runs in an emulation of it.
OTHER = aarch64-unknown-linux-gnu
OTHER_TOOLS = aarch64-linux-gnu-gcc qemu-aarch64
HAS_OTHER = [ -d "$$(rustc --print target-libdir --target $(OTHER))" ]
aarch64: rust ## the checksums' tests for AArch64, in QEMU's emulation
	@if $(HAS_OTHER) && command -v $(OTHER_TOOLS) >/dev/null; then \
	    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	    $(CARGO) test --target $(OTHER) --package underpass-checksum --lib; \
	else \
	    echo "SKIPPED: the checksums' tests for AArch64, which take the target (rustup target add $(OTHER))" \
	        "and $(OTHER_TOOLS)"; \
	fi

# The tests that need no system call, or only such as Miri has. Those of segment run as on AArch64, where the
# instructions that its code gives by assembler are the system call and the counter alone, which none of these tests
# reaches. Its rings are both bytes and atomics, on which the emulation of weak memory ends with "cannot have empty
# store buffer" (Miri of May 2026), so it is off: `make loom` tries the orders. Data races are found all the same. Miri
# cannot read the folder in which proptest keeps failures.
MIRI = $(CARGO) +nightly miri
MIRI_CASES ?= 4
MIRI_ALL = -Zmiri-env-set=PROPTEST_DISABLE_FAILURE_PERSISTENCE=true -Zmiri-env-set=PROPTEST_CASES=$(MIRI_CASES)
MIRI_TEST = MIRIFLAGS="$(MIRI_ALL) $(1)" $(MIRI) test --target
MIRI_SEGMENT = ring:: company:: end::owners layout:: local:: wait:: a_line_of_maps
MIRI_LINK = arena:: ring::
MIRI_CHECKSUM = every_length_and_offset an_aligned_copy other_lengths_are_refused of_the_rfc
X86 = x86_64-unknown-linux-gnu
miri: rust ## the tests that need no system call, in Miri, which finds undefined behaviour; takes nightly Rust
	@$(MIRI) --version >/dev/null 2>&1 || { \
	    echo "Miri is missing: rustup toolchain install nightly --profile minimal --component miri --component rust-src" \
	        >&2; \
	    exit 1; }
	$(call MIRI_TEST,-Zmiri-disable-weak-memory-emulation) $(OTHER) --package underpass-segment --lib -- \
	    --skip family:: $(MIRI_SEGMENT)
	$(call MIRI_TEST) $(X86) --package underpass-link --lib -- $(MIRI_LINK)
	RUSTFLAGS=-Ctarget-feature=+avx2 $(call MIRI_TEST) $(X86) --package underpass-checksum --lib -- $(MIRI_CHECKSUM)
	$(call MIRI_TEST) $(X86) --package underpass-engine --lib --test dialogue
	$(call MIRI_TEST) $(X86) --package underpass-broker --test wire

MINUTES ?= 60
soak: build ## the stress programs of tests/soak in every mode, for MINUTES (60)
	$(CARGO) run --release --quiet --package underpass-tests --bin soak -- --minutes $(MINUTES)

daemon-faults: build ## underpassd killed, stopped and replaced under 1,000 busy connections, for MINUTES (60); root
	$(CARGO) run --release --quiet --package underpass-tests --bin upheaval -- --minutes $(MINUTES)

ARGUMENTS ?=
fuzz: build ## random socket operations on kernel TCP and in every mode, compared, for MINUTES (60); ARGUMENTS=--help
	$(CARGO) run --release --quiet --package underpass-tests --bin fuzz -- --minutes $(MINUTES) $(ARGUMENTS)

OCTETS ?= 100000000
wire: rust ## damaged records of the broker's wire, until OCTETS (100,000,000) were parsed
	$(CARGO) run --release --quiet --package underpass-tests --bin wire -- --octets $(OCTETS)

hostile: build ## a peer that overwrites the shared memory at any time, in every mode, for MINUTES (60)
	$(CARGO) run --release --quiet --package underpass-tests --bin soak -- --minutes $(MINUTES) --program hostile

octets: rust ## hostile octets to a transport in every state of classes 4 and 2, until OCTETS (100,000,000) went in
	UNDERPASS_TEST_OCTETS=$(OCTETS) $(CARGO) test --package underpass-engine --test hostile -- \
	    --ignored --exact hostile_octets_for_long --nocapture

# By itself, since it looks at the memory of its process.
TPDUS ?= 100000000
tpdus: rust ## as many TPDUs as TPDUS (100,000,000) over each kind of link, or LINK, with losses and changes
	UNDERPASS_TEST_TPDUS=$(TPDUS) UNDERPASS_TEST_LINK="$(LINK)" \
	    $(CARGO) test --release --package underpass-engine --test streams -- \
	    --exact links::soak --nocapture

sharing: rust ## the engine beside the kernel's TCP, over cables of several rates and queues, a quarter of an hour; root
	$(CARGO) test --release --package underpass-engine --test streams -- --ignored --exact \
	    sharing::a_stream_of_tcp_beside_gets_its_part_for_long --nocapture

churn: build ## connections opened, used and closed for ten minutes in two settings: memory and descriptors stay flat
	for mode in default "at once"; do \
	    $(CARGO) run --release --quiet --package underpass-tests --bin soak -- \
	        --program churn --mode "$$mode" --seconds 600 --minutes 0.1 || exit 1; \
	done

SUITES ?=
gauntlet: rust ## third-party suites on kernel TCP and under Underpass, compared test by test; SUITES="redis asio"
	packaging/packages gauntlet
	$(CARGO) build --release --package underpass-preload
	$(CARGO) build --package underpass-cli
	$(CARGO) run --release --quiet --package underpass-tests --bin gauntlet -- $(SUITES)

FRESH ?= test run
fresh: rust ## make test and make run on a minimal Debian made for it, as root; FRESH=test
	packaging/fresh make $(FRESH)

# rustfmt breaks neither comments nor strings, and knows Rust alone. A row of a table cannot be broken, nor what has no
# space, such as a link.
WIDTH = $(shell sed -n 's/^max_width = //p' rustfmt.toml)
TEXTS = Makefile *.md crates docs records tests
TEXT_KINDS = Makefile *.md *.rs *.c *.h *.cu *.py
TOO_WIDE = LC_ALL=C.UTF-8 grep -rnE '.{$(WIDTH)}.' $(TEXT_KINDS:%=--include='%') $(TEXTS)
MAY_BE_WIDE = ^[^:]*\.md:[0-9]+: *(\||([-*] )?[^ ]*$$)
lint: rust ## formatting, clippy, the documentation, and which file may import which
	$(CARGO) fmt --all --check
	@if $(TOO_WIDE) | grep -vE '$(MAY_BE_WIDE)'; then \
	    echo "These lines have more than $(WIDTH) columns (max_width in rustfmt.toml)." >&2; exit 1; \
	fi
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(LOOM) clippy $(LOOM_LIBRARIES) --lib --tests -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --quiet
	$(CARGO) run --quiet --package underpass-tests --bin imports
	@if $(HAS_OTHER); then \
	    $(CARGO) clippy --target $(OTHER) --package underpass-checksum --lib -- -D warnings; \
	else \
	    echo "SKIPPED: the checksums for AArch64, because the target is not installed (rustup target add $(OTHER))"; \
	fi

# Clippy counts the lines of Rust's functions alone. A function of C begins on the first line that ends with a brace,
# and ends on a line that is a brace alone; types and tables end with more.
LENGTH = $(shell sed -n 's/^too-many-lines-threshold = //p' clippy.toml)
LENGTHS = awk -v most=$(LENGTH) ' \
    FNR == 1 { begin = 0 } \
    !begin && /\{$$/ { begin = FNR } \
    begin && $$0 == "}" && FNR - begin >= most { \
        print FILENAME ":" begin ": a function of " FNR - begin + 1 " lines"; wrong = 1 \
    } \
    /^}/ { begin = 0 } \
    END { exit wrong }'

# Some of the programs define _GNU_SOURCE themselves, which the same empty definition does not contradict.
C_PROGRAMS = $(shell find crates tests -name '*.c')
C_HEADERS = $(shell find crates tests -name '*.h')
c-programs: ## check that the C programs compile without a warning, and that no function in them is too long
	@$(LENGTHS) $(C_PROGRAMS) $(C_HEADERS) || { \
	    echo "C functions have at most $(LENGTH) lines (too-many-lines-threshold in clippy.toml)." >&2; exit 1; \
	}
	@for program in $(C_PROGRAMS); do \
	    cc -std=c11 -D_GNU_SOURCE= -O2 -Wall -Wextra -Werror -pthread -c -o /dev/null $$program || exit 1; \
	done; echo "$(words $(C_PROGRAMS)) C programs compile without a warning"

# Whether to install the tools written in Rust that are missing: .ci/run sets it to yes.
INSTALL_TOOLS ?= no
licences: ## check the licences of dependencies (deny.toml), if cargo-deny is installed
	@if [ $(INSTALL_TOOLS) = yes ] && ! $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) install --quiet --locked --debug cargo-deny || true; \
	fi; \
	if $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) deny --offline check licenses bans sources; \
	else \
	    echo "SKIPPED: licences of dependencies, because cargo-deny is not installed" \
	        "(cargo install --locked cargo-deny)"; \
	fi

ADVICE = 2026-11-30
ADVISED = $(foreach suite,survey pingpong stream broker layers driver checksum,records/$(suite)-$(ADVICE).json)
generate: ## the manual pages and completions from the command lines' descriptions, and the advice of the records
	$(CARGO) build --package underpass-cli
	$(CARGO) build --package underpass-daemon --example manual
	rm -f packaging/man/*.1
	$(TARGET)/debug/underpass man --output packaging/man
	$(TARGET)/debug/examples/manual >packaging/man/underpassd.8
	mkdir -p packaging/completions
	$(TARGET)/debug/underpass completions bash >packaging/completions/underpass.bash
	$(TARGET)/debug/underpass completions zsh >packaging/completions/_underpass
	$(TARGET)/debug/underpass completions fish >packaging/completions/underpass.fish
	$(TARGET)/debug/underpass advise $(ADVISED) >records/advice-$(ADVICE).txt
	$(TARGET)/debug/underpass advise --output records/placement-$(ADVICE).toml $(ADVISED) >/dev/null

ptx: ## compile the GPU's kernels anew, with NVIDIA's compiler from PyPI (needs no GPU)
	packaging/ptx

UNITS = underpassd.service underpassd.socket
install: build ## into PREFIX (/usr/local), under DESTDIR
	install -D -m 755 $(UNDERPASS) $(DESTDIR)$(PREFIX)/bin/underpass
	install -D -m 755 $(TARGET)/release/underpassd $(DESTDIR)$(PREFIX)/sbin/underpassd
	install -D -m 755 $(TARGET)/release/libunderpass.so $(DESTDIR)$(PREFIX)/lib/underpass/libunderpass.so
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in $(UNITS); do \
	    sed 's|/usr/sbin/|$(PREFIX)/sbin/|' packaging/systemd/$$unit \
	        >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 packaging/man/*.1
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man8 packaging/man/*.8
	install -D -m 644 packaging/completions/underpass.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/underpass
	install -D -m 644 packaging/completions/_underpass $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_underpass
	install -D -m 644 packaging/completions/underpass.fish \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/underpass.fish

uninstall: ## what `make install` wrote
	rm -f $(DESTDIR)$(PREFIX)/bin/underpass $(DESTDIR)$(PREFIX)/sbin/underpassd
	rm -f $(DESTDIR)$(PREFIX)/lib/underpass/libunderpass.so
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/lib/systemd/system/,$(UNITS))
	if [ -d $(DESTDIR)$(PREFIX)/lib/underpass ]; then \
	    rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/lib/underpass; \
	fi
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/man/man1/,$(notdir $(wildcard packaging/man/*.1)))
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/man/man8/,$(notdir $(wildcard packaging/man/*.8)))
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/underpass
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_underpass
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/underpass.fish

clean: ## everything that was built
	$(CARGO) clean

.PHONY: rust
rust:
	@command -v $(CARGO) >/dev/null || { \
	    echo "cargo is missing. Rust is best had from https://rustup.rs; this needs version 1.95 or later." >&2; exit 1; }
