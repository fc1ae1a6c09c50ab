#!/bin/sh
# headers.sh [ROOT [PATH...]]: every header (or those at PATH) compiles alone, as C11 (those of the emulator as C++17) and with all
# warnings, and guards itself.
cd "${1:-.}" || exit 2
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- '*.h'
cc=${CC:-cc}
bad=0
for h in $(git ls-files -co --exclude-standard "$@"); do
    extra=""
    case $h in tests/emulate/*)
        printf '#include "%s"\n#include "%s"\n' "$h" "$h" | ${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -I. -x c++ -fsyntax-only - ||
            { echo "$h: does not compile alone"; bad=1; }
        continue ;;
    esac
    case $h in kernels/x86/*) [ "$(uname -m)" = x86_64 ] || continue
        extra="-mavx2 -mfma -mf16c -mbmi2"
        case $h in *avx512*) extra="$extra -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16" ;; esac ;;
    kernels/arm/*) [ "$(uname -m)" = aarch64 ] || continue ;;
    esac
    printf '#include "%s"\n#include "%s"\n' "$h" "$h" |
        $cc -std=c11 -D_GNU_SOURCE -DBL_VERSION='"0"' -Wall -Wextra -Wno-unused-function -Werror $extra -I. -x c -fsyntax-only - ||
        { echo "$h: does not compile alone"; bad=1; }
done
exit $bad
