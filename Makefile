# The entry points. `make demo` and `make test` need Debian 12 and Rust, and install the rest; the tests need root.

CARGO ?= cargo
PREFIX ?= /usr/local
# Where users do not look for mkfs.ext4 and cryptsetup.
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help build install deb try-deb try-metrics walks static reproducible sbom container cross portable demo lab-quick \
    python test flaky soak fuzz book bench bench-ciphers bench-engine bench-dispatch lint

help:
	@echo "make demo    build, then make, serve, check and measure an encrypted volume"
	@echo "make install command, man pages, completions below PREFIX=/usr/local; DESTDIR= for packagers"
	@echo "make deb     the same as a Debian package in target/deb"
	@echo "make try-deb install and use it in a fresh Debian 12 (as root)"
	@echo "make try-metrics   ask a Prometheus all that the dashboard and the alerts ask (as root)"
	@echo "make walks   from an empty Debian 12 to a volume: as root with reboots, as a user, in a container (as root)"
	@echo "make static  a binary for any Linux on x86-64, with its licences, in target/static"
	@echo "make reproducible   build the static binary twice, in two folders, and compare"
	@echo "make sbom    licences and parts of the command, in target/sbom"
	@echo "make container   an image of the static binary and nothing else (needs podman)"
	@echo "make cross   the tests of 64-bit Arm, under emulation"
	@echo "make portable   all of static (with sbom), reproducible and cross"
	@echo "make lab-quick   every experiment of the lab, small; leaves target/lab/report.html"
	@echo "make python  the wheel for Python in target/python/wheels, tested"
	@echo "make test    install the missing interop tools and a kernel to boot, run every test"
	@echo "make flaky   run the tests N=20 times, J=4 at once, beside other load; list each that failed once"
	@echo "make soak    an hour (S=3600 seconds) of random clients, killed servers, little memory"
	@echo "make fuzz    an hour (S=3600 seconds) of the header parser and each action on headers, guided by coverage"
	@echo "make book    the documents as a book: target/book/index.html (builds mdBook the first time)"
	@echo "make bench   measure against QEMU and nbdkit (minutes, on tmpfs)"
	@echo "make bench-ciphers   measure the ciphers against AWS-LC, OpenSSL and the core's limit"
	@echo "make bench-engine   the engine in process: what it adds to the cipher, and to a disk"
	@echo "make bench-dispatch   adaptive against every fixed policy: in virtual time, and on these cores"
	@echo "make lint    format, clippy and documentation, warnings as errors"

build:
	scripts/setup build
	scripts/release

install: build
	scripts/install target/release/ucrypt "$(PREFIX)" "$(DESTDIR)"

deb: build sbom
	mkdir -p target/deb
	scripts/deb target/release/ucrypt target/deb target/sbom >target/deb/path
	cat target/deb/path

try-deb: deb
	scripts/setup walks
	scripts/try-deb "$$(cat target/deb/path)"

try-metrics: build
	scripts/setup metrics
	scripts/try-metrics target/release/ucrypt

STATIC = x86_64-unknown-linux-musl

walks: deb
	scripts/setup walks
	for walk in root user container; do \
	    tests/walks/$$walk "$$(cat target/deb/path)" || exit 1; \
	done
	for init in sysvinit openrc; do \
	    tests/walks/root "$$(cat target/deb/path)" $$init || exit 1; \
	done

static: sbom
	scripts/setup build tools
	install -D "$$(scripts/release $(STATIC))" target/static/ucrypt
	install -m 644 LICENSE-MIT LICENSE-APACHE target/sbom/THIRD-PARTY.txt target/static
	scripts/try-static target/static/ucrypt

reproducible:
	scripts/setup build
	scripts/reproducible $(STATIC)

sbom:
	scripts/setup build sbom
	scripts/sbom target/sbom

container: static
	scripts/setup walks
	podman build --file dist/container/Containerfile --tag ucrypt target/static
	scripts/try-container ucrypt

cross:
	scripts/setup build tools targets aarch64
	scripts/cross test

portable: static reproducible cross

demo: build
	target/release/ucrypt demo

lab-quick: build
	scripts/setup tools
	rm -rf target/lab
	target/release/ucrypt lab run --quick --out target/lab
	target/release/ucrypt lab sim --quick --out target/lab
	target/release/ucrypt lab report target/lab

python:
	scripts/setup build python sbom
	scripts/python --release

test:
	scripts/setup build tools browser guest python
	scripts/test
	scripts/python

flaky:
	scripts/setup build tools browser guest
	scripts/flaky $(or $(N),20) $(or $(J),4)

soak:
	scripts/setup build tools guest
	scripts/soak $(S)

fuzz:
	scripts/setup build fuzz
	scripts/fuzz $(S)

book:
	scripts/setup build book
	target/tools/bin/mdbook build docs

bench: build
	scripts/setup tools
	target/release/ucrypt lab run exports kernel-tree --quick --rounds 5 --time 1000 --size 512M \
	    --out "$$(mktemp -d)/bench"
	$(CARGO) run --locked --release --package ucrypt-lab --example unlock

bench-ciphers:
	scripts/setup build peers
	$(CARGO) bench --locked --package ucrypt-sector-bench --features peers --bench sectors -- --quiet

bench-engine:
	scripts/setup build
	$(CARGO) bench --locked --package ucrypt-engine --bench engine -- alone cached help sweep

bench-dispatch:
	scripts/setup build
	$(CARGO) build --release --locked --package ucrypt-lab --examples
	target/release/examples/grid
	target/release/examples/real

lint:
	scripts/setup build peers targets
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --package ucrypt-sector-bench --features peers --all-targets --locked -- -D warnings
	$(CARGO) fmt --manifest-path python/Cargo.toml --check
	$(CARGO) clippy --manifest-path python/Cargo.toml --target-dir target --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --document-private-items
	scripts/cross check
