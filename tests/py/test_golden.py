"""The forward pass against the released reference code: layer by layer on golden inputs, end to end, one token at a time; and the
same bits however the work is cut."""
import json

import numpy as np
import pytest

import ckpt
import golden
from conftest import DEMO, ROOT, SHARED

NANO = ROOT / "tests" / "data" / "nano"


def id_list(ids):
    return ",".join(str(int(i)) for i in ids)


class Case:
    """A checkpoint, its golden file and what is in it."""

    def __init__(self, name, baleen, folder, path, kl):
        self.name, self.baleen, self.folder, self.path, self.kl = name, baleen, folder, path, kl
        self.golden = golden.read(path)
        self.ids = self.golden["ids"].tolist()

    def logits(self, tmp_path, *args, sequences=None):
        out = tmp_path / "logits.safetensors"
        given = [a for s in sequences or [self.ids] for a in ("--ids", id_list(s))]
        r = self.baleen("logits", self.folder, *given, "--out", out, *args)
        assert r.rc == 0, r.err
        return golden.read(out)


@pytest.fixture(scope="session")
def nano_golden(tmp_path_factory):
    path = tmp_path_factory.mktemp("nano") / "nano.safetensors"
    ckpt.write_file(path, ckpt.tensors(NANO / "golden"))
    return path


@pytest.fixture(params=["nano", "tiny", "small"])
def case(request, baleen, nano_golden):
    if request.param == "nano":
        return Case("nano", baleen, NANO / "checkpoint", nano_golden, 1.5e-4)
    shared = request.getfixturevalue("shared")
    folder = request.getfixturevalue("make_checkpoint")(request.param, seed=1)
    return Case(request.param, baleen, folder, shared / "golden" / f"{request.param}.safetensors", 3e-3)


@pytest.fixture
def nano(baleen, nano_golden):
    return Case("nano", baleen, NANO / "checkpoint", nano_golden, 1.5e-4)


def test_layer_by_layer(case, tmp_path):
    trace = tmp_path / "trace.safetensors"
    case.logits(tmp_path, "--inject", case.path, "--trace", trace)
    got = golden.read(trace)
    assert golden.layer_failures(got, case.golden) == []
    dtypes, want = ckpt.header(trace)[0], ckpt.header(case.path)[0]
    assert all(dtypes[n]["dtype"] == want[n]["dtype"] and len(dtypes[n]["shape"]) == len(want[n]["shape"]) for n in dtypes)


def test_end_to_end(case, tmp_path):
    kl, gap, top = golden.distance(case.logits(tmp_path)["logits"], case.golden["logits"])
    assert kl < case.kl and gap < 0.05 and top > 0.9


def test_last_positions_one_token_at_a_time(case, tmp_path):
    want = case.golden["decode.logits"]
    kl, gap, top = golden.distance(case.logits(tmp_path, "--chunk", 1)["logits"][-len(want):], want)
    assert kl < case.kl and gap < 0.05 and top > 0.9


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("how", [("--threads", 1), ("--threads", 2), ("--cpu", "c"), ("--cpu", "native")], ids=lambda h: "".join(map(str, h)))
def test_cuts_threads_and_levels_give_the_same_bits(case, tmp_path, chunk, how):
    if case.name == "small" and how == ("--cpu", "c") and chunk != 7:
        pytest.skip("one cut is enough for the slow reference kernels at this size")
    want = case.logits(tmp_path)["logits"]
    got = case.logits(tmp_path, "--chunk", chunk, *how)["logits"]
    assert (golden.bits(got) == golden.bits(want)).all()


@pytest.mark.parametrize("level", ["avx2", "avx512", "avx512bf16", "neon"])
def test_every_level_gives_the_same_bits(case, tmp_path, level):
    probe = case.baleen("logits", case.folder, "--ids", "1", "--out", tmp_path / "one.safetensors", "--cpu", level)
    if probe.rc == 2 and f"--cpu {level}: this CPU does not have it" in probe.err:
        pytest.skip(probe.err.strip())
    want = case.logits(tmp_path)["logits"]
    for chunk in (7, 64):
        got = case.logits(tmp_path, "--chunk", chunk, "--cpu", level)["logits"]
        assert (golden.bits(got) == golden.bits(want)).all()


@pytest.mark.parametrize("chunk", ["all", 5])
def test_company_in_the_batch_changes_no_bit(case, tmp_path, chunk):
    ids = case.ids
    sequences = [ids[:11], ids, ids[5:40], ids[:1], ids[::-1], ids]
    together = case.logits(tmp_path, *([] if chunk == "all" else ["--chunk", chunk]), sequences=sequences)
    for i, s in enumerate(sequences):
        alone = case.logits(tmp_path, sequences=[s])["logits"]
        assert (golden.bits(together[f"logits.{i}"]) == golden.bits(alone)).all()


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_batches_of_every_size(nano, tmp_path, count):
    """Prompts of different lengths, at once, in chunks and step by step; steps become fewer as sequences end."""
    ids = nano.ids
    sequences = [ids[i % 9:i % 9 + 5 + i % 11] for i in range(count)]
    alone = {id_list(s): golden.bits(nano.logits(tmp_path, sequences=[s])["logits"]) for s in sequences[:40]}
    for chunk in ([], ["--chunk", 3], ["--chunk", 1]):
        together = nano.logits(tmp_path, *chunk, sequences=sequences)
        for i, s in enumerate(sequences):
            got = together["logits" if count == 1 else f"logits.{i}"]
            if id_list(s) in alone:
                assert (golden.bits(got) == alone[id_list(s)]).all(), (i, chunk)


@pytest.mark.parametrize("chunk", [[], ["--chunk", 7], ["--chunk", 1]], ids=str)
def test_a_hundred_times_the_same(nano, tmp_path, chunk):
    ids = nano.ids[:20]
    want = golden.bits(nano.logits(tmp_path, sequences=[ids])["logits"])
    for _ in range(2):
        together = nano.logits(tmp_path, *chunk, sequences=[ids] * 100)
        assert all((golden.bits(together[f"logits.{i}"]) == want).all() for i in range(100))


def test_a_prompt_longer_than_a_pass(nano, tmp_path):
    """More tokens than one pass takes, and more than fit a page of entries many times over."""
    ids = (nano.ids * 20)[:1100]
    whole = nano.logits(tmp_path, sequences=[ids, ids[:700]])
    cut = nano.logits(tmp_path, "--chunk", 333, sequences=[ids])["logits"]
    assert (golden.bits(whole["logits.0"]) == golden.bits(cut)).all()
    assert (golden.bits(whole["logits.1"]) == golden.bits(cut[:700])).all()
    for chunk in (8, 64, 300):
        assert (golden.bits(nano.logits(tmp_path, "--chunk", chunk, sequences=[ids[:700]])["logits"]) == golden.bits(cut[:700])).all()


def test_ids_from_a_file(nano, tmp_path):
    file = tmp_path / "ids.txt"
    file.write_text("\n".join(map(str, nano.ids)) + "\n")
    r = nano.baleen("logits", nano.folder, "--ids-file", file, "--out", tmp_path / "f.safetensors")
    assert r.rc == 0, r.err
    got = golden.read(tmp_path / "f.safetensors")["logits"]
    assert (golden.bits(got) == golden.bits(nano.logits(tmp_path)["logits"])).all()


@pytest.mark.parametrize("args, rc, word", [
    (["--ids", "1,2,x"], 2, "--ids"), (["--ids", ""], 2, "--ids"), (["--ids", "1 2 99999999999"], 2, "--ids"),
    (["--ids", "1,,2"], 2, "--ids"), (["--ids", ",1"], 2, "--ids"), (["--ids", "512"], 2, "512"), (["--ids", "-1"], 2, "--ids"),
    ([], 2, "--ids"), (["--ids-file", "/nowhere"], 3, "/nowhere"),
    (["--ids", "1", "--ids", "2", "--trace", "t"], 2, "one sequence"), (["--ids", "1", "--threads", "-3"], 2, "--threads"),
    (["--ids", "1", "--inject", str(NANO / "golden" / "2.safetensors")], 2, "ids"),
    (["--ids", "1", "--inject", str(NANO / "golden" / "1.safetensors")], 3, "ids")])
def test_wrong_requests_are_one_line(nano, tmp_path, args, rc, word):
    out = tmp_path / "x.safetensors"
    r = nano.baleen("logits", nano.folder, *args, "--out", out)
    assert r.rc == rc and r.err.count("\n") == 1 and word in r.err
    assert not out.exists() and list(tmp_path.iterdir()) == []


def test_one_file_for_two_outputs(baleen, tmp_path):
    r = baleen("logits", "--ids", "1", "--out", tmp_path / "x", "--trace", tmp_path / "x")
    assert r.rc == 2 and "same file" in r.err and list(tmp_path.iterdir()) == []


# ---- the trained model

@pytest.fixture(scope="session")
def demo_golden(shared):
    return golden.read(shared / "golden" / "demo.safetensors")


@pytest.mark.parametrize("k", range(8))
def test_demo_conversations(baleen, demo_golden, tmp_path, k):
    ids, want = demo_golden[f"{k}.ids"], demo_golden[f"{k}.logits"]
    out = tmp_path / "logits.safetensors"
    assert baleen("logits", DEMO, "--ids", id_list(ids), "--out", out).rc == 0
    got = golden.read(out)["logits"]
    kl, _, top = golden.distance(got, want)
    following = (np.arange(len(ids) - 1), ids[1:])
    gap = np.abs(golden.log_softmax(got)[following] - golden.log_softmax(want)[following]).mean()
    assert kl < 1e-3 and gap < 0.005 and top > 0.95


@pytest.mark.skipif(not (SHARED / "golden" / "demo_greedy.json").exists(), reason="no shared material: greedy texts are NOT checked")
@pytest.mark.parametrize("k", range(7))
def test_demo_greedy(baleen, tmp_path, k):
    """Token for token: the best token after each prefix is the next one; and as text through generate."""
    case = json.loads((SHARED / "golden" / "demo_greedy.json").read_text())[k]
    prompt, answer = case["prompt_ids"], case["output_ids"]
    out = tmp_path / "logits.safetensors"
    assert baleen("logits", "--ids", id_list(prompt + answer), "--out", out).rc == 0
    best = golden.read(out)["logits"].argmax(1)[len(prompt) - 1:-1]
    assert best.tolist() == answer
    r = baleen("generate", "--prompt", case["prompt"], "--max-tokens", len(answer))
    assert r.rc == 0 and r.out == case["text"].replace("<｜end▁of▁sentence｜>", "") + "\n"
