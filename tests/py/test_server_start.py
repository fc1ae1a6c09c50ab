"""What baleend and its model say when they cannot start: one line that names the culprit, and the right status."""
import os
import resource
import shutil

import pytest
from ckpt import header
from conftest import DEMO, run
from serving import Server

USAGE = [
    (["--port", "70000"], "--port"), (["--port", "x"], "--port"), (["--port"], "--port"), (["--port", "0x10"], "--port"), (["--bogus"], "--bogus"),
    (["a", "b"], "'b'"), ([""], "empty"), (["--host", ""], "--host"), (["--max-requests", "0"], "--max-requests"),
    (["--max-requests", "9" * 20], "--max-requests"), (["--max-queue", "-1"], "--max-queue"), (["--timeout", "nan"], "--timeout"),
    (["--timeout", "0"], "--timeout"), (["--drain", "inf"], "--drain"), (["--ping", "0"], "--ping"), (["--api-key", ""], "--api-key"),
    (["--max-body", "0"], "--max-body"), (["--max-body", str(2**62)], "--max-body"), (["--model-name", "a\nb"], "--model-name"),
    (["--cpu", "bogus"], "--cpu"), (["--threads", "-1"], "--threads"), (["--threads", "100000"], "--threads"),
    (["--step-tokens", "0"], "--step-tokens"), (["--max-context", "-5"], "--max-context"), (["--max-context", "1"], "--max-context"),
    (["--check", "some"], "--check"), (["--access", "some"], "--access"), (["--thinking", "maybe"], "--thinking"),
]


def refused(*args, rc=3, **kw):
    r = run("baleend", *args, "--port", "0", timeout=60, **kw)
    assert r.rc == rc and r.err.startswith("baleend: ") and r.err.count("\n") == 1, (args, r.rc, r.err)
    assert "ready" not in r.out
    return r.err


@pytest.mark.parametrize("args,name", USAGE, ids=lambda v: " ".join(v)[:30] if isinstance(v, list) else "")
def test_usage(args, name):
    r = run("baleend", *args, timeout=60)
    assert r.rc == 2 and r.out == "" and r.err.count("\n") == 1 and name in r.err, r.err


@pytest.mark.parametrize("what", ["absent", "folder", "device", "empty", "two keys"])
def test_key_file(tmp_path, what):
    path = {"absent": tmp_path / "no", "folder": tmp_path, "device": "/dev/zero"}.get(what, tmp_path / "key")
    if what == "empty":
        path.write_text("\nsecret\n")
    err = refused("--api-key-file", path, *(["--api-key", "x"] if what == "two keys" else []), rc=2 if what == "two keys" else 3)
    assert what == "two keys" or str(path) in err


def test_a_selection_of_layers_is_not_served(baleen, tmp_path):
    for form in ("packed", "bf16"):
        path = tmp_path / form
        assert baleen("convert", DEMO, path, "--to", form, "--layers", "0-3").rc == 0
        for line in (refused(path), baleen("generate", path, "--prompt", "x").err, baleen("logits", path, "--ids", "1", "--out", tmp_path / "o").err):
            assert f"{path}: holds a selection of the model's layers" in line


def test_damage_that_only_a_full_check_finds(demo_packed, tmp_path):
    """One bit of one code: a legal model, another one than was packed."""
    shutil.copytree(demo_packed, tmp_path / "m")
    file = tmp_path / "m" / "rank-0000" / "layer-03.safetensors"
    data = bytearray(file.read_bytes())
    tensors, begin, _ = header(file)
    data[begin + tensors["layers.3.ffn.experts.w1.weight"]["data_offsets"][0] + 5] ^= 1
    file.write_bytes(data)
    assert "layer-03.safetensors" in refused(tmp_path / "m", "--check", "full")
    with Server("baleend", tmp_path / "m") as s:
        assert s.alive()


def test_what_is_no_model(demo_packed, tmp_path):
    for path in (demo_packed / "rank-0000", demo_packed / "manifest.json", "/dev/null"):
        assert str(path) in refused(path)
    os.mkfifo(tmp_path / "fifo")
    assert "FIFO" in refused(tmp_path / "fifo")
    for name, word in (("tokenizer.json", "No such file"), ("config.json", "No such file"), ("rank-0000/layer-03.safetensors", "No such file")):
        shutil.copytree(demo_packed, tmp_path / "m")
        (tmp_path / "m" / name).unlink()
        err = refused(tmp_path / "m")
        assert name.split("/")[-1] in err and word in err, err
        shutil.rmtree(tmp_path / "m")


def test_more_shards_than_files_may_be_open(demo_packed):
    """The soft limit is raised to the hard one; beyond that the message says what is missing."""
    def soft():
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def hard():
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))

    for command in (["generate", demo_packed, "--prompt", "1 + 1"], ["verify", demo_packed], ["inspect", demo_packed]):
        assert run("baleen", *command, preexec_fn=soft).rc == 0
        r = run("baleen", *command, preexec_fn=hard)
        assert r.rc == 4 and r.err.count("\n") == 1 and "ulimit -n" in r.err, r.err
    assert "ulimit -n" in refused(demo_packed, rc=4, preexec_fn=hard)


def test_the_folder_goes_away_while_it_is_served(demo_packed, tmp_path):
    for how in ("auto", "mmap", "pread"):
        shutil.copytree(demo_packed, tmp_path / "m")
        with Server("baleend", tmp_path / "m", "--access", how) as s:
            before = s.chat("What is 23 plus 14?")["choices"][0]["message"]["content"]
            shutil.rmtree(tmp_path / "m")
            assert s.chat("What is 23 plus 14?")["choices"][0]["message"]["content"] == before and s.alive()


def test_a_file_is_cut_short_while_it_is_served(tmp_path):
    shutil.copytree(DEMO, tmp_path / "m")
    with Server("baleend", tmp_path / "m", "--access", "mmap") as s:
        for file in (tmp_path / "m").glob("*.safetensors"):
            os.truncate(file, 1000)
        with pytest.raises(OSError):
            s.complete("hello", max_tokens=2)
        assert s.wait() == 4 and len(s.err) == 1 and "was cut short" in s.err[0], s.err
