#!/bin/sh
# Builds the Rust static library for Meson: build.sh SOURCE-DIR OUTPUT.a DEPFILE
#
# All build directories (release, sanitizers) share one cargo target directory, so Rust is compiled once:
# $QUIRE_TEXTSHIM_TARGET, or .cache/textshim at the top of the repository. Cargo locks it against a
# second build at the same time. $CARGO names another cargo; 1.85 or newer is needed.
set -eu

source=$1 output=$2 depfile=$3
cargo=${CARGO:-cargo}
target=${QUIRE_TEXTSHIM_TARGET:-$source/../../.cache/textshim}

fail() {
    echo "textshim: $1" >&2
    exit 1
}

version=$("$cargo" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p') || version=
[ -n "$version" ] || fail "no cargo found; install Rust 1.85 or newer (Debian 12: apt-get install cargo-web)"
[ "$version" -ge 85 ] || fail "cargo 1.$version is too old; 1.85 or newer is needed (Debian 12: cargo-web)"

mkdir -p "$target"
target=$(cd "$target" && pwd)
home=${CARGO_HOME:-${HOME:-/root}/.cargo}
# The archive holds no path of this machine.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$home=cargo --remap-path-prefix=$source=textshim"
export RUSTFLAGS
CARGO_TARGET_DIR=$target "$cargo" build --quiet --release --locked \
    --manifest-path "$source/Cargo.toml" || fail "cargo build failed"

cp "$target/release/libtextshim.a" "$output.tmp"
mv "$output.tmp" "$output"
# Cargo's own depfile, with our output as its target and what cargo leaves out.
sed "s|^[^:]*:|$output: $source/Cargo.toml $source/Cargo.lock $source/build.sh|" \
    "$target/release/libtextshim.d" >"$depfile"
