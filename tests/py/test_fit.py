"""baleen inspect --fit: what ranks would hold, against what packing gives them, and the published sizes."""
import json
import re
import shutil

import pytest

import ckpt
import gens
import headers
from conftest import DEMO, run


def fit(baleen, path, text, rc=0):
    r = baleen("inspect", path, "--fit", text, "--json")
    assert r.rc == rc, r.err
    return json.loads(r.out)


@pytest.fixture(scope="module")
def source(baleen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "source"
    assert baleen("synth", folder, "--preset", "tiny").rc == 0
    return folder


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 2, 1), (2, 4, 2), (1, 2, 4)])
def test_weights_are_those_of_packed_ranks(baleen, source, tmp_path, layout):
    tp, ep, pp = layout
    dst, shared = tmp_path / "packed", tmp_path / "shared"
    degrees = ["--tp", tp, "--ep", ep, "--pp", pp]
    assert baleen("convert", source, dst, "--to", "packed", *degrees).rc == 0
    asked = fit(baleen, source, f"tp={tp},ep={ep},pp={pp},hbm=9G,engram=device")["asked"]
    width = max(tp, ep)
    assert asked["devices"] == pp * width and len(asked["stages"]) == pp and asked["host"] == 0
    for rank in range(pp * width):
        have = sum(len(d) for _, _, d in ckpt.tensors(dst / f"rank-{rank:04d}").values())
        stage = asked["stages"][rank // width]
        assert stage["weights"] == have == sum(stage["classes"].values()), rank
    if pp * width == 1:
        return
    assert baleen("convert", source, shared, "--to", "packed", *degrees, "--engram", "shared").rc == 0
    tables = {f.name: f.stat().st_size for f in shared.glob("rank-*/engram-*.safetensors")}
    host = fit(baleen, source, f"tp={tp},ep={ep},pp={pp},hbm=9G")["asked"]["host"]
    assert host == sum(len(d) for f in shared.glob("rank-*/engram-*.safetensors") for _, _, d in ckpt.tensors(f).values()) and tables


def test_forms_are_those_of_the_files(baleen, source, tmp_path):
    """Packed, cast and partly downloaded checkpoints of one model."""
    assert baleen("convert", source, tmp_path / "packed", "--to", "packed", "--tp", 2).rc == 0
    assert baleen("convert", source, tmp_path / "cast", "--to", "bf16", "--keep", "dspark").rc == 0
    same = fit(baleen, source, "tp=2,hbm=9G,drop=dspark+vision")["asked"]
    assert fit(baleen, tmp_path / "packed", "tp=2,hbm=9G,drop=dspark+vision")["asked"] == same
    cast = fit(baleen, tmp_path / "cast", "tp=1,hbm=9G,engram=device")["asked"]["stages"][0]["weights"]
    assert cast == sum(len(d) for _, _, d in ckpt.tensors(tmp_path / "cast").values())
    (tmp_path / "begun").mkdir()
    for name in ("config.json", "model.safetensors.index.json"):
        shutil.copy(source / name, tmp_path / "begun")
    j = fit(baleen, tmp_path / "begun", "tp=2,hbm=9G,drop=dspark+vision")
    (tmp_path / "begun" / "model.safetensors.index.json").unlink()
    assert fit(baleen, tmp_path / "begun", "tp=2,hbm=9G,drop=dspark+vision") == {**j, "path": str(tmp_path / "begun"), "problems": 1}
    assert j["asked"] == same and j["assumed"] == sum(not n.endswith(".scale") for n in ckpt.tensors(source))


def test_recast_experts_and_blocks(baleen, source, tmp_path):
    dst = tmp_path / "recast"
    assert baleen("convert", source, dst, "--to", "released", "--fp8-block", "1x32").rc == 0
    have = sum(len(d) for _, _, d in ckpt.tensors(dst).values())
    assert fit(baleen, dst, "tp=1,hbm=9G,engram=device")["asked"]["stages"][0]["weights"] == have
    for f in dst.glob("*.safetensors"):
        f.unlink()
    assert fit(baleen, dst, "tp=1,hbm=9G,engram=device")["asked"]["stages"][0]["weights"] == have


def test_released_model(baleen, shared, tmp_path):
    rows = headers.released(shared / "data" / "tensor_inventory.json")
    headers.write_folder(tmp_path / "m", rows, (shared / "data" / "config.json").read_text(), shards=False)
    j = fit(baleen, tmp_path / "m", "tp=1,hbm=600G,engram=device,context=1000000")
    assert j["assumed"] == sum(not r[1].endswith(".scale") for r in rows) and j["asked"]["stages"][0]["weights"] == 510286023000
    j = fit(baleen, tmp_path / "m", "tp=1,hbm=600G")
    assert j["asked"]["stages"][0]["weights"] == 307527990600 and j["asked"]["host"] == 202758032400
    caches = [fit(baleen, tmp_path / "m", f"tp=1,hbm=600G,context={n}")["asked"]["stages"][0]["cache"] for n in (128, 1280)]
    assert caches[1] - caches[0] == 1152 * 890
    j = fit(baleen, tmp_path / "m", "hbm=141GiB")
    least = next(x for x in j["layouts"] if x["fits"])
    assert least["devices"] == 4 and j["memory"] == 141 << 30
    j = fit(baleen, tmp_path / "m", "tp=4,hbm=60G", rc=1)
    assert not j["asked"]["fits"] and j["asked"]["ep"] == 4
    r = baleen("inspect", tmp_path / "m", "--fit", "tp=4,hbm=60G")
    assert r.rc == 1 and re.search(r"no: 2\d\.\d{3} GB are missing", r.out) and "tp=8,ep=8,pp=1, 8 devices" in r.out
    r = baleen("inspect", tmp_path / "m", "--fit", "tp=8,hbm=141G")
    assert r.rc == 0 and re.search(r"yes: 9\d\.\d{3} GB remain", r.out) and "--tp 8 --ep 8 --pp 1 --engram shared" in r.out


def test_one_rank_is_what_the_server_plans(baleen, tmp_path):
    assert baleen("synth", tmp_path / "m", "--preset", "full", "--headers").rc == 0
    have = fit(baleen, tmp_path / "m", "tp=1,hbm=900G,drop=dspark,context=200000,batch=8")["asked"]["stages"][0]
    r = run("baleend", tmp_path / "m", "--plan", "--device", "cuda", "--memory", "900GB", "--max-requests", 8, "--max-context", 200000,
            "--engram", "host", "--json")
    plan = json.loads(r.out)
    lines = {line["what"]: line["bytes"] for line in plan["lines"] if line["place"] == "device"}
    assert abs(have["weights"] - lines["weights"]) < 1e-4 * have["weights"]
    assert 0 <= plan["cache"]["bytes"] - 8 * have["cache"] < 0.01 * plan["cache"]["bytes"]  # and a page for each sequence and source
    assert have["scratch"] == plan["total"]["device"] + plan["reserve"] - lines["weights"] - plan["cache"]["bytes"]
    small = fit(baleen, tmp_path / "m", "tp=8,hbm=900G,drop=dspark,context=200000,batch=8")["asked"]["stages"][0]
    assert small["scratch"] < have["scratch"] and small["cache"] == have["cache"]


def test_stages_need_the_sources_they_attend_to(baleen, source):
    """Entries of a source on an earlier stage are kept again; windows are not."""
    whole = fit(baleen, source, "tp=1,hbm=9G,context=6400")["asked"]["stages"][0]["cache"]
    parts = [s["cache"] for s in fit(baleen, source, "tp=1,pp=2,hbm=9G,context=6400")["asked"]["stages"]]
    assert all(p < whole for p in parts) and sum(parts) > whole
    c = json.loads((source / "config.json").read_text())["text_config"]  # layers 4 to 7 attend to 2 and 5, layers 0 to 3 to 2 alone
    d, i = c["head_dim"], c["index_head_dim"]
    assert parts[1] - parts[0] == 6400 * (d // 2 + d // 16 + i // 2 + i // 32)


def test_memory_is_the_limit_to_the_byte(baleen):
    need = fit(baleen, DEMO, "tp=1,hbm=9G,reserve=0,context=640,batch=3")["asked"]["stages"][0]
    least = need["weights"] + need["scratch"] + 3 * need["cache"]
    assert fit(baleen, DEMO, f"tp=1,hbm={least},reserve=0,context=640,batch=3")["asked"]["sequences"] == 3
    assert fit(baleen, DEMO, f"tp=1,hbm={least - 1},reserve=0,context=640,batch=3", rc=1)["asked"]["stages"][0]["remains"] == -1
    assert fit(baleen, DEMO, f"tp=1,hbm={least + 4},reserve=5,context=640,batch=3", rc=1)["asked"]["sequences"] == 2


def test_earlier_generations_by_weights_alone(baleen, tmp_path):
    items, config = gens.v3()
    folder = ckpt.write_folder(tmp_path / "v3", items, DEMO)
    (folder / "config.json").write_text(json.dumps(config))
    j = fit(baleen, folder, "tp=1,hbm=9G")
    total = sum(len(d) for _, _, d in items.values())
    assert not j["cache_known"] and j["asked"]["stages"][0]["weights"] == total and j["asked"]["stages"][0]["cache"] == 0
    experts = sum(len(d) for n, (_, _, d) in items.items() if ".experts." in n and "layers.3." not in n)
    halves = fit(baleen, folder, "ep=2,hbm=9G")["asked"]["stages"][0]
    assert halves["classes"]["routed experts"] * 2 == experts
    stages = fit(baleen, folder, "pp=3,hbm=9G")["asked"]["stages"]
    assert sum(s["weights"] for s in stages) == total
    assert j["estimate"] and not fit(baleen, DEMO, "hbm=9G")["estimate"]
    for keys in ("tp=2,hbm=9G", "hbm=9G"):
        assert "note: an estimate, of weights alone" in baleen("inspect", folder, "--fit", keys).out
        assert "estimate" not in baleen("inspect", DEMO, "--fit", keys).out
    for f in folder.glob("*.safetensors"):
        f.unlink()
    r = baleen("inspect", folder, "--fit", "tp=1,hbm=9G")
    assert r.rc == 3 and "only the shards' headers" in r.err


@pytest.mark.parametrize("text", ["tp=8", "hbm=0", "hbm=9G,tp=0", "hbm=9G,batch", "hbm=9G,engram=disk", "hbm=9G,cards=8", "", "hbm=9G,,",
                                  "hbm=9G,context=9999999999", "hbm=9G,tp=9999"])
def test_wrong_usage(baleen, text):
    r = baleen("inspect", DEMO, "--fit", text)
    assert r.rc == 2 and r.err.count("\n") == 1, r.err


def test_impossible_layouts_are_named(baleen):
    r = baleen("inspect", DEMO, "--fit", "tp=3,hbm=9G")
    assert r.rc == 2 and "--tp can be" in r.err
    assert baleen("inspect", DEMO, "--fit", "tp=1,hbm=9G", "--tensor", "x").rc == 2
