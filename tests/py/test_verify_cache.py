"""baleen verify --cache: what was proven and not written to since is not read again, and nothing else is ever believed."""
import hashlib
import json
import os
import random
import shutil
import subprocess
import time

import pytest

from conftest import BUILD, DEMO, run

SETTLE = 2.1  # files must have been left alone for two seconds


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """Models that were left alone long enough, and their caches."""
    d = tmp_path_factory.mktemp("settled")
    assert run("baleen", "synth", d / "hf", "--preset", "nano").rc == 0
    assert run("baleen", "convert", d / "hf", d / "packed", "--to", "packed").rc == 0
    assert run("baleen", "convert", d / "hf", d / "bf16", "--to", "bf16").rc == 0
    shutil.copytree(DEMO, d / "download")
    meta = d / "download" / ".cache" / "huggingface" / "download"
    meta.mkdir(parents=True)
    for f in (d / "download").glob("*.safetensors"):
        (meta / (f.name + ".metadata")).write_text(f"revision\n{hashlib.sha256(f.read_bytes()).hexdigest()}\n1.0\n")
    for n in range(6):
        shutil.copytree(d / "packed", d / f"packed{n}")
    time.sleep(SETTLE)
    return d


def verify(model, cache, *more, rc=0, notes=0):
    """The receipt's (files from the cache, bytes read), and stderr."""
    r = run("baleen", "verify", model, "--cache", cache, "--json", *more)
    assert r.rc == rc and (rc or r.err.count("\n") == notes), (r.rc, r.err)
    j = json.loads(r.out)
    assert "bit rot" in j["cache"]["note"]
    return j["cache"]["files"], j["bytes"], r.err


def count(folder):
    return sum(1 for p in folder.rglob("*") if p.is_file()) - 1  # SHA256SUMS


@pytest.mark.parametrize("kind", ["packed", "bf16", "download"])
def test_the_second_run_reads_nothing(settled, tmp_path, kind):
    model, cache = settled / kind, tmp_path / "cache"
    total = 2 if kind == "download" else count(model)
    first = verify(model, cache)
    assert first[0] == 0 and first[1] > 0
    assert cache.stat().st_mode & 0o777 == 0o600 and [p.name for p in tmp_path.iterdir()] == ["cache"]
    again = json.loads(run("baleen", "verify", model, "--cache", cache, "--json").out)
    assert again["cache"]["files"] == total == again["files_hashed"] and again["bytes"] == 0
    assert again["cache"]["bytes"] == first[1]
    text = run("baleen", "verify", model, "--cache", cache).out
    assert f"from the cache: {total} files" in text and "cannot see bit rot" in text
    assert json.loads(run("baleen", "verify", model, "--json").out)["bytes"] == first[1]  # opt-in


def test_in_a_folder(settled, tmp_path):
    for kind in ("packed", "bf16", "packed", "bf16"):
        verify(settled / kind, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert verify(settled / "packed", tmp_path)[1] == 0 == verify(settled / "bf16", tmp_path)[1]


def test_one_file_for_several_models(settled, tmp_path):
    for kind in ("packed", "bf16"):
        verify(settled / kind, tmp_path / "c")
    assert verify(settled / "packed", tmp_path / "c")[1] == 0 == verify(settled / "bf16", tmp_path / "c")[1]


def flip(path, at=-3):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_was_written_to_is_read(settled, tmp_path):
    model, cache = settled / "packed0", tmp_path / "cache"
    verify(model, cache)
    victim = model / "rank-0000" / "layer-01.safetensors"
    times = victim.stat()
    flip(victim)
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))  # the time of the change of state cannot be set
    for _ in range(2):
        files, _, err = verify(model, cache, rc=1)
        assert files == count(model) - 1 and "layer-01.safetensors" in err and "SHA-256" in err
    flip(victim)
    assert verify(model, cache)[0] == count(model) - 1
    time.sleep(SETTLE)
    verify(model, cache)
    assert verify(model, cache)[1] == 0


def test_replaced_and_touched_files_are_read(settled, tmp_path):
    model, cache = settled / "packed1", tmp_path / "cache"
    verify(model, cache)
    a, b, c = (model / "rank-0000" / f"layer-0{i}.safetensors" for i in range(3))
    shutil.copy2(a, tmp_path / "x")
    os.replace(tmp_path / "x", a)
    os.utime(b)
    os.chmod(c, 0o600)
    assert verify(model, cache)[0] == count(model) - 3


def test_new_files_are_not_remembered(settled, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(settled / "bf16", model)
    for _ in range(2):
        assert verify(model, tmp_path / "cache")[0] == 0
    assert not (tmp_path / "cache").exists()


def rewrite(path, change):
    j = json.loads(path.read_text())
    change(j)
    path.write_text(json.dumps(j))
    digest, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    return digest, size


def test_another_config_means_other_roles(settled, tmp_path):
    """What a file's bytes mean hangs on the config: with another one all are looked at again."""
    model, cache = settled / "packed2", tmp_path / "cache"
    verify(model, cache)
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(text + " ")
    lines = (model / "SHA256SUMS").read_text()
    old, new = hashlib.sha256(text.encode()).hexdigest(), hashlib.sha256((text + " ").encode()).hexdigest()
    assert old in lines
    digest, _ = rewrite(model / "manifest.json", lambda m: [f.update(sha256=new, bytes=f["bytes"] + 1) for f in m["files"]
                                                            if f["name"] == "config.json"])
    lines = "".join(f"{new if x[66:] == 'config.json' else digest if x[66:] == 'manifest.json' else x[:64]}  {x[66:]}\n"
                    for x in lines.splitlines())
    (model / "SHA256SUMS").write_text(lines)
    assert verify(model, cache)[0] == 0


def test_a_digest_that_says_otherwise_is_settled_by_reading(settled, tmp_path):
    model, cache = settled / "packed3", tmp_path / "cache"
    verify(model, cache)
    lines = (model / "SHA256SUMS").read_text().splitlines()
    bad = [("0" * 64 + x[64:] if x.endswith("/rest.safetensors") else x) for x in lines]
    (model / "SHA256SUMS").write_text("\n".join(bad) + "\n")
    files, read, err = verify(model, cache, rc=1)
    assert files == count(model) - 1 and read > 0 and "rest.safetensors" in err


def forge(lines):
    text = "".join(lines)
    return text + "end " + hashlib.sha256(text.encode()).hexdigest() + "\n"


def test_damaged_caches_are_not_believed(settled, tmp_path):
    model, cache, rng = settled / "packed4", tmp_path / "cache", random.Random(3)
    verify(model, cache)
    good = cache.read_bytes()
    lines = good.decode().splitlines(True)
    assert forge(lines[:-1]) == good.decode()
    places = {20, len(good) - 1, len(good) - 30, good.index(b"end")} | {rng.randrange(15, len(good)) for _ in range(6)}
    bad = [good[:i] + bytes([good[i] ^ 1]) + good[i + 1:] for i in sorted(places)]
    bad += [good[:-1], good[:-80], good[:15], good + b"\n", b"".join([good, good]), good.replace(b"\n", b"\n\n", 1)]
    bad += [forge([lines[0], t, *lines[2:-1]]).encode() for t in ("x\n", lines[1][:-2] + "x\n", lines[1].replace(" ", "\t", 1), "\n")]
    for text in bad:
        cache.write_bytes(text)
        files, read, err = verify(model, cache, notes=1)
        assert files == 0 and read > 0 and "damaged" in err, err
        assert cache.read_bytes() == good  # made anew


@pytest.mark.parametrize("what", ["model", "version", "empty", "text"])
def test_foreign_files_are_left_alone(settled, tmp_path, what):
    model, cache = settled / "packed5", tmp_path / "cache"
    text = {"model": (DEMO / "config.json").read_bytes(), "version": b"baleen-cache 2\nend\n", "empty": b"", "text": b"hello\n" * 9}[what]
    cache.write_bytes(text)
    files, read, err = verify(model, cache, notes=1)
    assert files == 0 and read > 0 and "left alone" in err and cache.read_bytes() == text


def test_what_others_may_write_is_not_believed(settled, tmp_path):
    cache = tmp_path / "cache"
    verify(settled / "packed", cache)
    cache.chmod(0o666)
    files, _, err = verify(settled / "packed", cache, notes=1)
    assert files == 0 and "others may write" in err
    cache.chmod(0o600)
    assert verify(settled / "packed", cache)[1] == 0


def test_runs_at_once(settled, tmp_path):
    cache = tmp_path / "cache"
    for _ in range(2):
        runs = [subprocess.Popen([str(BUILD / "tools" / "baleen"), "verify", str(settled / k), "--cache", str(cache), "--jobs", "1"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for k in ("packed", "bf16") * 3]
        assert all(r.communicate()[1] == "" and r.returncode == 0 for r in runs)
    assert verify(settled / "packed", cache)[1] == 0 or verify(settled / "bf16", cache)[1] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize("args, word", [(["--level", "2"], "level 3"), (["--against", DEMO], "--against"), (["--sign", "x"], "--sign")])
def test_usage(settled, tmp_path, args, word):
    r = run("baleen", "verify", settled / "bf16", "--cache", tmp_path / "c", *args)
    assert r.rc == 2 and word in r.err and r.err.count("\n") == 1


def test_a_place_that_cannot_be_written(settled, tmp_path):
    r = run("baleen", "verify", settled / "bf16", "--cache", tmp_path / "absent" / "c")
    assert r.rc == 4 and r.err.count("\n") == 1 and "cache" in r.err
    r = run("baleen", "verify", next((settled / "bf16").glob("*.safetensors")), "--cache", tmp_path / "c")
    assert r.rc == 2 and r.err.count("\n") == 1


@pytest.mark.parametrize("kind", ["packed", "bf16"])
def test_a_place_in_the_model(settled, tmp_path, kind):
    """There it would be an unlisted file of the model."""
    model = settled / kind
    before = sorted(p.name for p in model.rglob("*"))
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "beside").mkdir()
    places = [model / "cache", model, model / ".cache", tmp_path / "link" / "c", tmp_path / "beside" / ".." / "link" / "c"]
    places = [(model, p) for p in places + [p for p in model.iterdir() if p.is_dir()]] + [(tmp_path / "link", model / "c")]
    for path, place in places:
        r = run("baleen", "verify", path, "--cache", place)
        assert r.rc == 2 and r.err.count("\n") == 1 and "cannot lie in the folder" in r.err, (place, r.err)
    r = run("baleen", "verify", ".", "--cache", "c", cwd=model)
    assert r.rc == 2 and "cannot lie in the folder" in r.err
    assert run("baleen", "verify", model, "--cache", str(model) + "-cache").rc == 0  # its name begins alike
    assert sorted(p.name for p in model.rglob("*")) == before
