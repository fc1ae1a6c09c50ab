"""Checkpoints in archives: the same answers and bytes as from the folder."""
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
import zipfile

import pytest

import ckpt
from conftest import BUILD, run
from test_faults import content, faulty, small_disk

ZSTD = shutil.which("zstd")


@pytest.fixture(scope="module")
def whole(nano, tmp_path_factory):
    d = tmp_path_factory.mktemp("whole")
    for to in ("bf16", "packed"):
        assert run("baleen", "convert", nano, d / to, "--to", to).rc == 0
    return {to: content(d / to) for to in ("bf16", "packed")}


def files(folder):
    return sorted(f for f in folder.rglob("*") if f.is_file())


def make_tar(path, folder, top="", mode="w", fmt=tarfile.PAX_FORMAT):
    fast = {"w:gz": {"compresslevel": 1}, "w:xz": {"preset": 0}}.get(mode, {})
    with tarfile.open(path, mode, format=fmt, **fast) as t:
        for f in files(folder):
            t.add(f, top + str(f.relative_to(folder)))


def make_zip(path, folder, top="", method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as z:
        for f in files(folder):
            z.write(f, top + str(f.relative_to(folder)))


def make_zst(path, folder):
    make_tar(path.with_suffix(""), folder)
    subprocess.run([ZSTD, "-q", "--rm", path.with_suffix("")], check=True)


KINDS = {
    "plain.tar": make_tar,
    "gnu.tar": lambda p, f: make_tar(p, f, fmt=tarfile.GNU_FORMAT),
    "ustar.tar": lambda p, f: make_tar(p, f, "./", fmt=tarfile.USTAR_FORMAT),
    "top.tar": lambda p, f: make_tar(p, f, "DeepSeek/"),
    "a.tar.gz": lambda p, f: make_tar(p, f, mode="w:gz"),
    "a.tar.zst": make_zst,
    "a.tar.xz": lambda p, f: make_tar(p, f, mode="w:xz"),
    "stored.zip": make_zip,
    "top.zip": lambda p, f: make_zip(p, f, "DeepSeek/"),
    "deflated.zip": lambda p, f: make_zip(p, f, method=zipfile.ZIP_DEFLATED),
}
COMPRESSED = {"a.tar.gz", "a.tar.zst", "a.tar.xz", "deflated.zip"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["bf16", "packed"])
def test_same_bytes_as_from_the_folder(nano, whole, tmp_path, kind, to):
    if kind.endswith("zst") and not ZSTD:
        pytest.skip("no zstd program: .tar.zst is NOT tested")
    archive = tmp_path / kind
    KINDS[kind](archive, nano)
    r = run("baleen", "convert", archive, tmp_path / "out", "--to", to)
    assert r.rc == 0 and r.err.count("\n") == (kind in COMPRESSED), r.err
    assert content(tmp_path / "out") == whole[to]
    r = run("baleen", "verify", archive, "--against", tmp_path / "out")
    assert r.rc == 0 and r.err == "", r.err
    if kind in COMPRESSED:
        r = run("baleen", "convert", archive, tmp_path / "twice", "--to", to, "--spill", "0")
        assert r.rc == 0 and r.err.count("\n") == 1 and "read twice" in r.err, r.err
        assert content(tmp_path / "twice") == whole[to]
        shutil.rmtree(tmp_path / "twice")
        for other in ((), ("--against", tmp_path / "out")):
            r = run("baleen", "verify", archive, "--spill", "0", *other)
            assert r.rc == 0 and r.err == "", r.err
    r = run("baleen", "inspect", archive)
    assert r.rc == 0 and kind in r.out and "unpacked" not in r.out, r.out
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([kind, "out"])


def test_packed_models_and_damage_in_archives(nano, tmp_path):
    packed, archive = tmp_path / "packed", tmp_path / "p.tar"
    assert run("baleen", "convert", nano, packed, "--to", "packed").rc == 0
    make_tar(archive, packed)
    assert run("baleen", "verify", archive).rc == 0
    name = "rank-0000/layer-02.safetensors"
    with tarfile.open(archive) as t:
        m = t.getmember(name)
    h, base, _ = ckpt.header(packed / name)
    data = bytearray(archive.read_bytes())
    data[m.offset_data + base + 5] ^= 4
    archive.write_bytes(data)
    r = run("baleen", "verify", archive)
    assert r.rc == 1 and "layer-02.safetensors" in r.err and "chunk 0" in r.err, r.err


def test_resumed_from_an_archive(nano, whole, tmp_path):
    for kind in ("plain.tar", "a.tar.gz"):
        KINDS[kind](tmp_path / kind, nano)
        args = ("convert", tmp_path / kind, tmp_path / "out", "--to", "packed", "--resume", "--jobs", "1")
        assert faulty("rename:8:EIO", *args).rc == 4
        r = run("baleen", *args)
        assert r.rc == 0 and "kept from an earlier run" in r.out, (r.out, r.err)
        assert content(tmp_path / "out") == whole["packed"]
        shutil.rmtree(tmp_path / "out")


def members(folder, *first):
    """Its files, those with these names first."""
    found = {f.name: f for f in files(folder)}
    return [found.pop(n) for n in first] + list(found.values())


@pytest.mark.parametrize("order", ["config and index first", "index last", "shards backwards", "index between shards"])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_any_order_of_members(nano, whole, tmp_path, order, mode):
    names = [f.name for f in files(nano)]
    shards = [n for n in names if n.endswith(".safetensors")]
    index = "model.safetensors.index.json"
    first = {"config and index first": ["config.json", index], "index last": [n for n in names if n != index],
             "shards backwards": shards[::-1], "index between shards": [shards[0], index, shards[1]]}[order]
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, mode) as t:
        for f in members(nano, *first):
            t.add(f, f.name)
    for to in ("bf16", "packed"):
        r = run("baleen", "convert", archive, tmp_path / to, "--to", to, "--spill", "0")
        assert r.rc == 0 and content(tmp_path / to) == whole[to], r.err
    r = run("baleen", "verify", archive, "--against", tmp_path / "packed", "--spill", "0")
    assert r.rc == 0, r.err


def test_below_any_folders(nano, whole, tmp_path):
    make_tar(tmp_path / "a.tar.gz", nano, "data/models/DeepSeek/", "w:gz")
    assert run("baleen", "convert", tmp_path / "a.tar.gz", tmp_path / "out", "--to", "packed", "--spill", "0").rc == 0
    assert content(tmp_path / "out") == whole["packed"]


def test_ranks_in_archives(nano, tmp_path):
    """Parts of a tensor lie in several ranks' files, copies in all: what waits for them is not dropped too early."""
    ranks, archive = tmp_path / "ranks", tmp_path / "ranks.tar.gz"
    assert run("baleen", "convert", nano, ranks, "--to", "packed", "--tp", "2", "--pp", "2").rc == 0
    make_tar(archive, ranks, mode="w:gz")
    for args in ((), ("--against", nano), ("--rank", "2")):
        r = run("baleen", "verify", archive, "--spill", "0", *args)
        assert r.rc == 0, r.err
    assert run("baleen", "merge", ranks, tmp_path / "m1").rc == 0
    r = run("baleen", "merge", archive, tmp_path / "m2", "--spill", "0")
    assert r.rc == 0 and content(tmp_path / "m1") == content(tmp_path / "m2"), r.err


def test_back_from_a_cast_in_an_archive(nano, tmp_path):
    cast, archive = tmp_path / "cast", tmp_path / "cast.tar.gz"
    assert run("baleen", "convert", nano, cast, "--to", "bf16", "--save-scales", "--keep", "dspark,vision").rc == 0
    make_tar(archive, cast, mode="w:gz")
    for src, dst in ((cast, "a"), (archive, "b")):
        r = run("baleen", "convert", src, tmp_path / dst, "--to", "released", "--spill", "0")
        assert r.rc == 0 and "scale hints for" in r.out, r.err
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_float32_scales_in_an_archive(tmp_path):
    """They are looked at before anything is written, in whatever shard they lie."""
    import gens
    folder = tmp_path / "v3"
    gens.write(folder, *gens.v3())
    make_tar(tmp_path / "v3.tar.gz", folder, mode="w:gz")
    for src, dst in ((folder, "a"), (tmp_path / "v3.tar.gz", "b")):
        r = run("baleen", "convert", src, tmp_path / dst, "--to", "bf16", "--spill", "0")
        assert r.rc == 0 and "NOT exact" in r.out, r.err
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_weights_that_only_the_sums_name(nano, tmp_path, mode):
    """A file of weights beside the checkpoint, in SHA256SUMS: read where it is, not from the hole that stands for it."""
    folder, archive = tmp_path / "f", tmp_path / "a.tar"
    shutil.copytree(nano, folder)
    (folder / "extra").mkdir()
    for f in ("extra/x.safetensors", "extra/notes.st"):
        (folder / f).write_bytes(os.urandom(9000))
    sums = subprocess.run("find . -type f ! -name SHA256SUMS -printf '%P\\n' | xargs sha256sum", shell=True, cwd=folder, check=True,
                          capture_output=True, text=True).stdout
    (folder / "SHA256SUMS").write_text(sums)
    make_tar(archive, folder, mode=mode)
    for spill in ("4GiB", "0"):
        r = run("baleen", "verify", archive, "--spill", spill)
        assert r.rc == 0 and f"{sums.count(chr(10))} files by SHA-256" in r.out, (r.out, r.err)
    (folder / "extra/x.safetensors").write_bytes(bytes(9000))
    make_tar(archive, folder, mode=mode)
    r = run("baleen", "verify", archive, "--spill", "0")
    assert r.rc == 1 and "a.tar/extra/x.safetensors" in r.err, r.err


def test_one_tensor_of_an_archive(nano, tmp_path):
    make_tar(tmp_path / "a.tar.gz", nano, mode="w:gz")
    name = "layers.0.attn.wq_a.weight"
    r, there = (run("baleen", "inspect", p, "--tensor", name) for p in (nano, tmp_path / "a.tar.gz"))
    assert r.rc == 0 and there.rc == 0 and r.out.split("\n")[1:] == there.out.split("\n")[1:], (r.out, there.out, there.err)


def test_messages_name_the_archive(nano, tmp_path):
    archive = tmp_path / "a.tar"
    make_tar(archive, nano)
    for args in (("merge", archive, tmp_path / "out"), ("convert", archive, tmp_path / "out", "--to", "packed", "--tp", "3")):
        r = run("baleen", *args)
        assert r.rc in (2, 3) and "a.tar" in r.err and "unpacked" not in r.err, r.err
    shutil.copytree(nano, tmp_path / "bad")
    (tmp_path / "bad/tokenizer.json").write_text("{")
    make_tar(archive, tmp_path / "bad")
    r = run("baleen", "verify", archive)
    assert r.rc == 1 and "a.tar/tokenizer.json" in r.err and "unpacked" not in r.err, r.err


# ---- what is left on disk

def left_over(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def test_killed_runs_leave_nothing_for_long(nano, tmp_path):
    """The small files' folder of a killed run goes with the next one; that of a living one stays."""
    archive = tmp_path / "a.tar.gz"
    make_tar(archive, nano, mode="w:gz")
    args = ("verify", archive, "--spill", "0")
    dead = tmp_path / ".a.tar.gz.unpacked-aaaaaa"
    (dead / "rank-0000").mkdir(parents=True)
    (dead / "rank-0000/x").write_text("x")
    other, alive = tmp_path / ".b.tar.gz.unpacked-aaaaaa", tmp_path / ".a.tar.gz.unpacked-bbbbbb"
    other.mkdir()
    alive.mkdir()
    fd = os.open(alive, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert run("baleen", *args).rc == 0
    assert left_over(tmp_path) == [alive.name, other.name]
    os.close(fd)
    assert run("baleen", *args).rc == 0
    assert left_over(tmp_path) == [other.name]


def test_kill_9(nano, tmp_path):
    archive = tmp_path / "a.tar.gz"
    make_tar(archive, nano, mode="w:gz")
    env = dict(os.environ, LD_PRELOAD="")
    for delay in (0.01, 0.03, 0.06):
        p = subprocess.Popen([BUILD / "tools/baleen", "convert", archive, tmp_path / "out", "--to", "packed", "--spill", "0"], env=env,
                             stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(delay)
        p.send_signal(signal.SIGKILL)
        p.wait()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert all("unpacked" in n for n in left_over(tmp_path))  # the large files have no names
    assert run("baleen", "convert", archive, tmp_path / "out", "--to", "packed").rc == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "out"]


def test_a_disk_that_cannot_take_it(nano, tmp_path):
    archive = tmp_path / "a.tar.gz"
    KINDS["a.tar.gz"](archive, nano)
    with small_disk(tmp_path, "size=1m") as disk:
        for spill in ("4GiB", "0"):
            r = run("baleen", "convert", archive, disk / "out", "--to", "packed", "--spill", spill)
            assert r.rc == 4 and "are free" in r.err.splitlines()[-1], r.err
            assert not list(disk.iterdir())


def test_room_for_what_must_wait(nano, tmp_path):
    """What waits needs room beside the output, for which alone there would be enough."""
    archive = tmp_path / "a.tar.gz"
    make_tar(archive, nano, mode="w:gz")
    args = ("convert", archive, tmp_path / "disk/out", "--to", "packed", "--spill", "0")
    with small_disk(tmp_path, "size=1m"):
        needed = int(re.search(r"needs (\d+) bytes", run("baleen", *args).err)[1])
    (tmp_path / "disk").rmdir()
    with small_disk(tmp_path, f"size={needed + (300 << 10)}") as disk:
        r = run("baleen", *args)
        assert r.rc == 4 and "wait there" in r.err and not list(disk.iterdir()), r.err
