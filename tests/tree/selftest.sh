#!/bin/sh
# The tree checks can fail: plant one offence of each kind in a copy of the tree and see it reported.
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-.}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
git -C "$root" ls-files -co --exclude-standard '*.h' '*.c' | (cd "$root" && tar cf - -T -) | tar xf - -C "$tmp" || exit 2
git -C "$tmp" init -q && cd "$tmp" || exit 2
sh "$here/layers.sh" . > out || { echo "clean copy is refused:"; cat out; exit 1; }
expect() { # FILE TEXT CHECKER [PATH]
    mkdir -p "$(dirname "$1")"; had=""; [ -f "$1" ] && { cp "$1" saved; had=1; }
    printf '%s\n' "$2" >> "$1"
    if sh "$here/$3" . ${4:+"$4"} > out 2>&1; then echo "$3 did not see: $2"; exit 1; fi
    if [ -n "$had" ]; then cp saved "$1"; else rm "$1"; fi
}
expect formats/planted.c '#include "kernels/cpu.h"' layers.sh
expect kernels/planted.c '#include "runtime/forward.h"' layers.sh
expect verify/planted.c 'void f(void); void f(void) { exit(1); }' layers.sh
expect convert/planted.c 'void f(void) { getenv("X"); }' layers.sh
expect tools/planted.py 'print()' layers.sh
expect tools/planted.cc '' layers.sh
expect tools/planted.bin "$(head -c 1000000 /dev/zero | tr '\0' x)" layers.sh
sh "$here/headers.sh" . formats/arena.h > out 2>&1 || { echo "a good header is refused:"; cat out; exit 1; }
expect formats/planted.h 'bl_unknown_type f(void);' headers.sh formats/planted.h
expect formats/planted.h 'enum { TWICE };' headers.sh formats/planted.h
exit 0
