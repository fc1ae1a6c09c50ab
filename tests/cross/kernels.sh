#!/bin/sh
# kernels.sh SOURCE BUILD: the kernels and their check built for 64-bit Arm into BUILD and run under qemu-user. Exit 77 without the
# cross compiler or qemu. Only families that have NEON variants: emulation is slow, and the others run their C there.
for tool in aarch64-linux-gnu-gcc qemu-aarch64 meson ninja; do
    command -v $tool >/dev/null || { echo "SKIPPED: no $tool: the NEON kernels are NOT checked"; exit 77; }
done
unset CC CFLAGS LDFLAGS
if [ ! -f "$2/build.ninja" ]; then
    meson setup "$2" "$1" --cross-file "$1/tests/cross/aarch64.ini" -Dkernels_only=true -Dcuda=disabled -Dwerror=true || exit 1
fi
ninja -C "$2" tests/check_kernels || exit 1
for family in cast quant; do
    qemu-aarch64 -L /usr/aarch64-linux-gnu "$2/tests/check_kernels" --family $family || exit 1
done
