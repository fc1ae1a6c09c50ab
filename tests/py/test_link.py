"""convert --link: source files with Engram tables become files of the packed model."""
import json
import os
import pathlib
import shutil
import tempfile

import pytest

import ranks
from test_merge import same_checkpoint


@pytest.fixture(scope="module")
def source(baleen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("link") / "source"
    assert baleen("synth", folder, "--preset", "nano", "--shards", 5, "--seed", 3).rc == 0
    return folder


def table_files(source):
    where = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    return {f for n, f in where.items() if ".engram.embed." in n}


@pytest.mark.parametrize("options", [[], ["--pp", 2], ["--ep", 2, "--engram", "shared"]], ids=str)
def test_linked_files(baleen, source, tmp_path, options):
    out = tmp_path / "p"
    r = baleen("convert", source, out, "--to", "packed", "--link", *options, "--json")
    assert r.rc == 0 and r.err == "", r.err
    j = json.loads(r.out)
    linked = [p for p in out.glob("rank-*/*.safetensors") if os.stat(p).st_nlink > 1]
    assert {p.name for p in linked} == table_files(source)
    for p in linked:
        assert os.path.samefile(p, source / p.name)
    assert j["linked_files"] == len(linked) and j["linked_bytes"] == sum(p.stat().st_size for p in linked)
    m = ranks.manifest(out, 0)
    assert any(f.get("linked") for f in m["files"]) and not list(out.glob("rank-*/engram-*"))
    for args in ([], ["--against", source], ["--rank", 0]):
        v = baleen("verify", out, *args)
        assert v.rc == 0, v.err
    assert baleen("merge", out, tmp_path / "m").rc == 0
    same_checkpoint(source, tmp_path / "m")
    plain = tmp_path / "plain"
    assert baleen("convert", source, plain, "--to", "packed", *options).rc == 0
    count = len(list(out.glob("rank-*")))
    assert ranks.value_sums(out, count) == ranks.value_sums(plain, count)


def test_copied_where_links_cannot_be(baleen, source):
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(source).st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        out = pathlib.Path(other) / "p"
        r = baleen("convert", source, out, "--to", "packed", "--link")
        assert r.rc == 0 and "is copied, it cannot be linked here" in r.err
        for name in table_files(source):
            assert (out / "rank-0000" / name).read_bytes() == (source / name).read_bytes()
        assert baleen("verify", out, "--against", source).rc == 0


def test_links_of_a_cache_lead_to_the_file(baleen, source, tmp_path):
    """Snapshots are symbolic links: what they name is linked, not they."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for f in source.iterdir():
        (snapshot / f.name).symlink_to(f)
    assert baleen("convert", snapshot, tmp_path / "p", "--to", "packed", "--link").rc == 0
    for name in table_files(source):
        p = tmp_path / "p/rank-0000" / name
        assert not p.is_symlink() and os.path.samefile(p, source / name)


def test_what_is_cut_is_not_linked(baleen, source, tmp_path):
    r = baleen("convert", source, tmp_path / "p", "--to", "packed", "--ep", 2, "--link", "--json")
    assert "note: nothing is linked: no rank has an Engram table" in r.err and r.err.count("\n") == 1
    assert r.rc == 0 and json.loads(r.out)["linked_files"] == 0
    assert baleen("verify", tmp_path / "p", "--against", source).rc == 0


def test_damage_in_a_linked_file_is_found(baleen, source, tmp_path):
    mine = tmp_path / "source"
    shutil.copytree(source, mine)
    assert baleen("convert", mine, tmp_path / "p", "--to", "packed", "--link").rc == 0
    t = next(t for t in ranks.manifest(tmp_path / "p", 0)["tensors"] if t["name"].endswith("engram.embed.weight"))
    name = ranks.manifest(tmp_path / "p", 0)["files"][t["file"]]["name"]
    with open(mine / name, "r+b") as f:
        f.seek(t["offset"] + 3)
        b = f.read(1)
        f.seek(t["offset"] + 3)
        f.write(bytes([b[0] ^ 1]))
    r = baleen("verify", tmp_path / "p")
    assert r.rc == 1 and t["name"] in r.err and name in r.err


def test_only_for_packed_models(baleen, source, tmp_path):
    r = baleen("convert", source, tmp_path / "p", "--to", "bf16", "--link")
    assert r.rc == 2 and "--to packed" in r.err


def test_members_of_archives_are_copied(baleen, source, tmp_path):
    import tarfile
    with tarfile.open(tmp_path / "s.tar", "w") as t:
        t.add(source, "s")
    r = baleen("convert", tmp_path / "s.tar", tmp_path / "p", "--to", "packed", "--link")
    assert r.rc == 0 and "is an archive" in r.err and r.err.count("\n") == 1 and " link" not in r.out, (r.out, r.err)
    assert list((tmp_path / "p").glob("rank-*/engram-*"))
    assert baleen("verify", tmp_path / "p", "--against", source).rc == 0
