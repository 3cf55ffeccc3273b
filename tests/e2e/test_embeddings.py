"""Embeddings and scores over HTTP, on made-up encoders and on a chat model: OpenAI's client, what is refused, and
the same bits in any batch. tests/reference/encoder.py makes the files and says by numpy what they mean."""

import base64
import concurrent.futures
import json
import pathlib
import socket
import sys

import harness
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import encoder  # noqa: E402

EMBED = "/v1/embeddings"
TEXTS = ["the quick brown fox jumps over the lazy dog", "a", "", "quoted: \"text\" & more!", "it was " * 60,
         "[CLS] is read as a token [SEP]", "unbekanntes Wörtchen 東京"]


def ids_of(text):
    """The made-up vocabulary's ids, by Hugging Face's tokenizers."""
    import test_wordpiece
    return test_wordpiece.theirs(encoder.VOCABULARY).encode(text).ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(scope="module")
def bert(folder):
    path = encoder.make(folder / "bert.gguf", kind=Q.Q8_0)
    with harness.started(model=path) as server:
        server.reference = encoder.Encoder(path)
        yield server


def vectors(server, texts, **fields):
    answer = server.post({"input": texts, **fields}, EMBED)
    assert answer.status == 200, answer.body
    assert [d["index"] for d in answer.json["data"]] == list(range(len(answer.json["data"])))
    return [d["embedding"] for d in answer.json["data"]]


def test_openai_client(bert):
    client = bert.client()
    coded = client.embeddings.create(model="default", input=TEXTS)            # the client asks for base64
    plain = client.embeddings.create(model="default", input=TEXTS, encoding_format="float")
    ids = [ids_of(text) for text in TEXTS]
    assert coded.usage.prompt_tokens == coded.usage.total_tokens == sum(map(len, ids))
    for text, ours, also, tokens in zip(TEXTS, coded.data, plain.data, ids, strict=True):
        assert np.array_equal(np.float32(ours.embedding), np.float32(also.embedding)), text
        assert abs(np.linalg.norm(ours.embedding) - 1) < 1e-6
        assert encoder.cosine(ours.embedding, bert.reference.embed(tokens)) > 0.9999
        assert client.embeddings.create(model="default", input=tokens).data[0].embedding == ours.embedding
    assert client.embeddings.create(model="default", input=ids).data[2].embedding == coded.data[2].embedding
    short = client.embeddings.create(model="default", input=TEXTS[0], dimensions=16, encoding_format="float")
    head = np.array(plain.data[0].embedding[:16])
    assert np.allclose(short.data[0].embedding, head / np.linalg.norm(head), atol=1e-6)


def test_base64_is_the_floats(bert):
    plain = vectors(bert, TEXTS[:3])
    for ours, coded in zip(plain, vectors(bert, TEXTS[:3], encoding_format="base64"), strict=True):
        assert np.array_equal(np.frombuffer(base64.b64decode(coded, validate=True), "<f4"), np.float32(ours))
    for dimensions in (1, 2, 3):    # each remainder of base64
        coded, = vectors(bert, "fox", encoding_format="base64", dimensions=dimensions)
        assert len(base64.b64decode(coded, validate=True)) == 4 * dimensions


@pytest.mark.parametrize("body, param, code", [
    ({}, "input", None), ({"input": []}, "input", None), ({"input": [[]]}, "input", None), ({"input": 5}, "input", None),
    ({"input": [1, "a"]}, "input", None), ({"input": ["a", None]}, "input", None), ({"input": {"text": "a"}}, "input", None),
    ({"input": [10 ** 6]}, "input", None), ({"input": [-1]}, "input", None), ({"input": [1.5]}, "input", None),
    ({"input": ["a"] * 2049}, "input", None), ({"input": ["a"] * 2000}, "input", None),    # more than the queue holds
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", None), ({"input": "a", "encoding_format": 1}, "encoding_format", None),
    ({"input": "a", "dimensions": 0}, "dimensions", None), ({"input": "a", "dimensions": 65}, "dimensions", None),
    ({"input": "a", "model": "other"}, "model", "model_not_found"),
    ({"input": "fox " * 699}, "input", "context_length_exceeded"), ({"input": [5] * 701}, "input", "context_length_exceeded"),
])
def test_what_is_refused(bert, body, param, code):
    answer = bert.post(body, EMBED)
    error = answer.json["error"]
    assert answer.status in (400, 404) and error["param"] == param and error["code"] == code, error
    assert vectors(bert, "fox")


def test_longest_text(bert):
    """698 words and what stands around them fill the model's context."""
    assert encoder.cosine(vectors(bert, "fox " * 698)[0], bert.reference.embed(ids_of("fox " * 698))) > 0.9999


def test_an_encoder_generates_nothing(bert):
    for path, body in (("/v1/completions", {"prompt": "a"}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                       ("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/v1/score", {"text_1": "a", "text_2": "b"})):
        answer = bert.post(body, path)
        assert answer.status == 400 and answer.json["error"]["code"] == "unsupported_model", answer.body
        assert answer.json["error"]["param"] == "model"


# ---- The same bits

MATRIX = [["--threads", "1"], ["--threads", "2", "--max-batch-tokens", "128"], ["--max-seqs", "3", "--page-size", "8"],
          ["--kernels", "scalar"], ["--threads", "1", "--page-size", "64", "--memory", "160MiB"]]
MORE = TEXTS[:4] + ["the fox and the dog " * n for n in (1, 3, 7, 12)] + list("abcdefghij")


def together(server, texts):
    """Every text alone and all at the same time, and then in one list."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda text: vectors(server, text)[0], texts * 2))
    assert alone[:len(texts)] == alone[len(texts):] == vectors(server, texts)
    return alone[:len(texts)]


def test_same_bits_in_any_batch(bert):
    """Alone, beside others, in a list; any threads, kernels, steps and pages."""
    expected = [vectors(bert, text)[0] for text in MORE]
    assert together(bert, MORE) == expected
    for options in MATRIX:
        with harness.started(*options, model=bert.model) as server:
            assert together(server, MORE) == expected, options


def test_texts_share_a_step(bert):
    """50 texts are computed in a few steps."""
    before = bert.metrics()("quire_steps_total")
    vectors(bert, ["the fox %d" % i for i in range(50)])
    assert bert.metrics()("quire_steps_total") - before <= 4


def test_a_step_is_the_longest_text(bert):
    with harness.started("--max-batch-tokens", "32", model=bert.model) as server:
        answer = server.post({"input": "fox " * 31}, EMBED)
        assert answer.status == 400 and "32 tokens" in answer.json["error"]["message"]
        assert vectors(server, "fox " * 30) == vectors(bert, "fox " * 30)
        assert server.get("/v1/models").json["data"][0]["max_model_len"] == 32


@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_other_poolings(bert, pooling):
    with harness.started("--pooling", pooling, model=bert.model) as server:
        for text in TEXTS[:3]:
            assert encoder.cosine(vectors(server, text)[0], bert.reference.embed(ids_of(text), pooling)) > 0.9999


# ---- Chat models

def test_chat_model_with_a_pooling(server):
    answer = server.post({"input": "a"}, EMBED)
    assert answer.status == 400 and "--pooling" in answer.json["error"]["message"]
    prompts = ["The capital of France is Paris. " * n for n in (1, 12)]
    for pooling in ("mean", "last"):
        results = []
        for options in ([], ["--max-batch-tokens", "7", "--threads", "1"], ["--no-prefix-cache", "--page-size", "8"]):
            with harness.started("--pooling", pooling, *options, model=harness.tiny()) as tiny:
                text = tiny.text("Once upon a time", max_tokens=5, temperature=0)
                results.append([vectors(tiny, prompts), vectors(tiny, prompts[1]), vectors(tiny, prompts[::-1]), text])
        assert results[0] == results[1] == results[2]
        both, one, turned, _ = results[0]
        assert both[1] == one[0] and turned == both[::-1] and both[0] != both[1]


def test_pooled_and_generated_in_one_step():
    with harness.started("--pooling", "mean", model=harness.tiny(), environment={"QUIRE_TEST_PREEMPT_EVERY": "3"}) as server:
        prompts = ["Once upon a time %d" % i for i in range(6)]
        said = [server.text(p, max_tokens=12, temperature=0) for p in prompts]
        meant = [vectors(server, p * 9)[0] for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            texts = [pool.submit(server.text, p, max_tokens=12, temperature=0) for p in prompts]
            means = [pool.submit(vectors, server, p * 9) for p in prompts]
            assert [t.result() for t in texts] == said and [m.result()[0] for m in means] == meant


def with_pooling(source, target, kind):
    """The file with a pooling of its own, as the converter writes it for Qwen3 Embedding."""
    import gguf
    from gguf.scripts import gguf_new_metadata
    reader = gguf.GGUFReader(source)
    family = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), family)
    added = {family + ".pooling_type": gguf_new_metadata.MetadataDetails(gguf.GGUFValueType.UINT32, kind)}
    gguf_new_metadata.copy_with_new_metadata(reader, writer, added, [])
    return target


@pytest.mark.parametrize("model, kind, name", [("qwen3", 3, "last"), ("llama-q4_1", 1, "mean")])
def test_pooling_of_a_chat_models_file(folder, model, kind, name):
    source = next(pathlib.Path(harness.made_up_models()).glob(model + "*.gguf"))
    path = with_pooling(source, folder / (model + "-pooled.gguf"), kind)
    with harness.started("--pooling", name, model=source) as server:
        expected = vectors(server, ["Once upon a time", "there was a machine"])
    with harness.started(model=path) as server:
        assert vectors(server, ["Once upon a time", "there was a machine"]) == expected
    with harness.started("--pooling", "none", model=path) as server:
        assert server.post({"input": "a"}, EMBED).json["error"]["code"] == "unsupported_model"


def test_pooling_that_cannot_be(bert):
    for model, pooling in ((harness.tiny(), "cls"), (bert.model, "none")):
        done = harness.run_quire("serve", "-m", str(model), "--pooling", pooling, "--port", "0")
        assert done.returncode != 0 and b"--pooling " + pooling.encode() in done.stderr


def test_programs_without_a_server(bert):
    """Those that generate refuse an encoder by name; the plan says how long a text may be."""
    for command in (["run", "-m", bert.model, "hi"], ["bench", "-m", bert.model]):
        done = harness.run_quire(*command)
        assert done.returncode == 1 and b"generates no text" in done.stderr, done
    plan = json.loads(harness.run_quire("plan", "-m", bert.model, "--memory", "512MiB", "--json").stdout)
    assert plan["encoder"] and plan["text_tokens"] == encoder.CONTEXT <= plan["step_tokens"]
    assert sum(plan["budget"].values()) - plan["budget"]["total"] <= plan["budget"]["total"] == 512 << 20
    text = harness.run_quire("plan", "-m", bert.model, "--memory", "512MiB", "--max-batch-tokens", "100").stdout
    assert b"texts of up to 100 tokens" in text


def test_models_say_what_they_do(bert):
    assert bert.get("/v1/models").json["data"][0]["capabilities"] == ["embedding"]
    with harness.started("--pooling", "last", model=harness.tiny()) as chat:
        assert chat.get("/v1/models").json["data"][0]["capabilities"] == ["completion", "embedding"]


# ---- Scores

@pytest.fixture(scope="module")
def ranker(folder):
    path = encoder.make(folder / "ranker.gguf", labels=1, pooling=4)
    with harness.started(model=path) as server:
        server.reference = encoder.Encoder(path)
        yield server


DOCUMENTS = ["the dog", "a quick fox", "", "text is text, and the query was it", "fox " * 200]


def score(server, query, document):
    first, second = ids_of(query), ids_of(document)[1:]
    return server.reference.scores(first + second, len(first))[0]


def test_rerank(ranker):
    assert ranker.get("/v1/models").json["data"][0]["capabilities"] == ["rerank"]
    query = "which fox is it"
    expected = [score(ranker, query, document) for document in DOCUMENTS]
    answer = ranker.complete({"query": query, "documents": DOCUMENTS, "return_documents": True}, "/v1/rerank")
    order = sorted(range(len(DOCUMENTS)), key=lambda i: -expected[i])
    assert [r["index"] for r in answer["results"]] == order
    for result in answer["results"]:
        assert abs(result["relevance_score"] - 1 / (1 + np.exp(-expected[result["index"]]))) < 0.005
        assert result["document"]["text"] == DOCUMENTS[result["index"]]
    raw = ranker.complete({"query": query, "documents": DOCUMENTS, "use_activation": False, "top_n": 2}, "/rerank")
    assert [r["index"] for r in raw["results"]] == order[:2] and "document" not in raw["results"][0]
    assert abs(raw["results"][0]["relevance_score"] - max(expected)) < 0.01
    assert raw["usage"]["total_tokens"] == sum(len(ids_of(query)) + len(ids_of(d)) - 1 for d in DOCUMENTS)


def test_score(ranker):
    answer = ranker.complete({"text_1": "fox", "text_2": DOCUMENTS, "use_activation": False}, "/v1/score")
    assert [d["index"] for d in answer["data"]] == list(range(len(DOCUMENTS)))
    pairs = ranker.complete({"text_1": ["fox"] * len(DOCUMENTS), "text_2": DOCUMENTS, "use_activation": False}, "/score")
    for got, also, document in zip(answer["data"], pairs["data"], DOCUMENTS, strict=True):
        assert abs(got["score"] - score(ranker, "fox", document)) < 0.01 and got["score"] == also["score"]
        alone = ranker.complete({"text_1": "fox", "text_2": document, "use_activation": False}, "/score")
        assert alone["data"][0]["score"] == got["score"]


@pytest.mark.parametrize("path, body, param", [
    ("/v1/rerank", {"documents": ["a"]}, "query"), ("/v1/rerank", {"query": "a"}, "documents"),
    ("/v1/rerank", {"query": "a", "documents": "a"}, "documents"), ("/v1/rerank", {"query": ["a"], "documents": ["a"]}, "query"),
    ("/v1/rerank", {"query": "a", "documents": []}, "documents"), ("/v1/rerank", {"query": "a", "documents": [5]}, "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"), ("/v1/score", {"text_1": [], "text_2": ["a"]}, "text_1"),
    ("/v1/rerank", {"query": "a", "documents": ["fox " * 698]}, "documents"), ("/v1/embeddings", {"input": "a"}, "model"),
])
def test_pairs_that_are_refused(ranker, path, body, param):
    answer = ranker.post(body, path)
    assert answer.status == 400 and answer.json["error"]["param"] == param, answer.body


def test_hang_up_frees_everything(bert):
    """1,000 texts whose client leaves: nothing stays of them."""
    before = bert.metrics()("quire_rows_computed_total")
    body = json.dumps({"input": ["fox " * 300] * 1000})
    with socket.create_connection(("127.0.0.1", bert.port)) as connection:
        connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body.encode())
        harness.wait_until(lambda: not bert.metrics().idle, 20, "busy")
    bert.wait_idle()
    assert bert.metrics()("quire_rows_computed_total") - before < 1000 * 302
    assert vectors(bert, "fox")
