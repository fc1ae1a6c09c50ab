"""What a packed model's manifest says beyond digests is held against the config, also where SHA256SUMS was made to agree."""
import hashlib
import json
import re
import shutil

import pytest

from conftest import DEMO, run


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    out = tmp_path_factory.mktemp("manifest") / "bare"
    assert run("baleen", "convert", DEMO, out, "--to", "packed", "--drop", "dspark").rc == 0
    return out


def edited(folder, path, edit):
    """A copy with another manifest.json, whose digest is the one in SHA256SUMS."""
    shutil.copytree(folder, path)
    manifest, sums = path / "manifest.json", path / "SHA256SUMS"
    m = json.loads(manifest.read_text())
    edit(m)
    manifest.write_text(json.dumps(m))
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    sums.write_text(re.sub(r"(?m)^[0-9a-f]{64}(?=  manifest\.json$)", digest, sums.read_text()))
    return path


def multiplier(m, layer, i, by):
    values = m["engram"][layer]["multipliers"]
    values[i] = str(int(values[i]) + by)


EDITS = {
    "dropped drafts": (lambda m: m["dropped"].append("dspark"), "lists dspark as dropped, but config.json has 2 draft layers"),
    "rows": (lambda m: m["engram"][1].update(rows=13417), "Engram layer 3: 13417 rows, config.json has 13416"),
    "layer": (lambda m: m["engram"][0].update(layer=2), "Engram layer 2: config.json has layer 1"),
    "a multiplier": (lambda m: multiplier(m, 1, 2, 2), "multipliers of layer 3: not the 4 that the config gives, from number 3 on"),
    "one multiplier fewer": (lambda m: m["engram"][0]["multipliers"].pop(), "multipliers of layer 1: not the 4 that the config gives, from number 4 on"),
    "one multiplier more": (lambda m: m["engram"][0]["multipliers"].append("7"), "from number 5 on"),
    "no Engram": (lambda m: m["engram"].clear(), "lists 0 Engram layers, config.json 2"),
    "one Engram layer fewer": (lambda m: m["engram"].pop(), "lists 1 Engram layer, config.json 2"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_manifest(baleen, demo_packed, tmp_path, what):
    edit, words = EDITS[what]
    model = edited(demo_packed, tmp_path / "m", edit)
    for level in ("2", "3"):
        r = baleen("verify", model, "--level", level)
        assert r.rc == 1 and r.err.count("\n") == 1 and "m/manifest.json: " in r.err and words in r.err, r.err
    assert baleen("verify", model, "--level", "1").rc == 0


def test_what_was_dropped(baleen, bare, tmp_path):
    assert baleen("verify", bare).rc == 0
    r = baleen("verify", edited(bare, tmp_path / "m", lambda m: None))
    assert r.rc == 0 and r.err == "", r.err
