"""Hostile archives: refused in one line, in bounded time and memory, with nothing made outside and nothing left behind."""
import gzip
import io
import lzma
import os
import shutil
import struct
import subprocess
import tarfile
import warnings
import zipfile

import pytest

from conftest import run
from test_archives import ZSTD, files, make_tar, make_zip
from test_hostile_files import limited


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


def pax(name, **records):
    """A member with extended headers as they come, however wrong."""
    t = info(name, 5000)
    t.pax_headers = {k.replace("_", "."): v for k, v in records.items()}
    return tar_of(t)


def encrypted(data):
    """A zip whose members say that they are encrypted."""
    b = bytearray(data)
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        i = b.find(magic)
        while i >= 0:
            b[i + at] |= 1
            i = b.find(magic, i + 1)
    return bytes(b)


def st(payload):
    """A safetensors file of one U8 tensor."""
    head = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(payload), len(payload))
    return struct.pack("<Q", len(head)) + head + payload


def with_weights(name="model.safetensors", data=None, mode="w:gz"):
    """config.json and one shard: hostile where the weights come through the spool."""
    out = io.BytesIO()
    data = st(bytes(range(256)) * 40) if data is None else data
    with tarfile.open(fileobj=out, mode=mode) as t:
        for n, d in (("config.json", b"{}"), (name, data)):
            t.addfile(info(n, len(d)), io.BytesIO(d))
    return out.getvalue()


GOOD = tar_of(info("config.json", 600), info("model.safetensors", 5000))
HOSTILE = {
    "absolute": (tar_of(info("/etc/cron.d/x")), "absolute"),
    "absolute behind a dot": (tar_of(info(".//etc/x"), info("/x")), "absolute"),
    "climbs": (tar_of(info("../x")), "leads out"),
    "climbs from inside": (tar_of(info("a/../../x")), "leads out"),
    "climbs at the end": (tar_of(info("a/..")), "leads out"),
    "zip climbs": (zip_of("../x"), "leads out"),
    "zip absolute": (zip_of("/x"), "absolute"),
    "deep": (tar_of(info("a/b/c/d/e/f/g/h/i/j")), "too many folders"),
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
    "nothing": (tar_of(), ""),
    "folders only": (tar_of(link("a", "", tarfile.DIRTYPE)), "without files"),
    "cut in a header": (GOOD[:512 * 3 + 100], ""),
    "cut in the data": (GOOD[:512 * 3 + 1500], ""),
    "damaged header": (broken(GOOD, 3), ""),
    "no tar in gzip": (gzip.compress(b"hello" * 1000), "archive"),
    "damaged gzip": (broken(gzip.compress(GOOD, mtime=0), 30), ""),
    "cut gzip": (gzip.compress(os.urandom(100) + GOOD, mtime=0)[:60], ""),
    "damaged zip": (broken(zip_of("config.json", data=bytes(range(256)) * 9), 60), ""),
    "zip without a directory": (zip_of("a")[:40], "truncated download"),
    "pax name that climbs": (pax("model.safetensors", path="../model.safetensors"), "leads out"),
    "pax name that is absolute": (pax("model.safetensors", path="/etc/passwd"), "absolute"),
    "pax name that is empty": (pax("model.safetensors", path=""), ""),
    "pax size of exabytes": (pax("model.safetensors", size=str(1 << 62)), ""),
    "pax size below zero": (pax("model.safetensors", size="-5"), ""),
    "pax link": (pax("model.safetensors", linkpath="/etc/passwd"), ""),
    "pax record without end": (pax("model.safetensors", comment="x" * 900).replace(b"910 comment", b"990 comment"), ""),
    "pax sparse map of nonsense": (pax("model.safetensors", GNU_sparse_major="1", GNU_sparse_minor="0", GNU_sparse_realsize="99"), ""),
    "pax sparse file of a terabyte": (pax("model.safetensors", GNU_sparse_map=f"{1 << 40},1", GNU_sparse_size=str(1 << 40)), ""),
    "encrypted zip": (encrypted(zip_of("config.json")), "encrypted"),
    "encrypted weights in a zip": (encrypted(zip_of("model.safetensors", data=st(bytes(9000)))), "encrypted"),
    "weights twice": (tar_of(info("model.safetensors", 5000), info("./model.safetensors", 5000), mode="w:gz"), "twice"),
    "weights behind a link": (tar_of(link("a", "/tmp", tarfile.SYMTYPE), info("a/model.safetensors", 9000), mode="w:gz"), "is a link"),
    "weights named like a folder": (tar_of(info("model.safetensors/x", 1), info("model.safetensors", 9000), mode="w:gz"), "twice"),
    "cut in the weights": (with_weights()[:-60], ""),
    "cut xz": (lzma.compress(with_weights(mode="w"))[:-40], ""),
    "damaged xz": (broken(lzma.compress(with_weights(mode="w")), 150), ""),
    "zip with another size inside": (zip_of("model.safetensors", data=st(bytes(9000))).replace(struct.pack("<L", 9000 + 8 + 55),
                                                                                             struct.pack("<L", 12345)), ""),
    "damaged weights in a zip": (broken(zip_of("model.safetensors", data=st(os.urandom(9000))), 3000), "damaged"),
    "small file of 1 TB": (tar_of(info("config.json", 0))[:512].replace(b"00000000000", b"77777777777", 1) + bytes(1024), ""),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archive(tmp_path, kind):
    data, word = HOSTILE[kind]
    archive = tmp_path / ("a.zip" if data[:2] == b"PK" else "a.tar")
    archive.write_bytes(data)
    for args in (("inspect", archive), ("verify", archive), ("convert", archive, tmp_path / "out", "--to", "packed"),
                 ("convert", archive, tmp_path / "out", "--to", "bf16", "--spill", "0")):
        r = limited(*args)
        assert r.rc == 3 and r.out == "" and r.err.count("\n") == 1, (r.rc, r.out, r.err)
        assert archive.name in r.err and r.err[:-1].isprintable() and not r.err.endswith("\\x0a\n"), r.err
        assert word in r.err.replace(str(tmp_path), ""), r.err  # the test's name is in the path
        assert [p.name for p in tmp_path.iterdir()] == [archive.name], "something was left behind"


WEIGHTS = {
    "header longer than the file": (struct.pack("<Q", 1 << 40) + b"{" * 5000, "header"),
    "header of 4 GB": (struct.pack("<Q", 0xFFFFFFFF) + b"{" * 5000, "header"),
    "no bytes": (b"", "is empty"),
    "seven bytes": (b"1234567", "too short"),
    "cut": (st(bytes(9000))[:-1], "missing"),
    "a page": (b"<!DOCTYPE html>" + b" " * 600, "HTML"),
}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_hostile_weights(tmp_path, kind, mode):
    """The same words as for a file of a folder."""
    data, word = WEIGHTS[kind]
    archive = tmp_path / "a.tar"
    archive.write_bytes(with_weights(data=data, mode=mode))
    for args in (("inspect", archive), ("verify", archive), ("convert", archive, tmp_path / "out", "--to", "packed", "--spill", "0")):
        r = limited(*args)
        assert r.rc == (1 if args[0] == "verify" else 3) and [p.name for p in tmp_path.iterdir()] == ["a.tar"], r.err
        if args[0] == "verify":
            assert f"a.tar/model.safetensors: " in r.err and word in r.err, r.err


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


@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_archives_of_more_than_one_folder(nano, tmp_path, suffix):
    """Which folder is meant is not guessed, and the message shows what there is to choose from."""
    make = {"tar": make_tar, "zip": make_zip}[suffix]
    for i, names in enumerate((["a", "b"], ["a", "b", "c"], ["deep/a"])):
        top = tmp_path / str(i)
        for name in names:
            shutil.copytree(nano, top / name)
        if len(names) == 1:
            (top / "notes.txt").write_text("beside it")
        archive = tmp_path / f"{i}.{suffix}"
        make(archive, top)
        for command in (["inspect", archive], ["verify", archive], ["convert", archive, tmp_path / "out", "--to", "bf16"]):
            r = run("baleen", *command)
            assert r.rc == 3 and r.err.count("\n") == 1 and all(f"'{n}/config.json'" in r.err for n in names[:2]), r.err
            assert ("3 in folders" in r.err and "among them" in r.err) == (len(names) == 3), r.err


# ---- damage where weights come in a second reading, and are converted while they come

@pytest.mark.parametrize("cut", [1, 22, 300])
def test_zip_without_its_end(baleen, nano, tmp_path, cut):
    """What was copied in part: the members are all there, the directory that other programs go by is not."""
    archive = tmp_path / "a.zip"
    make_zip(archive, nano)
    os.truncate(archive, archive.stat().st_size - cut)
    for command in (["verify", archive], ["convert", archive, tmp_path / "out", "--to", "bf16"]):
        r = baleen(*command)
        assert r.rc == 3 and r.err.count("\n") == 1 and "a.zip" in r.err and "truncated download" in r.err, r.err
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


def test_damage_is_not_converted(nano, tmp_path):
    """A flipped byte in compressed weights: zip has a CRC of every member, read before the result is complete."""
    archive = tmp_path / "a.zip"
    make_zip(archive, nano, method=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(archive) as z:
        m = max(z.infolist(), key=lambda i: i.compress_size)
    data = bytearray(archive.read_bytes())
    data[m.header_offset + 30 + len(m.filename) + m.compress_size - 20] ^= 0x55
    archive.write_bytes(data)
    for spill in ("4GiB", "0"):
        r = limited("convert", archive, tmp_path / "out", "--to", "packed", "--spill", spill)
        assert r.rc == 3 and "a.zip" in r.err and "damaged" in r.err, r.err
        assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.skipif(not ZSTD, reason="no zstd program: checksums of .tar.zst are NOT tested")
def test_checksum_of_zstd(nano, tmp_path):
    make_tar(tmp_path / "a.tar", nano)
    subprocess.run([ZSTD, "-q", "--check", "--rm", tmp_path / "a.tar"], check=True)
    archive = tmp_path / "a.tar.zst"
    data = bytearray(archive.read_bytes())
    data[-2] ^= 1
    archive.write_bytes(data)
    r = limited("convert", archive, tmp_path / "out", "--to", "packed", "--spill", "0")
    assert r.rc == 3 and r.err.count("\n") == 1 and "damaged" in r.err, r.err


def test_sparse_members(nano, tmp_path):
    """tar -S leaves holes out: they come back as zeros, in place or through the spool."""
    import ckpt
    folder = tmp_path / "sparse"
    shutil.copytree(nano, folder)
    shard = sorted(folder.glob("*.safetensors"))[0]
    h, base, _ = ckpt.header(shard)
    big = max((n for n in h if n != "__metadata__"), key=lambda n: h[n]["data_offsets"][1] - h[n]["data_offsets"][0])
    begin, end = h[big]["data_offsets"]
    data = bytearray(shard.read_bytes())
    data[base + begin:base + end] = bytes(end - begin)
    with open(shard, "wb") as f:
        f.write(data[:base + begin])
        f.seek(base + end)
        f.write(data[base + end:])
        f.truncate(len(data))
    archive = tmp_path / "s.tar"
    subprocess.run(["tar", "-S", "-cf", archive, "-C", folder, "."], check=True)
    assert archive.stat().st_size < sum(f.stat().st_size for f in files(folder))
    subprocess.run(["gzip", "-k1", archive], check=True)
    r = run("baleen", "inspect", folder, "--tensor", big)
    for a in (archive, tmp_path / "s.tar.gz"):
        have = run("baleen", "inspect", a, "--tensor", big)
        assert have.rc == r.rc == 0 and have.out.split("\n")[1:] == r.out.split("\n")[1:], have.err

