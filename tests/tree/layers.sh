#!/bin/sh
# The folders are the layers: a file may include only headers of its own folder or of folders above it in the list.
# Libraries also never end the process, print, or read the environment. Prints every offence; status 1 if there is one.
cd "${1:-.}" || exit 2
bad=0
above=""
for layer in formats kernels verify convert runtime tools; do
    allowed="$above $layer"
    for f in $(git ls-files -co --exclude-standard "$layer" | grep -E '\.(c|h|cu|cuh)$'); do
        for inc in $(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$f"); do
            folder=${inc%%/*}
            case " $allowed " in
            *" $folder "*) ;;
            *) echo "$f: includes \"$inc\", which is not in:$allowed"; bad=1 ;;
            esac
        done
        if [ "$layer" != tools ]; then
            grep -nE '(^|[^A-Za-z0-9_.>])(exit|_exit|abort|getenv|secure_getenv|printf|puts|perror|putchar)[[:space:]]*\(' "$f" |
                grep -vE '^[0-9]+:[[:space:]]*(\*|//|/\*)' | sed "s|^|$f:|; s|\$|  <- not in a library|" | grep . && bad=1
        fi
    done
    above="$above $layer"
done
# C++ only inside .cu and the emulator of what is there, Python only under tests, and no binary over 1 MB but the demo model.
git ls-files -co --exclude-standard | grep -E '\.(cpp|cc|cxx|hpp)$' | grep -v '^tests/emulate/' | sed 's/$/: C++ belongs in .cu files/' | grep . && bad=1
git ls-files -co --exclude-standard | grep -E '\.py$' | grep -v '^tests/' | sed 's/$/: Python belongs under tests/' | grep . && bad=1
for f in $(git ls-files -co --exclude-standard); do
    case $f in tools/demo-model/*) continue ;; esac
    [ -f "$f" ] && [ "$(wc -c < "$f")" -gt 1000000 ] && { echo "$f: over 1 MB"; bad=1; }
done
exit $bad
