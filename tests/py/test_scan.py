"""Reading the headers and the index of whole models: sparse shards stand for the weights."""
import json
import resource

import pytest

import headers
from conftest import BUILD

MEMORY = 64 << 20
PLAN_MEMORY = 80 << 20
SANITIZED = b"__asan_init" in (BUILD / "tools" / "baleen").read_bytes()  # has memory of its own


def limit(most=MEMORY):
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def plan_limit():
    limit(PLAN_MEMORY)


@pytest.fixture(scope="module")
def released(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("released") / "model"
    rows = headers.released(shared / "data" / "tensor_inventory.json")
    return folder, headers.write_folder(folder, rows, (shared / "data" / "config.json").read_text())


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("v3") / "model"
    rows, config = headers.v3()
    return folder, len(rows), headers.write_folder(folder, rows, config)


def test_released_model_within_memory(baleen, released):
    folder, total = released
    r = baleen("inspect", folder, "--json", preexec_fn=limit)
    j = json.loads(r.out)
    assert (r.rc, j["tensors"], j["tensor_bytes"], j["files"]) == (0, 96085, 510286023000, 48) and total == j["tensor_bytes"]
    classes = {c["class"]: c for c in j["classes"]}
    assert classes["Engram tables"]["bytes"] == 202758032400 and classes["draft layers"]["bytes"] == 7932874632
    assert baleen("verify", "--level", "1", folder, preexec_fn=limit).rc == 0


def test_plans_within_memory(baleen, released, tmp_path):
    folder, _ = released
    for options in (["--to", "bf16"], ["--to", "packed", "--tp", 4, "--pp", 2]):
        r = baleen("convert", folder, tmp_path / "out", *options, "--dry-run", preexec_fn=plan_limit)
        assert r.rc == 0 or "are free" in r.err, r.err  # the disk has no room for it, which shows after planning
    assert baleen("inspect", folder, "--fit", "tp=8,hbm=141G", preexec_fn=limit).rc == 0


def test_v3_within_memory(baleen, v3):
    folder, count, total = v3
    r = baleen("inspect", folder, "--json", preexec_fn=limit)
    j = json.loads(r.out)
    assert (r.rc, j["tensors"], j["tensor_bytes"]) == (0, count, total), r.err
    scales = j["float32_scales"]
    scaled = sum(row[1].endswith("_scale_inv") for row in headers.v3()[0])
    assert (scales["weights"], scales["all_weights"]) == (256, scaled) and scales["scales"] < 600000  # not 45,000 places to read
    text = baleen("inspect", folder).out
    assert "if they all are" in text and "looked at: 256 of" in text


def test_config_and_index_are_enough(baleen, shared, tmp_path):
    folder = tmp_path / "m"
    rows = headers.released(shared / "data" / "tensor_inventory.json")
    total = headers.write_folder(folder, rows, (shared / "data" / "config.json").read_text(), shards=False)
    r = baleen("inspect", folder)
    assert r.rc == 0 and "none of the 48 shards is here" in r.out and f"tensors: 96085, bytes that config.json calls for: {total} " in r.out
    assert "publishes candidates" in r.out
    j = json.loads(baleen("inspect", folder, "--json").out)
    assert sum(c["bytes"] for c in j["classes"]) == total and sum(c["tensors"] for c in j["classes"]) == j["tensors"] == len(rows)
    for options in (["--check"], ["--scales"], ["--tensor", "norm.weight"]):
        r = baleen("inspect", folder, *options)
        assert r.rc == 3 and "shard is missing" in r.err
    (folder / "stray.safetensors").write_bytes(b"")
    assert "stray" in baleen("inspect", folder).err
    rows, config = headers.v3()
    headers.write_folder(tmp_path / "v3", rows, config, shards=False)
    j = json.loads(baleen("inspect", tmp_path / "v3", "--json").out)
    assert j["tensors"] == len(rows) and j["shards_missing"] == 64 and "bytes" not in j["classes"][0]


def test_index_and_shards_are_held_against_each_other_in_order(baleen, tmp_path):
    rows = [(k % 2, f"layers.{k}.w.weight", "BF16", [4, 4]) for k in range(8)]
    index = tmp_path / "m" / "model.safetensors.index.json"
    headers.write_folder(tmp_path / "m", rows, {})
    j = json.loads(index.read_text())
    files = sorted(set(j["weight_map"].values()))
    j["weight_map"]["layers.9.w.weight"] = files[0]  # in no shard
    j["weight_map"]["layers.4.w.weight"] = files[1]  # in the other
    del j["weight_map"]["layers.7.w.weight"]
    index.write_text(json.dumps(j))
    r = baleen("verify", "--level", "0", tmp_path / "m")
    said = [line for line in (r.out + r.err).splitlines() if "layers." in line]
    assert r.rc == 1 and len(said) == 3, r.out + r.err
    assert "'layers.4.w.weight'" in said[0] and "it is in " + files[0] in said[0]
    assert "'layers.7.w.weight'" in said[1] and "is not in the index" in said[1]
    assert "'layers.9.w.weight'" in said[2] and "the index says it is in this shard" in said[2]


def test_a_plan_for_256_ranks_within_memory(baleen, released, tmp_path):
    """Headers of Engram files are padded to 2 MiB each: 128 of them are not held."""
    def limit_plan():
        if not SANITIZED:
            resource.setrlimit(resource.RLIMIT_DATA, (2 * MEMORY, 2 * MEMORY))

    r = baleen("convert", released[0], tmp_path / "p", "--to", "packed", "--tp", 8, "--ep", 64, "--pp", 4, "--dry-run", preexec_fn=limit_plan)
    assert "256 ranks: 4 stages of 64" in r.out and (r.rc == 0 or "are free" in r.err), r.err  # 8 TB
