"""baleen synth: the released layout at any shape, with numbers a model can run on."""
import hashlib
import json

import numpy as np
import pytest

import ckpt
import headers


def synth(baleen, out, *args):
    r = baleen("synth", out, *args)
    assert r.rc == 0 and r.err == "", r.err
    return out


@pytest.mark.parametrize("preset", ["nano", "tiny", "small"])
def test_same_layout_as_the_oracle(baleen, make_checkpoint, tmp_path, preset):
    want, have = ckpt.tensors(make_checkpoint(preset)), ckpt.tensors(synth(baleen, tmp_path / "s", "--preset", preset))
    assert {n: t[:2] for n, t in have.items()} == {n: t[:2] for n, t in want.items()}
    for name in have:
        if name.endswith(".scale"):
            s = np.frombuffer(have[name][2], np.uint8)
            assert s.min() > 60 and s.max() < 135
        elif name.endswith(".weight") and have[name][0] in ("F8_E4M3", "I8") and ".embed." not in name:
            a, b = (np.frombuffer(ckpt.decode(name, t), np.uint16).astype(np.uint32) << 16 for t in (have, want))
            a, b = a.view(np.float32), b.view(np.float32)
            assert np.isfinite(a).all() and abs(a.std() / b.std() - 1) < 0.12, name


def test_seed_decides_the_bytes_and_threads_do_not(baleen, tmp_path):
    def digest(out):
        return [hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(out.iterdir())]

    a = digest(synth(baleen, tmp_path / "a", "--jobs", "1"))
    assert a == digest(synth(baleen, tmp_path / "b", "--jobs", "5"))
    assert a != digest(synth(baleen, tmp_path / "c", "--seed", "2"))
    flat = lambda p: ckpt.tensors(p)
    assert flat(tmp_path / "a") == flat(synth(baleen, tmp_path / "d", "--shards", "7"))
    assert len(list((tmp_path / "d").glob("*.safetensors"))) == 7
    index = json.loads((tmp_path / "d" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in flat(tmp_path / "d").values())


@pytest.mark.parametrize("args", [
    [], ["num_hidden_layers=11"], ["n_routed_experts=3", "num_experts_per_tok=3", "hidden_size=96", "num_nextn_predict_layers=0"],
    ["engram_layer_ids=[2]", "sliding_window=24", "vocab_size=900"], ["engram_layer_ids=[]"]])
def test_the_oracle_runs_it(baleen, shared, tmp_path, args):
    import model

    m = model.Model(str(synth(baleen, tmp_path / "s", "--preset", "nano", *args)))  # checks Engram classes and rows too
    ids = [int(i) for i in np.random.default_rng(1).integers(3, 300, 24)]
    logits, _ = m.forward(ids)
    assert np.isfinite(logits).all() and 0.3 < logits.std() < 3 and len(set(logits.argmax(1).tolist())) > 8


def test_headers_alone(baleen, tmp_path):
    whole, hollow = synth(baleen, tmp_path / "a", "--preset", "nano"), synth(baleen, tmp_path / "b", "--preset", "nano", "--headers")
    for f in whole.iterdir():
        g = hollow / f.name
        assert g.stat().st_size == f.stat().st_size
        if f.suffix == ".safetensors":
            n = ckpt.header(f)[1]
            assert g.read_bytes()[:n] == f.read_bytes()[:n] and not any(g.read_bytes()[n:])
            assert g.stat().st_blocks * 512 < 8192 + n
        else:
            assert g.read_bytes() == f.read_bytes()


def test_full_shape_is_the_released_one(baleen, shared, tmp_path):
    out = synth(baleen, tmp_path / "s", "--preset", "full", "--headers", "--shards", "5")
    rows = headers.released(shared / "data" / "tensor_inventory.json")
    want = {n: (d, s) for _, n, d, s in rows if not n.startswith(("vision.", "aligner.", "image_"))}
    have = {}
    for f in out.glob("*.safetensors"):
        have.update({n: (t["dtype"], t["shape"]) for n, t in ckpt.header(f)[0].items()})
    assert have == want
    released = json.loads((shared / "data" / "config.json").read_text())["text_config"]
    made = json.loads((out / "config.json").read_text())["text_config"]
    differing = {k for k in released if made.get(k, released[k]) != released[k]}
    assert differing <= {"engram_compressed_vocab_size", "dspark_noise_token_id"}  # of the tokenizer


def test_converts_and_opens(baleen, tmp_path):
    src = synth(baleen, tmp_path / "s", "--preset", "nano", "--shards", "2")
    for to in ("bf16", "packed"):
        r = baleen("convert", src, tmp_path / to, "--to", to)
        assert r.rc == 0, r.err


def test_tokenizer(baleen, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    for size in (268, 512, 3000):
        out = synth(baleen, tmp_path / str(size), "--preset", "nano", f"vocab_size={size}")
        t = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
        assert t.get_vocab_size() == size
        assert t.token_to_id("<｜begin▁of▁sentence｜>") == 0 and t.token_to_id("<｜User｜>") == size - 8
        text = "The harbour master asks: what is 12 plus 30?\n\n\tNaïve 日本語 🐋 <think>no</think>"
        e = t.encode(text, add_special_tokens=False)
        assert t.decode(e.ids, skip_special_tokens=False) == text
        assert t.token_to_id("</think>") in e.ids
    assert len(e.ids) < 0.8 * len(text.encode())


@pytest.mark.parametrize("args,word", [
    (["nonsense=1"], "nonsense"), (["hidden_size"], "hidden_size"), (["hidden_size=x"], "hidden_size"), (["hidden_size=33"], "hidden_size"),
    (["vocab_size=10"], "vocab_size"), (["num_hidden_layers=2"], "num_hidden_layers"), (["--preset", "huge"], "'huge': it can be nano, tiny, small, wide or full"),
    (["--shards", "0"], "shards"), (["kv_source_layer_ids=[9]"], "kv_source_layer_ids"), (["n_routed_experts=65536", "num_hidden_layers=64"], "experts"),
    (["hidden_size=64", "vocab_size=300", "hidden_size=128"], "'hidden_size': given twice"), (["=3"], "'=3': is not of the form"),
    (["compress_ratios=7"], "compress_ratios"), (["engram_layer_ids=3"], "engram")])
def test_usage(baleen, tmp_path, args, word):
    r = baleen("synth", tmp_path / "s", *args)
    assert r.rc == 2 and r.err.count("\n") == 1 and word in r.err, r.err
    assert not list(tmp_path.iterdir())
