// LangChain: withStructuredOutput by schema and by JSON mode, streams, agents.
import {ChatOpenAI} from "@langchain/openai";
import {createAgent, tool} from "langchain";
import {z} from "zod";
import {checkLoop, multiply, question, weather} from "./tools.mjs";
import {base, check, key, model, patience, step} from "./steps.mjs";

const llm = new ChatOpenAI({model, apiKey: key, temperature: 0, timeout: patience, maxRetries: 0, configuration: {baseURL: base}});
const Person = z.object({name: z.string().describe("the first name"), age: z.number().int().describe("the age in years")});
const ask = "Ada is 36 years old. Answer as JSON with the keys name and age: who is it?";

for (const method of ["jsonSchema", "jsonMode", "functionCalling"])
  await step(`withStructuredOutput, ${method}`, async () => {
    const person = await llm.withStructuredOutput(Person, {name: "person", method}).invoke(ask);
    check(person.age === 36, person);
  });

await step("stream with usage", async () => {
  let whole;
  for await (const chunk of await llm.stream("Say hello.")) whole = whole ? whole.concat(chunk) : chunk;
  check(whole.content && whole.usage_metadata.output_tokens > 0, whole);
});

const tools = [
  tool(weather, {name: "weather", description: "Returns the weather of a city.", schema: z.object({city: z.string()})}),
  tool(async numbers => String(multiply(numbers)), {name: "multiply", description: "Multiplies two integers.",
                                                    schema: z.object({a: z.number().int(), b: z.number().int()})}),
];
const input = {messages: [{role: "user", content: question}]};

await step("agent", async () => {
  const {messages} = await createAgent({model: llm, tools}).invoke(input);
  checkLoop(messages.at(-1).content);
});

await step("agent, streamed", async () => {
  let last;
  for await (const [mode, chunk] of await createAgent({model: llm, tools}).stream(input, {streamMode: ["messages", "values"]}))
    if (mode === "values") last = chunk;
  checkLoop(last.messages.at(-1).content);
});
