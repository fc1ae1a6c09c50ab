"""Weight-sync buckets and deltas in archives: written, proven, shown and applied as the folders are; and names of archives in general."""
import json
import random
import shutil
import signal
import subprocess
import time

import pytest

from conftest import BUILD, DEMO
from test_archives_written import KINDS, unpack
from test_faults import content


@pytest.fixture(scope="module")
def made(baleen, tmp_path_factory):
    """Two states of a small model, their buckets, and the delta between them, as folders."""
    d = tmp_path_factory.mktemp("made")
    for name, seed in (("old", 1), ("new", 2)):
        assert baleen("synth", d / name, "--preset", "nano", "--seed", seed).rc == 0
        assert baleen("bucket", d / name, d / f"{name}.b", "--size", "64KiB").rc == 0
    assert baleen("bucket", d / "new", d / "delta", "--base", d / "old.b").rc == 0
    return d


def test_buckets_in_an_archive(baleen, made, tmp_path):
    for kind in KINDS:
        if kind == "tar.zst" and not shutil.which("zstd"):
            continue
        archive = tmp_path / f"b.{kind}"
        r = baleen("bucket", made / "old", archive, "--size", "64KiB", "--json")
        assert r.rc == 0 and json.loads(r.out)["archive_bytes"] == archive.stat().st_size, r.err
        assert unpack(archive, tmp_path / kind) == content(made / "old.b")
    assert all(p.is_dir() or p.name.startswith("b.") for p in tmp_path.iterdir())


def test_deltas_in_archives(baleen, made, tmp_path):
    """Every side may be an archive, compressed or not, kept as a whole or read twice."""
    for name, source in (("old.tar.gz", "old.b"), ("old.zip", "old.b"), ("delta.tar", "delta")):
        pack(made / source, tmp_path / name)
    r = baleen("bucket", made / "new", tmp_path / "d.zip", "--base", tmp_path / "old.tar.gz", "--spill", "1")
    assert r.rc == 0, r.err
    assert unpack(tmp_path / "d.zip", tmp_path / "d") == content(made / "delta")
    for i, (delta, base) in enumerate((("delta.tar", "old.zip"), ("d.zip", "old.tar.gz"))):
        for dst in (f"n{i}", f"n{i}.tar"):
            r = baleen("bucket", "--apply", tmp_path / delta, tmp_path / base, tmp_path / dst, "--spill", "1")
            assert r.rc == 0, r.err
        assert content(tmp_path / f"n{i}") == content(made / "new.b") == unpack(tmp_path / f"n{i}.tar", tmp_path / f"x{i}")
    r = baleen("bucket", "--apply", tmp_path / "delta.tar", made / "new.b", tmp_path / "no")
    assert r.rc == 3 and "is not the state" in r.err and not (tmp_path / "no").exists()
    r = baleen("bucket", "--apply", tmp_path / "delta.tar", tmp_path / "old.zip", tmp_path / "linked", "--link")
    assert r.rc == 0 and "no files to link" in r.err
    assert not [p for p in tmp_path.iterdir() if "unpacked" in p.name or "partial" in p.name]


def pack(folder, archive):
    """As somebody else would."""
    if archive.suffix == ".zip":
        shutil.make_archive(archive.with_suffix(""), "zip", folder)  # deflated
    else:
        subprocess.run(["tar", "-C", folder, "-cf", archive, *(["-z"] if archive.suffix == ".gz" else []), "."], check=True)
    return archive


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_proven_as_the_folder_is(baleen, made, tmp_path, kind):
    for name in ("old.b", "delta"):
        archive = pack(made / name, tmp_path / f"{name}.{kind}")
        for spill in ("4GiB", "1"):
            there, here = (baleen("verify", p, "--json", "--spill", spill) for p in (made / name, archive))
            assert there.rc == here.rc == 0 and here.err == "", here.err
            a, b = ({k: v for k, v in json.loads(r.out).items() if k not in ("path", "seconds")} for r in (there, here))
            assert a == b
            assert a["files_hashed"] == len(list((made / name).iterdir())) - 1


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_damage_in_an_archive_is_named(baleen, made, tmp_path, kind):
    """What is wrong is named by its place in the archive, at its level, in one line each."""
    copy = shutil.copytree(made / "old.b", tmp_path / "copy")
    first = copy / "bucket-00001.safetensors"
    raw = bytearray(first.read_bytes())
    raw[-1] ^= 1
    first.write_bytes(raw)
    (copy / "bucket-00002.safetensors").unlink()
    shutil.copy(made / "new.b" / "bucket-00003.safetensors", copy / "other.safetensors")
    archive = pack(copy, tmp_path / f"bad.{kind}")
    for spill in ("4GiB", "1"):
        r = baleen("verify", archive, "--spill", spill)
        assert r.rc == 1
        for name, text in (("bucket-00001", "XXH3-128"), ("bucket-00001", "SHA-256"), ("bucket-00002", "cannot open"),
                           ("bucket-00002", "listed in SHA256SUMS"), ("other", "not among the files")):
            assert any(f"{archive}/{name}.safetensors: " in l and text in l for l in r.err.splitlines()), (text, r.err)
        assert len(r.err.splitlines()) < 9 and "unpacked" not in r.err
    for args, text in ((["--sign", DEMO / "config.json"], "PEM"), (["--rank", "0"], "for weight sync")):
        r = baleen("verify", archive, *args)
        assert r.rc in (2, 3) and len(r.err.splitlines()) == 1


def test_signed_then_packed(baleen, made, tmp_path):
    key = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", tmp_path / "pub.pem"], check=True)
    copy = shutil.copytree(made / "old.b", tmp_path / "copy")
    archive = pack(copy, tmp_path / "b.tar")
    r = baleen("verify", archive, "--sign", key)
    assert r.rc == 2 and "sign the folder, then pack it" in r.err
    assert baleen("verify", copy, "--sign", key).rc == 0
    archive = pack(copy, tmp_path / "b.tar")
    r = baleen("verify", archive, "--key", tmp_path / "pub.pem")
    assert r.rc == 0 and "signed by" in r.out, r.err


def test_inspect_tells_what_is_in_them(baleen, made, tmp_path):
    about = json.loads((made / "old.b" / "buckets.json").read_text())
    for path in (made / "old.b", pack(made / "old.b", tmp_path / "b.tar.gz")):
        j = json.loads(baleen("inspect", path, "--json").out)
        tensors = [t for b in about["buckets"] for t in b["tensors"]]
        assert (j["kind"], j["buckets"], j["tensors"]) == ("weight-sync buckets", len(about["buckets"]), len(tensors))
        assert j["tensor_bytes"] == sum(t["nbytes"] for t in tensors) == sum(c["bytes"] for c in j["classes"])
        assert j["groups"] == len({t["group"] for t in tensors}) and j["host_owned_tensors"] == len(about["host_owned"])
        assert j["covers_model"] and j["model_tensors"] == len(tensors) + len(about["host_owned"])
        out = baleen("inspect", path).out
        assert "weight-sync buckets" in out and "routed experts" in out and "coverage: sent and kept are all" in out
    delta = json.loads((made / "delta" / "delta.json").read_text())
    for path in (made / "delta", pack(made / "delta", tmp_path / "d.zip")):
        j = json.loads(baleen("inspect", path, "--json").out)
        assert (j["encoding"], j["base"], j["target"]) == ("xor", delta["base"], delta["target"])
        assert j["changed_tensors"] == sum(len(f["tensors"]) for f in delta["files"]) == sum(c["tensors"] for c in j["classes"])
        assert j["stream_bytes"] == sum(f["nbytes"] for f in delta["files"])
        assert delta["base"] in baleen("inspect", path).out


def test_inspect_says_when_tensors_are_missing(baleen, made, tmp_path):
    copy = shutil.copytree(made / "old.b", tmp_path / "copy")
    about = json.loads((copy / "buckets.json").read_text())
    about["host_owned"].pop()
    (copy / "buckets.json").write_text(json.dumps(about))
    r = baleen("inspect", copy)
    assert r.rc == 1 and "are NOT those of the model" in r.out
    r = baleen("inspect", copy, "--json")
    assert r.rc == 1 and json.loads(r.out)["covers_model"] is False


def test_not_taken_for_a_checkpoint(baleen, made, tmp_path):
    """One line says what it is, whoever is asked for something else: no list of what a checkpoint would have."""
    for path in (made / "old.b", pack(made / "old.b", tmp_path / "b.tar"), made / "delta"):
        for args in (["inspect", path, "--check"], ["inspect", path, "--scales"], ["inspect", path, "--fit", "hbm=80GiB"],
                     ["inspect", path, "--tensor", "embed.weight"], ["convert", path, tmp_path / "out", "--to", "bf16"],
                     ["bucket", path, tmp_path / "out"], ["verify", made / "old", "--against", path],
                     ["logits", made / "delta", "--ids", "1", "--out", tmp_path / "out"]):
            r = baleen(*args)
            assert r.rc in (2, 3) and r.out == "" and len(r.err.splitlines()) == 1, (args, r.err)
            assert "weight-sync buckets, no checkpoint" in r.err, (args, r.err)


def test_names_of_archives_in_any_case(baleen, made, tmp_path):
    """An archive's name gives an archive, or a refusal before any work: never a folder."""
    for name in ("a.TAR", "b.Tar.GZ", "c.ZIP"):
        assert baleen("convert", made / "old", tmp_path / name, "--to", "bf16").rc == 0
        assert (tmp_path / name).is_file() and baleen("verify", tmp_path / name).rc == 0
    for name in ("x.tar", "x.TAR.zst", "x.Zip", "x.tgz", "x.7z"):
        r = baleen("synth", tmp_path / name, "--preset", "nano")
        assert r.rc == 2 and "named like an archive" in r.err and not (tmp_path / name).exists()
    for args in (["bucket", made / "old"], ["bucket", made / "new", "--base", made / "old.b"],
                 ["bucket", "--apply", made / "delta", made / "old.b"]):
        r = baleen(*args, tmp_path / "x.TAR.XZ")
        assert r.rc == 2 and "no archive that can be written" in r.err and not (tmp_path / "x.TAR.XZ").exists()
        r = baleen(*args, tmp_path / "a.TAR")
        assert r.rc == 2 and "already exists" in r.err
    r = baleen("bucket", "--apply", made / "delta", made / "old.b", tmp_path / "l.tar", "--link")
    assert r.rc == 2 and "--link is for folders" in r.err


@pytest.mark.parametrize("dst", ["out", "out.tar", "out.tar.gz"])
def test_killed_while_dealing(baleen, made, tmp_path, dst):
    """There is no --resume: at any moment nothing is there that looks complete, and the same command works."""
    rng, out, died = random.Random(11), tmp_path / dst, 0
    whole = content(made / "old.b")
    for _ in range(10):
        p = subprocess.Popen([BUILD / "tools" / "baleen", "bucket", made / "old", out, "--size", "64KiB", "--jobs", "1"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * 0.05)
        p.send_signal(signal.SIGKILL)
        p.wait()
        died += not out.exists()
        if out.exists():
            assert baleen("verify", out).rc == 0
            shutil.rmtree(out) if out.is_dir() else out.unlink()
    assert died
    assert baleen("bucket", made / "old", out, "--size", "64KiB").rc == 0
    assert (content(out) if out.is_dir() else unpack(out, tmp_path / "x")) == whole
    assert not list(tmp_path.glob("*.partial*"))


def test_interrupted_while_dealing(made, tmp_path):
    for sig in (signal.SIGINT, signal.SIGTERM):
        for dst in ("out", "out.zip"):
            p = subprocess.Popen([BUILD / "tools" / "baleen", "bucket", made / "old", tmp_path / dst, "--size", "64KiB", "--jobs", "1"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(0.02)
            p.send_signal(sig)
            err = p.communicate()[1]
            if p.returncode == 0:
                shutil.rmtree(tmp_path / dst) if dst == "out" else (tmp_path / dst).unlink()
            assert p.returncode in (0, 4, -sig) and (not err or "interrupted" in err)
            assert p.returncode == -sig or not list(tmp_path.iterdir())
