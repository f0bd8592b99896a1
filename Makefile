# The entry points. `make demo` and `make test` need Debian 12 and Rust, and set up the rest.

CARGO ?= cargo

.PHONY: help build demo test soak bench bench-ciphers bench-engine bench-dispatch lint

help:
	@echo "make demo    build, then make, serve, check and measure an encrypted volume"
	@echo "make test    install the missing outside judges and a kernel to boot, run every test"
	@echo "make soak    servers killed hundreds of times; ten minutes of writers that fill a small memory"
	@echo "make bench   measure against QEMU and nbdkit (minutes, on tmpfs)"
	@echo "make bench-ciphers   measure the ciphers against AWS-LC, OpenSSL and the core's limit"
	@echo "make bench-engine   the engine in process: what it adds to the cipher, and to a disk"
	@echo "make bench-dispatch   adaptive against every static policy: in virtual time, and on these cores"
	@echo "make lint    format, clippy and documentation, warnings as errors"

build:
	scripts/setup build
	$(CARGO) build --release --locked --package ucrypt

demo: build
	target/release/ucrypt demo

test:
	scripts/setup build judges guest
	$(CARGO) test --workspace --locked

soak:
	scripts/setup build judges guest
	UCRYPT_KILLS=100 $(CARGO) test --locked --package ucrypt --test command nbd_kills
	UCRYPT_SOAK_S=600 $(CARGO) test --locked --package ucrypt --test memory_pressure -- --nocapture

bench: build
	scripts/setup judges
	bench/run.py --ucrypt target/release/ucrypt
	[ "$$(id -u)" != 0 ] || bench/tree.py --ucrypt target/release/ucrypt

bench-ciphers:
	scripts/setup build peers
	$(CARGO) bench --locked --package ucrypt-sector-bench --features peers --bench sectors -- --quiet

bench-engine:
	$(CARGO) bench --locked --package ucrypt-engine --bench engine -- alone cached help sweep

bench-dispatch:
	scripts/setup build
	$(CARGO) build --release --locked --package ucrypt-lab --examples
	target/release/examples/grid
	target/release/examples/real

lint:
	scripts/setup build peers
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --package ucrypt-sector-bench --features peers --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --document-private-items
