"""What goes wrong while files are read and written: kills, power cuts, full disks, read errors, short and interrupted calls. The right
status, one line that names the file, and nothing under the output's name that is not whole. tests/shim/faults.c injects most of it."""
import contextlib
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

from conftest import BUILD, DEMO, run

SHIM = BUILD / "tests" / "faults.so"
TO = ["bf16", "packed"]


def seeded():
    """Other places at every run; BL_SEED repeats one."""
    seed = int(os.environ.get("BL_SEED", random.randrange(1 << 32)))
    print("BL_SEED =", seed)
    return random.Random(seed)


def environment(fault, path=None, log=None):
    env = dict(os.environ, LD_PRELOAD=str(SHIM), BL_FAULT=fault)
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    if path:
        env["BL_FAULT_PATH"] = str(path)
    if log:
        env["BL_FAULT_LOG"] = str(log)
    return env


def faulty(fault, *args, path=None, log=None):
    r = run("baleen", *args, env=environment(fault, path, log))
    assert r.rc != 99, r.err
    return r


def content(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture(scope="module")
def whole(nano, tmp_path_factory):
    """What undisturbed conversions of nano write."""
    d = tmp_path_factory.mktemp("whole")
    for to in TO:
        assert run("baleen", *convert(nano, d / to, to)).rc == 0
    return {to: content(d / to) for to in TO}


def convert(nano, out, to, *extra):
    return ("convert", nano, out, "--to", to, *([] if to == "packed" else ["--shard-size", "200KB"]), *extra)


def failed_cleanly(r, tmp_path, *words):
    assert r.rc == 4 and r.out == "", (r.rc, r.out, r.err)
    assert r.err.count("\n") == 1 and r.err.startswith("baleen "), r.err
    for w in words:
        assert w in r.err, (w, r.err)
    assert not list(tmp_path.glob("out*")), "something was left behind"


def plain_name(path):
    """The name that a temporary file or folder will have."""
    name = pathlib.Path(path).name
    m = re.fullmatch(r"\.(.*)\.\d+-\d+\.tmp|(.*)\.partial.*", name)
    return m[1] or m[2] if m else name


# ---- injected errors

@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("fault", ["write:{}+:EIO", "write:{}+:ENOSPC", "write:{}+:EDQUOT", "sync:{}:EIO", "reserve:{}:ENOSPC",
                                   "reserve:{}:EIO", "rename:{}:EIO", "create:{}:ENOSPC", "create:{}:EROFS", "create:{}:EMFILE"])
def test_errors_while_writing(nano, whole, tmp_path, to, fault):
    """The first, an early and a late call of each kind fails."""
    log, n, hit = tmp_path / "log", 1, 0
    while True:
        r = faulty(fault.format(n), *convert(nano, tmp_path / "out", to, "--jobs", 1 + n % 4), log=log)
        if not log.exists():
            break
        names = {plain_name(line.split(" ", 1)[1]) for line in log.read_text().splitlines()}
        log.unlink()
        if (tmp_path / "out").exists():  # the folder was complete, and its parent could not be synced; or direct writes were given up
            assert content(tmp_path / "out") == whole[to] and r.rc == (4 if "cannot sync" in r.err else 0)
            shutil.rmtree(tmp_path / "out")
        else:
            words = {"EIO": "Input/output", "ENOSPC": "No space", "EDQUOT": "quota", "EROFS": "Read-only", "EMFILE": "ulimit"}
            failed_cleanly(r, tmp_path, words[fault.rpartition(":")[2]])
            assert any(name in r.err for name in names), (names, r.err)
            hit += 1
        n = n * 2 if n < 8 else n * 2 + 1
    assert hit >= 2 and r.rc == 0, (n, r.err)


@pytest.mark.parametrize("what", ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json", "tokenizer.json",
                                  "model.safetensors.index.json"])
@pytest.mark.parametrize("first", [1, 3])
def test_a_source_that_cannot_be_read(nano, tmp_path, what, first):
    """Every read of one file fails, from the first or third on: headers are read, then the disk goes."""
    for command in (("verify", nano), convert(nano, tmp_path / "out", "bf16"), convert(nano, tmp_path / "out", "packed"),
                    ("inspect", nano)):
        log = tmp_path / "log"
        r = faulty(f"read:{first}+:EIO", *command, path=nano / what, log=log)
        if log.exists():
            log.unlink()
            failed_cleanly(r, tmp_path, what, "Input/output error")
        else:
            assert r.rc == 0 and (first > 1 or command[0] == "inspect"), r.err
            shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_read_error_in_a_packed_model(nano, whole, tmp_path):
    good = tmp_path / "good"
    assert run("baleen", "convert", nano, good, "--to", "packed").rc == 0
    for name in [n for n in content(good) if n != "SHA256SUMS"] + ["SHA256SUMS"]:
        failed_cleanly(faulty("read:1+:EIO", "verify", good, path=good / name), tmp_path, name, "Input/output error")


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("faults", ["read:/2:SHORT,read:/3:EINTR,write:/2:SHORT,write:/3:EINTR,reserve:/2:EINTR",
                                    "read:/1:SHORT,write:/1:SHORT", "read:/2:EIO,write:1:EIO"])
def test_interrupted_and_short_calls_change_nothing(nano, whole, tmp_path, to, faults):
    """In the last row every direct or cached read that fails is tried again another way, and so is the first direct write."""
    for jobs in (1, 3):
        r = faulty(faults, *convert(nano, tmp_path / "out", to, "--jobs", jobs))
        if "EIO" in faults and r.rc == 4:
            failed_cleanly(r, tmp_path, "Input/output error")
            continue
        assert r.rc == 0 and r.err == "", r.err
        assert content(tmp_path / "out") == whole[to]
        r = faulty(faults.split(",write")[0] if "EIO" not in faults else "read:/3:EINTR", "verify", tmp_path / "out")
        assert r.rc == 0 and r.err == "", r.err
        shutil.rmtree(tmp_path / "out")


# ---- kills and power cuts

def check_after_death(r, nano, whole, tmp_path, to):
    """Nothing, or all of it, is there under the output's name; the next run is not in the way of what was left."""
    out = tmp_path / "out"
    if out.exists():
        assert content(out) == whole[to]
        shutil.rmtree(out)
    left = [p.name for p in tmp_path.glob("out*")]
    assert left in ([], ["out.partial"])
    r = run("baleen", *convert(nano, out, to))
    assert r.rc == 0 and r.err.count("\n") <= len(left), r.err
    assert all("an earlier run left" in line for line in r.err.splitlines())
    assert content(out) == whole[to] and not (tmp_path / "out.partial").exists()
    shutil.rmtree(out)


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("how", ["KILL", "POWER"])
def test_death_at_a_random_change(nano, whole, tmp_path, to, how):
    rng, log = seeded(), tmp_path / "log"
    assert faulty("change:/1000000:EIO", *convert(nano, tmp_path / "out", to)).rc == 0
    shutil.rmtree(tmp_path / "out")
    high = 40
    while faulty(f"change:{high}:KILL", *convert(nano, tmp_path / "out", to)).rc < 0:
        check_after_death(None, nano, whole, tmp_path, to)
        high = high * 3 // 2
    shutil.rmtree(tmp_path / "out")
    died = 0
    for n in [1, 2, 3] + [rng.randrange(1, high) for _ in range(12)]:
        r = faulty(f"change:{n}:{how}", *convert(nano, tmp_path / "out", to, "--jobs", rng.choice([1, 4])), log=log)
        assert r.rc in (0, -signal.SIGKILL), (n, r.rc, r.err)
        died += r.rc != 0
        check_after_death(r, nano, whole, tmp_path, to)
    assert died >= 5


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_a_random_moment(nano, whole, tmp_path, to, sig):
    rng = seeded()
    begin = time.monotonic()
    assert run("baleen", *convert(nano, tmp_path / "out", to)).rc == 0
    span = time.monotonic() - begin
    shutil.rmtree(tmp_path / "out")
    for _ in range(8):
        child = subprocess.Popen([BUILD / "tools" / "baleen", *convert(nano, tmp_path / "out", to)], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        time.sleep(rng.uniform(0, span))
        child.send_signal(sig)
        out, err = child.communicate(timeout=60)
        if sig != signal.SIGKILL and child.returncode not in (0, -sig):  # -sig: before it was caught
            assert child.returncode == 4 and err.count("\n") == 1 and "interrupted" in err, err
            assert not list(tmp_path.glob("out*"))
        check_after_death(None, nano, whole, tmp_path, to)


# ---- disks that fill, and ones that take nothing

@contextlib.contextmanager
def small_disk(tmp_path, options):
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here ({done.stderr.strip()}): full and read-only disks are NOT tested")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def failed_on(disk, r, *words):
    assert r.rc == 4 and r.err.count("\n") == 1 and r.out == "", (r.rc, r.out, r.err)
    assert all(w in r.err for w in words), (words, r.err)
    assert not list(disk.glob("out*"))


@pytest.mark.parametrize("to", TO)
def test_a_disk_that_is_too_small(nano, tmp_path, to):
    with small_disk(tmp_path, "size=1m") as disk:
        failed_on(disk, run("baleen", *convert(nano, disk / "out", to)), "out", "are free")
        failed_on(disk, run("baleen", "synth", disk / "out", "--preset", "nano"), "out")


@pytest.mark.parametrize("inodes", [3, 5, 8, 11])
def test_a_disk_without_room_for_files(nano, tmp_path, inodes):
    with small_disk(tmp_path, f"size=200m,nr_inodes={inodes}") as disk:
        failed_on(disk, run("baleen", *convert(nano, disk / "out", "packed")), "No space left")


@pytest.mark.parametrize("to", TO)
def test_a_limit_on_the_size_of_files(nano, tmp_path, to):
    """ulimit -f: an error like a full disk, not a death by SIGXFSZ that leaves DST.partial behind."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    failed_cleanly(run("baleen", *convert(nano, tmp_path / "out", to), preexec_fn=limit), tmp_path, "File too large")


@pytest.mark.parametrize("to", TO)
def test_a_disk_that_fills(tmp_path, to):
    """Somebody else takes the room as soon as the conversion has begun."""
    for create in (5, 7, 10):
        with small_disk(tmp_path, "size=120m") as disk:
            child = subprocess.Popen([BUILD / "tools" / "baleen", *convert(DEMO, disk / "out", to, "--jobs", "1")],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(f"create:{create}:STOP"))
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            free = os.statvfs(disk)
            with open(disk / "filler", "wb") as f:
                os.posix_fallocate(f.fileno(), 0, free.f_bavail * free.f_bsize - 100000)
            child.send_signal(signal.SIGCONT)
            _, err = child.communicate(timeout=60)
            assert child.returncode == 4 and err.count("\n") == 1 and "No space left" in err, err
            assert not list(disk.glob("out*"))
        (tmp_path / "disk").rmdir()


def test_a_read_only_disk(nano, tmp_path):
    with small_disk(tmp_path, "size=200m") as disk:
        assert run("baleen", *convert(nano, disk / "before", "packed")).rc == 0
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for to in TO:
            failed_on(disk, run("baleen", *convert(nano, disk / "out", to)), "out", "Read-only file system")
        failed_on(disk, run("baleen", "synth", disk / "out", "--preset", "nano"), "out", "Read-only file system")
        assert run("baleen", "verify", disk / "before").rc == 0  # reading needs no writing
        assert run("baleen", *convert(disk / "before", tmp_path / "bf16", "bf16")).rc == 0


@pytest.mark.parametrize("apply", [True, False])
def test_workers_that_wait_for_a_file_that_is_unfit(nano, tmp_path, apply):
    """One worker opens a file, slowly, and finds that it does not fit; the others, who have waited for it, must not take it for open."""
    b, delta = tmp_path / "b", tmp_path / "delta"
    assert run("baleen", "bucket", nano, b).rc == 0 and run("baleen", "bucket", nano, delta, "--base", b).rc == 0
    (b / "bucket-00001.safetensors").write_text("0")
    args = ["--apply", delta, b, tmp_path / "out"] if apply else [nano, tmp_path / "out", "--base", b]
    r = faulty("open:1+:SLOW", "bucket", *args, "--jobs", "8", path="b/bucket-00001")
    assert r.rc == 3 and r.err.count("\n") == 1 and "has 1 byte, not the" in r.err, (r.rc, r.err)
    assert not list(tmp_path.glob("out*"))
