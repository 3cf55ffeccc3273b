"""lm-evaluation-harness on the text and chat endpoints with tasks of its own kinds: likelihoods, rolling likelihoods, generated text."""

import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from steps import BASE, KEY, MODEL, run, step


os.environ["OPENAI_API_KEY"] = KEY
PLAIN = {"model": MODEL, "base_url": BASE + "/completions", "tokenizer_backend": None, "tokenized_requests": False, "max_retries": 1}
# Likelihoods need the tokenizer: the server's own, by /tokenizer_info and /tokenize, since a CPU's user has no other.
REMOTE = PLAIN | {"tokenizer_backend": "remote", "tokenized_requests": True}


@step("loglikelihood")
def likelihood():
    lm = LocalCompletionsAPI(**REMOTE)
    asked = [Instance("loglikelihood", {}, ("The capital of France is", end), i) for i, end in enumerate((" Paris", " purple"))]
    (right, _), (wrong, _) = lm.loglikelihood(asked)
    assert wrong < right < 0, (right, wrong)


@step("loglikelihood_rolling")
def rolling():
    lm = LocalCompletionsAPI(**REMOTE)
    assert lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("The quick brown fox jumps over the lazy dog.",), 0)])[0] < 0


@step("generate_until")
def generate():
    ask = [Instance("generate_until", {}, ("One, two, three,", {"until": ["six"], "max_gen_toks": 20, "temperature": 0}), 0)]
    assert "four" in LocalCompletionsAPI(**PLAIN).generate_until(ask)[0]


@step("generate_until, chat")
def chat():
    lm = LocalChatCompletion(model=MODEL, base_url=BASE + "/chat/completions", tokenizer_backend=None, tokenized_requests=False, max_retries=1)
    ask = lm.apply_chat_template([{"role": "user", "content": "Say hello."}])
    assert lm.generate_until([Instance("generate_until", {}, (ask, {"until": ["zzz"], "max_gen_toks": 20}), 0)])[0]


run()
