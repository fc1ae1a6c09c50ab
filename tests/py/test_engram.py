"""Engram addressing against the oracle: token classes, multipliers, and the digest of the released map."""
import hashlib
import json
import random
import subprocess
import unicodedata

import numpy as np
import pytest
from conftest import BUILD, DEMO, SHARED

DRIVER = BUILD / "tests" / "text_driver"


def classes(path):
    done = subprocess.run([DRIVER, "classes", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ids, count = done.stdout.splitlines()
    return [int(i) for i in ids.split()], int(count)


def test_maps_of_the_small_models(shared, make_checkpoint):
    import engram

    for path in (DEMO, shared / "golden/nano-checkpoint", make_checkpoint("tiny"), make_checkpoint("small")):
        assert classes(path / "tokenizer.json") == engram.compressed_map(path / "tokenizer.json")


def test_map_at_the_released_size():
    path = SHARED / "data/tokenizer.reconstructed.json"
    if not path.exists():
        pytest.skip(f"no {path}: the released token map is NOT checked")
    ids, count = classes(path)
    assert count == 99092
    assert hashlib.sha256(np.array(ids, np.int32).tobytes()).hexdigest() == \
        "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"


def odd_texts(rng):
    known = [chr(c) for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    yield from known
    blanks = " \t\r\n\x0b\x0c\x1c\x1f\x85\u00a0\u1680\u2003\u2028\u3000"
    for _ in range(4000):
        yield "".join(rng.choice(known) for _ in range(rng.randrange(2, 6)))
        yield "".join(rng.choice(blanks + "aÄ\u0301") for _ in range(rng.randrange(1, 6)))
        yield rng.choice(["é", "É", "e\u0301", "ﬁ", "FI", "ｆｉ", "İ", "i", "ẞ", "ss", "Σ", "ς", "ǅ", "Ⅷ", "viii", "ﷺ", "㍿"]) + rng.choice(["", " ", "\u0301"])


def test_normalisation_of_every_known_code_point(shared, tmp_path):
    import engram

    file = json.loads((DEMO / "tokenizer.json").read_text())
    base = max([a["id"] for a in file["added_tokens"]] + list(file["model"]["vocab"].values())) + 1
    taken = set(file["model"]["vocab"]) | {a["content"] for a in file["added_tokens"]}
    texts = [t for t in dict.fromkeys(odd_texts(random.Random(3))) if t not in taken]
    like = dict(file["added_tokens"][0])
    file["added_tokens"] += [{**like, "id": base + i, "content": t} for i, t in enumerate(texts)]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    got, want = classes(path), engram.compressed_map(path)
    different = [texts[i - base] for i, (a, b) in enumerate(zip(got[0], want[0])) if a != b]
    assert not different, f"first of {len(different)}: {different[0]!r}"
    assert got == want


def test_multipliers():
    rows = [(n, layer, k) for n in (1, 4, 7) for layer in (0, 1, 2, 14, 39, 1000) for k in (1, 2, 3, 300, 99092, 500000, 2**29)]
    done = subprocess.run([DRIVER, "multipliers"], input="".join("%d %d %d\n" % r for r in rows), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (n, layer, k), line in zip(rows, done.stdout.splitlines()):
        bound = max(1, (np.iinfo(np.int64).max // k) // 2)
        want = np.random.default_rng(10007 * layer).integers(0, bound, size=(n,), dtype=np.int64) * 2 + 1
        assert [int(x) for x in line.split()] == want.tolist()
