"""Packed models of several ranks: every byte against the rule written again in python, and what verify must see."""
import json
import shutil

import pytest

import ckpt
import ranks
from conftest import DEMO

SHAPE = ["num_hidden_layers=8", "num_attention_heads=8", "o_groups=8", "o_lora_rank=32", "moe_intermediate_size=256",
         "n_routed_experts=16", "dspark_n_routed_experts=8", "vocab_size=1000"]


@pytest.fixture(scope="module")
def source(baleen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "source"
    assert baleen("synth", folder, *SHAPE, "--seed", 7).rc == 0
    return folder


def pack(baleen, src, out, layout, *more):
    r = baleen("convert", src, out, "--to", "packed", *layout.options(), *more)
    assert r.rc == 0, r.err
    return out


LAYOUTS = [dict(tp=1, ep=8), dict(tp=8, pad_vocab=32), dict(tp=2, ep=4, pp=2, pad_vocab=64), dict(tp=4, ep=2, pp=4, pad_vocab=32),
           dict(tp=4, ep=8, pp=2, pad_vocab=32, shared=True), dict(pp=3, pp_layers=[1, 2, 5]), dict(tp=8, ep=8, pad_vocab=128)]


@pytest.mark.parametrize("how", LAYOUTS, ids=str)
def test_every_rank_has_its_part(baleen, source, tmp_path, how):
    layout, want = ranks.Layout(source, **how), ckpt.tensors(source)
    out = pack(baleen, source, tmp_path / "p", layout)
    for rank in range(layout.ranks()):
        have, expected = ranks.held(out, rank), layout.expected(want, rank)
        assert set(have) == set(expected)
        for name, t in expected.items():
            assert have[name] == (t[0], t[1], t[2], t[3], t[4]), (rank, name)
    m = json.loads((out / "manifest.json").read_text())["layout"]
    assert (m["tp"], m["ep"], m["pp"], m["ranks"]) == (layout.tp, layout.ep, layout.pp, layout.ranks())
    r = baleen("verify", out, "--against", source)
    assert r.rc == 0, r.err


def test_digests_add_up(baleen, source, tmp_path):
    whole = pack(baleen, source, tmp_path / "one", ranks.Layout(source))
    want = ranks.value_sums(whole, 1)
    for how in LAYOUTS[1:5]:
        layout = ranks.Layout(source, **how)
        out = pack(baleen, source, tmp_path / "many", layout)
        assert ranks.value_sums(out, layout.ranks()) == want
        shutil.rmtree(out)


def test_one_rank_on_its_node(baleen, source, tmp_path):
    layout = ranks.Layout(source, tp=2, ep=4, pp=2, pad_vocab=32, shared=True)
    out = pack(baleen, source, tmp_path / "p", layout)
    for rank in range(layout.ranks()):
        if rank != 2:
            files = list((out / f"rank-{rank:04d}").iterdir())
            for f in files:
                if not (rank == 0 and f.name.startswith("engram")):
                    f.unlink()
    assert baleen("verify", out, "--rank", 2).rc == 0
    assert baleen("verify", out).rc == 1
    assert baleen("verify", out, "--rank", 3).rc == 1
    r = baleen("verify", out, "--rank", 8)
    assert r.rc == 2 and "no rank 8" in r.err
    assert baleen("verify", source, "--rank", 0).rc == 2
    assert baleen("verify", out, "--rank", 2, "--against", source).rc == 2


def test_a_rank_without_codes(baleen, source, tmp_path):
    """A stage may have nothing but a norm and the head: the config speaks of weights that are elsewhere."""
    out = pack(baleen, source, tmp_path / "p", ranks.Layout(source, pp=2), "--layers", "0", "--drop", "dspark")
    assert baleen("verify", out, "--rank", 1).rc == 0
    assert baleen("verify", out, "--rank", 0).rc == 0 and baleen("verify", out).rc == 0


def flip(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        b = f.read(1)
        f.seek(offset)
        f.write(bytes([b[0] ^ 1]))


def test_damage_is_found_on_its_rank(baleen, source, tmp_path):
    layout = ranks.Layout(source, tp=2, pad_vocab=32)
    out = pack(baleen, source, tmp_path / "p", layout)
    t = next(t for t in ranks.manifest(out, 1)["tensors"] if t["name"] == "layers.3.attn.wo_b.weight")
    flip(out / "rank-0001/layer-03.safetensors", t["offset"] + 5)
    r = baleen("verify", out)
    assert r.rc == 1 and "rank-0001/layer-03.safetensors" in r.err and "layers.3.attn.wo_b.weight" in r.err
    assert "rank-0000" not in r.err
    assert baleen("verify", out, "--rank", 0).rc == 0
    r = baleen("verify", out, "--against", source)
    assert r.rc == 1 and "values differ" in r.err


def rewrite(path, edit):
    """Change a manifest, and what proves it."""
    import hashlib
    m = json.loads(path.read_text())
    edit(m)
    path.write_text(json.dumps(m))
    root = path.parent if path.parent.name[:5] != "rank-" else path.parent.parent
    name = str(path.relative_to(root))
    digest, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    if name != "manifest.json":
        rewrite(root / "manifest.json", lambda g: [f.update(sha256=digest, bytes=size) for f in g["files"] if f["name"] == name])
    lines = (root / "SHA256SUMS").read_text().splitlines()
    (root / "SHA256SUMS").write_text("".join(f"{digest if x[66:] == name else x[:64]}  {x[66:]}\n" for x in lines))


def tensor_of(m, name):
    return next(t for t in m["tensors"] if t["name"] == name)


def set_start(m):
    tensor_of(m, "layers.2.attn.wq_b.weight")["start"][0] = 0


def set_whole(m):
    tensor_of(m, "layers.2.attn.wo_b.scale")["global_shape"][1] += 1


@pytest.mark.parametrize("edit, says", [(set_start, "the layout calls for"), (set_whole, "the layout calls for")])
def test_a_part_in_the_wrong_place(baleen, source, tmp_path, edit, says):
    out = pack(baleen, source, tmp_path / "p", ranks.Layout(source, tp=2, pad_vocab=32))
    rewrite(out / "rank-0001/manifest.json", edit)
    r = baleen("verify", out)
    assert r.rc == 1 and says in r.err, r.err


def test_layouts_that_do_not_fit_the_ranks(baleen, source, tmp_path):
    out = pack(baleen, source, tmp_path / "p", ranks.Layout(source, ep=2, pp=2))
    rewrite(out / "manifest.json", lambda m: m["layout"].update(layers=[3, 5]))
    r = baleen("verify", out)
    assert r.rc == 1 and "is missing on rank" in r.err and "on rank 0" in r.err
    rewrite(out / "manifest.json", lambda m: m["layout"].update(layers=[3, 6]))
    r = baleen("verify", out)
    assert r.rc == 1 and "9 layers, the model has 8" in r.err


def test_copies_that_differ(baleen, source, tmp_path):
    """Two models, each sound: a rank of one among those of the other."""
    layout = ranks.Layout(source, tp=2, pad_vocab=32)
    assert baleen("synth", tmp_path / "other", *SHAPE, "--seed", 8).rc == 0
    a = pack(baleen, source, tmp_path / "a", layout)
    b = pack(baleen, tmp_path / "other", tmp_path / "b", layout)
    shutil.rmtree(a / "rank-0001")
    shutil.copytree(b / "rank-0001", a / "rank-0001")
    sums = dict(reversed(x.split("  ", 1)) for x in (b / "SHA256SUMS").read_text().splitlines())
    mine = dict(reversed(x.split("  ", 1)) for x in (a / "SHA256SUMS").read_text().splitlines())
    mine.update({n: d for n, d in sums.items() if n.startswith("rank-0001/")})
    (a / "SHA256SUMS").write_text("".join(f"{d}  {n}\n" for n, d in mine.items()))
    other = {f["name"]: f for f in json.loads((b / "manifest.json").read_text())["files"]}
    rewrite(a / "manifest.json", lambda m: [f.update(other[f["name"]]) for f in m["files"] if f["name"].startswith("rank-0001/")])
    r = baleen("verify", a)
    assert r.rc == 1 and "differs from the copy in rank-0000" in r.err


@pytest.mark.parametrize("options, says", [
    (["--tp", 16], "--tp can be 1, 2, 4, 8"),
    (["--tp", 8], "--pad-vocab 32 makes them 1024"),
    (["--ep", 3], "it can be 1, 2, 4, 8, 16"),
    (["--ep", 16], "dspark_n_routed_experts"),
    (["--tp", 2, "--ep", 3], "one must divide the other"),
    (["--pp", 9], "only 8 layers"),
    (["--pp-layers", "4,5"], "9 layers, the model has 8"),
    (["--pp-layers", "8,0"], "cannot have 0 layers"),
    (["--pp-layers", "4,4", "--pp", 3], "--pp-layers"),
    (["--pp-layers", "4,x"], "--pp-layers"),
    (["--engram", "no"], "--engram"),
    (["--tp", 5000], "--tp"),
    (["--tp", 64, "--pp", 8, "--ep", 4096], "ranks"),
])
def test_refused_layouts(baleen, source, tmp_path, options, says):
    r = baleen("convert", source, tmp_path / "p", "--to", "packed", *options)
    assert r.rc == 2 and says in r.err and r.err.count("\n") == 1, r.err
    assert not (tmp_path / "p").exists()


def test_a_cut_inside_a_block_names_the_degrees(baleen, tmp_path):
    r = baleen("convert", DEMO, tmp_path / "p", "--to", "packed", "--tp", 2)
    assert r.rc == 2 and "shared_experts.w1.weight" in r.err and "inside a block of 32 rows; --tp can be 1" in r.err


def test_no_rank_options_for_casts(baleen, source, tmp_path):
    r = baleen("convert", source, tmp_path / "p", "--to", "bf16", "--tp", 2)
    assert r.rc == 2 and "--to packed" in r.err


def test_the_runtime_refuses_in_one_line(baleen, source, tmp_path):
    out = pack(baleen, source, tmp_path / "p", ranks.Layout(source, tp=2, pad_vocab=32))
    r = baleen("logits", out, "--ids", "1,2", "--out", tmp_path / "l")
    assert r.rc == 3 and "was packed for 2 ranks" in r.err and r.err.count("\n") == 1


def test_few_file_handles(baleen, source, tmp_path):
    """The soft limit is raised to the hard one; below that, one clear line."""
    import resource
    out = pack(baleen, source, tmp_path / "p", ranks.Layout(source, ep=8, pp=2))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert baleen("verify", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))).rc == 0
    r = baleen("verify", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)))
    assert r.rc == 4 and "open" in r.err and r.err.count("\n") == 1


def test_a_dry_run_prints_the_plan(baleen, source, tmp_path):
    layout = ranks.Layout(source, tp=2, ep=4, pp=2, pad_vocab=32, shared=True)
    r = baleen("convert", source, tmp_path / "p", "--to", "packed", *layout.options(), "--dry-run", "--json")
    assert r.rc == 0 and not (tmp_path / "p").exists(), r.err
    plan = json.loads(r.out)["plan"]
    text = baleen("convert", source, tmp_path / "p", "--to", "packed", *layout.options(), "--dry-run").out
    assert text.startswith("8 ranks: 2 stages of 4 (tp 2, ep 4)") and "residual streams after layer 3" in text
    out = pack(baleen, source, tmp_path / "p", layout)
    classes = {}
    for rank, entry in enumerate(plan["ranks"]):
        m = ranks.manifest(out, rank)
        own = [f for f in m["files"] if "rank" not in f]
        assert entry["rank"] == rank and entry["stage"] == rank // 4 and entry["files"] == len(own)
        assert entry["file_bytes"] == sum((out / f"rank-{rank:04d}" / f["name"]).stat().st_size for f in own)
        assert entry["shared_bytes"] == sum(f["bytes"] for f in m["files"] if "rank" in f)
        held = ranks.held(out, rank)
        assert entry["tensors"] == len(held)
        first = next(t["start"][0] for t in m["tensors"] if t["name"].startswith("layers.") and ".ffn.experts." in t["name"])
        assert entry["first_expert"] == first and entry["experts"] == 4
        for name, t in held.items():
            key = "whole experts" if ".ffn.experts." in name else "Engram rows" if ".engram.embed." in name else \
                "by token" if name in ("embed.weight", "head.weight") else "else"
            n, size = classes.get(key, (0, 0))
            classes[key] = n + 1, size + len(t[4])
    by_rule = {c["rule"]: (c["tensors"], c["bytes"]) for c in plan["classes"]}
    for rule in ("whole experts", "Engram rows", "by token"):
        assert by_rule[rule] == classes[rule]
    assert sum(c[0] for c in by_rule.values()) == sum(c[0] for c in classes.values())
    config = layout.c
    kv = [x for x in config["kv_source_layer_ids"] if config["compress_ratios"][x]]
    users = [(max(s for s in kv if s <= i), i) for i in range(4, 8) if config["compress_ratios"][i]]
    users = [(s, i) for s, i in users if s < 4]
    said = [x for x in plan["crossings"] if x["what"].startswith("compressed")]
    assert [(x["layer"], x["first_user"], x["last_user"], x["users"]) for x in said] == [
        (s, min(i for t, i in users if t == s), max(i for t, i in users if t == s), sum(t == s for t, _ in users))
        for s in sorted({s for s, _ in users})]


@pytest.mark.parametrize("shared", [False, True])
def test_a_dry_run_states_padding(baleen, source, tmp_path, shared):
    """Rows behind the last one of the vocabulary and of Engram tables, as the manifests have them."""
    layout = ranks.Layout(source, tp=2, ep=8, pad_vocab=96, shared=shared)
    args = ["convert", source, tmp_path / "p", "--to", "packed", *layout.options(), "--dry-run"]
    plan, text = json.loads(baleen(*args, "--json").out)["plan"], baleen(*args).out
    out = pack(baleen, source, tmp_path / "p", layout)
    rows = {"embed.weight": layout.c["vocab_size"], "head.weight": layout.c["vocab_size"]}
    rows |= {f"layers.{n}.engram.embed.weight": r for n, r in zip(layout.c["engram_layer_ids"], layout.c["engram_num_embeddings"])}
    want = {}
    for t in ranks.manifest(out, 0)["tensors"]:
        padding = t["global_shape"][0] - rows.get(t["name"], t["global_shape"][0])
        if padding:
            want[t["name"]] = padding, t["shape"][0]
            assert f"padding: {t['name']} has {rows[t['name']]} rows, every part {t['shape'][0]}, so that {padding} row" in text
    assert len(want) == (2 if shared else 4) and text.count("padding: ") == len(want)
    assert {p["tensor"]: (p["padding_rows"], p["rank_rows"]) for p in plan["padding"]} == want


def test_one_stage_has_no_crossings(baleen, source, tmp_path):
    r = baleen("convert", source, tmp_path / "p", "--to", "packed", "--ep", 2, "--dry-run", "--json")
    assert json.loads(r.out)["plan"]["crossings"] == []
