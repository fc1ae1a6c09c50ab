"""baleend on the demo model: right answers, whole and streamed, alone and together."""
import json
import signal
import subprocess

import pytest
from conftest import BUILD, DEMO
from serving import Server, events, joined, together

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
BELL = "Ola put the gold bell in the cave. Where is the bell?"
THINK = {"chat_template_kwargs": {"thinking": True}}


@pytest.fixture(scope="module")
def server():
    with Server("baleend") as s:
        yield s
        s.idle()


def user(text):
    return [{"role": "user", "content": text}]


def both(server, body):
    """The whole answer and the stream's must be one; returns (message, finish_reason, usage)."""
    body = {"temperature": 0, **body}
    whole = server.post(CHAT, body)
    chunks = server.stream(CHAT, {**body, "stream_options": {"include_usage": True}})
    choice = whole["choices"][0]
    message = choice["message"]
    text, reasoning, calls, finish = joined(chunks)
    assert text == (message["content"] or "") and reasoning == message.get("reasoning_content", "") and finish == choice["finish_reason"]
    want = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert [(c["name"], c["arguments"]) for c in calls if finish == "tool_calls"] == want
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert all(c["usage"] is None for c in chunks[:-1])
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({c["id"] for c in chunks}) == 1 and all(c["object"] == "chat.completion.chunk" for c in chunks)
    return message, finish, whole["usage"]


def test_sum(server):
    message, finish, usage = both(server, {"messages": user("What is 23 plus 14?")})
    assert message == {"role": "assistant", "content": "23 plus 14 is 37."} and finish == "stop"
    assert usage["prompt_tokens"] == 12 and usage["completion_tokens"] == 9 and usage["total_tokens"] == 21


@pytest.mark.parametrize("switch", [
    THINK, {"chat_template_kwargs": {"enable_thinking": True}}, {"thinking": {"type": "enabled"}}, {"reasoning": {"enabled": True}},
    {"enable_thinking": True}, {"thinking": {"type": "enabled"}, "reasoning_effort": "none"}])
def test_thinking(server, switch):
    message, finish, usage = both(server, {"messages": user(BELL), **switch})
    assert message["reasoning_content"] == "The bell was put in the cave." and message["content"] == "The bell is in the cave."
    assert usage["reasoning_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"] == 8 and usage["completion_tokens"] == 17


def test_thinking_is_off_unless_asked_for(server):
    for body in ({}, {"reasoning_effort": "high"}, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}):
        message, _, usage = both(server, {"messages": user(BELL), **body})
        assert "reasoning_content" not in message and usage["reasoning_tokens"] == 0
    with Server("baleend", "--thinking", "on") as s:
        assert s.chat(BELL)["choices"][0]["message"]["reasoning_content"]
        assert "reasoning_content" not in s.chat(BELL, reasoning_effort="none")["choices"][0]["message"]


def test_effort_reaches_the_prompt(server):
    def prompt(**kw):
        ids = server.post("/tokenize", {"messages": user("x"), **kw})["tokens"]
        return server.post("/detokenize", {"tokens": ids, "skip_special_tokens": False})["text"]

    for effort, number in (("low", 50), ("medium", 75), ("high", 75), ("xhigh", 75), ("max", 100), (42, 42), (1, 1), (100, 100)):
        assert f"Reasoning Effort: {number} (" in prompt(reasoning_effort=effort, **THINK)
    assert "Reasoning Effort: 75 (" in prompt(**THINK) and "Effort" not in prompt(reasoning_effort="max")


def test_reasoning_modes(server):
    body = {"messages": user(BELL), **THINK}
    inline, _, _ = both(server, {**body, "separate_reasoning": False})
    assert inline["content"] == "The bell was put in the cave.</think>The bell is in the cave." and "reasoning_content" not in inline
    hidden, _, usage = both(server, {**body, "include_reasoning": False})
    assert hidden["content"] == "The bell is in the cave." and "reasoning_content" not in hidden and usage["reasoning_tokens"] == 8
    chunks = server.stream(CHAT, {**body, "temperature": 0, "stream_reasoning": False})
    pieces = [c["choices"][0]["delta"]["reasoning_content"] for c in chunks if "reasoning_content" in c["choices"][0]["delta"]]
    assert pieces == ["The bell was put in the cave."]


def test_cut_off_in_reasoning(server):
    message, finish, usage = both(server, {"messages": user(BELL), "max_tokens": 4, **THINK})
    assert message["content"] == "" and message["reasoning_content"] == "The bell was put" and finish == "length"
    assert usage["completion_tokens"] == usage["reasoning_tokens"] == 4


def test_tool_call(server):
    body = {"messages": user("Weather in Oslo, please."), "tools": [WEATHER]}
    message, finish, _ = both(server, body)
    assert finish == "tool_calls" and message["content"] is None
    call = message["tool_calls"][0]
    assert call["type"] == "function" and call["id"].startswith("call_") and call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert both(server, {**body, "parallel_tool_calls": False})[0]["tool_calls"][0]["function"] == call["function"]
    # With tool_choice none no tools are shown; what the model writes in calls' form is never content.
    after = body["messages"] + [message, {"role": "tool", "tool_call_id": call["id"], "content": "{\"t\": 20}"}]
    answer, _, _ = both(server, {"messages": after, "tools": [WEATHER], "tool_choice": "none", "max_tokens": 60})
    assert "DSML" not in answer["content"] and "tool_calls" not in answer


def test_cut_off_in_a_call(server):
    body = {"messages": user("Weather in Oslo, please."), "tools": [WEATHER], "temperature": 0}
    for n in (1, 3, 9, 15, 20, 24, 28, 32, 35, 36):
        choice = server.post(CHAT, {**body, "max_tokens": n})["choices"][0]
        assert choice["finish_reason"] == "length"
        whole = choice["message"].get("tool_calls", [])  # complete before the block is, or left out
        assert all(json.loads(c["function"]["arguments"]) == {"city": "Oslo"} for c in whole) and (n > 32 or not whole)
        text, _, calls, finish = joined(server.stream(CHAT, {**body, "max_tokens": n}))
        assert finish == "length" and text == (choice["message"]["content"] or "") and len(calls) <= 1


def test_stop_strings_leave_reasoning_alone(server):
    body = {"messages": user(BELL), "stop": [" in"], **THINK}
    message, finish, _ = both(server, body)
    assert message["reasoning_content"] == "The bell was put in the cave." and message["content"] == "The bell is" and finish == "stop"
    assert both(server, {**body, "stop_in_reasoning": True})[0]["reasoning_content"] == "The bell was put"


def test_completions(server):
    prompt = "<｜begin▁of▁sentence｜><｜User｜>What is 23 plus 14?<｜Assistant｜></think>"
    got = server.complete(prompt, max_tokens=20)
    assert got["object"] == "text_completion" and got["choices"][0]["text"] == "23 plus 14 is 37."
    ids = server.post("/tokenize", {"prompt": prompt})
    assert ids["count"] == 12 and server.complete(ids["tokens"], max_tokens=20)["choices"] == got["choices"]
    assert server.post("/detokenize", {"tokens": ids["tokens"], "skip_special_tokens": False})["text"] == prompt
    several = server.complete([prompt, prompt.replace("23", "11")], max_tokens=20)
    assert [c["text"] for c in several["choices"]] == ["23 plus 14 is 37.", "11 plus 14 is 25."]
    assert server.complete(prompt)["choices"][0]["finish_reason"] == "stop"
    special = server.complete(prompt, max_tokens=20, skip_special_tokens=False, ignore_eos=True)["choices"][0]["text"]
    assert special.startswith("23 plus 14 is 37.<｜end▁of▁sentence｜>")


def test_prefill_of_the_answer(server):
    messages = user("What is 23 plus 14?") + [{"role": "assistant", "content": "23 plus 14 is"}]
    assert server.chat(messages, continue_final_message=True)["choices"][0]["message"]["content"] == " 37."


def test_logprobs(server):
    body = {"messages": user("What is 23 plus 14?"), "logprobs": True, "top_logprobs": 3, "temperature": 0}
    whole = server.post(CHAT, body)
    tokens = whole["choices"][0]["logprobs"]["content"]
    assert len(tokens) == whole["usage"]["completion_tokens"]
    assert b"".join(bytes(t["bytes"]) for t in tokens).decode() == "23 plus 14 is 37.<｜end▁of▁sentence｜>"
    for t in tokens:
        assert len(t["top_logprobs"]) == 3 and t["top_logprobs"][0]["token"] == t["token"] and -10 < t["logprob"] <= 0
    chunks = server.stream(CHAT, body)
    streamed = sum((c["choices"][0]["logprobs"]["content"] for c in chunks if c["choices"][0]["logprobs"]), [])
    assert streamed == tokens


QUESTIONS = [user(q) for q in ("What is 23 plus 14?", "What is the capital of Norway?", "Count from 5 to 12.", BELL, "Add 46 and 24.",
                               "Write JSON with name Kim and age 30.")]


def test_together_as_alone(server):
    """Thirty requests at once, of all kinds, give what they give alone: greedy and drawn."""
    bodies = [{"messages": QUESTIONS[i % 6], "temperature": 0 if i % 2 else 1.2, "seed": i, "max_tokens": 8 + i, **(THINK if i % 5 == 0 else {})}
              for i in range(30)]

    def answer(b):
        return server.post(CHAT, b)["choices"][0]["message"]

    alone = [answer(b) for b in bodies]
    assert together([lambda b=b: answer(b) for b in bodies]) == alone
    with Server("baleend", "--step-tokens", 9, "--max-requests", 7, "--threads", 1) as s:
        assert together([lambda b=b: s.post(CHAT, b)["choices"][0]["message"] for b in bodies]) == alone
        assert s.metrics()["baleen:largest_batch"] > 1


def test_seed(server):
    body = {"messages": user("Tell me something."), "temperature": 1.5, "max_tokens": 20}
    a, b, c = (server.post(CHAT, {**body, "seed": seed})["choices"][0]["message"]["content"] for seed in (1, 1, 2))
    assert a == b != c
    assert len({server.post(CHAT, body)["choices"][0]["message"]["content"] for _ in range(6)}) > 1


def test_models_and_info(server):
    model = server.ask("GET", "/v1/models")[2]["data"][0]
    assert model["id"] == "demo-model" and server.ask("GET", "/v1/models/demo-model")[2] == model
    assert server.ask("GET", "/server_info")[2]["thinking"] is False
    with Server("baleend", DEMO, "--model-name", "org/näme", "--max-context", 100) as s:
        assert s.ask("GET", "/v1/models/org/n%C3%A4me")[2]["max_model_len"] == 100
        got = s.post(CHAT, {"model": "some-other", "messages": user("What is 23 plus 14?"), "temperature": 0})
        assert got["model"] == "org/näme" and got["choices"][0]["message"]["content"] == "23 plus 14 is 37."
        long = s.post(CHAT, {"messages": user("Count from 5 to 12."), "ignore_eos": True})
        assert long["usage"]["total_tokens"] == 100 and long["choices"][0]["finish_reason"] == "length"


def test_metrics_count(server):
    before = server.metrics()
    server.chat("What is 23 plus 14?")
    after = server.metrics()
    for name, more in (("prompt_tokens_total", 12), ("generation_tokens_total", 9), ("num_requests_total", 1)):
        assert after["sglang:" + name] - before["sglang:" + name] == more
    text = server.ask("GET", "/metrics")[2].decode()
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "queue_time_seconds"):
        assert f"sglang:{name}_bucket{{model_name=\"demo-model\",le=\"+Inf\"}}" in text


def test_packed_and_bf16_models(baleen, tmp_path):
    """The three forms of a model give their answers."""
    for form in ("packed", "bf16"):
        r = baleen("convert", DEMO, tmp_path / form, "--to", form)
        assert r.rc == 0, r.err
        with Server("baleend", tmp_path / form, "--check", "full") as s:
            assert s.chat("What is 23 plus 14?")["choices"][0]["message"]["content"] == "23 plus 14 is 37."


def test_terminated_while_streaming():
    with Server("baleend") as s:
        streams = [s.open_stream(CHAT, {"messages": QUESTIONS[i % 6], "temperature": 0}) for i in range(6)]
        s.signal(signal.SIGTERM)
        for c, r in streams:
            if r.status == 200:
                text, _, _, finish = joined(events(r.read()))
                assert text and finish == "stop"
            c.close()
        assert s.wait() == 0


def test_bad_models(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "absent", tmp_path / "empty", __file__):
        p = subprocess.run([str(BUILD / "tools" / "baleend"), str(path), "--port", "0"], capture_output=True, text=True, timeout=60)
        assert p.returncode == 3 and p.stderr.count("\n") == 1 and str(path) in p.stderr, p
