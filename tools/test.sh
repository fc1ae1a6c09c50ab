#!/bin/sh
# Build and run every test that needs no GPU; installs what it needs (Debian 12, root or sudo).
#   sh tools/test.sh               gcc build, unit and kernel tests, tree checks, python tests; clang build for its warnings
#   sh tools/test.sh --sanitize    the same under address and undefined-behaviour sanitizers, the server's unit tests
#                                  under the thread sanitizer
# The last line is "N passed, N failed, N skipped"; the exit status is 0 only when nothing failed.
set -u
cd "$(dirname "$0")/.." || exit 2
. tools/setup.sh
sanitize=no
case "${1:-}" in
"") ;;
--sanitize) sanitize=yes ;;
*) echo "usage: sh tools/test.sh [--sanitize]" >&2; exit 2 ;;
esac

passed=0 failed=0 skipped=0
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] || exit 1
    exit 0
}
fail() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# shellcheck disable=SC2086
need_packages $build_packages libcmocka-dev clang gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user python3 python3-venv curl ca-certificates || { fail "set-up"; finish; }

run_meson() { # BUILD_DIR [meson test arguments]
    dir=$1
    shift
    meson test -C "$dir" --no-rebuild --print-errorlogs "$@" > "$dir/test.log" 2>&1
    status=$?
    grep -vE '^(ninja|\[)' "$dir/test.log" | tail -400
    count() { sed -n "s/^$1: *\([0-9]*\).*/\1/p" "$dir/test.log" | tail -1; }
    ok=$(count Ok) bad=$(count Fail) time_out=$(count Timeout) skip=$(count Skipped)
    passed=$((passed + ${ok:-0}))
    failed=$((failed + ${bad:-0} + ${time_out:-0}))
    skipped=$((skipped + ${skip:-0}))
    [ -n "$ok" ] || { [ "$status" -eq 0 ] || fail "meson test in $dir"; }
}

compile_with_clang() {
    [ -f build-clang/build.ninja ] || CC=clang meson setup build-clang -Dwerror=true -Doptimization=0 > build-clang.log 2>&1 || { cat build-clang.log; return 1; }
    ninja -C build-clang -t targets rule c_COMPILER | xargs ninja -C build-clang > build-clang.log 2>&1 || { grep -vE '^\[' build-clang.log | tail -50; return 1; }
    rm -f build-clang.log
}

# A virtual environment with the packages the python tests use; skipped loudly where PyPI cannot be reached.
venv=build-venv
make_venv() {
    [ -x $venv/bin/python ] && $venv/bin/python -c 'import numpy, pytest, xdist, safetensors, ml_dtypes, tokenizers, transformers' 2>/dev/null && return 0
    rm -rf $venv
    python3 -m venv $venv && $venv/bin/pip install -q --disable-pip-version-check numpy pytest pytest-timeout pytest-xdist safetensors ml_dtypes tokenizers transformers
}

run_pytest() { # BUILD_DIR
    if ! make_venv > build-venv.log 2>&1; then
        echo "SKIPPED: the python tests: PyPI could not be reached ($(tail -1 build-venv.log))"
        skipped=$((skipped + 1))
        return
    fi
    BL_BUILD=$PWD/$1 $venv/bin/python -m pytest -q -rs tests/py -p no:cacheprovider -n auto --dist loadfile > "$1/pytest.log" 2>&1
    status=$?
    cat "$1/pytest.log"
    summary=" $(tail -1 "$1/pytest.log")"
    take() { printf '%s\n' "$summary" | sed -n "s/.*[^0-9]\([0-9][0-9]*\) $1.*/\1/p"; }
    p=$(take passed) f=$(take failed) e=$(take error) s=$(take skipped)
    passed=$((passed + ${p:-0}))
    failed=$((failed + ${f:-0} + ${e:-0}))
    skipped=$((skipped + ${s:-0}))
    [ "$status" -eq 0 ] || [ "${f:-0}" -gt 0 ] || [ "${e:-0}" -gt 0 ] || fail "pytest ended with status $status"
}

if [ $sanitize = yes ]; then
    echo "== address and undefined-behaviour sanitizers"
    if build_tree build-asan --buildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false; then
        export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
        run_meson build-asan --no-suite tree --timeout-multiplier 10
        run_pytest build-asan
        unset ASAN_OPTIONS UBSAN_OPTIONS
    else
        fail "build with address and undefined-behaviour sanitizers"
    fi
    echo "== thread sanitizer"
    if build_tree build-tsan --buildtype=debugoptimized -Db_sanitize=thread -Db_lundef=false; then
        TSAN_OPTIONS=halt_on_error=1 run_meson build-tsan --suite threads --timeout-multiplier 10
    else
        fail "build with the thread sanitizer"
    fi
    finish
fi

echo "== build (gcc, warnings are errors)"
if CC=gcc build_tree build-test -Dwerror=true; then
    passed=$((passed + 1))
    echo "== unit, kernel and tree tests"
    run_meson build-test
    echo "== python tests"
    run_pytest build-test
else
    fail "build with gcc"
fi
# objects of C alone: what nvcc makes is the same whatever the C compiler, and takes longest; unoptimised, since warnings come before that
echo "== compile (clang, warnings are errors)"
if compile_with_clang; then passed=$((passed + 1)); else fail "compiling with clang"; fi
finish
