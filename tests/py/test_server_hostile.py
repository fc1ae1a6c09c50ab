"""Requests that are wrong in every way: a 4xx answer in JSON, or a closed connection where there is no request, and the server lives."""
import http.client
import json
import random
import re
import resource
import shutil
import socket
import time

import pytest
from conftest import BUILD, DEMO
from serving import JSON, Server, events, joined, together

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with Server("baleend_stub", "--max-body", "1MB", "--timeout", 2) as s:
        yield s
        s.idle()


@pytest.fixture(autouse=True)
def alive_afterwards(request):
    yield
    if "server" in request.fixturenames:
        assert request.getfixturevalue("server").alive()


def refused(server, path, body, status=400, param=None, method="POST", headers=None):
    got, r, data = server.ask(method, path, body, headers=headers)
    assert got == status, (got, data, body if len(str(body)) < 300 else "")
    error = data["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and "\n" not in error["message"]
    if param:
        assert error["param"] == param, error
    return error["message"]


U = {"role": "user", "content": "hi"}

BAD_JSON = {
    "empty": b"", "space": b"   ", "not json": b"hello", "half": b'{"messages": [', "two": b"{}{}", "comma": b'{"n": 1,}', "quote": b"{'n': 1}",
    "nan": b'{"prompt": "x", "temperature": NaN}', "infinity": b'{"prompt": "x", "temperature": -Infinity}', "plus": b'{"prompt": "x", "n": +1}',
    "leading zero": b'{"prompt": "x", "n": 01}', "hex": b'{"prompt": "x", "n": 0x1}', "bare control": b'{"prompt": "a\nb"}',
    "bad escape": b'{"prompt": "\\x41"}', "half escape": b'{"prompt": "\\u12"}', "bad utf8": b'{"prompt": "\xff\xfe"}',
    "overlong": b'{"prompt": "\xc0\xaf"}', "surrogate bytes": b'{"prompt": "\xed\xa0\x80"}', "cut utf8": b'{"prompt": "\xe2\x82"}',
    "nul": b'{"prompt": "a\x00b"}', "bom": b'\xef\xbb\xbf{"prompt": "x"}', "utf16": '{"prompt": "x"}'.encode("utf-16"),
    "deep": b'{"prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}", "deep objects": b'{"a":' * 50000 + b"1" + b"}" * 50000,
    "open": b"[" * 500000, "list": b"[1, 2]", "string": b'"prompt"', "number": b"3", "null": b"null", "comment": b'{"prompt": "x" /* y */}',
}


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json(server, path, name):
    refused(server, path, BAD_JSON[name])


BAD_FIELDS = [
    ("max_tokens", [0, -1, -(10**30), 10**30, 1.5, "5", True, [], {}, 5000]),
    ("max_completion_tokens", [0, -1, "x"]),
    ("temperature", [-0.1, "1", [], True, 1e300]),
    ("top_p", [0, -1, 1.01, "1", {}]),
    ("min_p", [-0.1, 1.1, "0"]),
    ("top_k", [-2, 1.5, "3", 10**12]),
    ("n", [0, -1, 129, 1.5, "2", 10**40]),
    ("seed", ["7", 1.5, [], 10**30]),
    ("stop", [5, [1], {}, ["a"] * 65, "a\0b", [None], "a" * 20000, ["a" * 9000, "b" * 9000]]),
    ("stop_token_ids", [5, ["a"], [-1], [305], [1.5], [0] * 65]),
    ("stream", ["yes", 1, []]),
    ("stream_options", [True, [], {"include_usage": 1}]),
    ("ignore_eos", [1, "true"]),
    ("frequency_penalty", [2.1, -2.1, "1", True, []]),
    ("presence_penalty", [2.0001, -3, "x", {}]),
    ("repetition_penalty", [0, -1, 2.1, "1", 1e-300]),
    ("logit_bias", [3, [1], "x", {"5": 101}, {"5": -100.5}, {"5": "1"}, {"5": None}, {"305": 1}, {"-1": 1}, {"05": 1}, {" 5": 1}, {"5.0": 1}, {"": 1},
                    {"x": 1}, {"9" * 30: 1}, {"5\u0000": 1}]),
    ("min_tokens", [-1, 1.5, "3", 4097]),
    ("response_format", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, 5, {}]),
    ("return_hidden_states", [True]),
    ("regex", ["a"]), ("ebnf", ["a"]), ("guided_json", [{}]), ("structured_outputs", [{}]), ("input_ids", [[1]]), ("lora_path", ["x"]),
]
BAD_TEXT = [
    ("prompt", [5, {}, True, [], [[]], [[], []], "", ["a", ""], ["a", [1]], [1, "a"], [-1], [305], [1.5], [[1], [400]], [None], [{}], ["a"] * 129,
                [3] * 4096, "ab" * 2500]),
    ("echo", [1, "true"]), ("suffix", ["x"]), ("best_of", [2, 0, "x"]), ("logprobs", [-1, 21, True, "3"]),
]
BAD_CHAT = [
    ("messages", [5, {}, "hi", [], [5], [None], [[]]]),
    ("logprobs", [1, "x"]), ("tools", [5, {}, [5], [{"type": "function"}]]), ("tool_choice", ["required", 5, {"type": "function", "function": {"name": "f"}}]),
    ("parallel_tool_calls", [1]), ("separate_reasoning", ["x"]), ("skip_special_tokens", [False, 3]), ("functions", [[]]), ("function_call", ["auto"]),
    ("modalities", [["audio"], "text"]), ("audio", [{}]), ("reasoning_effort", ["extreme", 0, 101, True, 7.5, "75"]), ("thinking", [{"type": "maybe"}, 3]),
    ("chat_template_kwargs", [5, {"thinking": "yes"}, {"reasoning_effort": 0.5}]), ("reasoning", [5, {"effort": 200}, {"enabled": 3}]),
    ("add_generation_prompt", [False]),
]


@pytest.mark.parametrize("field,values", BAD_FIELDS + BAD_TEXT, ids=lambda v: v if isinstance(v, str) else "")
def test_bad_text_fields(server, field, values):
    for v in values:
        message = refused(server, TEXT, {"prompt": "hello", **{field: v}})
        assert field.split("_")[0] in message or field.startswith("max"), message


@pytest.mark.parametrize("field,values", BAD_FIELDS + BAD_CHAT, ids=lambda v: v if isinstance(v, str) else "")
def test_bad_chat_fields(server, field, values):
    for v in values:
        refused(server, CHAT, {"messages": [U], **{field: v}})


@pytest.mark.parametrize("field,number,says", [
    ("max_tokens", "1e999", "a whole number from 1 to"), ("max_tokens", "9" * 400, "a whole number from 1 to"),
    ("n", "18446744073709551616", "a whole number from 1 to 128"), ("top_k", "-1e30", "a whole number from -1 to 2147483647"),
    ("temperature", "1e999", "from 0 to 1e+06"), ("top_p", "9" * 400, "from 0 to 1"), ("seed", "0.5", "must be a whole number"),
    ("seed", "1e999", "from -9223372036854775808 to 18446744073709551615"), ("presence_penalty", "-1e999", "from -2 to 2")])
def test_numbers_too_large_for_any_field(server, field, number, says):
    """They are numbers, and the message says which would do."""
    assert says in refused(server, TEXT, ('{"prompt": "x", "%s": %s}' % (field, number)).encode(), param=field)


def test_fields_that_exclude_each_other(server):
    refused(server, TEXT, {"prompt": "x", "echo": True, "logprobs": 0}, param="echo")
    refused(server, TEXT, {"prompt": "x", "min_tokens": 17}, param="min_tokens")  # 16 are the default limit
    refused(server, CHAT, {"messages": [U], "max_tokens": 5, "max_completion_tokens": 3, "min_tokens": 4}, param="min_tokens")


def test_neutral_values_pass(server):
    body = {"prompt": "hello", "max_tokens": 2.0, "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {},
            "min_tokens": 0, "response_format": {"type": "text"}, "echo": False, "suffix": None, "best_of": 1, "n": 1, "stop": [], "seed": -5,
            "user": "u", "metadata": {"a": [1]}, "store": True, "unknown": {"x": 1}, "model": "whatever", "top_k": 0, "logprobs": None}
    assert server.ask("POST", TEXT, body)[0] == 200
    assert server.ask("POST", TEXT, {**body, "top_k": -1, "top_p": 1, "min_p": 0, "seed": 2**64 - 1})[0] == 200


BAD_MESSAGES = {
    "unknown role": [{"role": "wizard", "content": "x"}], "no role": [{"content": "x"}], "role number": [{"role": 3, "content": "x"}],
    "content number": [{"role": "user", "content": 3}], "part": [{"role": "user", "content": [5]}],
    "part type": [{"role": "user", "content": [{"type": "hologram"}]}], "image": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
    "placeholder": [{"role": "user", "content": "a <｜deepseek_image｜> b"}], "assistant last": [U, {"role": "assistant", "content": "x"}],
    "system only": [{"role": "system", "content": "x"}], "task": [{"role": "user", "content": "x", "task": "conquer"}],
    "calls": [U, {"role": "assistant", "content": "", "tool_calls": 5}, U], "call name": [U, {"role": "assistant", "tool_calls": [{"function": {}}]}, U],
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_bad_messages(server, name):
    refused(server, CHAT, {"messages": BAD_MESSAGES[name]})


def test_duplicate_keys_last_wins(server):
    status, _, data = server.ask("POST", TEXT, b'{"prompt": 5, "max_tokens": -1, "prompt": "x", "max_tokens": 3, "max_tok\\u0065ns": 4}')
    assert status == 200 and data["usage"]["completion_tokens"] == 4


def test_lone_surrogate_becomes_a_replacement_character(server):
    lone = server.ask("POST", "/tokenize", b'{"prompt": "a\\ud83db"}')[2]
    assert lone == server.ask("POST", "/tokenize", {"prompt": "a\ufffdb"})[2]


def test_context_limit_names_both_numbers(server):
    message = refused(server, TEXT, {"prompt": [3] * 5000})
    assert "5000" in message and "4096" in message
    message = refused(server, TEXT, {"prompt": [3] * 4000, "max_tokens": 97})
    assert "4000" in message and "97" in message
    assert server.ask("POST", TEXT, {"prompt": [3] * 4095, "max_tokens": 1})[0] == 200


def test_id_above_the_vocabulary_of_the_text(server):
    refused(server, "/detokenize", {"tokens": [10**9]})
    refused(server, "/detokenize", {"tokens": [-1]})
    refused(server, "/detokenize", {"tokens": "x"})
    refused(server, "/detokenize", {"tokens": [1], "skip_special_tokens": 5})


# ---- methods, paths, headers

def test_echo_is_bounded(server):
    """A token's text can be many times as long as its number, and every answer repeats it."""
    body = {"prompt": [0] * 4000, "max_tokens": 1, "echo": True}
    assert server.ask("POST", TEXT, {**body, "n": 2})[0] == 200
    assert "1000000 bytes" in refused(server, TEXT, {**body, "n": 128}, param="echo")


@pytest.mark.skipif(any(s in (BUILD / "tools" / "baleend").read_bytes() for s in (b"__asan_init", b"__tsan_init")),
                    reason="sanitizers reserve terabytes of address space")
def test_little_memory():
    """Whatever allocation fails, there is an answer."""
    with Server("baleend") as s:
        size = int(re.search(r"VmSize:\s*(\d+)", open(f"/proc/{s.process.pid}/status").read()).group(1)) << 10
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, (size + (24 << 20), resource.RLIM_INFINITY))
        seen = set()
        for n in range(50000, 600000, 50000):
            body = b'{"skip_special_tokens": false, "tokens": [' + b",".join([b"0"] * n) + b"]}"
            seen.add(s.ask("POST", "/detokenize", body)[0])
        assert seen == {200, 503}
        assert s.complete("x", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_tokenizer_that_fails_on_a_text(tmp_path):
    """The client hears what is wrong with its text, and no file of ours."""
    shutil.copytree(DEMO, tmp_path / "m")
    path = tmp_path / "m" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(a|aa)+(?=b)"}
    path.write_text(json.dumps(tokenizer))
    with Server("baleend", tmp_path / "m") as s:
        message = refused(s, TEXT, {"prompt": "a" * 200, "max_tokens": 1})
        assert "split pattern 1 fails" in message and "/" not in message
        assert s.complete("ab", max_tokens=1)


def test_methods_and_paths(server):
    for method in ("PUT", "DELETE", "PATCH", "GET", "TRACE", "FROB", "PROPFIND"):
        refused(server, CHAT, None, 405, method=method)
    for path in ("/", "/v1", "/v1/chat", "/v1/chat/completions/", "//v1/models", "/v1/embeddings", "/../etc/passwd", "/%2e%2e/", "/health/x", "/V1/models"):
        refused(server, path, None, 404, method="GET")
        refused(server, path, {}, 404)
    refused(server, "/v1/models/other", None, 404, method="GET", param="model")
    refused(server, "/v1/models/%ff%fe", None, 404, method="GET")
    status, r, data = server.ask("HEAD", "/health")
    assert status == 200 and data == b""
    status, r, _ = server.ask("OPTIONS", CHAT)
    assert status == 204 and "POST" in r.getheader("Allow")
    status, r, _ = server.ask("DELETE", CHAT)
    assert status == 405 and r.getheader("Allow") == "POST"
    assert server.ask("GET", "/health?x=1&y")[0] == 200


def test_content_types(server):
    body = json.dumps({"prompt": "x", "max_tokens": 1})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx", ""):
        refused(server, TEXT, body, headers={"Content-Type": kind})
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        assert server.ask("POST", TEXT, body, headers={"Content-Type": kind})[0] == 200
    refused(server, TEXT, body, 415, headers={"Content-Encoding": "gzip"})
    c = server.connect()
    c.request("POST", TEXT, body, {})  # no type at all
    assert c.getresponse().status == 200
    c.close()


def test_body_limit(server):
    big = b'{"prompt": "' + b"x" * 1_100_000 + b'"}'
    refused(server, TEXT, big, 413)
    # In pieces, the length unknown; and where the client waits for permission.
    c = server.connect()
    c.request("POST", TEXT, iter([big[i:i + 50000] for i in range(0, len(big), 50000)]), JSON, encode_chunked=True)
    r = c.getresponse()
    assert r.status == 413 and "large" in json.loads(r.read())["error"]["message"]
    c.close()
    got = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n"
                     b"Content-Type: application/json\r\nConnection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 413") and b"100 Continue" not in got
    got = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n")
    assert got[9:12] in (b"400", b"413")
    just = b'{"prompt": "x", "max_tokens": 1, "user": "' + b"u" * 990_000 + b'"}'
    assert server.ask("POST", TEXT, just)[0] == 200


def test_api_key(tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    for args in (["--api-key", "secret"], ["--api-key-file", key]):
        with Server("baleend_stub", *args) as s:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret2"}, {"Authorization": "Bearer "},
                            {"Authorization": "secret"}, {"Authorization": "Basic secret"}, {"Authorization": "Bearer secre"}):
                refused(s, TEXT, {"prompt": "x"}, 401, headers=headers)
                refused(s, "/v1/models", None, 401, method="GET", headers=headers)
            assert s.ask("GET", "/health")[0] == 200 and s.ask("GET", "/metrics")[0] == 200
            assert s.ask("POST", TEXT, {"prompt": "x"}, headers={"Authorization": "Bearer secret"})[0] == 200


# ---- bytes that are no request

GARBAGE = {
    "nothing": b"", "newlines": b"\r\n" * 1000, "noise": bytes(random.Random(1).randrange(256) for _ in range(5000)),
    "h2c preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0", "http/3": b"GET / HTTP/3.0\r\n\r\n", "no version": b"GET /health\r\n\r\n",
    "bad version": b"GET /health HTTP/x.y\r\n\r\n", "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    "long line": b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n\r\n", "long header": b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(20000)) + b"\r\n",
    "length text": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n", "length negative": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "bad chunk": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    "huge chunk": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\n{}",
    "upgrade": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
    "space behind a name": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n{}",
    "nul": b"GET /hea\0lth HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(server, name):
    got = server.raw(GARBAGE[name], seconds=4)
    assert got == b"" or got.startswith(b"HTTP/1.1 "), got[:100]
    assert b" 500 " not in got.split(b"\r\n")[0]


FRAMING = {
    "coded": (501, b"Transfer-Encoding: gzip\r\n"), "coded and chunked": (501, b"Transfer-Encoding: gzip, chunked\r\n"),
    "chunked and coded": (501, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n"),
    "chunked twice": (400, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    "both": (400, b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), "two lengths": (400, b"Content-Length: 0\r\nContent-Length: 32\r\n"),
    "odd name": (400, b"Content-Length : 32\r\n"),
}


@pytest.mark.parametrize("method", [b"POST /v1/completions", b"GET /health"])
@pytest.mark.parametrize("name", FRAMING)
def test_where_the_body_ends_must_be_clear(name, method):
    """Answered at once and closed, so that no part of the body is taken for a request."""
    status, headers = FRAMING[name]
    with Server("baleend_stub", "--timeout", 600) as s:
        got = s.raw(method + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n20\r\n" + b'{"prompt": "x", "max_tokens": 2}\r\n0\r\n\r\n', seconds=30)
        assert got.startswith(b"HTTP/1.1 %d" % status) and got.count(b"HTTP/1.1") == 1 and b'"error"' in got and b"Connection: close" in got, got


def test_targets(server):
    get = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for target, status in ((b"http://example.com/health", 200), (b"HTTPS://x/v1/models?a=b", 200), (b"http://x", 404), (b"http://", 404),
                           (b"/health%00x", 404), (b"/health%0", 404), (b"/%68ealth", 200), (b"ftp://x/health", 404)):
        assert server.raw(get % target).startswith(b"HTTP/1.1 %d" % status), target


@pytest.mark.parametrize("target", [b"/health?" + b"&" * 65, b"/health?" + b"a=b&" * 5000, b"/health?" + b"a" * 17000, b"/v1/models/" + b"%41" * 6000])
def test_long_targets(target):
    """Answered at once; libmicrohttpd by itself waits for --timeout when there are many parameters."""
    with Server("baleend_stub", "--timeout", 600) as s:
        got = s.raw(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000 + b"\r\n\r\n", seconds=30)
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 414 ") and b"Content-Length: %d" % len(body) in head and "too long" in json.loads(body)["error"]["message"]
        m = s.until(lambda m: m["baleen:http_connections"] == 1)
        assert m["baleen:http_answers_4xx_total"] == 1
        assert s.ask("GET", "/health?" + "a=b&" * 60)[0] == 200


def test_slow_clients_are_closed(server):
    """Heads and bodies that trickle in, and silence: the connection is closed after --timeout; others are served meanwhile."""
    heads = [b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"]
    socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in heads]
    for k, h in zip(socks, heads):
        k.sendall(h)
        k.setblocking(False)
    open_ = {0, 1, 2}
    end = time.monotonic() + 15
    while open_ and time.monotonic() < end:
        assert server.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200
        for i in list(open_):
            try:
                if i:
                    socks[i].send(b"a")
                if socks[i].recv(1000) == b"":
                    open_.remove(i)
            except BlockingIOError:
                pass
            except ConnectionError:
                open_.remove(i)
        time.sleep(0.1)
    assert not open_
    for k in socks:
        k.close()


def test_pipelined_and_kept_connections(server):
    one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n" + b'{"prompt": "x", "max_tokens": 2}'
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    got = server.raw(one * 5 + last)
    assert got.count(b"HTTP/1.1 200") == 6 and got.count(b"text_completion") == 5
    c = server.connect()
    for _ in range(20):
        c.request("POST", TEXT, b"{", JSON)
        r = c.getresponse()
        assert r.status == 400 and r.read()
    c.close()


def test_http_1_0(server):
    got = server.raw(b"GET /health HTTP/1.0\r\n\r\n")
    assert b" 200 " in got.split(b"\r\n")[0]
    body = b'{"prompt": "x", "max_tokens": 2, "stream": true}'
    got = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert got.rstrip().endswith(b"data: [DONE]") and b"chunked" not in got


FEW_FILES = ["prlimit", "--nofile=24:24"]


def idle_connections(s, n, head=b""):
    socks = [socket.create_connection(("127.0.0.1", s.port), timeout=10) for _ in range(n)]
    for k in socks:
        k.sendall(head)
    return socks


@pytest.mark.parametrize("head", [b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"],
                         ids=["silent", "half a head", "half a body"])
def test_idle_connections_make_room(head):
    """Far more than there are places, none of which will time out: others are served at once, and what runs goes on."""
    with Server("baleend_stub", "--max-requests", 1, "--max-queue", 0, "--timeout", 600, env={"STUB_STEP_US": "2000"}) as s:
        c, r = s.open_stream(TEXT, {"prompt": "x", "max_tokens": 500, "ignore_eos": True})
        socks = idle_connections(s, 600, head)
        assert s.ask("GET", "/health", timeout=5)[0] == 200 and s.ask("POST", TEXT, {"prompt": "x"}, timeout=5)[0] == 503
        assert joined(events(r.read()))[3] == "length"
        c.close()
        assert s.ask("POST", TEXT, {"prompt": "x"}, timeout=5)[0] == 200
        m = s.until(lambda m: m["baleen:http_connections"] <= 257)
        assert m["baleen:http_displaced_total"] >= 600 - 257
        for k in socks:
            k.close()


def test_clients_that_do_not_take_their_answers_make_room():
    body = b'{"skip_special_tokens": false, "tokens": [' + b",".join([b"0"] * 400000) + b"]}"  # more than the system takes off our hands
    head = b"POST /detokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Server("baleend", "--timeout", 600, before=FEW_FILES) as s:
        assert len(s.post("/detokenize", body)["text"].encode()) > 8 << 20
        socks = []
        for i in range(30):
            k = socket.socket()
            k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            k.settimeout(10)
            k.connect(("127.0.0.1", s.port))
            k.sendall(head + body)
            assert k.recv(1)  # the answer has begun
            socks.append(k)
        assert s.ask("POST", TEXT, {"prompt": "x", "max_tokens": 1}, timeout=10)[0] == 200
        for k in socks:
            k.close()


def test_few_descriptors():
    """As many connections as may be open; with all of them at work a new one hears so."""
    with Server("baleend_stub", "--timeout", 600, env={"STUB_STEP_US": "2000"}, before=FEW_FILES) as s:
        room = int(re.search(r"(\d+) connections", s.line("ready in")).group(1))
        assert 4 <= room <= 20 and s.ask("GET", "/server_info")[2]["max_connections"] == room
        socks = idle_connections(s, 100)
        assert s.ask("GET", "/health", timeout=5)[0] == 200
        streams = [s.open_stream(TEXT, {"prompt": "x", "max_tokens": 1000, "ignore_eos": True}) for _ in range(room)]
        status, r, data = s.ask("POST", TEXT, {"prompt": "x"}, timeout=5)
        assert status == 503 and "connections" in data["error"]["message"] and r.getheader("Retry-After"), data
        assert s.ask("GET", "/health", timeout=5)[0] == 200
        for c, r in streams:
            assert joined(events(r.read()))[3] == "length"
            c.close()
        for k in socks:
            k.close()


def test_random_bodies(server):
    """Mutations of a good request: never a 5xx, never a dead server."""
    rng = random.Random(7)
    good = json.dumps({"messages": [{"role": "system", "content": "s"}, U], "max_tokens": 2, "stop": ["a"], "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "logprobs": True, "top_logprobs": 2, "stream": False}).encode()

    def one(seed):
        r = random.Random(seed)
        b = bytearray(good)
        for _ in range(r.randrange(1, 6)):
            i = r.randrange(len(b))
            how = r.randrange(4)
            if how == 0:
                b[i] = r.randrange(256)
            elif how == 1:
                del b[i:i + r.randrange(1, 8)]
            elif how == 2:
                b[i:i] = bytes(r.choice([b'"', b"{", b"[", b"1e999", b"null", b"\\u0000", b"-", b"\xe2\x98\x83"]))
            else:
                j = r.randrange(len(b))
                b[i:i] = b[j:j + 20]
        status, _, data = server.ask("POST", CHAT, bytes(b))
        assert status in (200, 400), (status, data, bytes(b))

    together([lambda k=k: [one(rng.randrange(2**30) + k) for _ in range(60)] for k in range(4)])
