// The official anthropic package on /v1/messages: text, streams, a tool loop.
import Anthropic from "@anthropic-ai/sdk";
import {checkLoop, multiply, question, weather} from "./tools.mjs";
import {check, key, model, patience, step, url} from "./steps.mjs";

const client = new Anthropic({baseURL: url, apiKey: key, timeout: patience, maxRetries: 0});
const tools = [
  {name: "weather", description: "Returns the weather of a city.", input_schema: {type: "object", properties: {city: {type: "string"}}, required: ["city"]}},
  {name: "multiply", description: "Multiplies two integers.",
   input_schema: {type: "object", properties: {a: {type: "integer"}, b: {type: "integer"}}, required: ["a", "b"]}},
];
const ask = [{role: "user", content: "Say hello."}];

await step("messages.create", async () => {
  const answer = await client.messages.create({model, max_tokens: 20, messages: ask});
  check(answer.content[0].text && answer.usage.output_tokens > 0, answer);
});

await step("messages.stream", async () => {
  let text = "";
  const stream = client.messages.stream({model, max_tokens: 20, messages: ask}).on("text", piece => text += piece);
  const final = await stream.finalMessage();
  check(text && final.content[0].text === text, text, final);
});

for (const streamed of [false, true])
  await step("tool loop" + (streamed ? ", streamed" : ""), async () => {
    const messages = [{role: "user", content: question}];
    for (let turn = 0; turn < 8; turn++) {
      const body = {model, max_tokens: 400, messages, tools, temperature: 0};
      const answer = streamed ? await client.messages.stream(body).finalMessage() : await client.messages.create(body);
      const calls = answer.content.filter(block => block.type === "tool_use");
      if (!calls.length) return checkLoop(answer.content.map(block => block.text ?? "").join(""));
      messages.push({role: "assistant", content: answer.content}, {role: "user", content: calls.map(call => (
        {type: "tool_result", tool_use_id: call.id, content: String({weather, multiply}[call.name](call.input))}))});
    }
    throw new Error("no end of calls");
  });
