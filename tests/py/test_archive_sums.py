"""Checksums that archives have of their own: a flipped bit is found wherever one of them covers it, and what is cut says so."""
import gzip
import json
import lzma
import resource
import shutil
import struct
import subprocess
import zipfile
import zlib

import pytest

import ckpt
from conftest import DEMO, run
from test_odd_folders import archived, one_line

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def tar(nano, tmp_path_factory):
    """nano has no SHA256SUMS: nothing but the archive knows what its bytes were."""
    return archived(nano, tmp_path_factory.mktemp("sums") / "nano.tar").read_bytes()


def zipped(folder, path, how=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", how) as z:
        for f in sorted(folder.iterdir()):
            z.write(f, f.name)
    return path


def flip(path, at, mask=1):
    raw = bytearray(path.read_bytes())
    raw[at] ^= mask
    path.write_bytes(raw)


def verify(path, *options):
    r = run("baleen", "verify", path, "--json", *options)
    return r, json.loads(r.out) if r.out else None


# ---- zip

class NoSeek:
    """A pipe: sizes and checksums come behind the data."""

    def __init__(self, f):
        self.f = f

    def write(self, b):
        return self.f.write(b)

    def flush(self):
        self.f.flush()


def piped(folder, path):
    with open(path, "wb") as f, zipfile.ZipFile(NoSeek(f), "w") as z:
        for name in sorted(p.name for p in folder.iterdir()):
            with z.open(name, "w", force_zip64=True) as out:
                out.write((folder / name).read_bytes())
    return path


def wide(folder, path):
    """Everything in the 64-bit fields, as in an archive of more than 4 GiB, and a comment."""
    out, directory, count = bytearray(), bytearray(), 0
    for f in sorted(folder.iterdir()):
        data, name, at = f.read_bytes(), f.name.encode(), len(out)
        crc, none = zlib.crc32(data), 0xffffffff
        extra = struct.pack("<HHQQ", 1, 16, len(data), len(data))
        out += struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 33, crc, none, none, len(name), len(extra)) + name + extra + data
        extra = struct.pack("<HHQQQ", 1, 24, len(data), len(data), at)
        other = struct.pack("<HHI", 0x7075, 4, 0)
        directory += struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 45, 45, 0, 0, 0, 33, crc, none, none, len(name), len(other + extra), 3, 0, 0,
                                 0o100644 << 16, none) + name + other + extra + b"why"
        count += 1
    where = len(out) + len(directory)
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(out))
    end = struct.pack("<4sIQI", b"PK\6\7", 0, where, 1) + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 5)
    path.write_bytes(out + directory + end64 + end + b"hello")
    return path


@pytest.mark.parametrize("make", [zipped, piped, wide])
def test_a_flipped_bit_in_a_stored_zip(nano, tmp_path, make):
    path = make(nano, tmp_path / "c.zip")
    r, receipt = verify(path)
    assert r.rc == 0 and receipt["files_crc32"] == 2 and receipt["files_unproven"] == 0, r.err
    assert "2 files by CRC-32" in run("baleen", "verify", path).out
    size = (nano / SHARD).stat().st_size
    flip(path, path.read_bytes().index((nano / SHARD).read_bytes()) + size - 7)
    assert verify(path, "--level", "2")[0].rc == 0
    r, receipt = verify(path)
    assert r.rc == 1 and receipt["files_crc32"] == 1
    (f,) = receipt["findings"]
    assert (f["level"], f["file"], f["end"]) == (3, f"{path}/{SHARD}", size) and "CRC-32 differs" in f["message"]


def flipped(nano, path, name, at=9):
    """nano in a stored zip, with a bit of a tensor's data changed."""
    zipped(nano, path)
    raw, (file, t, base) = path.read_bytes(), next((f, h[name], b) for f in sorted(nano.glob("*.safetensors")) for h, b, _ in [ckpt.header(f)]
                                                 if name in h)
    flip(path, raw.index(file.read_bytes()) + base + t["data_offsets"][0] + at)
    return f"{path}/{file.name}: its CRC-32 differs"


WANTED, DROPPED = "layers.2.ffn.experts.1.w2.weight", "mtp.0.ffn.experts.1.w1.weight"


@pytest.mark.parametrize("args", [["--to", "bf16"], ["--to", "bf16", "--jobs", "7"], ["--to", "released"], ["--to", "packed"],
                                  ["--to", "packed", "--tp", "2", "--ep", "4", "--pp", "2"]], ids=str)
@pytest.mark.parametrize("name", [WANTED, DROPPED])
def test_a_stored_zip_is_proven_by_what_reads_it(nano, tmp_path, args, name):
    """Read in any order, in parts, by several threads: also where the damage is in what is not wanted."""
    path = tmp_path / "c.zip"
    says = flipped(nano, path, name)
    one_line(run("baleen", "convert", path, tmp_path / "out", *args), 3, says)
    assert not (tmp_path / "out").exists()
    zipped(nano, path)
    assert run("baleen", "convert", path, tmp_path / "out", *args).rc == 0


def test_buckets_of_a_stored_zip(nano, tmp_path):
    path = tmp_path / "c.zip"
    says = flipped(nano, path, WANTED)
    one_line(run("baleen", "bucket", path, tmp_path / "out"), 3, says)
    assert run("baleen", "convert", path, tmp_path / "out", "--to", "bf16", "--layers", "6").rc == 0  # little of each file


def test_compressed_members(nano, tmp_path):
    """Held against their CRC-32 while they are unpacked, in either reading: damage is an error, and what holds was proven."""
    archive = zipped(nano, tmp_path / "z.zip", zipfile.ZIP_DEFLATED)
    for spill in ("4GiB", "0"):
        r, receipt = verify(archive, "--spill", spill)
        assert r.rc == 0 and receipt["files_crc32"] == 2 and receipt["files_unproven"] == 0, r.err
    assert "2 files by CRC-32" in run("baleen", "verify", archive).out
    at = zipfile.ZipFile(archive).getinfo(SHARD)
    flip(archive, at.header_offset + 30 + len(SHARD) + at.compress_size // 2)
    for spill in ("4GiB", "0"):
        r = run("baleen", "verify", archive, "--spill", spill)
        one_line(r, 3, SHARD, "damaged")
    tar = archived(nano, tmp_path / "t.tar.gz")
    assert verify(tar)[1]["files_unproven"] == 2


def test_sha256_says_more_than_crc32(nano, tmp_path):
    """Where SHA256SUMS lists the file that is what counts."""
    path = tmp_path / "c.zip"
    assert run("baleen", "convert", nano, path, "--to", "bf16").rc == 0
    r, receipt = verify(path)
    assert r.rc == 0 and "files_crc32" not in receipt and receipt["files_hashed"] > 1
    with zipfile.ZipFile(path) as z:
        at = next(i for i in z.infolist() if i.filename.endswith(".safetensors")).header_offset
    flip(path, at + 100000)
    r, receipt = verify(path)
    assert r.rc == 1 and len(receipt["findings"]) == 1 and "SHA-256" in receipt["findings"][0]["message"]


def test_a_directory_that_lies(nano, tmp_path):
    """Its checksum is what is believed; an entry that leads elsewhere is refused."""
    path = piped(nano, tmp_path / "c.zip")  # which has it there alone
    flip(path, path.read_bytes().rindex(SHARD.encode()) - 46 + 16)
    r, receipt = verify(path)
    assert r.rc == 1 and [f["file"] for f in receipt["findings"]] == [f"{path}/{SHARD}"]
    path = zipped(nano, tmp_path / "d.zip")
    at, raw = path.read_bytes().rindex(SHARD.encode()) - 46, path.read_bytes()
    for field in (0, 10, 16, 28, 42, len(raw) - at - 4):
        path.write_bytes(raw)
        flip(path, at + field, 0x40)
        one_line(run("baleen", "verify", path), 3, f"{path}:")


def test_compressed_members_are_compared_too(nano, tmp_path):
    """By libarchive, behind their last byte: also when they come in a second reading."""
    path = zipped(nano, tmp_path / "c.zip", zipfile.ZIP_DEFLATED)
    assert verify(path)[0].rc == verify(path, "--spill", "1")[0].rc == 0
    raw = path.read_bytes()
    flip(path, raw.rindex(SHARD.encode()) - 46 + 16)
    flip(path, raw.index(SHARD.encode()) - 30 + 14)  # the same in both places
    for spill in ("4GiB", "1"):
        one_line(run("baleen", "verify", path, "--spill", spill), 3, "bad CRC")
        one_line(run("baleen", "convert", path, tmp_path / "out", "--to", "packed", "--spill", spill), 3, "bad CRC")
    assert not (tmp_path / "out").exists()


# ---- compressed as a whole

def zstd(data):
    if not shutil.which("zstd"):
        pytest.skip("no zstd program: checksums of .tar.zst are NOT tested")
    return subprocess.run(["zstd", "-q", "--check"], input=data, stdout=subprocess.PIPE, check=True).stdout


COMPRESS = {"tar.gz": gzip.compress, "tar.xz": lambda d: lzma.compress(d, preset=0), "tar.zst": zstd}


def refused(path, tmp_path, *words):
    for spill in ("4GiB", "1"):
        one_line(run("baleen", "verify", path, "--spill", spill), 3, f"{path}", *words)
        one_line(run("baleen", "convert", path, tmp_path / "out", "--to", "bf16", "--spill", spill), 3, f"{path}", *words)
    one_line(run("baleen", "inspect", path), 3, f"{path}", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("padding", [0, 300000, 3 << 20])
@pytest.mark.parametrize("kind", COMPRESS)
def test_checksums_behind_the_last_member(tar, tmp_path, kind, padding):
    """They are compared however far behind the end of the tar archive they come."""
    path = tmp_path / f"c.{kind}"
    raw = COMPRESS[kind](tar + bytes(padding))
    path.write_bytes(raw)
    assert run("baleen", "verify", path).rc == run("baleen", "verify", path, "--spill", "1").rc == 0
    flip(path, {"tar.gz": -8, "tar.xz": -40, "tar.zst": -3}[kind])
    refused(path, tmp_path, "damaged")
    path.write_bytes(raw[:-1])
    refused(path, tmp_path, "ends too early")


def test_gzip(tar, tmp_path):
    """Several members are one stream; the length counts too; zeros may follow, and nothing else."""
    path = tmp_path / "c.tar.gz"
    raw = gzip.compress(tar[:100000], 1) + gzip.compress(tar[100000:], 1)
    for good in (raw, raw + bytes(700)):
        path.write_bytes(good)
        assert run("baleen", "verify", path).rc == 0
    path.write_bytes(raw)
    flip(path, -2)
    refused(path, tmp_path, "length check")
    for more in (b"x", bytes(9) + b"x", b"\x1f"):
        path.write_bytes(raw + more)
        refused(path, tmp_path, "something else follows")
    for n in (4, 12, 1000, len(raw) // 2, len(raw) - 12):
        path.write_bytes(raw[:n])
        one_line(run("baleen", "verify", path), 3, "ends too early: a truncated download?")
    flip_first = bytearray(raw)
    flip_first[len(gzip.compress(tar[:100000], 1)) - 6] ^= 4
    path.write_bytes(flip_first)
    refused(path, tmp_path, "data check")


def test_no_end_of_zeros(tmp_path):
    (tmp_path / "c").mkdir()
    shutil.copy(DEMO / "config.json", tmp_path / "c")
    path = tmp_path / "bomb.tar.zst"
    path.write_bytes(zstd(archived(tmp_path / "c", tmp_path / "c.tar").read_bytes()) + zstd(bytes(1 << 28)) * 5)
    one_line(run("baleen", "verify", path), 3, "over 1000 times")


# ---- what is said

@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.TAR.ZST", "x.zip"])
def test_archives_of_a_few_bytes(tmp_path, name):
    for data in (b"\0", b"\x1f", b"PK\3", b"ustar", bytes(7)):
        (tmp_path / name).write_bytes(data)
        for command in ("verify", "inspect"):
            one_line(run("baleen", command, tmp_path / name), 3, "named like an archive, but does not begin like one")


def test_no_room_to_unpack_is_not_the_source_s_fault(nano, tmp_path):
    """A limit on the size of files: the folder is named where unpacking did not work."""
    path = archived(nano, tmp_path / "c.tar")
    for limit, words in ((1 << 16, "a file with a hole there"), (1000, "cannot unpack there")):
        r = run("baleen", "inspect", path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        one_line(r, 4, f"{tmp_path}: ", words, "File too large")
    assert [p.name for p in tmp_path.iterdir()] == ["c.tar"]
