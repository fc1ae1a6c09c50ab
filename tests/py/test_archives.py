"""Checkpoints in archives: the same answers and bytes as from the folder, and everything hostile refused in one line."""
import gzip
import io
import os
import shutil
import subprocess
import tarfile
import warnings
import zipfile

import pytest

import ckpt
from conftest import run
from test_faults import content
from test_hostile_files import limited

ZSTD = shutil.which("zstd")


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    out = tmp_path_factory.mktemp("archives") / "nano"
    assert run("baleen", "synth", out, "--preset", "nano", "--shards", "2").rc == 0
    return out


@pytest.fixture(scope="module")
def whole(nano, tmp_path_factory):
    d = tmp_path_factory.mktemp("whole")
    for to in ("bf16", "packed"):
        assert run("baleen", "convert", nano, d / to, "--to", to).rc == 0
    return {to: content(d / to) for to in ("bf16", "packed")}


def files(folder):
    return sorted(f for f in folder.rglob("*") if f.is_file())


def make_tar(path, folder, top="", mode="w", fmt=tarfile.PAX_FORMAT):
    with tarfile.open(path, mode, format=fmt) as t:
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
    "stored.zip": make_zip,
    "top.zip": lambda p, f: make_zip(p, f, "DeepSeek/"),
    "deflated.zip": lambda p, f: make_zip(p, f, method=zipfile.ZIP_DEFLATED),
}
COMPRESSED = {"a.tar.gz", "a.tar.zst", "deflated.zip"}


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
    from test_faults import faulty
    for kind in ("plain.tar", "a.tar.gz"):
        KINDS[kind](tmp_path / kind, nano)
        args = ("convert", tmp_path / kind, tmp_path / "out", "--to", "packed", "--resume", "--jobs", "1")
        assert faulty("rename:8:EIO", *args).rc == 4
        r = run("baleen", *args)
        assert r.rc == 0 and "kept from an earlier run" in r.out, (r.out, r.err)
        assert content(tmp_path / "out") == whole["packed"]
        shutil.rmtree(tmp_path / "out")


# ---- hostile archives

def info(name, size=1, **kw):
    t = tarfile.TarInfo(name)
    t.size = size
    for k, v in kw.items():
        setattr(t, k, v)
    return t


def tar_of(*members, mode="w"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as t:
        for m in members:
            t.addfile(m, io.BytesIO(bytes(m.size)) if m.type == tarfile.REGTYPE else None)
    return out.getvalue()


def zip_of(*names, data=b"x"):
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        warnings.simplefilter("ignore")  # of names that occur twice
        for n in names:
            z.writestr(n, data)
    return out.getvalue()


def link(name, target, kind):
    return info(name, 0, type=kind, linkname=target)


def broken(data, at, byte=0xFF):
    b = bytearray(data)
    b[at] ^= byte
    return bytes(b)


GOOD = tar_of(info("config.json", 600), info("model.safetensors", 5000))
HOSTILE = {
    "absolute": (tar_of(info("/etc/cron.d/x")), "absolute"),
    "absolute behind a dot": (tar_of(info(".//etc/x"), info("/x")), "absolute"),
    "climbs": (tar_of(info("../x")), "leads out"),
    "climbs from inside": (tar_of(info("a/../../x")), "leads out"),
    "climbs at the end": (tar_of(info("a/..")), "leads out"),
    "zip climbs": (zip_of("../x"), "leads out"),
    "zip absolute": (zip_of("/x"), "absolute"),
    "deep": (tar_of(info("a/b/c/d")), "deep"),
    "control characters": (tar_of(info("a\nb")), "control"),
    "symbolic link out": (tar_of(link("x", "/etc/passwd", tarfile.SYMTYPE)), "is a link"),
    "symbolic link and a file through it": (tar_of(link("x", "/tmp", tarfile.SYMTYPE), info("x/y")), "is a link"),
    "hard link": (tar_of(info("a"), link("b", "a", tarfile.LNKTYPE)), "is a link"),
    "device": (tar_of(link("x", "", tarfile.CHRTYPE)), "neither a file"),
    "FIFO": (tar_of(link("x", "", tarfile.FIFOTYPE)), "neither a file"),
    "twice": (tar_of(info("a"), info("a")), "twice"),
    "twice in another spelling": (tar_of(info("a"), info("./a")), "twice"),
    "file as folder": (tar_of(info("a"), info("a/b")), "twice"),
    "zip twice": (zip_of("a", "a"), "twice"),
    "nothing": (tar_of(), "archive"),
    "folders only": (tar_of(link("a", "", tarfile.DIRTYPE)), "without files"),
    "cut in a header": (GOOD[:512 * 3 + 100], ""),
    "cut in the data": (GOOD[:512 * 3 + 1500], ""),
    "damaged header": (broken(GOOD, 3), ""),
    "no tar in gzip": (gzip.compress(b"hello" * 1000), "archive"),
    "damaged gzip": (broken(gzip.compress(GOOD, mtime=0), 30), ""),
    "cut gzip": (gzip.compress(os.urandom(100) + GOOD, mtime=0)[:60], ""),
    "damaged zip": (broken(zip_of("config.json", data=bytes(range(256)) * 9), 60), ""),
    "zip without a directory": (zip_of("a")[:40], ""),
    "small file of 1 TB": (tar_of(info("config.json", 0))[:512].replace(b"00000000000", b"77777777777", 1) + bytes(1024), ""),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archive(tmp_path, kind):
    data, word = HOSTILE[kind]
    archive = tmp_path / ("a.zip" if data[:2] == b"PK" else "a.tar")
    archive.write_bytes(data)
    for args in (("inspect", archive), ("verify", archive), ("convert", archive, tmp_path / "out", "--to", "packed")):
        r = limited(*args)
        assert r.rc == 3 and r.out == "" and r.err.count("\n") == 1, (r.rc, r.out, r.err)
        assert archive.name in r.err and word in r.err and r.err[:-1].isprintable(), r.err
        assert [p.name for p in tmp_path.iterdir()] == [archive.name], "something was left behind"


def test_bombs(tmp_path):
    """A kilobyte that unpacks to terabytes; a small file that says it has more than any small file."""
    block = gzip.compress(bytes(64 << 20), 9, mtime=0)
    head = info("model.safetensors", 1 << 40)
    bomb = tmp_path / "bomb.tar.gz"
    bomb.write_bytes(gzip.compress(head.tobuf(tarfile.GNU_FORMAT), mtime=0) + block * 20)
    r = limited("inspect", bomb)
    assert r.rc == 3 and r.err.count("\n") == 1 and ("1000 times" in r.err), r.err
    bomb.write_bytes(gzip.compress(info("config.json", 1 << 31).tobuf(tarfile.GNU_FORMAT), mtime=0) + block * 20)
    r = limited("inspect", bomb)
    assert r.rc == 3 and r.err.count("\n") == 1 and "1 GiB" in r.err, r.err
    assert [p.name for p in tmp_path.iterdir()] == ["bomb.tar.gz"]


def test_a_disk_that_cannot_take_it(nano, tmp_path):
    from test_faults import small_disk
    archive = tmp_path / "a.tar.gz"
    KINDS["a.tar.gz"](archive, nano)
    with small_disk(tmp_path, "size=1m") as disk:
        r = run("baleen", "convert", archive, disk / "out", "--to", "packed")
        assert r.rc == 4 and r.err.splitlines()[-1].count("No space left") == 1, r.err
        assert not list(disk.iterdir())
