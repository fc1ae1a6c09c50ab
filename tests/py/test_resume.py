"""convert --resume: whenever a run ends, the next one goes on from what is proven, and the result has the bytes of an undisturbed run."""
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from conftest import BUILD, run
from test_faults import TO, content, convert, environment, faulty, seeded, small_disk, whole  # noqa: F401 (fixtures)

KILLS = int(os.environ.get("BL_KILLS", 8))  # in each of the cases of test_any_death


def resumed(r):
    """A run that went through: (files kept, its receipt)."""
    assert r.rc == 0 and r.err == "", (r.rc, r.err)
    j = json.loads(r.out)
    return j["kept_files"], j


def half_done(nano, tmp_path, to, *extra):
    """A run that died late."""
    for n in range(120, 20, -5):
        r = faulty(f"change:{n}:KILL", *convert(nano, tmp_path / "out", to, "--jobs", "1", *extra))
        if r.rc != 0:
            journal = tmp_path / "out.partial" / "journal"
            if journal.exists() and journal.read_text().count("\nfile ") >= 3:
                return
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(tmp_path / "out.partial", ignore_errors=True)
    raise AssertionError("no run was half done")


@pytest.fixture(scope="module")
def cast(nano, tmp_path_factory):
    out = tmp_path_factory.mktemp("cast") / "bf16"
    assert run("baleen", "convert", nano, out, "--to", "bf16", "--keep", "dspark", "--save-scales").rc == 0
    return out


@pytest.mark.parametrize("how", ["KILL", "POWER"])
@pytest.mark.parametrize("to,extra", [("bf16", []), ("bf16", ["--no-sha256"]), ("packed", []), ("packed", ["--no-sha256"]),
                                      ("packed", ["--tp", "2", "--pp", "2"]), ("released", [])])
def test_any_death(nano, cast, tmp_path, to, how, extra):
    """Runs that die one after another at random changes of the file system, and one that does not. BL_KILLS=50 makes 600 of them."""
    rng, out, kept, deaths = seeded(), tmp_path / "out", 0, 0
    nano = cast if to == "released" else nano
    r = run("baleen", *convert(nano, tmp_path / "plain", to, *extra))
    assert r.rc == 0, r.err
    want = content(tmp_path / "plain")
    shutil.rmtree(tmp_path / "plain")
    while deaths < KILLS:
        args = convert(nano, out, to, "--resume", "--json", "--jobs", rng.choice([1, 4]), *extra)
        r = faulty(f"change:{rng.randrange(1, 160)}:{how}", *args)
        if r.rc < 0:
            deaths += 1
            assert not out.exists() or content(out) == want
            continue
        kept += resumed(r)[0]
        assert content(out) == want and not (tmp_path / "out.partial").exists()
        shutil.rmtree(out)
    kept += resumed(run("baleen", *convert(nano, out, to, "--resume", "--json", *extra)))[0]
    assert content(out) == want and [p.name for p in tmp_path.iterdir()] == ["out"]
    assert kept > 0 or KILLS < 8


def test_other_hints_are_another_job(cast, tmp_path):
    """Under the same path, or found beside the source: what is half encoded must not go on under other scales."""
    source = tmp_path / "source"
    shutil.copytree(cast, source)
    half_done(source, tmp_path, "released", "--resume")
    kept = source / "scales.source.st"
    saved = kept.read_bytes()
    kept.unlink()
    r = run("baleen", *convert(source, tmp_path / "out", "released", "--resume"))
    assert r.rc == 2 and "other options" in r.err and r.err.count("\n") == 1, (r.rc, r.err)
    assert (tmp_path / "out.partial").exists() and not (tmp_path / "out").exists()
    kept.write_bytes(saved)  # there again, but not as it was
    r = run("baleen", *convert(source, tmp_path / "out", "released", "--resume", "--json"))
    assert r.rc == 0 and "made again" in r.err and r.err.count("\n") == 1, (r.rc, r.err)
    assert run("baleen", *convert(source, tmp_path / "plain", "released")).rc == 0
    assert content(tmp_path / "out") == content(tmp_path / "plain")


@pytest.mark.parametrize("to", TO)
def test_nothing_is_believed_without_its_digest(nano, whole, tmp_path, to):
    """Size and times of a finished file say nothing; neither does a damaged journal."""
    rng = seeded()
    for damage in ("byte", "zeros", "journal", "short", "none"):
        half_done(nano, tmp_path, to, "--resume")
        partial = tmp_path / "out.partial"
        journal = partial / "journal"
        names = noted(tmp_path)
        victim = partial / "files" / rng.choice(names)
        st, data = victim.stat(), bytearray(victim.read_bytes())
        if damage == "byte":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif damage == "zeros":
            data[len(data) // 2:] = bytes(len(data) - len(data) // 2)
        elif damage == "short":
            data = data[:-1]
        elif damage == "journal":
            text = bytearray(journal.read_bytes())
            text[text.index(b"file ") + rng.randrange(40)] ^= 1
            journal.write_bytes(text)
        victim.write_bytes(data)
        os.utime(victim, ns=(st.st_atime_ns, st.st_mtime_ns))
        kept, _ = resumed(run("baleen", *convert(nano, tmp_path / "out", to, "--resume", "--json")))
        assert kept == {"journal": 0, "none": len(names)}.get(damage, len(names) - 1)
        assert content(tmp_path / "out") == whole[to]
        shutil.rmtree(tmp_path / "out")


def test_another_source_or_other_options_are_refused(nano, whole, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(nano, source)
    half_done(source, tmp_path, "packed", "--resume")
    before = content(tmp_path / "out.partial")

    def refused(r, word):
        assert r.rc == 2 and r.err.count("\n") == 1 and word in r.err and "out.partial" in r.err, (r.rc, r.err)
        assert content(tmp_path / "out.partial") == before and not (tmp_path / "out").exists()

    for extra in (["--drop", "dspark"], ["--layers", "0-3"], ["--no-sha256"]):
        refused(run("baleen", *convert(source, tmp_path / "out", "packed", "--resume", *extra)), "other options")
    refused(run("baleen", *convert(source, tmp_path / "out", "bf16", "--resume")), "other options")
    config = source / "config.json"
    text = config.read_text()
    config.write_text(text + " ")
    refused(run("baleen", *convert(source, tmp_path / "out", "packed", "--resume")), "another source")
    config.write_text(text)
    kept, _ = resumed(run("baleen", *convert(source, tmp_path / "out", "packed", "--resume", "--json")))
    assert kept >= 3 and content(tmp_path / "out") == whole["packed"]


def noted(tmp_path):
    return [line.split(" ")[4] for line in (tmp_path / "out.partial" / "journal").read_text().splitlines() if line.startswith("file ")]


def version_of(shard, data):
    """Another version of a shard: same size, same header, same time; only the time of its change of state tells."""
    st = shard.stat()
    shard.write_bytes(data)
    os.utime(shard, ns=(st.st_atime_ns, st.st_mtime_ns))


@pytest.mark.parametrize("how", ["touched", "copied", "replaced", "linked", "moved"])
def test_a_source_that_changes_in_between(nano, whole, tmp_path, how):
    """What was made from a file that may have changed is made again, and only that."""
    source = tmp_path / "source"
    shutil.copytree(nano, source)
    half_done(source, tmp_path, "packed", "--resume")
    done = len(noted(tmp_path))
    shard, data = source / "model-00002-of-00002.safetensors", None
    if how == "touched":
        os.utime(shard)
    elif how == "copied":  # rsync without times
        data = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(data)
    elif how == "replaced":
        data = bytearray(shard.read_bytes())
        for at in range(len(data) - 5000, len(data), 10):
            data[at] ^= 1
        version_of(shard, bytes(data))
    elif how == "linked":  # changes the state, not the content
        os.link(shard, tmp_path / "link")
    else:
        source.rename(tmp_path / "elsewhere")
        source = tmp_path / "elsewhere"
    r = run("baleen", *convert(source, tmp_path / "out", "packed", "--resume", "--json"))
    kept = json.loads(r.out)["kept_files"]
    if how == "moved":
        assert r.err == "" and kept == done
    else:
        assert r.rc == 0 and r.err.count("\n") == 1 and f"{done - kept} finished files" in r.err and kept < done, (done, kept, r.err)
    if how != "replaced":
        assert content(tmp_path / "out") == whole["packed"]
    assert run("baleen", *convert(source, tmp_path / "plain", "packed")).rc == 0
    assert content(tmp_path / "out") == content(tmp_path / "plain")


def test_the_state_is_that_before_reading(nano, tmp_path):
    """A source that changes while it is read: the next run must not believe what was made from it."""
    source = tmp_path / "source"
    shutil.copytree(nano, source)
    child = stopped("rename:5:STOP", *convert(source, tmp_path / "out", "packed", "--resume", "--jobs", "1"))
    for shard in source.glob("*.safetensors"):
        os.utime(shard)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGCONT)
    child.communicate(timeout=60)
    assert noted(tmp_path)
    r = run("baleen", *convert(source, tmp_path / "out", "packed", "--resume", "--json"))
    assert r.rc == 0 and json.loads(r.out)["kept_files"] == 0 and "made again" in r.err


def test_a_link_of_ones_own_is_no_change(nano, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(nano, source)
    half_done(source, tmp_path, "packed", "--resume", "--link")
    done = len(noted(tmp_path))
    kept, _ = resumed(run("baleen", *convert(source, tmp_path / "out", "packed", "--resume", "--link", "--json")))
    assert kept == done


def test_counts_are_of_the_whole(cast, tmp_path):
    """What a run that went on says of the encoding is what one run would have said."""
    r = run("baleen", *convert(cast, tmp_path / "plain", "released", "--json"))
    want = json.loads(r.out)["encoded"]
    assert r.rc == 0 and all(c["values"] > 0 for c in want)
    half_done(cast, tmp_path, "released", "--resume")
    kept, j = resumed(run("baleen", *convert(cast, tmp_path / "out", "released", "--resume", "--json")))
    assert kept > 0 and j["encoded"] == want


def test_a_complete_folder_whose_journal_is_left(cast, tmp_path):
    """Death between the rename of the folder and the end: the next run has only to say so, unless the source is another by now."""
    source = tmp_path / "source"
    shutil.copytree(cast, source)
    args = convert(source, tmp_path / "out", "released", "--resume", "--json", "--jobs", "1")
    want = json.loads(run("baleen", *convert(source, tmp_path / "plain", "released", "--json")).out)["encoded"]

    def dies(n):
        for left in ("out", "out.partial"):
            shutil.rmtree(tmp_path / left, ignore_errors=True)
        return faulty(f"change:{n}:KILL", *args).rc != 0

    low, high = 10, 1000  # the last change at which a run dies
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if dies(middle) else (low, middle)
    while not (dies(low) and (tmp_path / "out").exists() and (tmp_path / "out.partial" / "journal").exists()):
        low -= 1
        assert low > high - 6
    times = {f: f.stat() for f in source.glob("*.safetensors")}
    shutil.copytree(tmp_path / "out.partial", tmp_path / "saved")
    kept, j = resumed(run("baleen", *args))
    assert j["encoded"] == want and kept > 0 and not (tmp_path / "out.partial").exists()
    shutil.copytree(tmp_path / "saved", tmp_path / "out.partial")
    for f in times:
        os.utime(f)
    r = run("baleen", *args)
    assert r.rc == 2 and r.err.count("\n") == 1 and "has changed since" in r.err, (r.rc, r.err)


@pytest.mark.parametrize("to", TO)
def test_what_is_left_is_replaced_without_the_option(nano, whole, tmp_path, to):
    half_done(nano, tmp_path, to)
    r = run("baleen", *convert(nano, tmp_path / "out", to))
    assert r.rc == 0 and r.err.count("\n") == 1 and "--resume" in r.err, r.err
    assert content(tmp_path / "out") == whole[to] and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_that_name_is_not_touched(nano, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "precious").write_text("x")
    for extra in ([], ["--resume"]):
        r = run("baleen", *convert(nano, tmp_path / "out", "packed", *extra))
        assert r.rc == 2 and r.err.count("\n") == 1 and "out.partial" in r.err
    r = run("baleen", "synth", tmp_path / "out", "--preset", "nano")
    assert r.rc == 2 and content(tmp_path) == {"out.partial/precious": b"x"}


def stopped(fault, *args):
    """A run that stands still at a fault."""
    child = subprocess.Popen([str(BUILD / "tools" / "baleen"), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=environment(fault))
    assert os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT).si_code == os.CLD_STOPPED
    return child


@pytest.mark.parametrize("to", TO)
def test_a_second_writer_is_refused(nano, whole, tmp_path, to):
    out = tmp_path / "out"
    first = stopped("create:6:STOP", *convert(nano, out, to))
    try:
        for args in (convert(nano, out, to), convert(nano, out, to, "--resume"), ("synth", out, "--preset", "nano")):
            r = run("baleen", *args)
            assert r.rc == 2 and r.err.count("\n") == 1 and "another process" in r.err, r.err
    finally:
        first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 0 and err == "" and content(out) == whole[to]


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_done(nano, whole, tmp_path, to, sig):
    out = tmp_path / "out"
    child = stopped("rename:5:STOP", *convert(nano, out, to, "--resume", "--jobs", "1"))
    child.send_signal(sig)
    child.send_signal(signal.SIGCONT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 4 and err.count("\n") == 1 and "interrupted" in err and "--resume" in err and "out.partial" in err, err
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    kept, _ = resumed(run("baleen", *convert(nano, out, to, "--resume", "--json")))
    assert kept >= 4 and content(out) == whole[to]


@pytest.mark.parametrize("to", TO)
def test_a_full_disk_keeps_what_is_done(nano, whole, tmp_path, to):
    with small_disk(tmp_path, "size=100m") as disk:
        out = disk / "out"
        child = stopped("create:8:STOP", *convert(nano, out, to, "--resume", "--jobs", "1"))
        room = os.statvfs(disk)
        with open(disk / "filler", "wb") as f:
            os.posix_fallocate(f.fileno(), 0, room.f_bavail * room.f_bsize)
        child.send_signal(signal.SIGCONT)
        _, err = child.communicate(timeout=60)
        assert child.returncode == 4 and err.count("\n") == 1 and "No space left" in err, err
        r = run("baleen", *convert(nano, out, to, "--resume"))
        assert r.rc == 4 and "are free" in r.err and (disk / "out.partial").exists()
        (disk / "filler").unlink()
        kept, _ = resumed(run("baleen", *convert(nano, out, to, "--resume", "--json")))
        assert kept >= 1 and content(out) == whole[to]
        assert [p.name for p in pathlib.Path(disk).iterdir()] == ["out"]


def test_a_run_that_finished_nothing_leaves_nothing(nano, tmp_path):
    """Refused for want of room: there is nothing to go on from, and nothing in the way of another job of that name."""
    with small_disk(tmp_path, "size=1m") as disk:
        r = run("baleen", *convert(nano, disk / "out", "packed", "--resume"))
        assert r.rc == 4 and "are free" in r.err and list(disk.iterdir()) == [], r.err


def test_what_finished_nothing_is_in_nobodys_way(nano, whole, tmp_path):
    """A journal of another job that names no file: its first line alone is no reason to refuse."""
    r = faulty("create:4:KILL", *convert(nano, tmp_path / "out", "bf16", "--resume", "--jobs", 1))  # the first output
    journal = tmp_path / "out.partial" / "journal"
    assert r.rc < 0 and journal.read_text().count("\n") == 1, journal.read_text()
    assert resumed(run("baleen", *convert(nano, tmp_path / "out", "packed", "--resume", "--json")))[0] == 0
    assert content(tmp_path / "out") == whole["packed"] and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_injected_errors_keep_what_is_done(nano, whole, tmp_path):
    """Errors one after another, each run going on from the last."""
    out, rng, most = tmp_path / "out", seeded(), 0
    for fault in ("write:9+:EIO", "sync:9:EIO", "rename:7:ENOSPC", "create:9:EDQUOT", "read:200+:EIO", "sync:2:EIO"):
        r = faulty(fault, *convert(nano, out, "packed", "--resume", "--json", "--jobs", rng.choice([1, 4])))
        assert r.rc == 4 and r.err.count("\n") == 1 and not out.exists() or r.rc == 0, r.err
        kept = (tmp_path / "out.partial" / "journal").read_text().count("\nfile ") if (tmp_path / "out.partial").exists() else 0
        assert kept >= most, "what was finished is gone"
        most = 0 if out.exists() else kept
    if not out.exists():
        assert resumed(run("baleen", *convert(nano, out, "packed", "--resume", "--json")))[0] > 0
    assert content(out) == whole["packed"]
