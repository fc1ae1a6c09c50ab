#!/bin/sh
# compile.sh REPORT COMMAND...: run a compiler; what it says goes to REPORT, and to stderr when it fails or warns.
report=$1
shift
"$@" 2>"$report"
status=$?
if [ $status -ne 0 ] || grep -q warning "$report"; then grep -v '^ptxas info' "$report" >&2; fi
exit $status
