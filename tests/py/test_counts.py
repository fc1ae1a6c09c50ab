"""Numbers of things are said in English: 1 file, 2 files."""
import json
import re
import shutil
import struct

import pytest

NOUNS = "bits|bytes|buckets|changes|chunks|devices|digests|experts|files|groups|heads|layers|problems|ranks|rows|scales|sequences|shards|stages|" \
        "tensors|weights"
WRONG = re.compile(rf"(?<![\d.,:x-])1 (?:[a-z]+ )?(?:{NOUNS})\b")


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
    wrong = {k: [line for line in v.splitlines() if WRONG.search(line)] for k, v in said.items()}
    assert not any(wrong.values()), {k: v for k, v in wrong.items() if v}
    for text in ("in 1 file", "1 bucket changed", "1 tensor (or slices)", "1 problem at", "1 byte follows", "only 1 byte,"):
        assert any(text in v for v in said.values()), text
