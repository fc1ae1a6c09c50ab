#!/bin/sh
# The folders are the layers: a file may include only headers of its own folder or of folders above it in the list.
# Libraries also never end the process, print, or read the environment. Prints every offence; status 1 if there is one.
cd "${1:-.}" || exit 2
bad=0
above=""
for layer in formats kernels verify convert runtime tools; do
    above="$above $layer"
    git ls-files -co --exclude-standard "$layer" | grep -E '\.(c|h|cu|cuh)$' | xargs awk -v layer="$layer" -v allowed="$above" '
    match($0, /^[ \t]*#[ \t]*include[ \t]*"[^"]*"/) {
        name = substr($0, 1, RLENGTH - 1)
        sub(/^[^"]*"/, "", name)
        folder = name
        sub(/\/.*/, "", folder)
        if (!index(" " allowed " ", " " folder " ")) { print FILENAME ": includes \"" name "\", which is not in:" allowed; bad = 1 }
    }
    layer != "tools" && /(^|[^A-Za-z0-9_.>])(exit|_exit|abort|getenv|secure_getenv|printf|puts|perror|putchar)[ \t]*\(/ &&
    !/^[ \t]*(\*|\/\/|\/\*)/ { print FILENAME ":" FNR ":" $0 "  <- not in a library"; bad = 1 }
    END { exit bad }' || bad=1
done
# C++ only inside .cu and the emulator of what is there, Python only under tests, and no binary over 1 MB but the demo model.
git ls-files -co --exclude-standard | grep -E '\.(cpp|cc|cxx|hpp)$' | grep -v '^tests/emulate/' | sed 's/$/: C++ belongs in .cu files/' | grep . && bad=1
git ls-files -co --exclude-standard | grep -E '\.py$' | grep -v '^tests/' | sed 's/$/: Python belongs under tests/' | grep . && bad=1
git ls-files -co --exclude-standard -z | grep -zv '^tools/demo-model/' | xargs -0 sh -c 'find "$@" -maxdepth 0 -type f -size +1000000c' sh |
    sed 's/$/: over 1 MB/' | grep . && bad=1
exit $bad
