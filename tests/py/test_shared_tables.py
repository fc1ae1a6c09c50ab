"""Engram tables that several servers of a host share (--engram shared), on a CUDA runtime that only records (tests/stub/cudart.h)."""
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from conftest import BUILD, run
from serving import Server
from test_faults import environment

PROGRAM = BUILD / "tests" / "baleend_gpu_stub"
SHARED = ["--device", "cuda", "--engram", "shared"]
FOLDER = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no nvcc: sharing tables is NOT tested")


@pytest.fixture
def model(baleen, tmp_path):
    assert baleen("synth", tmp_path / "m", "engram_vocab_size=20000").rc == 0
    return tmp_path / "m"


def serve(model, *args, **kw):
    return Server("baleend_gpu_stub", model, *SHARED, *args, **kw)


def tables(s):
    """(object, was it filled by another, huge pages in MiB, all MiB) as the server says it."""
    line = s.line("Engram tables: shared: as asked for; ")
    m = re.search(r"; in (/dev/shm/baleen-tables-\S+), (filled|which was filled); (\d+) of (\d+) MiB in huge pages$", line)
    assert m, line
    return Path(m[1]), m[2] != "filled", int(m[3]), int(m[4])


def refuse(model, *args, rc=4):
    r = run(PROGRAM, model, *SHARED, "--port", "0", *args, timeout=60)
    assert r.rc == rc, r.err
    return r.err


def test_one_object_for_all(model):
    with serve(model) as a:
        path, found, huge, size = tables(a)
        assert not found and path.exists() and huge <= size and size >= 7
        assert path.stat().st_mode & 0o777 == 0o600
        used = path.stat().st_blocks * 512
        with serve(model) as b:
            assert tables(b)[:2] == (path, True) and b.alive()
            a.stop()
            assert path.exists() and path.stat().st_blocks * 512 == used
            with serve(model) as c:
                assert tables(c)[:2] == (path, True)
    assert not path.exists()


def test_another_model_has_another(model, tmp_path):
    shutil.copytree(model, tmp_path / "copy")
    with serve(model) as a, serve(tmp_path / "copy") as b:
        assert tables(a)[0] != tables(b)[0] and not tables(b)[1]
        assert not any(f"{tables(a)[0]}: " in line for line in b.out)


def test_a_killed_server_is_told_of(model, tmp_path):
    shutil.copytree(model, tmp_path / "copy")
    with serve(model) as a:
        path = tables(a)[0]
        a.signal(signal.SIGKILL)
        a.process.wait()
    assert path.exists()
    with serve(tmp_path / "copy") as b:
        assert re.fullmatch(rf"baleend: {path}: 0\.\d\d GiB of Engram tables are left by a process that has ended \(rm {path}\)", b.line(f"rm {path}"))
    r = run(PROGRAM, tmp_path / "copy", *SHARED, "--port", "0", timeout=60, env={**os.environ, "CUDA_STUB_MEMORY": str(10**8)})
    assert r.rc == 4 and "does not fit" in r.err.splitlines()[0] and f"rm {path}" in r.err
    with serve(model) as a:
        assert tables(a)[:2] == (path, True)
    assert not path.exists()


def filler(model):
    """A server that has made the object and is slow to fill it."""
    a = serve(model, env=environment("read:1+:SLOW", ".safetensors"), wait=False)
    for _ in range(3000):
        mapped = re.search(r"/dev/shm/baleen-tables-\S+", Path(f"/proc/{a.process.pid}/maps").read_text())
        if mapped and Path(mapped[0]).stat().st_blocks * 512 > 2 << 20:
            return a, Path(mapped[0])
        time.sleep(0.01)
    raise AssertionError("no object")


def test_stopped_while_filling(model):
    a, path = filler(model)
    with a:
        a.signal()
        assert a.wait() == 0 and a.err == ["baleend: stopped while loading"]
    assert not path.exists()


def test_killed_while_filling(model):
    """Whoever waits for it fills them."""
    a, path = filler(model)
    with a, serve(model, wait=False) as b:
        time.sleep(0.5)
        assert not any("ready" in line for line in a.out + b.out)
        a.signal(signal.SIGKILL)
        a.process.wait()
        assert tables(b)[:2] == (path, False) and b.alive()
    assert not path.exists()


def test_full_check_reads_what_is_shared(demo_packed):
    with serve(demo_packed, "--check", "full") as a:
        path = tables(a)[0]
        with serve(demo_packed, "--check", "full") as b:
            assert tables(b)[1]
        with open(path, "r+b") as f:
            f.seek((2 << 20) + 1000)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        err = refuse(demo_packed, "--check", "full", rc=3)
        assert err.count("\n") == 1 and "engram.embed" in err and "differs from its digest" in err, err
        assert path.exists()


def in_small(size, *command):
    """A command with that much shared memory; skips where nothing can be mounted."""
    unshare = Path(shutil.which("unshare") or "")
    if not unshare.is_file() or run(unshare, "-m", "mount", "-t", "tmpfs", "none", FOLDER).rc != 0:
        pytest.skip("no mount here: a host with little shared memory is NOT tested")
    return run(unshare, "-m", "sh", "-c", f'mount -t tmpfs -o size={size} none {FOLDER} && "$@"; r=$?; ls {FOLDER}; exit $r', "sh", *command, timeout=60)


def test_too_little_shared_memory(model):
    r = in_small("1m", PROGRAM, model, *SHARED, "--port", "0")
    assert r.rc == 4 and r.err.count("\n") == 1, r.err
    assert re.search(r"Engram tables take 0\.\d\d GiB of shared memory, of which 0\.00 are there already and 0\.00 free in /dev/shm", r.err), r.err
    assert "baleen-tables" not in r.out
    r = in_small("1m", PROGRAM, model, *SHARED, "--plan", "--json")
    p = json.loads(r.out)
    assert r.rc == 1 and p["fits"] is False and p["engram"] == {"place": "shared", "why": "as asked for"}
    assert p["total"]["shared"] > p["shared"]["free"] + p["shared"]["there"]


def test_plan(model):
    args = ["baleend", model, "--plan", "--memory", "8GiB", "--engram", "shared"]
    assert "shared memory: 0.000 there already, " in run(*args, timeout=60).out
    with serve(model) as s:
        p = json.loads(run(*args, "--json", timeout=60).out)
        assert p["fits"] is True and p["shared"]["there"] == p["total"]["shared"]
        assert tables(s)[3] == round((p["total"]["shared"] - (2 << 20)) / 2**20)
