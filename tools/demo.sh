#!/bin/sh
# The main job, end to end, on the demo model: convert to BF16 and to a packed model, verify both, see a damage found, serve, ask.
# Installs what it needs on Debian 12 (root or sudo), builds the two programs in build/, works in a temporary folder, and can be run again.
set -u
cd "$(dirname "$0")/.." || exit 2
. tools/setup.sh
work=$(mktemp -d) || exit 4
server=""
cleanup() {
    [ -n "$server" ] && kill "$server" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
step() { printf '\n== %s\n' "$*"; }
die() {
    echo "demo FAILED: $*"
    exit 1
}

step "Install and build"
# shellcheck disable=SC2086
need_packages $build_packages curl ca-certificates || die "set-up"
build_tree build tools/baleen tools/baleend || die "build"
baleen=$PWD/build/tools/baleen
baleend=$PWD/build/tools/baleend
model=$PWD/tools/demo-model
"$baleen" --version

step "What is in the demo model (released layout: fp8 dense weights, fp4 experts, Engram tables)"
"$baleen" inspect "$model" || die "inspect"

step "Convert it to BF16 for a trainer, and to a packed model for serving"
"$baleen" convert "$model" "$work/bf16" --to bf16 || die "convert --to bf16"
"$baleen" convert "$model" "$work/packed" --to packed || die "convert --to packed"
ls "$work/bf16" "$work/packed" "$work/packed/rank-0000"

step "Verify both, and that the BF16 cast holds the same values"
"$baleen" verify "$work/bf16" || die "verify bf16"
"$baleen" verify "$work/packed" || die "verify packed"
"$baleen" verify "$work/bf16" --against "$model" || die "verify --against"

step "Flip one bit in a copy: verify names the tensor and the chunk, and exits 1"
cp -r "$work/packed" "$work/damaged" || die "copy"
victim=$work/damaged/rank-0000/layer-03.safetensors
size=$(wc -c < "$victim")
at=$((size / 2))
byte=$(od -An -tu1 -j "$at" -N 1 "$victim" | tr -d ' ')
# shellcheck disable=SC2059
printf "\\$(printf '%03o' $((byte ^ 1)))" | dd of="$victim" bs=1 seek="$at" conv=notrunc status=none || die "damage"
"$baleen" verify "$work/damaged"
status=$?
[ "$status" -eq 1 ] || die "verify of the damaged copy exited with $status, not 1"

step "Serve the packed model"
"$baleend" "$work/packed" --port 0 > "$work/log" 2>&1 &
server=$!
url=""
tries=0
while [ "$tries" -lt 100 ]; do
    url=$(sed -n 's/.*listening on \(http[^ ]*\).*/\1/p' "$work/log" | head -n 1)
    [ -n "$url" ] && curl -sf "$url/health" > /dev/null && break
    kill -0 "$server" 2>/dev/null || { cat "$work/log"; die "baleend ended"; }
    tries=$((tries + 1))
    sleep 0.1
done
[ "$tries" -lt 100 ] || { cat "$work/log"; die "baleend was not ready in time"; }
cat "$work/log"

step "Ask over HTTP"
question='{"messages": [{"role": "user", "content": "What is 23 plus 14?"}], "temperature": 0}'
echo "POST /v1/chat/completions $question"
curl -sS "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$question" > "$work/answer" || die "request"
cat "$work/answer"
echo
grep -q '23 plus 14 is 37\.' "$work/answer" || die "the answer is not '23 plus 14 is 37.'"

step "Stream an answer with thinking"
question='{"messages": [{"role": "user", "content": "Add 46 and 24."}], "temperature": 0, "stream": true, "reasoning_effort": "max", "chat_template_kwargs": {"thinking": true}}'
echo "POST /v1/chat/completions $question"
curl -sSN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$question" > "$work/stream" || die "stream"
field() { sed -n "s/.*\"delta\":{\"$1\":\"\([^\"]*\)\"}.*/\1/p" "$work/stream" | tr -d '\n'; }
head -n 4 "$work/stream"
echo "... $(grep -c '^data: ' "$work/stream") events, the last: $(grep '^data: ' "$work/stream" | tail -n 1)"
echo "reasoning: $(field reasoning_content)"
echo "answer:    $(field content)"
grep -q reasoning_content "$work/stream" || die "no reasoning in the stream"
grep -q '^data: \[DONE\]' "$work/stream" || die "the stream did not end with [DONE]"

step "Stop"
kill -TERM "$server"
wait "$server"
status=$?
server=""
[ "$status" -eq 0 ] || die "baleend exited with $status"

echo
echo "demo passed: converted the demo model to BF16 and to a packed model, verified both, found a flipped bit, served the packed model, and got the right answers."
