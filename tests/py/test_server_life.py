"""What the server does when it is busy, left alone by its clients, short of memory, or told to stop: baleend on a model that is slow
on demand."""
import json
import signal
import socket
import struct
import subprocess
import time

import pytest
from conftest import BUILD
from serving import JSON, Server, events, joined, together

TEXT = "/v1/completions"
SLOW = {"STUB_STEP_US": "5000"}


def slow(*args, **env):
    return Server("baleend_stub", *args, env={**SLOW, **env})


def test_not_ready_while_loading():
    with Server("baleend_stub", env={"STUB_LOAD_US": "1500000"}, wait=False) as s:
        status, r, data = s.ask("GET", "/health")
        assert status == 503 and data["status"] == "loading" and r.getheader("Retry-After")
        status, r, data = s.ask("POST", TEXT, {"prompt": "a"})
        assert status == 503 and r.getheader("Retry-After") and "loaded" in data["error"]["message"]
        assert s.ask("GET", "/metrics")[0] == 200
        s.line("ready in")
        assert s.ask("GET", "/health")[0] == 200
        assert s.ask("POST", TEXT, {"prompt": "a"})[0] == 200


def test_stopped_while_loading():
    with Server("baleend_stub", env={"STUB_LOAD_US": "20000000"}, wait=False) as s:
        s.signal()
        assert s.wait(5) == 0


def test_queue_limit():
    with slow("--max-requests", 1, "--max-queue", 1) as s:
        running, _ = s.open_stream(TEXT, {"prompt": "a", "max_tokens": 2000, "temperature": 0})
        waiting, _ = s.open_stream(TEXT, {"prompt": "b", "max_tokens": 2000, "temperature": 0})
        s.until(lambda m: m["sglang:num_running_reqs"] == 1 and m["sglang:num_queue_reqs"] == 1)
        status, r, data = s.ask("POST", TEXT, {"prompt": "c"})
        assert status == 503 and r.getheader("Retry-After") and data["error"]["code"] == "queue_full"
        assert s.ask("POST", TEXT, {"prompt": "c", "n": 3})[0] == 400  # never fits
        waiting.close()
        s.until(lambda m: m["sglang:num_queue_reqs"] == 0)
        running.close()
        s.idle()
        s.complete("c")


def test_many_more_than_fit():
    with Server("baleend_stub", "--max-requests", 4, "--max-queue", 4, env={"STUB_STEP_US": "2000"}) as s:
        answers = together([lambda: s.ask("POST", TEXT, {"prompt": "x", "max_tokens": 30, "temperature": 0}) for _ in range(40)])
        assert {a[0] for a in answers} <= {200, 503}
        texts = {a[2]["choices"][0]["text"] for a in answers if a[0] == 200}
        assert len(texts) == 1
        assert sum(a[0] == 200 for a in answers) >= 8
        s.idle()


def reset(sock):
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [False, True])
def test_hang_up_frees_the_sequence(how, stream):
    with slow() as s:
        body = json.dumps({"prompt": "hello", "max_tokens": 4000, "temperature": 0, "stream": stream}).encode()
        k = socket.create_connection(("127.0.0.1", s.port))
        k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.until(lambda m: m["sglang:num_running_reqs"] == 1)
        began = time.monotonic()
        if how == "close":
            k.close()
        elif how == "reset":
            reset(k)
        else:
            k.shutdown(socket.SHUT_WR)
        m = s.idle()
        assert time.monotonic() - began < 10  # 4,000 steps take 20 s
        assert m["sglang:num_aborted_requests_total"] == 1 and m["baleen:http_hang_ups_total"] == 1
        k.close()
        assert s.alive()


def test_hang_up_in_a_long_prompt():
    with slow("--step-tokens", 16) as s:
        c, _ = s.open_stream(TEXT, {"prompt": [3] * 4000, "max_tokens": 10})
        s.until(lambda m: m["sglang:num_used_tokens"] > 0)
        c.close()
        m = s.idle()
        assert m["sglang:prompt_tokens_total"] < 4000 and m["sglang:generation_tokens_total"] == 0


def test_hang_ups_at_any_time():
    """Nothing is left behind by clients that leave in any phase: sequences and sockets go long before --timeout."""
    with Server("baleend_stub", "--max-requests", 4, "--max-queue", 16, "--timeout", 600, env={"STUB_STEP_US": "300"}) as s:

        def client(i):
            body = json.dumps({"prompt": "x" * (1 + i * 7 % 300), "max_tokens": 200, "temperature": 0, "stream": i % 2 == 0}).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            k = socket.create_connection(("127.0.0.1", s.port))
            data = head % len(body) + body
            k.sendall(data[:len(data) - (i % 5 == 0)])
            time.sleep(i % 13 * 0.003)
            (reset if i % 3 else socket.socket.close)(k)

        for round_ in range(5):
            together([lambda i=i: client(round_ * 40 + i) for i in range(40)])
        s.idle()
        s.until(lambda m: m["baleen:http_connections"] == 1, 10)  # the one that asks
        s.complete("x")


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("sent", [0, 20, 110, 140])
def test_the_end_is_there_before_the_first_read(how, sent):
    """The client's data and its end are both there when the server looks for the first time: no further edge tells of the end."""
    body = b'{"prompt": "' + b"x" * 50 + b'"}'
    data = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with Server("baleend_stub", "--timeout", 600) as s:
        s.signal(signal.SIGSTOP)
        socks = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(5)]
        for k in socks:
            k.sendall(data[:sent])
            if how == "half":
                k.shutdown(socket.SHUT_WR)
            else:
                (reset if how == "reset" else socket.socket.close)(k)
        s.signal(signal.SIGCONT)
        s.until(lambda m: m["baleen:http_connections"] == 1, 10)
        for k in socks:
            k.close()


def test_alone_and_in_a_crowd():
    """Every answer is the one that the request gets alone: drawn ones too, whole or streamed, in pieces of prompt or at once."""
    bodies = [{"prompt": "p" * (1 + i * 29 % 200), "max_tokens": 10 + i % 30, "temperature": i % 3 * 0.7, "seed": i} for i in range(24)]
    with Server("baleend_stub") as s:
        alone = [s.post(TEXT, b)["choices"][0]["text"] for b in bodies]
    with Server("baleend_stub", "--step-tokens", 7, "--max-requests", 8, env={"STUB_STEP_US": "300"}) as s:
        whole = together([lambda b=b: s.post(TEXT, b)["choices"][0]["text"] for b in bodies])
        streamed = together([lambda b=b: joined(s.stream(TEXT, b))[0] for b in bodies])
        assert s.metrics()["baleen:largest_batch"] > 1
    assert whole == alone and streamed == alone


def test_several_answers():
    with Server("baleend_stub") as s:
        body = {"prompt": ["ab", "cd"], "n": 3, "max_tokens": 20, "temperature": 1, "seed": 5}
        got = s.post(TEXT, body)
        texts = [c["text"] for c in got["choices"]]
        assert [c["index"] for c in got["choices"]] == list(range(6)) and len(set(texts)) == 6
        assert got["usage"]["prompt_tokens"] == 4 and got["usage"]["completion_tokens"] == 120
        chunks = s.stream(TEXT, body)
        assert [joined(chunks, i)[0] for i in range(6)] == texts
        one = s.post(TEXT, {**body, "prompt": "cd", "n": 1})
        assert one["choices"][0]["text"] == texts[3]


ADJUSTED = [{}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.75}, {"repetition_penalty": 1.8}, {"repetition_penalty": 0.6, "frequency_penalty": 2},
            {"logit_bias": {"100": 1.5, "117": -100}}, {"presence_penalty": -2, "logit_bias": {"99": 0.5}}, {"min_tokens": 25}]


def test_adjusted_alone_and_in_a_crowd():
    """Penalties, biases and least lengths: the same seed gives the same text whatever else runs, and each of them counts."""
    bodies = [{"prompt": "some prompt", "max_tokens": 40, "temperature": i // 8 % 2, "seed": 11, **ADJUSTED[i % 8]} for i in range(32)]
    with Server("baleend_stub", env={"STUB_EOS_LENGTH": "30"}) as s:
        alone = [s.post(TEXT, b)["choices"][0]["text"] for b in bodies]
    with Server("baleend_stub", "--step-tokens", 5, "--max-requests", 6, env={"STUB_STEP_US": "300", "STUB_EOS_LENGTH": "30"}) as s:
        whole = together([lambda b=b: s.post(TEXT, b)["choices"][0]["text"] for b in bodies])
        streamed = together([lambda b=b: joined(s.stream(TEXT, b))[0] for b in bodies])
    assert whole == alone and streamed == alone
    assert len(set(alone[:8])) == 8


def likely(s, prompt, **kw):
    """Ids of the output and log-probabilities of the likeliest tokens at its last position."""
    got = s.post(TEXT, {"prompt": prompt, "temperature": 0, "logprobs": 20, **kw})["choices"][0]
    return s.post("/tokenize", {"prompt": got["text"]})["tokens"], got["logprobs"]["top_logprobs"][-1]


@pytest.mark.parametrize("presence,frequency", [(0, 0.125), (0.5, 0), (0.25, 0.125), (-1, 0.5), (0, -0.25)])
def test_penalties_are_as_documented(presence, frequency):
    """logit - frequency * count - presence * (count > 0), counted over the output alone: seen in log-probabilities against those of a
    request whose prompt is that output."""
    with Server("baleend_stub") as s:
        prompt = s.post("/tokenize", {"prompt": "abcdefghijklmnopqrstuvwxyz"})["tokens"]
        ids, changed = likely(s, prompt, max_tokens=60, presence_penalty=presence, frequency_penalty=frequency)
        _, plain = likely(s, prompt + ids[:-1], max_tokens=1)
        both = [t for t in changed if t in plain and len(t) == 1 and t.isascii()]  # no two tokens of one text
        output = s.post("/detokenize", {"tokens": ids[:-1]})["text"]
        count = {t: output.count(t) for t in both}
        shift = {t: changed[t] - plain[t] + frequency * count[t] + presence * (count[t] > 0) for t in both}
        assert len(both) > 3 and len(set(count.values())) > 1, count
        assert max(shift.values()) - min(shift.values()) < 1e-4, (shift, count)


def test_bias_and_least_length():
    with Server("baleend_stub", env={"STUB_EOS_LENGTH": "20"}) as s:
        q = s.post("/tokenize", {"prompt": "q"})["tokens"][0]
        assert s.complete("x", max_tokens=8, logit_bias={str(q): 100})["choices"][0]["text"] == "q" * 8
        text = s.complete("x", max_tokens=15)["choices"][0]["text"]
        first = s.post("/tokenize", {"prompt": text[0]})["tokens"][0]
        assert text[0] not in s.complete("x", max_tokens=15, logit_bias={str(first): -100})["choices"][0]["text"]
        twice = '{"prompt": "x", "max_tokens": 3, "temperature": 0, "logit_bias": {"%d": -100, "%d": 100}}' % (q, q)
        assert s.post(TEXT, twice)["choices"][0]["text"] == "qqq"  # the last of equal keys counts
        for least in (1, 19, 20, 21, 30):
            got = s.complete("x", max_tokens=40, min_tokens=least)
            assert got["usage"]["completion_tokens"] == max(20, least + 1) and got["choices"][0]["finish_reason"] == "stop"
        got = s.complete("x", max_tokens=40, min_tokens=40)
        assert got["usage"]["completion_tokens"] == 40 and got["choices"][0]["finish_reason"] == "length"
        got = s.complete("x", max_tokens=25, min_tokens=25, logprobs=20)["choices"][0]["logprobs"]
        assert all(v >= -9999 for top in got["top_logprobs"] for v in top.values())  # what is masked has a number in JSON too


def test_echo():
    with Server("baleend_stub") as s:
        for prompt in ("", "héllo 🌍 <bos>"):
            prompt = "ab" + prompt
            text = s.complete(prompt)["choices"][0]["text"]
            for p in (prompt, s.post("/tokenize", {"prompt": prompt})["tokens"]):
                assert s.complete(p, echo=True)["choices"][0]["text"] == prompt + text
                assert joined(s.stream(TEXT, {"prompt": p, "temperature": 0, "echo": True}))[0] == prompt + text
        got = s.post(TEXT, {"prompt": ["aa", "b"], "n": 2, "seed": 4, "echo": True, "stop": ["a", "b"]})["choices"]
        assert [c["text"][:2] for c in got[:2]] == ["aa", "aa"] and got[2]["text"][0] == "b"  # what is echoed stops nothing


def test_keys_of_top_logprobs_are_distinct():
    """Half of the stub's tokens are parts of characters: one text, many tokens."""
    with Server("baleend_stub") as s:
        def pairs(items):
            assert len({k for k, _ in items}) == len(items), items
            return dict(items)

        c = s.connect()
        c.request("POST", TEXT, json.dumps({"prompt": "x", "max_tokens": 30, "logprobs": 20, "temperature": 0}), JSON)
        got = json.loads(c.getresponse().read(), object_pairs_hook=pairs)["choices"][0]["logprobs"]
        c.close()
        assert any("\ufffd" in top for top in got["top_logprobs"])
        for token, value, top in zip(got["tokens"], got["token_logprobs"], got["top_logprobs"]):
            assert top[token] == value == max(top.values())


def test_stop_strings():
    with Server("baleend_stub") as s:
        text = s.complete("stop", max_tokens=40)["choices"][0]["text"]
        for stop in (text[10:13], [text[30:34], text[7:9]], text[39:]):
            first = min(text.index(x) for x in ([stop] if isinstance(stop, str) else stop))
            got = s.complete("stop", max_tokens=40, stop=stop)["choices"][0]
            assert got["text"] == text[:first] and got["finish_reason"] == "stop" and text[first:].startswith(got["matched_stop"])
            chunks = s.stream(TEXT, {"prompt": "stop", "max_tokens": 40, "stop": stop, "temperature": 0})
            assert joined(chunks) == (got["text"], "", [], "stop")
        assert s.complete("stop", max_tokens=40, stop=["never", ""])["choices"][0]["text"] == text


def test_eos():
    with Server("baleend_stub", env={"STUB_EOS_LENGTH": "20"}) as s:
        got = s.complete("hello", max_tokens=100)
        assert got["choices"][0]["finish_reason"] == "stop" and got["choices"][0]["matched_stop"] == 1
        assert got["usage"]["total_tokens"] == 21 and len(got["choices"][0]["text"]) == got["usage"]["completion_tokens"] - 1
        more = s.complete("hello", max_tokens=100, ignore_eos=True)
        assert more["usage"]["completion_tokens"] == 100 and more["choices"][0]["finish_reason"] == "length"


def test_logprobs():
    with Server("baleend_stub") as s:
        got = s.complete("hi", max_tokens=9, logprobs=4)["choices"][0]
        lp = got["logprobs"]
        assert "".join(lp["tokens"]) == got["text"] and lp["text_offset"] == list(range(9))
        assert all(len(t) <= 4 and max(t.values()) == v for t, v in zip(lp["top_logprobs"], lp["token_logprobs"]))
        chunks = s.stream(TEXT, {"prompt": "hi", "max_tokens": 9, "logprobs": 4, "temperature": 0})
        parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
        for key in ("tokens", "token_logprobs", "text_offset"):
            assert sum((p[key] for p in parts), []) == lp[key]
        # Text that is held back for a stop string does not hold back its tokens' numbers.
        stop = got["text"][3:6] + "?"
        chunks = s.stream(TEXT, {"prompt": "hi", "max_tokens": 9, "logprobs": 0, "temperature": 0, "stop": stop})
        assert joined(chunks)[0] == got["text"]
        assert sum(len(c["choices"][0]["logprobs"]["tokens"]) for c in chunks if c["choices"][0]["logprobs"]) == 9


def test_failing_pass_fails_one():
    with slow() as s:
        good = s.complete("good", max_tokens=60)["choices"][0]["text"]
        body = {"prompt": [10, 299], "max_tokens": 5}

        def fail():
            status, _, data = s.ask("POST", TEXT, body)
            assert status == 500 and data["error"]["message"] == "internal error"

        def fail_streaming():
            chunks = s.stream(TEXT, body)
            assert chunks[-1]["error"]["code"] == 500

        def succeed():
            assert s.complete("good", max_tokens=60)["choices"][0]["text"] == good

        together([succeed, fail, succeed, fail_streaming, succeed])
        m = s.idle()
        assert m["baleen:num_failed_requests_total"] == 2


def test_no_memory_for_more():
    with Server("baleend_stub", env={"STUB_MAX_SEQUENCES": "2", "STUB_STEP_US": "500"}) as s:
        texts = together([lambda: s.complete("m", max_tokens=20)["choices"][0]["text"] for _ in range(8)])
        assert len(set(texts)) == 1


def test_silent_stream_gets_comments():
    with Server("baleend_stub", "--ping", "0.2", "--step-tokens", 8, env={"STUB_STEP_US": "20000"}) as s:
        c, r = s.open_stream(TEXT, {"prompt": [3] * 500, "max_tokens": 2, "temperature": 0})
        data = r.read()
        c.close()
        assert data.count(b": ping\n\n") >= 2 and len(joined(events(data))[0]) == 2


# ---- the end

def test_drain_lets_streams_finish():
    with slow() as s:
        want = s.complete("drain", max_tokens=100)["choices"][0]["text"]
        c, r = s.open_stream(TEXT, {"prompt": "drain", "max_tokens": 100, "temperature": 0})
        kept = s.connect()
        kept.request("GET", "/health")
        assert kept.getresponse().read()
        s.signal()
        for _ in range(100):  # until the signal has arrived
            kept.request("GET", "/health")
            answer = kept.getresponse()
            health = answer.read()
            if answer.status != 200:
                break
            time.sleep(0.01)
        assert answer.status == 503 and b"draining" in health
        kept.request("POST", TEXT, json.dumps({"prompt": "late"}), JSON)
        answer = kept.getresponse()
        assert answer.status == 503 and answer.getheader("Retry-After")
        answer.read()
        with pytest.raises(ConnectionError):
            s.ask("GET", "/health")
        assert joined(events(r.read()))[::3] == (want, "length")
        c.close()
        assert s.wait() == 0


def test_drain_ends_streams_cleanly():
    with slow("--drain", "0.3") as s:
        streams = [s.open_stream(TEXT, {"prompt": "x" * i, "max_tokens": 3000, "temperature": 0}) for i in range(1, 5)]
        s.until(lambda m: m["sglang:num_running_reqs"] == 4)

        def ask():  # a whole answer that cannot be finished is an error, not half a text
            status, _, data = s.ask("POST", TEXT, {"prompt": "x", "max_tokens": 3000, "temperature": 0})
            assert status == 503 and data["error"]["code"] == "aborted"

        def stop():
            s.until(lambda m: m["sglang:num_running_reqs"] == 5)
            s.signal()

        together([ask, stop])
        for c, r in streams:
            text, _, _, finish = joined(events(r.read()))
            assert finish == "abort" and text
            c.close()
        assert s.wait() == 0


def test_second_signal_ends_at_once():
    with slow("--drain", 60) as s:
        c, _ = s.open_stream(TEXT, {"prompt": "x", "max_tokens": 3000, "temperature": 0})
        s.signal()
        time.sleep(0.3)
        assert s.process.poll() is None
        s.signal()
        assert s.wait(5) == -signal.SIGTERM
        c.close()


def test_reader_that_does_not_read():
    """A client that stops reading does not hold up the end, nor others."""
    with Server("baleend_stub", "--drain", 1, "--max-context", 4000, env={"STUB_STEP_US": "100"}) as s:
        k = socket.create_connection(("127.0.0.1", s.port))
        k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"prompt": "x", "max_tokens": 3900, "temperature": 0, "stream": True, "logprobs": 5}).encode()
        k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.complete("y")
        s.idle()  # generation does not wait for the reader
        s.signal()
        assert s.wait(30) == 0
        k.close()


def test_port_in_use_and_bad_host():
    with Server("baleend_stub") as s:
        for args, rc in ((["--port", s.port], 4), (["--host", "no.such.host.invalid"], 2), (["--port", "70000"], 2)):
            p = Server.__new__(Server)
            p = subprocess.run([str(BUILD / "tests" / "baleend_stub"), *map(str, args)], capture_output=True, text=True, timeout=30)
            assert p.returncode == rc and p.stderr.count("\n") == 1, (args, p)
