"""convert and merge to an archive: the folder's files in it, the same bytes every time, whole or not there."""
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import tarfile
import time
import zipfile

import pytest

from conftest import BUILD, run
from test_faults import content, faulty, small_disk

KINDS = ["tar", "tar.gz", "tar.zst", "zip"]
TO = ["bf16", "packed"]


@pytest.fixture(scope="module")
def whole(nano, tmp_path_factory):
    d = tmp_path_factory.mktemp("whole")
    for to in TO:
        assert run("baleen", "convert", nano, d / to, "--to", to).rc == 0
    return {to: content(d / to) for to in TO}


def unpack(archive, into):
    into.mkdir()
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as z:
            assert z.testzip() is None
            z.extractall(into)
    else:
        subprocess.run(["tar", "-xf", archive, "-C", into], check=True)
    return content(into)


def order(archive):
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as z:
            return z.namelist()
    if archive.name.endswith("zst"):
        return subprocess.run(["tar", "-tf", archive], check=True, capture_output=True, text=True).stdout.split()
    with tarfile.open(archive) as t:
        return t.getnames()


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_in_an_archive(nano, whole, tmp_path, kind, to):
    if kind == "tar.zst" and not shutil.which("zstd"):
        pytest.skip("no zstd program: reading .tar.zst with tar is NOT tested")
    archive = tmp_path / f"a.{kind}"
    r = run("baleen", "convert", nano, archive, "--to", to)
    assert r.rc == 0 and r.err == "" and str(archive) in r.out, r.err
    assert [p.name for p in tmp_path.iterdir()] == [archive.name]
    assert unpack(archive, tmp_path / "x") == whole[to]
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "x", check=True)
    names = order(archive)
    assert names[0] == "config.json" and names[-1] == "SHA256SUMS"
    weights = [i for i, n in enumerate(names) if n.endswith(".safetensors")]
    assert weights == list(range(weights[0], weights[-1] + 1))
    assert to == "packed" or names.index("model.safetensors.index.json") < weights[0]
    for args in ((), ("--against", nano)):
        r = run("baleen", "verify", archive, *args)
        assert r.rc == 0 and r.err == "", r.err


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_every_time(nano, tmp_path, kind):
    digests = set()
    for i, (jobs, zone, src) in enumerate([(1, "UTC", nano), (7, "Asia/Kolkata", nano), (3, "America/New_York", nano)]):
        archive = tmp_path / f"{i}.{kind}"
        r = run("baleen", "convert", src, archive, "--to", "packed", "--jobs", jobs, env=dict(os.environ, TZ=zone))
        assert r.rc == 0, r.err
        digests.add(hashlib.sha256(archive.read_bytes()).hexdigest())
        time.sleep(1.1 if i == 0 and kind in ("zip", "tar.gz") else 0)  # their times are of seconds
    assert len(digests) == 1


def test_data_of_a_tar_begins_at_pages(nano, tmp_path):
    archive = tmp_path / "a.tar"
    assert run("baleen", "convert", nano, archive, "--to", "packed").rc == 0
    with tarfile.open(archive) as t:
        for m in t:
            assert m.size < 4096 or m.offset_data % 4096 == 0, m.name
            assert (m.uid, m.gid, m.uname, m.gname, m.mtime, m.mode, m.isfile()) == (0, 0, "", "", 0, 0o644, True)


def test_from_archive_to_archive(nano, whole, tmp_path):
    """Both ends: a compressed source read twice, and a compressed result."""
    src = tmp_path / "src.tar.gz"
    with tarfile.open(src, "w:gz", compresslevel=1) as t:
        t.add(nano, "nano")
    for kind in KINDS:
        r = run("baleen", "convert", src, tmp_path / f"a.{kind}", "--to", "packed", "--spill", "0")
        assert r.rc == 0 and r.err.count("\n") == 1, r.err
        assert unpack(tmp_path / f"a.{kind}", tmp_path / kind) == whole["packed"]


def test_around(nano, tmp_path):
    """Cast with its scales, back, packed for ranks, merged: archives all the way."""
    steps = [("convert", nano, "cast.tar.zst", "--to", "bf16", "--save-scales", "--keep", "dspark,vision"),
             ("convert", "cast.tar.zst", "back.tar", "--to", "released"),
             ("convert", "back.tar", "ranks.tar.gz", "--to", "packed", "--tp", "2", "--pp", "2"),
             ("merge", "ranks.tar.gz", "merged.zip")]
    for step in steps:
        r = run("baleen", *step, cwd=tmp_path)
        assert r.rc == 0, r.err
    assert run("baleen", "merge", tmp_path / "ranks.tar.gz", tmp_path / "merged").rc == 0
    assert unpack(tmp_path / "merged.zip", tmp_path / "x") == content(tmp_path / "merged")
    r = run("baleen", "verify", tmp_path / "merged.zip", "--against", nano)
    assert r.rc == 0, r.err


@pytest.mark.parametrize("split", ["pad", "expand1x32", "bf16"])
def test_cuts_inside_blocks_come_back(tmp_path, split):
    """Their values are read again at the end, to be held against the manifest: they must not be dropped before."""
    src, ranks = tmp_path / "src", tmp_path / "ranks.tar.gz"
    assert run("baleen", "synth", src, "--preset", "nano", "moe_intermediate_size=96").rc == 0
    r = run("baleen", "convert", src, ranks, "--to", "packed", "--tp", "2", "--split", split)
    assert r.rc == 0, r.err
    for spill in ("4GiB", "0"):
        r = run("baleen", "merge", ranks, tmp_path / spill, "--spill", spill)
        assert r.rc == 0, r.err
    assert content(tmp_path / "0") == content(tmp_path / "4GiB")
    r = run("baleen", "verify", ranks, "--against", src, "--spill", "0")
    assert r.rc == 0, r.err


def test_receipt(nano, tmp_path):
    archive = tmp_path / "a.zip"
    r = run("baleen", "convert", nano, archive, "--to", "packed", "--json")
    j = json.loads(r.out)
    assert r.rc == 0 and j["archive_bytes"] == archive.stat().st_size and j["destination"] == str(archive)


# ---- refused

@pytest.mark.parametrize("extra, name, words", [
    (["--resume"], "a.tar", "--resume is for folders"),
    (["--link"], "a.tar.zst", "--link is for folders"),
    ([], "a.tar.xz", ".tar.zst and .zip can"),
    ([], "a.7z", "that can be written"),
    ([], "there.tar", "already exists"),
    (["--dry-run"], "there.tar", "already exists"),
    ([], "no/a.tar", "no folder to create it in"),
])
def test_refused(nano, tmp_path, extra, name, words):
    (tmp_path / "there.tar").write_text("mine")
    r = run("baleen", "convert", nano, tmp_path / name, "--to", "packed", *extra)
    assert r.rc in (2, 4) and r.out == "" and r.err.count("\n") == 1 and words in r.err, r.err
    assert [p.name for p in tmp_path.iterdir()] == ["there.tar"] and (tmp_path / "there.tar").read_text() == "mine"


def test_dry_run(nano, tmp_path):
    r = run("baleen", "convert", nano, tmp_path / "a.tar.zst", "--to", "bf16", "--dry-run")
    assert r.rc == 0 and "would write" in r.out and not list(tmp_path.iterdir()), r.err


# ---- whole or not there

@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["write:{}+:EIO", "write:{}+:ENOSPC", "sync:{}:EIO", "rename:{}:EIO", "create:{}:ENOSPC"])
def test_errors_while_writing(nano, tmp_path, kind, fault):
    hit, n, log = 0, 1, tmp_path / "log"
    while True:
        r = faulty(fault.format(n), "convert", nano, tmp_path / f"out.{kind}", "--to", "packed", log=log)
        if not log.exists():
            break
        log.unlink()
        if "cannot sync its parent" in r.err:
            assert r.rc == 4
            os.unlink(tmp_path / f"out.{kind}")
        else:
            assert r.rc == 4 and r.out == "" and r.err.count("\n") == 1 and not list(tmp_path.glob("out*")), r.err
            hit += 1
        n = 2 * n if n < 8 else 2 * n + 1
    assert hit >= 1 and r.rc == 0


@pytest.mark.parametrize("kind", ["tar", "tar.zst"])
@pytest.mark.parametrize("how", ["KILL", "POWER"])
def test_death_at_a_random_change(nano, whole, tmp_path, kind, how):
    seed = int(os.environ.get("BL_SEED", random.randrange(1 << 32)))
    print("BL_SEED =", seed)
    rng, out, died = random.Random(seed), tmp_path / f"out.{kind}", 0
    for n in [1, 2] + [rng.randrange(3, 160) for _ in range(6)]:
        r = faulty(f"change:{n}:{how}", "convert", nano, out, "--to", "packed", "--jobs", rng.choice([1, 4]))
        assert r.rc in (0, -signal.SIGKILL), r.err
        died += r.rc != 0
        if out.exists():  # whole
            assert unpack(out, tmp_path / "x") == whole["packed"]
            shutil.rmtree(tmp_path / "x")
            out.unlink()
        left = [p.name for p in tmp_path.iterdir()]
        assert left in ([], [out.name + ".partial"])
        r = run("baleen", "convert", nano, out, "--to", "packed")
        assert r.rc == 0 and r.err.count("\n") <= len(left), r.err
        assert [p.name for p in tmp_path.iterdir()] == [out.name]
        out.unlink()
    assert died >= 2


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(nano, tmp_path, sig):
    for delay in (0.02, 0.1):
        p = subprocess.Popen([BUILD / "tools/baleen", "convert", nano, tmp_path / "out.tar.gz", "--to", "packed"], stderr=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, text=True)
        time.sleep(delay)
        p.send_signal(sig)
        err = p.communicate(timeout=60)[1]
        assert p.returncode in (0, 4, -sig), err
        left = [f.name for f in tmp_path.iterdir()]
        assert left in ([], ["out.tar.gz"]) or p.returncode == -sig, left
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


def test_a_second_writer(nano, tmp_path):
    import fcntl
    partial = tmp_path / "out.tar.partial"
    partial.mkdir()
    with open(partial / "journal", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        r = run("baleen", "convert", nano, tmp_path / "out.tar", "--to", "packed")
        assert r.rc == 2 and "by another process" in r.err, r.err
    assert run("baleen", "convert", nano, tmp_path / "out.tar", "--to", "packed").rc == 0


def test_a_disk_that_is_too_small(nano, tmp_path):
    with small_disk(tmp_path, "size=1m") as disk:
        for name, words in (("a.tar", "are free"), ("a.zip", "are free"), ("a.tar.zst", "are free")):
            r = run("baleen", "convert", nano, disk / name, "--to", "packed")
            assert r.rc == 4 and words in r.err and not list(disk.iterdir()), r.err
