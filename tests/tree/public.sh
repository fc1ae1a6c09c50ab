#!/bin/sh
# public.sh ROOT HEADER...: the headers that are installed include only each other, so that they work without the source tree.
cd "${1:-.}" || exit 2
shift
bad=0
for h in "$@"; do
    for inc in $(sed -n 's/^#include "\([^"]*\)".*/\1/p' "$h"); do
        case " $* " in
        *" $inc "* | *"/$inc "*) ;;
        *) echo "$h: includes \"$inc\", which is not installed: add it to public_headers in its folder's meson.build"; bad=1 ;;
        esac
    done
done
exit $bad
