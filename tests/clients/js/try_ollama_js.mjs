// The official ollama package: chat, generate, streams, a schema, a tool loop.
import {Ollama} from "ollama";
import {checkLoop, multiply, question, weather} from "./tools.mjs";
import {check, key, model, step, url} from "./steps.mjs";

const client = new Ollama({host: url, headers: {Authorization: `Bearer ${key}`}});
const messages = [{role: "user", content: "Say hello."}];
const options = {temperature: 0, num_predict: 400};
const tools = [
  {type: "function", function: {name: "weather", description: "Returns the weather of a city.",
                                parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]}}},
  {type: "function", function: {name: "multiply", description: "Multiplies two integers.",
                                parameters: {type: "object", properties: {a: {type: "integer"}, b: {type: "integer"}}, required: ["a", "b"]}}},
];

await step("chat", async () => check((await client.chat({model, messages, options})).message.content));

await step("chat, streamed", async () => {
  let text = "", last;
  for await (last of await client.chat({model, messages, options, stream: true})) text += last.message.content;
  check(text && last.done, text, last);
});

await step("generate", async () => check((await client.generate({model, prompt: "Say hello.", options})).response));

await step("format: a schema", async () => {
  const format = {type: "object", properties: {name: {type: "string"}, age: {type: "integer"}}, required: ["name", "age"], additionalProperties: false};
  const answer = await client.chat({model, messages: [{role: "user", content: "Ada is 36 years old. Who is it?"}], format, options});
  check(JSON.parse(answer.message.content).age === 36, answer.message);
});

await step("list, ps, show", async () => {
  check((await client.list()).models.length > 0);
  check((await client.ps()).models && await client.show({model}));
});

await step("tool loop", async () => {
  const history = [{role: "user", content: question}];
  for (let turn = 0; turn < 8; turn++) {
    const {message} = await client.chat({model, messages: history, tools, options});
    if (!message.tool_calls?.length) return checkLoop(message.content);
    history.push(message, ...message.tool_calls.map(call => (
      {role: "tool", tool_name: call.function.name, content: String({weather, multiply}[call.function.name](call.function.arguments))})));
  }
  throw new Error("no end of calls");
});
