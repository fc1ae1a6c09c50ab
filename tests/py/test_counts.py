"""Numbers of things are said in English: 1 file, 2 files."""
import json
import re
import shutil
import struct
import subprocess

import pytest

from conftest import run
from serving import Server

NOUNS = "bits|bytes|buckets|changes|chunks|connections|devices|digests|entries|experts|files|groups|heads|layers|problems|ranks|rows|scales|" \
        "sequences|shards|stages|tensors|threads|tokens|weights"
WRONG = re.compile(rf"(?<![\d.,:x-])1 (?:[a-z]+ )?(?:{NOUNS})\b")


def wrong(said):
    return {k: lines for k, v in said.items() if (lines := [line for line in v.splitlines() if WRONG.search(line)])}


@pytest.fixture(scope="module")
def one(baleen, tmp_path_factory):
    """As few of everything as there can be."""
    d = tmp_path_factory.mktemp("counts")
    assert baleen("synth", d / "model", "--preset", "nano", "--shards", "1").rc == 0
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (d / "one.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\1")
    (d / "more.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\1\1")
    (d / "short.safetensors").write_bytes(b"\1")
    return d


def test_one_of_each(baleen, one, tmp_path):
    model, said = one / "model", {}

    def call(*args, rc=0):
        r = baleen(*args)
        assert r.rc == rc, (args, r.err)
        said[" ".join(str(a) for a in args)] = r.out + r.err

    call("inspect", model)
    call("verify", model)
    call("convert", model, tmp_path / "bf16", "--to", "bf16", "--save-scales")
    call("convert", tmp_path / "bf16", tmp_path / "back", "--to", "released")
    call("convert", model, tmp_path / "packed", "--to", "packed", "--layers", "0")
    call("convert", model, tmp_path / "dry", "--to", "packed", "--dry-run")
    call("merge", tmp_path / "packed", tmp_path / "merged")
    call("verify", tmp_path / "merged", "--against", tmp_path / "packed")
    call("bucket", model, tmp_path / "b")
    call("verify", tmp_path / "b")
    call("inspect", tmp_path / "b")
    changed = shutil.copytree(model, tmp_path / "changed")
    shard = next(changed.glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    n = struct.unpack("<Q", raw[:8])[0]
    raw[8 + n + json.loads(raw[8:8 + n])["norm.weight"]["data_offsets"][0]] ^= 1
    shard.write_bytes(raw)
    call("bucket", changed, tmp_path / "d", "--base", tmp_path / "b")
    call("inspect", tmp_path / "d")
    call("verify", tmp_path / "d")
    call("bucket", "--apply", tmp_path / "d", tmp_path / "b", tmp_path / "n")
    call("verify", changed, "--against", model, rc=1)
    for command in ([], ["--tensor", "a"], ["--check"]):
        call("inspect", one / "one.safetensors", *command)
    call("verify", one / "one.safetensors")
    for name in ("more", "short"):
        call("verify", one / f"{name}.safetensors", rc=3)
    call("inspect", model, "--fit", "hbm=80GiB")
    assert not wrong(said)
    for text in ("in 1 file", "1 bucket changed", "1 tensor (or slices)", "1 problem at", "1 byte follows", "only 1 byte,"):
        assert any(text in v for v in said.values()), text


def test_one_of_each_in_what_is_refused(baleen, one, tmp_path):
    said = {}

    def call(rc, says, *args):
        r = baleen(*args)
        assert r.rc == rc and says in r.err, (args, r.rc, r.err)
        said[" ".join(str(a) for a in args)] = r.err

    def copy(src, name, change):
        d = shutil.copytree(src, tmp_path / name)
        change(d)
        return d

    def config(key, value):
        def change(d):
            c = json.loads((d / "config.json").read_text())
            c["text_config"][key] = value
            (d / "config.json").write_text(json.dumps(c))
        return change

    model, packed, bucket = one / "model", tmp_path / "packed", tmp_path / "b"
    assert baleen("convert", model, packed, "--to", "packed").rc == 0 and baleen("bucket", model, bucket).rc == 0
    call(3, "has 1 entry, num_hidden_layers", "inspect", copy(model, "a", config("compress_ratios", [0])))
    call(3, "has 1 entry, engram_layer_ids", "inspect", copy(model, "c", config("engram_num_embeddings", [5])))
    call(1, "has 1 byte, manifest.json says", "verify", copy(packed, "d", lambda d: (d / "tokenizer_config.json").write_text("0")))
    call(2, "the stages have 1 layer,", "convert", model, tmp_path / "x", "--to", "packed", "--pp-layers", "1")
    short = copy(bucket, "e", lambda d: (d / "bucket-00001.safetensors").write_text("0"))
    call(3, "has 1 byte, not the", "bucket", model, tmp_path / "x", "--base", short)
    key = tmp_path / "key"
    for args in (["genpkey", "-algorithm", "ed25519", "-out", key], ["pkey", "-in", key, "-pubout", "-out", tmp_path / "pub"]):
        subprocess.run(["openssl", *args], check=True, capture_output=True)
    call(1, "has 1 byte: it is no Ed25519", "verify", copy(packed, "f", lambda d: (d / "SHA256SUMS.sig").write_text("0")), "--key", tmp_path / "pub")
    assert not wrong(said)


def test_one_of_each_on_the_server():
    r = run("baleend", "--plan", "--memory", "1GB", "--max-requests", "1", "--max-context", "2")
    with Server("baleend", "--max-requests", "1", "--max-queue", "1") as s:
        said = {"plan": r.out + r.err, "ready": "".join(s.out)}
    assert "1 sequence at once" in said["ready"] and not wrong(said)
