# Sourced by demo.sh and test.sh: install what a bare Debian 12 lacks. Root or sudo; nothing is touched when all is there.
# need_packages PACKAGE...
need_packages() {
    missing=""
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
    done
    [ -z "$missing" ] && return 0
    if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo"; fi
    if ! command -v apt-get >/dev/null; then
        echo "these packages are missing, and this is no Debian system:$missing" >&2
        return 1
    fi
    echo "installing:$missing"
    $as_root apt-get update -qq >/dev/null 2>&1 || true
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
        echo "could not install:$missing" >&2
        return 1
    }
}

build_packages="gcc libc6-dev git meson ninja-build pkg-config libssl-dev libxxhash-dev libjansson-dev libarchive-dev zlib1g-dev libpcre2-dev libutf8proc-dev libmicrohttpd-dev"

# build_tree BUILD_DIR [meson options] [targets]: configure once, then compile the targets or else everything. The log is shown only when
# it fails.
build_tree() {
    dir=$1 options="" targets=""
    shift
    for a in "$@"; do
        case $a in
        -*) options="$options $a" ;;
        *) targets="$targets $a" ;;
        esac
    done
    # shellcheck disable=SC2086
    if [ ! -f "$dir/build.ninja" ]; then
        meson setup "$dir" $options > "$dir.log" 2>&1 || { cat "$dir.log"; return 1; }
    fi
    # shellcheck disable=SC2086
    ninja -C "$dir" $targets > "$dir.log" 2>&1 || { grep -vE '^\[' "$dir.log" | tail -50; return 1; }
    rm -f "$dir.log"
}
