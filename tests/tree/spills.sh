#!/bin/sh
# spills.sh LIMITS REPORT...: what ptxas says of each kernel, for each architecture: no more spills and registers than LIMITS allows.
limits=$1
shift
awk -v limits="$limits" '
BEGIN {
    while ((getline line < limits) > 0) {
        if (line ~ /^#/ || split(line, f, " ") < 3) continue
        most[f[1]] = f[2]
        spilled[f[1]] = f[3]
    }
}
/Compiling entry function/ {
    split($0, part, "\047")
    kernel = part[2]; arch = part[4]; kernels++; seen[arch]++; rule = "*"
    for (name in most) if (name != "*" && index(kernel, name)) rule = name
}
/spill stores/ && match($0, /[0-9]+ bytes spill stores, [0-9]+ bytes spill loads/) {
    text = substr($0, RSTART, RLENGTH); split(text, n, " ")
    if (n[1] + n[5] > spilled[rule]) { print kernel " (" arch "): " text; bad = 1 }
}
/Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); used = substr($0, RSTART + 5, RLENGTH - 5) + 0
    if (used > most[rule]) { print kernel " (" arch "): " used " registers, more than " most[rule]; bad = 1 }
}
END {
    if (!seen["sm_90a"] || !seen["sm_100a"]) { print "no kernels for sm_90a or sm_100a"; bad = 1 }
    print kernels " kernels"
    exit bad
}' "$@"
