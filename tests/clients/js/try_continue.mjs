// Continue's adapters, as its editor extensions call them: chat, streams, fill-in-the-middle, models.
import {constructLlmApi} from "@continuedev/openai-adapters";
import {base, check, key, model, step} from "./steps.mjs";

const signal = new AbortController().signal;
const messages = [{role: "user", content: "Say hello."}];

for (const provider of ["openai", "vllm", "llama.cpp", "lmstudio"]) {
  const api = constructLlmApi({provider, apiKey: key, apiBase: base + "/", model});
  await step(`${provider}: chat`, async () => {
    const answer = await api.chatCompletionNonStream({model, messages, max_tokens: 20, stream: false}, signal);
    check(answer.choices[0].message.content, answer);
  });
  await step(`${provider}: chat, streamed`, async () => {
    let text = "";
    for await (const chunk of api.chatCompletionStream({model, messages, max_tokens: 20, stream: true}, signal)) text += chunk.choices[0]?.delta?.content ?? "";
    check(text);
  });
  await step(`${provider}: completion, streamed`, async () => {
    let text = "";
    for await (const chunk of api.completionStream({model, prompt: "def add(a, b):", max_tokens: 20, stream: true}, signal)) text += chunk.choices[0]?.text ?? "";
    check(text);
  });
  await step(`${provider}: list`, async () => check((await api.list()).length > 0));
}

await step("vllm: fill in the middle", async () => {
  const api = constructLlmApi({provider: "vllm", apiKey: key, apiBase: base + "/", model});
  let text = "";
  for await (const chunk of api.fimStream({model, prompt: "def add(a, b):\n    return ", suffix: "\n\nprint(add(1, 2))", max_tokens: 20, stream: true}, signal))
    text += chunk.choices[0]?.delta?.content ?? chunk.choices[0]?.text ?? "";
  check(text.includes("a"), text);
});
