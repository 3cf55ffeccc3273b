# shellcheck shell=bash disable=SC2034
# Shared by this repository's shell scripts: sourced, never run. Gives the folders, the messages and
# `run_step`, which runs one long part with its output in a log and shows that it is moving.
# Everything is non-interactive and works without a terminal and without standard input.

quire_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
quire_cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}
export QUIRE_CACHE=$quire_cache
mkdir -p "$quire_cache/log" || exit 1

say() { printf '==> %s\n' "$*"; }

# fail WHAT [WHAT-TO-DO]: says both and ends the script.
fail() {
    printf '\nfailed: %s\n' "$1" >&2
    if [ $# -gt 1 ]; then printf '  to do: %s\n' "$2" >&2; fi
    exit 1
}

# Waits for a background job, showing the last line of its log: rewritten in place on a terminal,
# one line each 20 seconds elsewhere.
watch_job() { # PID TITLE LOG
    local pid=$1 title=$2 log=$3 start=$SECONDS told=$SECONDS last
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.5
        last=$(tail -c 400 "$log" 2>/dev/null | tr '\r' '\n' | grep -av '^ *$' | tail -n 1 | cut -c1-60)
        if [ -t 1 ]; then
            printf '\r\033[K    %3d s  %s' $((SECONDS - start)) "$last"
        elif [ $((SECONDS - told)) -ge 20 ]; then
            told=$SECONDS
            printf '    %s: %d s  %s\n' "$title" $((SECONDS - start)) "$last"
        fi
    done
    if [ -t 1 ]; then printf '\r\033[K'; fi
}

# run_step TITLE COMMAND…: output goes to a log named after the title. Returns the command's status;
# after a failure the log's end has been printed.
run_step() {
    local title=$1 log start=$SECONDS status=0
    shift
    log="$quire_cache/log/$(printf '%s' "$title" | tr -cs 'A-Za-z0-9\n' '-').log"
    say "$title"
    "$@" >"$log" 2>&1 </dev/null &
    local pid=$!
    watch_job "$pid" "$title" "$log"
    wait "$pid" || status=$?
    if [ "$status" -ne 0 ]; then
        printf '    failed with status %d after %d s; the end of %s:\n' \
            "$status" $((SECONDS - start)) "$log" >&2
        tail -n 40 "$log" | sed 's/^/    | /' >&2
    else
        printf '    done in %d s\n' $((SECONDS - start))
    fi
    return "$status"
}

# Prints the path of a cargo of 1.87 or newer (the text shim's need), or fails.
find_cargo() {
    local candidate version
    for candidate in "$(command -v cargo || true)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
        if [ ! -x "$candidate" ]; then continue; fi
        version=$("$candidate" --version 2>/dev/null | awk '{print $2}') || continue
        if [ "$(printf '1.87.0\n%s\n' "$version" | sort -V | head -n 1)" = 1.87.0 ]; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Puts a good cargo first on PATH, for meson and the text shim.
use_cargo() {
    local cargo
    cargo=$(find_cargo) || fail "no cargo of 1.87 or newer was found" \
        "run scripts/install-packages build, or install Rust 1.87 or newer"
    PATH="$(dirname "$cargo"):$PATH"
    export PATH
}
