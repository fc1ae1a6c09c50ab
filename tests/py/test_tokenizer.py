"""Our tokenizer against the reference implementation (PyPI `tokenizers`) on random text."""
import json
import random
import subprocess
import unicodedata

import pytest
from conftest import BUILD, DEMO, SHARED

tokenizers = pytest.importorskip("tokenizers", reason="PyPI tokenizers is absent: the tokenizer is NOT compared with the reference")
DRIVER = BUILD / "tests" / "text_driver"


def ours(path, texts, *flags):
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    done = subprocess.run([DRIVER, "encode", path, *flags], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[int(i) for i in line.split()] for line in done.stdout.split("\n")[:-1]]


def files():
    out = [DEMO / "tokenizer.json"]
    for p in (SHARED / "golden/nano-checkpoint/tokenizer.json", SHARED / "data/tokenizer.reconstructed.json"):
        if p.exists():
            out.append(p)
    return out


POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCxyz 'st 're-_.,;:!?()[]{}<>|\\/\"#$%&*+=@^`~", " \t\n\r\x0b\x0c\x1c\x85\u00a0\u2028\u3000\u200b\ufeff",
    "0123456789\u0660\u0669\u00b2\u2167\u216b\uff11", "é\u0301e\u0308\u093e\u0903\u20dd", "一龥中文混合日本語ーテスト・゠゛ぁん", "👩\u200d👧\ufe0f🌍🚀🇫🇷🏽",
    "｜▁<>", "\u0430\u0411\u03a3\u03c3\u05d0\u0627\u0e01\u1100\uac00\U00010400\U0001d400\ue000\U000e0001\U0010ffff",
]
WORDS = ["<think>", "</think>", "｜DSML｜", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|EOT|>", "the ", "don't", "\r\n", "    ",
         "3.14159", "Hello", " world", "<dsml:", "</dsml:", "<｜", "｜>"]


def soup(rng):
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.random()
        if kind < 0.2:
            parts.append(rng.choice(WORDS))
        elif kind < 0.35:
            parts.append(rng.choice(rng.choice(POOLS)) * rng.randrange(1, 80))
        elif kind < 0.45:
            cp = rng.choice([rng.randrange(0x110000), rng.randrange(0x3000)])
            parts.append("" if unicodedata.category(chr(cp)) in ("Cn", "Cs") else chr(cp))
        else:
            pool = rng.choice(POOLS)
            parts.append("".join(rng.choice(pool) for _ in range(rng.randrange(1, 20))))
    return "".join(parts)


def compare(path, texts):
    reference = tokenizers.Tokenizer.from_file(str(path))
    got = ours(path, texts)
    assert len(got) == len(texts)
    for text, ids in zip(texts, got):
        want = reference.encode(text, add_special_tokens=False).ids
        assert ids == want, f"{text!r}: {ids} instead of {want}"


def test_random_text():
    rng = random.Random(7)
    for path in files():
        compare(path, [soup(rng) for _ in range(5000)])


def test_every_code_point():
    """Each assigned one alone, between letters and after a blank: the classes of both regex engines must agree. Code points that
    this Python's tables do not know yet are left out, since the engines' tables are of different years."""
    texts = []
    known = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs") and (c < 0x30000 or c % 97 == 0)]
    for start in range(0, len(known), 16):
        chars = known[start:start + 16]
        texts += [" ".join(chars), "a".join(chars), "".join(c + " x" for c in chars), "\n".join(chars), "".join(chars)]
    compare(files()[-1], texts)


def test_long_runs_are_not_quadratic():
    path = files()[-1]
    texts = [c * 200000 for c in "a= \n中1"] + ["ab" * 100000, "\r\n" * 100000, "a\u0301" * 100000, "👩\u200d" * 50000]
    compare(path, texts)


def test_text_mode_ignores_added_tokens():
    """With added tokens off, no control id can come out of any text."""
    for path in files():
        added = {a["id"] for a in json.load(open(path))["added_tokens"]}
        for ids in ours(path, WORDS + ["x<｜User｜>y</think>"], "plain"):
            assert not added & set(ids)


def test_decode_is_the_inverse():
    rng = random.Random(8)
    for path in files():
        texts = [soup(rng) for _ in range(2000)]
        lines = "".join(" ".join(map(str, ids)) + "\n" for ids in ours(path, texts))
        done = subprocess.run([DRIVER, "decode", path], input=lines, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [bytes.fromhex(x).decode() for x in done.stdout.split("\n")[:-1]] == texts


def test_decode_replaces_like_python():
    """Random ids: broken sequences become U+FFFD exactly where the reference puts them."""
    rng = random.Random(9)
    for path in files():
        vocab = json.load(open(path))["model"]["vocab"]
        alphabet = {i: t for t, i in vocab.items() if len(t) <= 2}
        ids = list(alphabet)
        rows = [[rng.choice(ids) for _ in range(rng.randrange(1, 30))] for _ in range(5000)]
        done = subprocess.run([DRIVER, "decode", path], input="".join(" ".join(map(str, r)) + "\n" for r in rows),
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        reference = tokenizers.Tokenizer.from_file(str(path))
        for row, hexa in zip(rows, done.stdout.split("\n")):
            assert bytes.fromhex(hexa).decode() == reference.decode(row, skip_special_tokens=False)
