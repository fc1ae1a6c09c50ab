"""baleen inspect --check: healthy models are clean, every planted fault is named with its place."""
import json
import shutil

import numpy as np
import pytest

import ckpt
import gens
from conftest import DEMO

EXPERT = "layers.3.ffn.experts.2.w1"
DENSE = "layers.4.attn.wq_b"
ROUTER = "layers.2.ffn.gate.weight"


@pytest.fixture(scope="module")
def demo():
    return ckpt.tensors(DEMO)


def check(baleen, path, *options):
    r = baleen("inspect", path, "--check", "--json", *options)
    assert r.rc in (0, 1), r.err
    j = json.loads(r.out)
    assert j["clean"] == (r.rc == 0) == (not j["items"])
    return j


def plant(folder, items, faults):
    """A copy of the demo model in which faults = {tensor: function(array [rows, bytes of a row])} were planted."""
    items = dict(items)
    for name, fault in faults.items():
        dtype, shape, data = items[name]
        a = np.frombuffer(data, np.uint8).copy().reshape(shape[0] if len(shape) > 1 else 1, -1)
        fault(a)
        items[name] = (dtype, shape, a.tobytes())
    return ckpt.write_folder(folder, items, DEMO)


def put(row, col, value):
    def fault(a):
        a[row, col] = value
    return fault


def copy_row(to, source):
    def fault(a):
        a[to] = a[source]
    return fault


def test_healthy_models_are_clean(baleen, tmp_path):
    assert check(baleen, DEMO)["weights"] == sum(not n.endswith(".scale") for n in ckpt.tensors(DEMO))
    assert baleen("synth", tmp_path / "tiny", "--preset", "tiny").rc == 0
    assert check(baleen, tmp_path / "tiny")["clean"]
    for to, options in (("bf16", ["--keep", "dspark"]), ("packed", ["--tp", 2, "--ep", 2, "--pp", 2])):
        assert baleen("convert", tmp_path / "tiny", tmp_path / to, "--to", to, *options).rc == 0
        assert check(baleen, tmp_path / to)["clean"], to
    assert check(baleen, tmp_path / "packed", "--rank", 1)["clean"]


def test_padding_of_a_split_is_no_oddity(baleen, tmp_path):
    """Its scales are 1, far from those of weights; and what is odd is named by its place without padding."""
    assert baleen("synth", tmp_path / "small", "--preset", "small").rc == 0
    split = ("--to", "packed", "--tp", 2, "--split", "pad")
    assert baleen("convert", tmp_path / "small", tmp_path / "packed", *split).rc == 0
    assert check(baleen, tmp_path / "packed")["clean"]
    name = "layers.0.ffn.shared_experts.w2"
    items = ckpt.tensors(tmp_path / "small")
    dtype, shape, data = items[f"{name}.scale"]
    scales = bytearray(data)
    scales[3 * shape[1] + 1] += 20
    items[f"{name}.scale"] = (dtype, shape, bytes(scales))
    ckpt.write_folder(tmp_path / "odd", items, tmp_path / "small")
    assert baleen("convert", tmp_path / "odd", tmp_path / "odd-packed", *split).rc == 0
    found = check(baleen, tmp_path / "odd-packed")["items"]
    assert [(i["weight"], i["count"], i["row"], i["col"]) for i in found] == [(f"{name}.weight", 1, 3, 1)], found
    r = baleen("inspect", DEMO, "--check")
    assert r.rc == 0 and r.out.count("\n") == 1 and "nothing looks wrong" in r.out


@pytest.mark.parametrize("make", [gens.v3, gens.v4])
def test_earlier_generations_are_clean(baleen, tmp_path, make):
    items, config = make()
    folder = ckpt.write_folder(tmp_path / "m", items, DEMO)
    (folder / "config.json").write_text(json.dumps(config))
    j = check(baleen, folder)
    assert j["clean"] and j["problems"] == 0


FAULTS = {
    "NaN code": ({DENSE + ".weight": put(7, 5, 0x7F)}, DENSE + ".weight", "wrong", "NaN codes", 1, (7, 5)),
    "NaN codes": ({DENSE + ".weight": put(slice(40, 42), 5, 0xFF)}, DENSE + ".weight", "wrong", "NaN codes", 2, (40, 5)),
    "NaN scale": ({EXPERT + ".scale": put(9, 1, 255)}, EXPERT + ".weight", "wrong", "NaN scale bytes", 1, (9, 1)),
    "inexact scale": ({DENSE + ".scale": put(1, 1, 250)}, DENSE + ".weight", "wrong",
                      "scale bytes outside 3..246: no exact BF16 values", 1, (1, 1)),
    "infinity": ({ROUTER: lambda a: a.view(np.uint16).__setitem__((3, 4), 0x7F80)}, ROUTER, "wrong", "values that are not finite", 1,
                 (3, 4)),
    "F32 NaN": ({"layers.1.hc_attn_fn": lambda a: a.view(np.uint32).__setitem__((2, 9), 0x7FC00000)}, "layers.1.hc_attn_fn", "wrong",
                "values that are not finite", 1, (2, 9)),
    "all zero": ({EXPERT + ".weight": put(slice(None), slice(None), 0x80)}, EXPERT + ".weight", "wrong", "all zero", None, (0, 0)),
    "zero rows": ({EXPERT + ".weight": put([4, 11], slice(None), 0x88)}, EXPERT + ".weight", "odd", "all-zero rows", 2, (4, 0)),
    "fp8 zero row": ({DENSE + ".weight": put(33, slice(None), 0x80)}, DENSE + ".weight", "odd", "all-zero rows", 1, (33, 0)),
    "constant row": ({DENSE + ".weight": put(34, slice(None), 0x31)}, DENSE + ".weight", "odd", "constant rows", 1, (34, 0)),
    "repeated row": ({EXPERT + ".weight": copy_row(6, 5)}, EXPERT + ".weight", "odd", "rows equal to the one before", 1, (6, 0)),
    "scale byte 0": ({EXPERT + ".scale": put(9, 1, 0)}, EXPERT + ".weight", "odd", "scale bytes 0 or 254", 1, (9, 1)),
    "table scale 254": ({"layers.1.engram.embed.scale": put(9, 0, 254)}, "layers.1.engram.embed.weight", "odd", "scale bytes 0 or 254", 1,
                        (9, 0)),
    "far above": ({EXPERT + ".scale": lambda a: a.__setitem__((9, 1), a[9, 1] + 16)}, EXPERT + ".weight", "odd",
                  "scales far from their neighbours", 1, (9, 1)),
    "far below": ({DENSE + ".scale": lambda a: a.__setitem__((1, 0), a[1, 0] - 32)}, DENSE + ".weight", "odd",
                  "scales far from their neighbours", 1, (1, 0)),
    "flipped exponent bit": ({ROUTER: lambda a: a.view(np.uint16).__setitem__((3, 4), a.view(np.uint16)[3, 4] | 0x4000)}, ROUTER, "odd",
                             "values far above the others", 1, (3, 4)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_named(baleen, demo, tmp_path, name):
    faults, weight, level, what, count, place = FAULTS[name]
    j = check(baleen, plant(tmp_path / "m", demo, faults))
    assert len(j["items"]) == 1, j["items"]
    i = j["items"][0]
    assert (i["weight"], i["level"], i["what"], (i["row"], i["col"])) == (weight, level, what, place)
    assert i["count"] == (count or i["of"])
    files = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())["weight_map"]
    assert i["file"].endswith(files[next(iter(faults))])


def test_equal_weights(baleen, demo, tmp_path):
    items = dict(demo)
    for part in (".weight", ".scale"):
        items["layers.5.ffn.experts.1.w2" + part] = items["layers.3.ffn.experts.0.w2" + part]
    j = check(baleen, ckpt.write_folder(tmp_path / "m", items, DEMO))
    assert [(i["weight"], i["same_as"]) for i in j["items"]] == [("layers.5.ffn.experts.1.w2.weight", "layers.3.ffn.experts.0.w2.weight")]


def test_unused_tokens_are_no_fault(baleen, demo, tmp_path):
    assert check(baleen, plant(tmp_path / "m", demo, {"embed.weight": put(slice(90, 99), slice(None), 0),
                                                      "head.weight": put(slice(90, 99), slice(None), 0)}))["clean"]
    j = check(baleen, plant(tmp_path / "n", demo, {"embed.weight": put(slice(None), slice(None), 0)}))
    assert j["kinds"] == {"all zero": 1}
    name = "layers.1.engram.embed.weight"
    rows = demo[name][1][0]
    assert check(baleen, plant(tmp_path / "o", demo, {name: put(slice(0, rows // 16 - 1), slice(None), 0)}))["clean"]
    j = check(baleen, plant(tmp_path / "p", demo, {name: put(slice(0, rows // 16 + 1), slice(None), 0)}))
    assert [(i["weight"], i["kind"], i["class"]) for i in j["items"]] == [(name, "all-zero rows", "Engram tables")]


def test_codes_that_lost_their_scale(baleen, demo, tmp_path):
    """A cast that takes e4m3 codes for values: each of them is legal, and the largest is 448."""
    name, items = DENSE + ".weight", {n: t for n, t in demo.items() if n != DENSE + ".scale"}
    dtype, shape, data = demo[name]
    values = ckpt.E4M3[np.frombuffer(data, np.uint8)]
    assert np.abs(values).max() == 448
    for scale, found in ((1, ["fp8 codes without their scale"]), (2.0 ** -9, [])):
        items[name] = ("BF16", shape, ((values * np.float32(scale)).view(np.uint32) >> 16).astype(np.uint16).tobytes())
        j = check(baleen, ckpt.write_folder(tmp_path / str(scale), items, DEMO))
        assert [i["what"] for i in j["items"]] == found
        assert all(i["weight"] == name and i["count"] % 32 == 0 for i in j["items"])


@pytest.mark.parametrize("rows, clean", [(64, False), (63, True)])
def test_tokens_without_experts(baleen, tmp_path, rows, clean):
    """A table of integers that is all zero was never sent; rows of zeros may be."""
    items, config = gens.v4()
    name = "layers.0.ffn.gate.tid2eid"
    dtype, shape, data = items[name]
    table = np.frombuffer(data, np.int64).reshape(shape).copy()
    table[:rows] = 0
    table[rows:] = 1
    items[name] = (dtype, shape, table.tobytes())
    j = check(baleen, gens.write(tmp_path / "m", items, config))
    assert [(i["weight"], i["what"]) for i in j["items"]] == ([] if clean else [(name, "all zero")])


def test_zero_blocks_are_no_fault(baleen, demo, tmp_path):
    """Byte 1 is what the released quantisers give a block of zeros."""
    def most(a):
        a[:, 0] = 1
    assert check(baleen, plant(tmp_path / "m", demo, {EXPERT + ".scale": most}))["clean"]


def test_a_report_is_short_sorted_and_the_same_for_every_cut(baleen, demo, tmp_path):
    faults = {f"layers.{layer}.ffn.experts.{e}.w{w}.weight": put(slice(0, 2 + w), slice(None), 0)
              for layer in range(2, 6) for e in range(2) for w in (1, 3)}
    faults[DENSE + ".weight"] = put(70, 5, 0x7F)
    folder = plant(tmp_path / "m", demo, faults)
    j = check(baleen, folder)
    assert j["kinds"] == {"flawed values": 1, "all-zero rows": 16}
    order = [(i["level"] == "odd", -i["count"], i["weight"]) for i in j["items"]]
    assert order == sorted(order)
    for jobs in (1, 3):
        assert check(baleen, folder, "--jobs", jobs)["items"] == j["items"]
    r = baleen("inspect", folder, "--check")
    lines = r.out.splitlines()
    assert r.rc == 1 and len(lines) == 1 + 2 + 1 + 8 + 1
    assert lines[1] == "wrong: flawed values in 1 weight" and "1 of " in lines[2] and "NaN codes, the first at [70, 5]" in lines[2]
    assert lines[3] == "odd: all-zero rows in 16 weights" and lines[-1] == "  and 8 more"
    assert baleen("convert", folder, tmp_path / "packed", "--to", "packed").rc != 0  # NaN


def test_packed_and_single_files(baleen, demo, tmp_path):
    """Experts are named singly where they are stacked; a file without config is understood by its names."""
    folder = plant(tmp_path / "m", demo, {EXPERT + ".weight": put(4, slice(None), 0), DENSE + ".weight": put(34, slice(None), 0x31)})
    assert baleen("convert", folder, tmp_path / "packed", "--to", "packed").rc == 0
    want = [(i["kind"], i["weight"], i["row"]) for i in check(baleen, folder)["items"]]
    assert len(want) == 2 and want == [(i["kind"], i["weight"], i["row"]) for i in check(baleen, tmp_path / "packed")["items"]]
    ckpt.write_file(tmp_path / "one.safetensors", ckpt.tensors(folder))
    assert want == [(i["kind"], i["weight"], i["row"]) for i in check(baleen, tmp_path / "one.safetensors")["items"]]


def test_f32_scales(baleen, tmp_path):
    m = gens.Maker(3, "f32", ".weight_scale_inv")
    m.fp8("a.weight", 1024, 1024)
    m.fp8("b.weight", 1024, 1024)
    for name, (row, col), value in (("a", (3, 2), np.nan), ("b", (1, 5), 1e7), ("b", (6, 0), 1e-30)):
        dtype, shape, data = m.items[name + ".weight_scale_inv"]
        s = np.frombuffer(data, np.float32).copy().reshape(shape)
        s[row, col] = value
        m.items[name + ".weight_scale_inv"] = (dtype, shape, s.tobytes())
    ckpt.write_file(tmp_path / "m.safetensors", m.items)
    found = [(i["kind"], i["weight"], i["count"], i["row"], i["col"]) for i in check(baleen, tmp_path / "m.safetensors")["items"]]
    assert found == [("flawed scales", "a.weight", 1, 3, 2), ("scales far from their neighbours", "b.weight", 2, 1, 5)]


def test_damage_elsewhere_is_left_to_verify(baleen, demo, tmp_path):
    folder = plant(tmp_path / "m", demo, {EXPERT + ".weight": put(4, slice(None), 0)})
    shard = sorted(folder.glob("*.safetensors"))[1]
    shutil.copy(shard, tmp_path / "kept")
    with open(shard, "r+b") as f:
        f.truncate(shard.stat().st_size - 3)
    j = check(baleen, folder)
    assert j["problems"] > 0 and j["weights"] < len([n for n in demo if not n.endswith(".scale")])
    assert baleen("inspect", tmp_path, "--check").rc == 3
    assert baleen("inspect", DEMO, "--check", "--tensor", "x").rc == 2
    assert baleen("inspect", DEMO, "--check", "--jobs", -1).rc == 2
