"""What `meson install` leaves: programs that find their model wherever the tree is moved, headers and libraries that a program of
others builds against with pkg-config alone, manual pages."""
import gzip
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

import ckpt
import golden
from conftest import BUILD, DEMO, ROOT

SOURCES = ROOT / "tests" / "install"


def ran(*args, **kw):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, **kw)
    assert r.returncode == 0, f"{args}: {r.stdout[-1500:]}{r.stderr[-1500:]}"
    return r.stdout


@pytest.fixture(scope="module")
def options():
    if not shutil.which("meson") or not shutil.which("pkg-config"):
        pytest.skip("no meson or pkg-config: the installation is NOT tested")
    return {o["name"]: o["value"] for o in json.loads(ran("meson", "introspect", "--buildoptions", BUILD))}


@pytest.fixture(scope="module")
def installed(options, tmp_path_factory):
    """The prefix of an installation that was made under DESTDIR and then moved."""
    stage = tmp_path_factory.mktemp("stage")
    ran("meson", "install", "-C", BUILD, "--no-rebuild", env={**os.environ, "DESTDIR": str(stage)})
    moved = tmp_path_factory.mktemp("moved") / "anywhere"
    (stage / options["prefix"].lstrip("/")).rename(moved)
    return moved


@pytest.fixture(scope="module")
def build(installed, options, tmp_path_factory):
    """build(source, package, *flags) -> program, compiled with what pkg-config says of the moved installation."""
    out = tmp_path_factory.mktemp("programs")
    env = {**os.environ, "PKG_CONFIG_PATH": str(installed / options["libdir"] / "pkgconfig")}
    prefix = [] if options.get("pkgconfig.relocatable") else [f"--define-variable=prefix={installed}"]
    sanitize = [] if options["b_sanitize"] == "none" else [f"-fsanitize={options['b_sanitize']}"]

    def make(source, package, *more):
        flags = ran("pkg-config", *prefix, "--cflags", "--libs", package, env=env).split()
        assert not [f for f in flags if str(ROOT) in f]
        program = out / source.stem
        ran(os.environ.get("CC", "cc").split()[-1], "-std=c11", "-Wall", "-Wextra", "-Werror", *sanitize, *more, source, *flags, "-o", program,
            cwd=out)
        return program

    return make


def test_the_demo_model_is_found_from_where_the_program_lies(installed, tmp_path):
    link = tmp_path / "baleen"
    link.symlink_to(installed / "bin" / "baleen")
    for program in (installed / "bin" / "baleen", link):
        got = json.loads(ran(program, "inspect", "--json", cwd=tmp_path))["path"]
        assert os.path.realpath(got) == os.path.realpath(installed / "share" / "baleen" / "demo-model")
    ran(installed / "bin" / "baleen", "verify")


def test_the_demo_model_is_found_from_the_build_tree(options):
    want = options["demo_model"] or DEMO
    assert json.loads(ran(BUILD / "tools" / "baleen", "inspect", "--json"))["path"] == str(want)


def test_a_program_casts_a_tile(installed, build):
    weight, scale = "layers.0.attn.wq_a.weight", "layers.0.attn.wq_a.scale"
    program = build(SOURCES / "cast_tile.c", "baleen")
    got = ran(program, installed / "share" / "baleen" / "demo-model", weight, scale).split()
    items = ckpt.tensors(DEMO)
    want = np.frombuffer(ckpt.decode(weight, items), np.uint16).reshape(items[weight][1])[:2, :32]
    assert got == [f"{v:04x}" for v in want.ravel()]
    assert subprocess.run([program, DEMO, "head.weight", scale], capture_output=True).returncode == 3


def test_a_program_runs_the_model(build, tmp_path):
    got = int(ran(build(SOURCES / "one_token.c", "baleen-runtime"), DEMO, 0, 17, 4))
    ran(BUILD / "tools" / "baleen", "logits", "--ids", "0,17,4", "--out", tmp_path / "l.safetensors")
    assert got == int(np.argmax(golden.read(tmp_path / "l.safetensors")["logits"][-1]))


def test_every_installed_header_compiles_alone(installed, build, tmp_path):
    headers = sorted((installed / "include" / "baleen").rglob("*.h"))
    assert headers
    source = tmp_path / "headers.c"
    source.write_text("int main(void) { return 0; }\n")
    for h in headers:
        name = h.relative_to(installed / "include")
        source.write_text(f"#include <{name}>\nint main(void) {{ return 0; }}\n")
        build(source, "baleen", "-fsyntax-only")


def test_libraries_define_no_name_but_their_own(installed, options):
    for library in ("libbaleen.a", "libbaleen-runtime.a"):
        names = re.findall(r" [A-Z] (\S+)$", ran("nm", "-g", "--defined-only", installed / options["libdir"] / library), re.M)
        assert len(names) > 50
        own = re.compile(r"bl_|_Z\w*2bl|__(asan|odr_asan|ubsan|tsan)")  # kernels are C++, in namespace bl
        assert [n for n in names if not own.match(n)] == []


def test_manual_pages_are_installed(installed):
    pages = sorted(p.name for p in (ROOT / "tools" / "man").iterdir())
    have = {p.name.removesuffix(".gz"): p for p in (installed / "share" / "man" / "man1").iterdir()}
    assert sorted(have) == pages
    for name, path in have.items():
        data = path.read_bytes()
        assert (gzip.decompress(data) if path.suffix == ".gz" else data) == (ROOT / "tools" / "man" / name).read_bytes()
