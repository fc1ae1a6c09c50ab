"""baleen verify --sign and --key: what holds can be signed, openssl and coreutils check what is signed, and nothing else passes."""
import json
import os
import shutil
import subprocess

import pytest

import ranks
from conftest import DEMO, run

KINDS = ["hf", "bf16", "packed", "no-sha256", "ranks"]


def tool(*args, cwd=None):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=cwd, timeout=60)
    return done.returncode, done.stdout + done.stderr


def openssl(*args):
    rc, text = tool("openssl", *args)
    assert rc == 0, text


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Key files by name, all made by openssl."""
    d = tmp_path_factory.mktemp("keys")
    k = {n: d / n for n in ("key", "pub", "other", "other.pub", "encrypted", "rsa", "rsa.pub", "ed448", "ed448.pub", "x25519", "legacy",
                            "text", "der")}
    for name in ("key", "other"):
        openssl("genpkey", "-algorithm", "ed25519", "-out", k[name])
    openssl("genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:x", "-out", k["encrypted"])
    openssl("genpkey", "-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:2048", "-out", k["rsa"])
    openssl("rsa", "-in", k["rsa"], "-traditional", "-out", k["legacy"])
    openssl("genpkey", "-algorithm", "ed448", "-out", k["ed448"])
    openssl("genpkey", "-algorithm", "x25519", "-out", k["x25519"])
    openssl("pkey", "-in", k["key"], "-outform", "DER", "-out", k["der"])
    for a, b in (("key", "pub"), ("other", "other.pub"), ("rsa", "rsa.pub"), ("ed448", "ed448.pub")):
        openssl("pkey", "-in", k[a], "-pubout", "-out", k[b])
    k["text"].write_text("hello\n")
    return k


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    d = tmp_path_factory.mktemp("models")
    made = {k: d / k for k in KINDS}
    shape = ["num_attention_heads=8", "o_groups=8", "o_lora_rank=32", "moe_intermediate_size=256", "n_routed_experts=8",
             "dspark_n_routed_experts=8", "vocab_size=768", "head_dim=32"]
    assert run("baleen", "synth", made["hf"], "--preset", "nano", *shape).rc == 0
    for name, args in (("bf16", ["bf16"]), ("packed", ["packed"]), ("no-sha256", ["packed", "--no-sha256"]),
                       ("ranks", ["packed", "--tp", "2", "--ep", "4", "--engram", "shared"])):
        r = run("baleen", "convert", made["hf"], made[name], "--to", *args)
        assert r.rc == 0, r.err
    for f in made["hf"].glob("SHA256SUMS"):
        f.unlink()
    return made


def copy(models, kind, tmp_path):
    out = tmp_path / "model"
    shutil.copytree(models[kind], out)
    return out


def signed(models, keys, kind, tmp_path):
    out = copy(models, kind, tmp_path)
    r = run("baleen", "verify", out, "--sign", keys["key"])
    assert r.rc == 0 and r.err == "", r.err
    return out


def files_of(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {"SHA256SUMS", "SHA256SUMS.sig"}


def one_line(r, rc, *words):
    assert r.rc == rc and r.err.count("\n") == 1 and all(w in r.err for w in words), (r.rc, r.err, words)


def found(r, *words):
    assert r.rc == 1 and any(all(w in line for w in words) for line in r.err.splitlines()), (r.rc, r.err, words)


def openssl_checks(folder, pub):
    return tool("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", pub, "-rawin", "-in", "SHA256SUMS", "-sigfile", "SHA256SUMS.sig",
                cwd=folder)


def openssl_signs(folder, key):
    rc, text = tool("openssl", "pkeyutl", "-sign", "-inkey", key, "-rawin", "-in", "SHA256SUMS", "-out", "SHA256SUMS.sig", cwd=folder)
    assert rc == 0, text


@pytest.mark.parametrize("kind", KINDS)
def test_openssl_and_coreutils_check_what_is_signed(models, keys, kind, tmp_path):
    out = copy(models, kind, tmp_path)
    before = (out / "SHA256SUMS").read_bytes() if (out / "SHA256SUMS").exists() else None
    r = run("baleen", "verify", out, "--sign", keys["key"], "--json")
    assert r.rc == 0 and r.err == "", r.err
    made = json.loads(r.out)["signature"]
    assert made["state"] == "made" and made["key"].startswith("ed25519:")
    assert (out / "SHA256SUMS.sig").stat().st_size == 64
    lines = (out / "SHA256SUMS").read_text().splitlines()
    assert {line[66:] for line in lines} == files_of(out)
    assert made["files_listed"] == len(lines) - (before.count(b"\n") if before else 0)
    assert (made["files_listed"] > 0) == (kind in ("hf", "no-sha256"))
    rc, text = openssl_checks(out, keys["pub"])
    assert rc == 0, text
    rc, text = tool("sha256sum", "--strict", "-c", "SHA256SUMS", cwd=out)
    assert rc == 0 and text.count(": OK") == len(lines), text
    r = run("baleen", "verify", out, "--key", keys["pub"], "--json")
    j = json.loads(r.out)
    assert r.rc == 0 and r.err == "" and j["level"] == 4 and j["signature"] == {"state": "holds", "key": made["key"], "files_listed": 0}
    assert j["files_hashed"] == len(lines) and j["files_unproven"] == 0
    r = run("baleen", "verify", out, "--key", keys["pub"])
    assert "holds at level 4" in r.out and made["key"] in r.out
    assert run("baleen", "verify", out).rc == 0


@pytest.mark.parametrize("kind", ["bf16", "ranks"])
def test_openssl_signs(models, keys, kind, tmp_path):
    out = copy(models, kind, tmp_path)
    openssl_signs(out, keys["key"])
    r = run("baleen", "verify", out, "--key", keys["pub"])
    assert r.rc == 0 and r.err == "", r.err
    theirs = (out / "SHA256SUMS.sig").read_bytes()
    assert run("baleen", "verify", out, "--sign", keys["key"]).rc == 0
    assert (out / "SHA256SUMS.sig").read_bytes() == theirs  # Ed25519 signatures are a function of key and message


def test_signed_by_openssl_alone(models, keys, tmp_path):
    """A released folder listed by sha256sum: lines in any order, with the star of binary mode."""
    out = copy(models, "hf", tmp_path)
    rc, text = tool("sha256sum", "-b", *sorted(files_of(out), reverse=True), cwd=out)
    assert rc == 0
    (out / "SHA256SUMS").write_text(text)
    openssl_signs(out, keys["key"])
    assert run("baleen", "verify", out, "--key", keys["pub"]).rc == 0


def test_only_what_holds_is_signed(models, keys, tmp_path):
    out = copy(models, "bf16", tmp_path)
    shard = next(out.glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    r = run("baleen", "verify", out, "--sign", keys["key"])
    found(r, shard.name, "SHA-256")
    assert "not signed" in r.out and not (out / "SHA256SUMS.sig").exists()
    shard.write_bytes(whole)
    (out / "SHA256SUMS").unlink()
    config = out / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"hidden_size"', '"hidden_sise"'))
    assert run("baleen", "verify", out, "--sign", keys["key"]).rc == 1
    assert not (out / "SHA256SUMS").exists() and not (out / "SHA256SUMS.sig").exists()
    out2 = tmp_path / "packed"
    shutil.copytree(models["packed"], out2)
    (out2 / "SHA256SUMS").unlink()
    found(run("baleen", "verify", out2, "--sign", keys["key"]), "nothing proves the manifests")
    assert not (out2 / "SHA256SUMS.sig").exists()


STRAYS = {
    "evil.py": lambda p: p.write_text("x"),
    ".hidden": lambda p: p.write_text("x"),
    "sub/deep/evil.py": lambda p: (p.parent.mkdir(parents=True), p.write_text("x")),
    "link.json": lambda p: p.symlink_to("config.json"),
    "dangling": lambda p: p.symlink_to("nowhere"),
    "folder": lambda p: p.symlink_to(DEMO),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("kind", ["hf", "ranks"])
def test_nothing_unlisted_in_a_signed_folder(models, keys, kind, stray, tmp_path):
    out = signed(models, keys, kind, tmp_path)
    where = out / "rank-0001" / stray if kind == "ranks" and "/" not in stray else out / stray
    STRAYS[stray](where)
    for args in (["--key", keys["pub"]], ["--sign", keys["key"]]):
        found(run("baleen", "verify", out, *args), stray.split("/")[0], "not listed")


def test_what_git_and_the_hub_keep_is_no_part_of_it(models, keys, tmp_path):
    out = copy(models, "hf", tmp_path)
    (out / "assets" / "more").mkdir(parents=True)
    (out / "assets" / "more" / "figure.png").write_bytes(b"x")

    def keep():
        (out / ".gitattributes").write_text("x")
        (out / ".cache" / "huggingface").mkdir(parents=True, exist_ok=True)
        (out / ".cache" / "huggingface" / "x.lock").write_text("")

    assert run("baleen", "verify", out, "--sign", keys["key"]).rc == 0
    assert "assets/more/figure.png" in (out / "SHA256SUMS").read_text()
    keep()
    assert run("baleen", "verify", out, "--key", keys["pub"]).rc == 0
    (out / "SHA256SUMS").unlink()
    assert run("baleen", "verify", out, "--sign", keys["key"]).rc == 0
    assert ".cache" not in (out / "SHA256SUMS").read_text() and ".git" not in (out / "SHA256SUMS").read_text()


def test_names_that_cannot_be_listed(models, keys, tmp_path):
    out = copy(models, "hf", tmp_path)
    (out / "a\\b").write_text("x")
    found(run("baleen", "verify", out, "--sign", keys["key"]), "cannot list")
    assert not (out / "SHA256SUMS").exists()


@pytest.mark.parametrize("kind", ["bf16", "ranks"])
def test_signatures_that_do_not_hold(models, keys, kind, tmp_path):
    out = signed(models, keys, kind, tmp_path)
    sig, sums = out / "SHA256SUMS.sig", out / "SHA256SUMS"
    good, text = sig.read_bytes(), sums.read_bytes()
    check = ["verify", out, "--key", keys["pub"]]
    one_line(run("baleen", "verify", out, "--key", keys["other.pub"]), 1, "SHA256SUMS.sig", "another key")
    for bad in (good[:32] + bytes([good[32] ^ 1]) + good[33:], bytes(64)):
        sig.write_bytes(bad)
        one_line(run("baleen", *check), 1, "SHA256SUMS.sig")
    for bad in (good[:-1], good + b"\n", b""):
        sig.write_bytes(bad)
        one_line(run("baleen", *check), 1, "SHA256SUMS.sig", "Ed25519 signature")
    sig.unlink()
    one_line(run("baleen", *check), 1, "SHA256SUMS.sig", "not signed")
    sig.mkdir()
    one_line(run("baleen", *check), 1, "SHA256SUMS.sig", "a folder")
    sig.rmdir()
    sig.write_bytes(good)
    sums.write_bytes(text[1:] + text[:1])
    r = run("baleen", *check, "--json")
    one_line(r, 1, "SHA256SUMS.sig")
    j = json.loads(r.out)
    assert not j["ok"] and j["signature"]["state"] == "does not hold" and j["findings"][0]["level"] == 4 and j["bytes"] == 0
    sums.unlink()
    one_line(run("baleen", *check), 1, "SHA256SUMS", "missing")
    sums.write_bytes(text)
    assert run("baleen", *check).rc == 0


def test_a_file_and_its_line_changed_together(models, keys, tmp_path):
    """What --key is for: level 3 alone believes SHA256SUMS."""
    out = signed(models, keys, "bf16", tmp_path)
    path = out / "tokenizer_config.json" if (out / "tokenizer_config.json").exists() else out / "config.source.json"
    path.write_text(path.read_text() + "\n")
    lines = [line for line in (out / "SHA256SUMS").read_text().splitlines() if line[66:] != path.name]
    lines.append(tool("sha256sum", path.name, cwd=out)[1].strip())
    (out / "SHA256SUMS").write_text("".join(line + "\n" for line in lines))
    assert run("baleen", "verify", out).rc == 0
    one_line(run("baleen", "verify", out, "--key", keys["pub"]), 1, "SHA256SUMS has changed")


def test_payload_that_no_sha256_covers(models, keys, tmp_path):
    """Chunk digests are no proof against somebody: a model packed without SHA-256 and signed by hand is not covered."""
    out = copy(models, "no-sha256", tmp_path)
    openssl_signs(out, keys["key"])
    found(run("baleen", "verify", out, "--key", keys["pub"]), "rest.safetensors", "does not cover")


@pytest.mark.parametrize("option, name, words", [
    ("--sign", "encrypted", ["encrypted"]), ("--sign", "pub", ["public key"]), ("--sign", "rsa", ["RSA", "Ed25519"]),
    ("--sign", "legacy", ["RSA PRIVATE KEY", "Ed25519"]), ("--sign", "ed448", ["ED448", "Ed25519"]), ("--sign", "x25519", ["X25519"]),
    ("--sign", "text", ["PEM"]), ("--sign", "der", ["PEM"]), ("--sign", "absent", ["No such file"]), ("--sign", ".", ["a folder"]),
    ("--key", "key", ["private key", "pubout"]), ("--key", "encrypted", ["private key"]), ("--key", "rsa.pub", ["RSA", "Ed25519"]),
    ("--key", "ed448.pub", ["ED448"]), ("--key", "text", ["PEM"]), ("--key", "absent", ["No such file"])])
def test_keys_that_will_not_do(models, keys, tmp_path, option, name, words):
    path = keys.get(name, keys["key"].parent / name)
    one_line(run("baleen", "verify", models["packed"], option, path), 3, path.name, *words)


def test_damaged_keys(models, keys, tmp_path):
    for option, name in (("--sign", "key"), ("--key", "pub")):
        text = keys[name].read_text()
        for n, bad in enumerate((text[:60] + text[64:], text.replace("-----END", "----END"), "", text[:-40], "\0" * 100)):
            (tmp_path / f"{name}{n}").write_text(bad)
            one_line(run("baleen", "verify", models["packed"], option, tmp_path / f"{name}{n}"), 3, f"{name}{n}")


@pytest.mark.parametrize("args, words", [
    (["--level", "4"], ["--key"]), (["--key", "pub", "--level", "3"], ["level 4"]), (["--sign", "key", "--level", "2"], ["level 3"]),
    (["--sign", "key", "--key", "pub"], ["go together"]), (["--sign", "key", "--rank", "0"], ["all ranks"]),
    (["--hub", "--level", "1"], ["level 3"])])
def test_usage(models, keys, args, words):
    one_line(run("baleen", "verify", models["ranks"], *[keys.get(a, a) for a in args]), 2, *words)


def test_files_and_archives(models, keys, tmp_path):
    one_line(run("baleen", "verify", next(models["bf16"].glob("*.safetensors")), "--sign", keys["key"]), 2, "single file")
    out = signed(models, keys, "packed", tmp_path)
    archive = tmp_path / "model.tar"
    assert tool("tar", "cf", archive, "-C", tmp_path, "model")[0] == 0
    one_line(run("baleen", "verify", archive, "--sign", keys["key"]), 2, "archive")
    r = run("baleen", "verify", archive, "--key", keys["pub"])
    assert r.rc == 0 and r.err == "", r.err
    (out / "evil.py").write_text("x")
    assert tool("tar", "cf", archive, "-C", tmp_path, "model")[0] == 0
    found(run("baleen", "verify", archive, "--key", keys["pub"]), "evil.py", "not listed")
    next(out.glob("*/layer-00.safetensors")).unlink()  # what cannot be asked for is said before what else is wrong
    assert tool("tar", "cf", archive, "-C", tmp_path, "model")[0] == 0
    one_line(run("baleen", "verify", archive, "--sign", keys["key"]), 2, "archive")
    one_line(run("baleen", "verify", archive, "--cache", tmp_path / "cache"), 2, "the cache knows files of a folder")


def test_one_rank_on_its_node(models, keys, tmp_path):
    out = signed(models, keys, "ranks", tmp_path)
    node = tmp_path / "node"
    node.mkdir()
    for p in out.iterdir():
        if p.is_file():
            shutil.copy(p, node)
    shutil.copytree(out / "rank-0002", node / "rank-0002")
    shared = {(f["rank"], f["name"]) for f in ranks.manifest(out, 2)["files"] if "rank" in f}
    for rank, name in shared:
        (node / f"rank-{rank:04d}").mkdir(exist_ok=True)
        shutil.copy(out / f"rank-{rank:04d}" / name, node / f"rank-{rank:04d}")
    check = ["verify", node, "--rank", 2, "--key", keys["pub"]]
    r = run("baleen", *check, "--json")
    assert r.rc == 0 and r.err == "" and json.loads(r.out)["signature"]["state"] == "holds", r.err
    assert run("baleen", "verify", node, "--key", keys["pub"]).rc == 1
    (node / "rank-0002" / "evil.py").write_text("x")
    found(run("baleen", *check), "evil.py", "not listed")
    (node / "rank-0002" / "evil.py").unlink()
    layer = next((node / "rank-0002").glob("layer-*.safetensors"))
    data = layer.read_bytes()
    layer.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found(run("baleen", *check), layer.name, "SHA-256")
    layer.write_bytes(data)
    (node / "SHA256SUMS.sig").unlink()
    one_line(run("baleen", *check), 1, "not signed")


def test_a_folder_that_cannot_be_written(models, keys, tmp_path):
    out = copy(models, "bf16", tmp_path)
    (out / "SHA256SUMS.sig").mkdir()
    r = run("baleen", "verify", out, "--sign", keys["key"])
    one_line(r, 4, "SHA256SUMS.sig")
    assert not list(out.glob(".*.tmp"))
