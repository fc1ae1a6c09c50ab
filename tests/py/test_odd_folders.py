"""Folders that are not what somebody meant, or out of reach: one clear line each, from every command."""
import hashlib
import shutil
import subprocess

import pytest

import gens
from conftest import DEMO, run, without_privilege


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    out = tmp_path_factory.mktemp("odd") / "packed"
    assert run("baleen", "convert", DEMO, out, "--to", "packed", "--pp", "2").rc == 0
    return out


def one_line(r, rc, *words):
    assert r.rc == rc and r.err.count("\n") == 1 and all(w in r.err for w in words), (r.rc, r.err, words)


def commands(path, tmp_path):
    return {"verify": ["verify", path], "inspect": ["inspect", path], "convert": ["convert", path, tmp_path / "out", "--to", "bf16"],
            "merge": ["merge", path, tmp_path / "out"], "logits": ["logits", path, "--ids", "1", "--out", tmp_path / "l"]}


@pytest.mark.parametrize("command", ["verify", "inspect", "convert", "merge", "logits"])
def test_the_folder_of_one_rank(packed, tmp_path, command):
    rank = packed / "rank-0001"
    one_line(run("baleen", *commands(rank, tmp_path)[command]), 3, "rank 1 alone", f"holds it, {packed} (", "--rank 1")
    assert not (tmp_path / "out").exists()


def test_the_folder_of_one_rank_by_other_names(packed, tmp_path):
    one_line(run("baleen", "verify", "rank-0000/", cwd=packed), 3, "holds it, . (")
    one_line(run("baleen", "verify", ".", cwd=packed / "rank-0001"), 3, "holds it, ./.. (")
    one_line(run("baleen", "verify", packed / "rank-0001", "--rank", 1), 3, "rank 1 alone")
    one_line(run("baleen", "verify", DEMO, "--against", packed / "rank-0001"), 3, "rank 1 alone")
    shutil.copytree(packed / "rank-0000", tmp_path / "renamed")
    one_line(run("baleen", "verify", tmp_path / "renamed"), 3, "rank 0 alone")


@pytest.mark.parametrize("what, words", [("", ["was packed for 2 ranks"]), ("rank-0001", ["rank 1 alone"]), ("absent", ["No such file"])])
def test_the_server_does_not_listen_for_nothing(packed, what, words):
    r = run("baleend", packed / what, "--port", 0, timeout=60)
    one_line(r, 3, *words)
    assert r.out == ""


def archived(folder, path):
    subprocess.run(["tar", "-C", folder, "-cf", path, "."], check=True)
    return path


@pytest.mark.parametrize("empty", [False, True])
def test_a_rank_that_is_on_another_node(packed, tmp_path, empty):
    """One line says that it is not here, however many of its files are listed."""
    node = shutil.copytree(packed, tmp_path / "node")
    shutil.rmtree(node / "rank-0001")
    if empty:
        (node / "rank-0001").mkdir()
    word = "/rank-0001: the folder is " + ("empty" if empty else "not there")
    for path in [node] + ([] if empty else [archived(node, tmp_path / "node.tar")]):
        assert run("baleen", "verify", path, "--rank", 0).rc == 0
        for more in (["--rank", "1"], ["--rank", "1", "--level", "1"], []):
            one_line(run("baleen", "verify", path, *more), 1, f"{path}{word}")
        one_line(run("baleen", "inspect", path), 3, f"{path}{word}")
        one_line(run("baleen", "merge", path, tmp_path / "out"), 3, f"{path}{word}")


@pytest.mark.parametrize("kind", ["v4.1", "v3"])
def test_a_config_alone(tmp_path, kind):
    """Nothing is there of what the config calls for: that is one line too."""
    folder = tmp_path / "c"
    if kind == "v3":
        gens.write(folder, *gens.v3())
    else:
        shutil.copytree(DEMO, folder)
    for f in folder.iterdir():
        if f.name != "config.json":
            f.unlink()
    for path in (folder, archived(folder, tmp_path / "c.tar")):
        for level in "0123":
            one_line(run("baleen", "verify", path, "--level", level), 1, f"{path}: not a checkpoint: no *.safetensors file")
        one_line(run("baleen", "inspect", path), 3, "no *.safetensors file")


# ---- what may not be read

class Closed:
    """A file or folder that may not be read for a while."""

    def __init__(self, path):
        self.path, self.mode = path, path.stat().st_mode

    def __enter__(self):
        self.path.chmod(0)

    def __exit__(self, *args):
        self.path.chmod(self.mode)


@pytest.fixture(scope="module")
def copies(packed, tmp_path_factory):
    d = tmp_path_factory.mktemp("closed")
    shutil.copytree(packed, d / "packed")
    shutil.copytree(DEMO, d / "hf")
    return d


HF = ["model-00002-of-00002.safetensors", "config.json", "tokenizer.json", "model.safetensors.index.json"]
PACKED = ["rank-0000/layer-01.safetensors", "rank-0001/manifest.json", "manifest.json", "SHA256SUMS", "config.json", "tokenizer.json",
          "config.source.json"]


@pytest.mark.parametrize("name", [f"hf/{n}" for n in HF] + [f"packed/{n}" for n in PACKED])
def test_a_file_that_may_not_be_read(copies, tmp_path, name):
    model = copies / name.split("/")[0]
    with Closed(copies / name):
        one_line(without_privilege("verify", model), 1, name, "Permission denied")
        if not name.endswith(("SHA256SUMS", "tokenizer.json", "config.source.json")):
            one_line(without_privilege("inspect", model), 3, name, "Permission denied")
        if not name.endswith("SHA256SUMS"):
            one_line(without_privilege("convert", model, tmp_path / "out", "--to", "packed"), 3, name, "Permission denied")
            assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["hf", "packed"])
def test_a_folder_that_may_not_be_read(copies, tmp_path, name):
    with Closed(copies / name):
        for args in commands(copies / name, tmp_path).values():
            one_line(without_privilege(*args), 3, f"/{name}: cannot read the folder: Permission denied")


def test_a_rank_that_may_not_be_read(copies):
    with Closed(copies / "packed" / "rank-0001"):
        r = without_privilege("verify", copies / "packed")
        assert r.rc == 1 and r.err.count("\n") == 2 and "/rank-0001: cannot look into the folder: Permission denied" in r.err, r.err
        assert without_privilege("verify", copies / "packed", "--rank", 0).rc == 0


# ---- links to nothing

def object_of(name):
    """The name of a file's object: its SHA-256, as for files that the hub stores so."""
    return hashlib.sha256((DEMO / name).read_bytes()).hexdigest()


@pytest.fixture
def snapshot(tmp_path):
    """Hugging Face's cache: names that are links to blobs."""
    snap = tmp_path / "snapshots" / "rev"
    snap.mkdir(parents=True), (tmp_path / "blobs").mkdir()
    for f in DEMO.iterdir():
        shutil.copy(f, tmp_path / "blobs" / object_of(f.name))
        (snap / f.name).symlink_to(f"../../blobs/{object_of(f.name)}")
    return snap


@pytest.mark.parametrize("name", HF)
def test_a_link_to_nothing(snapshot, tmp_path, name):
    (tmp_path / "blobs" / object_of(name)).unlink()
    one_line(run("baleen", "verify", snapshot), 1, name, "symbolic link to nothing")
    if name != "tokenizer.json":
        one_line(run("baleen", "inspect", snapshot), 3, name, "symbolic link to nothing")
    one_line(run("baleen", "convert", snapshot, tmp_path / "out", "--to", "bf16"), 3, name, "symbolic link to nothing")


def test_a_snapshot_whose_blobs_are_gone(snapshot, tmp_path):
    shutil.rmtree(tmp_path / "blobs")
    for command in ("verify", "inspect", "convert"):
        one_line(run("baleen", *commands(snapshot, tmp_path)[command]), 3, "symbolic link to nothing: ../../blobs/")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for command in ("verify", "inspect", "convert"):
        one_line(run("baleen", *commands(tmp_path / "link", tmp_path)[command]), 3, "/link", "symbolic link to nothing", "/gone")
    r = run("baleend", tmp_path / "link", "--port", 0)
    one_line(r, 3, "symbolic link to nothing")
    assert r.out == ""
