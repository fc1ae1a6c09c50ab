"""Random models through random layouts and options, and back. What is right is written again in python (ranks.py), and so is what must
be refused. BL_PROPERTY_CASES sets how many cases of each kind run, BL_PROPERTY_SEED which."""
import json
import os
import random
import shutil

import pytest

import ckpt
import gens
import ranks

CASES, SEED = int(os.environ.get("BL_PROPERTY_CASES", 6)), int(os.environ.get("BL_PROPERTY_SEED", 0))
cases = pytest.mark.parametrize("case", range(CASES))


def generator(kind, case):
    return random.Random(f"{SEED} {kind} {case}")


def call(baleen, *args, rc=0):
    """Run; what is refused is refused in one line and leaves nothing."""
    r = baleen(*args)
    assert r.rc == rc, (args, r.rc, r.err)
    if rc:
        assert r.err.count("\n") == 1, (args, r.err)
    return r


def draw_model(baleen, rng, folder):
    """A random checkpoint in the released layout; its tensors."""
    layers, heads = rng.randrange(4, 8), rng.choice([2, 4, 6, 8])
    groups = rng.choice([g for g in (1, 2, 3, 4, 6, 8) if heads % g == 0])
    lora = rng.choice([r for r in (8, 16, 24, 32, 48, 64, 96) if groups * r % 32 == 0])
    shape = dict(num_hidden_layers=layers, num_attention_heads=heads, o_groups=groups, o_lora_rank=lora, head_dim=rng.choice([32, 64]),
                 hidden_size=rng.choice([32, 64, 96, 160]), moe_intermediate_size=32 * rng.randrange(1, 9),
                 q_lora_rank=rng.choice([32, 64, 96]), vocab_size=rng.randrange(500, 1100), n_routed_experts=rng.choice([2, 3, 4, 6, 8]),
                 dspark_n_routed_experts=rng.choice([2, 4, 6]), num_nextn_predict_layers=rng.choice([0, 1, 2]))
    args = ["--preset", "nano", "--seed", rng.randrange(1000), "--shards", rng.randrange(1, 5), *[f"{k}={v}" for k, v in shape.items()]]
    call(baleen, "synth", folder, *args)
    return ckpt.tensors(folder)


def draw_layout(rng, folder, **more):
    layers = json.loads((folder / "config.json").read_text())
    layers = layers.get("text_config", layers)["num_hidden_layers"]
    pp = rng.choice([1, 1, 2, 3, layers, layers + 1])
    cuts = sorted(rng.sample(range(1, layers), min(pp, layers) - 1))
    stages = [b - a for a, b in zip([0, *cuts], [*cuts, layers])] if pp <= layers and rng.random() < .5 else None
    return ranks.Layout(folder, tp=rng.choice([1, 2, 2, 3, 4, 4, 6, 8]), ep=rng.choice([1, 1, 2, 3, 4]), pp=pp, pp_layers=stages,
                        pad_vocab=rng.choice([0, 0, 8, 32, 32, 64, 128]), shared=rng.random() < .4,
                        split=rng.choice([None, "pad", "expand1x32", "bf16"]), **more)


def allowed(layout):
    """Can a model of these shapes be dealt so?"""
    c, tp, ep = layout.c, layout.tp, layout.ep
    vocab = c["vocab_size"]
    if layout.pad:
        vocab = -(-vocab // (layout.pad * tp)) * layout.pad * tp
    if layout.ranks() == 1:
        return True
    experts = c["n_routed_experts"] % ep == 0 and (not c.get("num_nextn_predict_layers") or c["dspark_n_routed_experts"] % ep == 0)
    if not experts or max(tp, ep) % min(tp, ep) or layout.pp > c["num_hidden_layers"]:
        return False
    if tp == 1:
        return True
    grouped, inner = c["o_groups"] * c["o_lora_rank"], c["moe_intermediate_size"]
    cut = {None: lambda n: n % (32 * tp) == 0, "expand1x32": lambda n: n % tp == 0, "bf16": lambda n: n % tp == 0}
    if layout.split == "pad":
        fits = grouped % (32 * tp) == 0
    else:
        fits = cut[layout.split](grouped) and cut[layout.split](inner)
    return fits and c["num_attention_heads"] % tp == 0 and c["o_groups"] % tp == 0 and vocab % (32 * tp) == 0


def options_of(layout):
    out = layout.options()
    if layout.pp > 1 and not layout.given:
        at = out.index("--pp-layers")
        out[at:at + 2] = ["--pp", layout.pp]
    return out


def draw_allowed(rng, folder, **more):
    while True:
        layout = draw_layout(rng, folder, **more)
        if allowed(layout):
            return layout


def pick(rng, tensors, layout):
    """Options that leave something out, and what is left: (options, tensors, drafts are left)."""
    options, drafts = [], layout.drafts
    if drafts and rng.random() < .25:
        options, drafts = ["--drop", "dspark"], False
        tensors = {n: t for n, t in tensors.items() if not n.startswith("mtp.")}
    if rng.random() < .25:
        layers = sorted(rng.sample(range(layout.c["num_hidden_layers"]), rng.randrange(1, layout.c["num_hidden_layers"])))
        options += ["--layers", ",".join(map(str, layers))]
        tensors = {n: t for n, t in tensors.items() if not n.startswith("layers.") or int(n.split(".")[1]) in layers}
    return options, tensors, drafts


def check_ranks(packed, layout, tensors):
    want, kept = layout.treat(tensors)
    for rank in range(layout.ranks()):
        assert ranks.held(packed, rank) == layout.expected(want, rank), (rank, layout.options())
    saved = packed / "scales.source.st"
    assert (ckpt.tensors(saved) if saved.exists() else {}) == kept


@cases
def test_layouts(baleen, tmp_path, case):
    """Pack, verify, compare, merge; pack again; cast from ranks."""
    rng = generator("layouts", case)
    src, packed, merged = (tmp_path / n for n in ("src", "packed", "merged"))
    tensors = draw_model(baleen, rng, src)
    layout = draw_layout(rng, src)
    if not allowed(layout):
        call(baleen, "convert", src, packed, "--to", "packed", *options_of(layout), rc=2)
        assert not packed.exists() and not (tmp_path / "packed.partial").exists()
        layout = draw_allowed(rng, src)
    less, tensors, layout.drafts = pick(rng, tensors, layout)
    link = ["--link"] if rng.random() < .2 else []
    other = [*link, "--jobs", rng.choice([1, 2, 5]), *(["--no-sha256"] if rng.random() < .2 else [])]
    args = [src, packed, "--to", "packed", *options_of(layout), *less, *other]
    plan = json.loads(call(baleen, "convert", *args, "--dry-run", "--json").out)
    done = json.loads(call(baleen, "convert", *args, "--json").out)
    assert all(plan[k] == done[k] for k in ("tensors", "tensor_bytes", "files", "file_bytes", "actions", "scales_saved"))
    if not link:
        check_ranks(packed, layout, tensors)
    call(baleen, "verify", packed, "--against", src)
    call(baleen, "merge", packed, merged, "--shard-size", rng.choice(["100KB", "1MB", "5GB"]))
    assert ckpt.tensors(merged) == tensors
    call(baleen, "verify", merged, "--against", packed)
    cast, direct = tmp_path / "cast", tmp_path / "direct"
    keep = ["--keep", "dspark"] if layout.drafts else []
    call(baleen, "convert", packed, cast, "--to", "bf16", *keep)
    call(baleen, "convert", merged, direct, "--to", "bf16", *keep)
    assert ckpt.tensors(cast) == ckpt.tensors(direct)
    assert json.loads((cast / "config.json").read_text()) == json.loads((direct / "config.json").read_text())
    call(baleen, "verify", cast, "--against", packed)
    rank = rng.randrange(layout.ranks())
    if not layout.shared:
        for i in range(layout.ranks()):
            if i != rank:
                shutil.rmtree(packed / f"rank-{i:04d}")
        call(baleen, "verify", packed, "--rank", rank)


@cases
def test_from_layout_to_layout(baleen, tmp_path, case):
    """Ranks packed anew, of BF16 models too, and compared across layouts."""
    rng = generator("again", case)
    src, one, two = (tmp_path / n for n in ("src", "one", "two"))
    tensors = draw_model(baleen, rng, src)
    if rng.random() < .4:
        call(baleen, "convert", src, tmp_path / "cast", "--to", "bf16", "--keep", "dspark")
        src, tensors = tmp_path / "cast", ckpt.tensors(tmp_path / "cast")
    first, second = draw_allowed(rng, src), draw_allowed(rng, src)
    call(baleen, "convert", src, one, "--to", "packed", *options_of(first))
    split = json.loads((one / "manifest.json").read_text())["layout"].get("split")
    if split in ("expand1x32", "bf16"):
        call(baleen, "convert", one, two, "--to", "packed", *options_of(second), rc=2)
        call(baleen, "convert", src, two, "--to", "packed", *options_of(second))
    elif rng.random() < .3:
        two = tmp_path / rng.choice(["two.tar", "two.zip"])
        call(baleen, "convert", one, two, "--to", "packed", *options_of(second))
    else:
        call(baleen, "convert", one, two, "--to", "packed", *options_of(second))
    if two.is_dir():
        check_ranks(two, second, tensors)
    call(baleen, "verify", one, "--against", two)
    call(baleen, "verify", two, "--against", src)
    call(baleen, "merge", two, tmp_path / "merged")
    assert ckpt.tensors(tmp_path / "merged") == tensors


@cases
def test_there_and_back(baleen, tmp_path, case):
    """Cast and encoded again: byte for byte under the scales it had, by value without; through ranks too."""
    rng = generator("back", case)
    src, cast = tmp_path / "src", tmp_path / "cast"
    tensors = draw_model(baleen, rng, src)
    saved = rng.random() < .5
    keep = ["--keep", "dspark"] if rng.random() < .7 else []
    call(baleen, "convert", src, cast, "--to", "bf16", *keep, *(["--save-scales"] if saved else []))
    want = {n: t for n, t in tensors.items() if keep or not n.startswith("mtp.")}
    hints = [] if saved else ["--scale-hints", src]
    size = ["--shard-size", rng.choice(["100KB", "1MB", "5GB"])]
    call(baleen, "convert", cast, tmp_path / "back", "--to", "released", *hints, *size)
    assert ckpt.tensors(tmp_path / "back") == want
    if keep or not any(n.startswith("mtp.") for n in tensors):
        assert (tmp_path / "back" / "config.json").read_bytes() == (src / "config.json").read_bytes()
    call(baleen, "convert", cast, tmp_path / "plain", "--to", "released", "--scale-hints", "none")
    call(baleen, "verify", tmp_path / "plain", "--against", src)
    layout = draw_allowed(rng, cast)
    call(baleen, "convert", cast, tmp_path / "ranks", "--to", "packed", *options_of(layout))
    call(baleen, "convert", tmp_path / "ranks", tmp_path / "again", "--to", "released", "--scale-hints", cast if saved else src)
    assert ckpt.tensors(tmp_path / "again") == want
    if rng.random() < .5:
        call(baleen, "convert", src, tmp_path / "rows", "--to", "released", "--fp8-block", "1x32")
        call(baleen, "verify", tmp_path / "rows", "--against", src)
        layout = draw_allowed(rng, tmp_path / "rows")
        layout.split = layout.split and "bf16"
        if allowed(layout):
            call(baleen, "convert", tmp_path / "rows", tmp_path / "rowranks", "--to", "packed", *options_of(layout))
            call(baleen, "verify", tmp_path / "rowranks", "--against", src)
            call(baleen, "merge", tmp_path / "rowranks", tmp_path / "rowsback")
            assert ckpt.tensors(tmp_path / "rowsback") == ckpt.tensors(tmp_path / "rows")
        call(baleen, "convert", tmp_path / "rows", tmp_path / "blocks", "--to", "released", "--fp8-block", "32x32")
        assert ckpt.tensors(tmp_path / "blocks") == tensors


@cases
def test_v4_there_and_back(baleen, tmp_path, case, monkeypatch):
    """DeepSeek-V4 of random widths: partial blocks at both edges."""
    rng = generator("v4", case)
    for key, value in dict(HIDDEN=32 * rng.randrange(1, 13), INTER=32 * rng.randrange(1, 9), EXPERTS=rng.randrange(1, 5),
                           Q_LORA=rng.randrange(1, 300), VOCAB=rng.randrange(1, 90), HEADS=rng.randrange(1, 4)).items():
        monkeypatch.setattr(gens, key, value)
    items, config = gens.v4(seed=case, prefix=rng.choice(["", "model."]))
    src = gens.write(tmp_path / "src", items, config, shards=rng.randrange(1, 4))
    call(baleen, "convert", src, tmp_path / "cast", "--to", "bf16", *(saved := ["--save-scales"] if rng.random() < .5 else []))
    hints = [] if saved else ["--scale-hints", src]
    call(baleen, "convert", tmp_path / "cast", tmp_path / "back", "--to", "released", "--shard-size", rng.choice(["50KB", "5GB"]), *hints)
    assert ckpt.tensors(tmp_path / "back") == items
    assert (tmp_path / "back" / "config.json").read_bytes() == (src / "config.json").read_bytes()
    call(baleen, "convert", tmp_path / "cast", tmp_path / "plain", "--to", "released", "--scale-hints", "none")
    call(baleen, "verify", tmp_path / "plain", "--against", src)
