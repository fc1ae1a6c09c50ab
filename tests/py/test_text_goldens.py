"""The text side against recorded ids: token goldens of the released vocabulary, the demo model's conversations and greedy outputs."""
import json
import subprocess

import pytest
from conftest import BUILD, DEMO, SHARED
from safetensors import safe_open

DRIVER = BUILD / "tests" / "text_driver"


def ask(*args, lines):
    done = subprocess.run([DRIVER, *args], input="".join(line + "\n" for line in lines), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def ids_of(path, texts):
    return [[int(i) for i in line.split()] for line in ask("encode", path, lines=map(json.dumps, texts))]


def test_released_vocabulary():
    path, golden = SHARED / "data/tokenizer.reconstructed.json", SHARED / "data/token_goldens.json"
    if not path.exists():
        pytest.skip(f"no {path}: the released vocabulary is NOT checked")
    golden = json.loads(golden.read_text())
    prompts = {e["id"]: e["prompt"] for e in json.loads((SHARED / "data/encoding_examples.json").read_text())}
    pairs = [(s["text"], s["ids"]) for s in golden["strings"]] + [(prompts[e["id"]], e["ids"]) for e in golden["examples"]]
    assert ids_of(path, [p[0] for p in pairs]) == [p[1] for p in pairs]


def test_demo_conversations(shared):
    with safe_open(shared / "golden/demo.safetensors", "np") as f:
        prompts = json.loads(f.metadata()["prompts"])
        want = [f.get_tensor(f"{i}.ids").tolist() for i in range(len(prompts))]
    assert ids_of(DEMO / "tokenizer.json", prompts) == want


def test_demo_greedy(shared):
    rows = json.loads((shared / "golden/demo_greedy.json").read_text())
    assert ids_of(DEMO / "tokenizer.json", [r["prompt"] for r in rows]) == [r["prompt_ids"] for r in rows]
    decoded = ask("decode", DEMO / "tokenizer.json", lines=[" ".join(map(str, r["output_ids"])) for r in rows])
    assert [bytes.fromhex(h).decode() for h in decoded] == [r["text"] for r in rows]
    starts = ["think" if r["prompt"].endswith("<think>") else "answer" for r in rows]
    got = ask("parse", DEMO / "tokenizer.json", lines=[s + " " + " ".join(map(str, r["output_ids"])) for s, r in zip(starts, rows)])
    eos, calls = "<｜end▁of▁sentence｜>", 0
    for start, row, line in zip(starts, rows, got):
        message, text = json.loads(line), row["text"].removesuffix(eos)
        assert (message["reasoning"], "</think>") == text.partition("</think>")[:2] if start == "think" else message["reasoning"] == ""
        rest = text.partition("</think>")[2] if start == "think" else text
        content, _, block = rest.partition("\n\n<｜DSML｜ calls>")
        assert message["content"] == content
        assert len(message["calls"]) == block.count("<｜DSML｜ invoke name=")
        calls += len(message["calls"])
    assert calls > 0
