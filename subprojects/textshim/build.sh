#!/bin/sh
# Builds the Rust static library for Meson: build.sh SOURCE-DIR OUTPUT.a DEPFILE
#
# The finished archive is kept in the cache folder under the checksum of what it is made of: the lock
# file, the sources, this script and cargo's version. A fresh clone of the same sources copies it and
# compiles nothing; another version of the sources compiles its own crate and keeps the libraries.
# The cache folder is $QUIRE_CACHE/textshim, by default ~/.cache/quire/textshim. $CARGO names another
# cargo; 1.87 or newer is needed.
set -eu

source=$(cd "$1" && pwd) output=$2 depfile=$3
cargo=${CARGO:-cargo}
cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/quire}/textshim

fail() {
    echo "textshim: $1" >&2
    exit 1
}

version=$("$cargo" --version 2>/dev/null) || version=
minor=$(printf '%s\n' "$version" | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
[ -n "$minor" ] || fail "no cargo found; install Rust 1.87 or newer (Debian 12: apt-get install cargo-web)"
[ "$minor" -ge 87 ] || fail "cargo 1.$minor is too old; 1.87 or newer is needed (Debian 12: cargo-web)"

files=$(cd "$source" && find Cargo.toml Cargo.lock build.sh src -type f | LC_ALL=C sort)
# shellcheck disable=SC2086 # no file of ours has a blank in its name
key=$(cd "$source" && { echo "$version ${RUSTFLAGS:-}"; uname -m; sha256sum $files; } | sha256sum | cut -c1-32)
archive=$cache/$key.a

mkdir -p "$cache"
if [ ! -f "$archive" ]; then
    # Always compiled in the same folder, so that no path of a clone enters the archive or cargo's own
    # checksums. The lock ends with this shell.
    exec 9>"$cache/lock"
    flock 9
    if [ ! -f "$archive" ]; then
        rm -rf "$cache/source"
        mkdir -p "$cache/source"
        (cd "$source" && cp -R Cargo.toml Cargo.lock src "$cache/source/")
        home=${CARGO_HOME:-${HOME:-/root}/.cargo}
        RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$home=cargo --remap-path-prefix=$cache/source=textshim" \
            CARGO_TARGET_DIR=$cache/target "$cargo" build --quiet --release --locked \
            --manifest-path "$cache/source/Cargo.toml" || fail "cargo build failed"
        # An archive that nothing asked for in a month is removed.
        find "$cache" -maxdepth 1 -name '*.a' -atime +30 -delete
        cp "$cache/target/release/libtextshim.a" "$archive.partial"
        mv "$archive.partial" "$archive"
    fi
fi

cp "$archive" "$output.partial"
mv "$output.partial" "$output"
{
    printf '%s:' "$output"
    for file in $files; do printf ' %s/%s' "$source" "$file"; done
    printf '\n'
} >"$depfile"
