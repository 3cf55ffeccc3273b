// OpenAI's Agents SDK for JavaScript, by chat completions and by its default, the responses API.
import {Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run, setTracingDisabled, tool} from "@openai/agents";
import OpenAI from "openai";
import {z} from "zod";
import {checkLoop, multiply, question, weather} from "./tools.mjs";
import {base, check, key, model, patience, step} from "./steps.mjs";

setTracingDisabled(true);
const client = new OpenAI({baseURL: base, apiKey: key, timeout: patience, maxRetries: 0});
const tools = [
  tool({name: "weather", description: "Returns the weather of a city.", parameters: z.object({city: z.string()}), execute: async input => weather(input)}),
  tool({name: "multiply", description: "Multiplies two integers.", parameters: z.object({a: z.number().int(), b: z.number().int()}),
        execute: async input => String(multiply(input))}),
];
const more = {modelSettings: {temperature: 0}};

for (const [name, Model] of [["chat completions", OpenAIChatCompletionsModel], ["responses", OpenAIResponsesModel]]) {
  const used = new Model(client, model);
  await step(`${name}: output type`, async () => {
    const outputType = z.object({name: z.string(), age: z.number().int()});
    const {finalOutput} = await run(new Agent({name: "finder", instructions: "Find the person.", model: used, outputType, ...more}), "Ada is 36 years old.");
    check(finalOutput.age === 36, finalOutput);
  });
  await step(`${name}: tool loop`, async () => {
    checkLoop((await run(new Agent({name: "helper", instructions: "You are exact.", model: used, tools, ...more}), question)).finalOutput);
  });
  await step(`${name}: tool loop, streamed`, async () => {
    const result = await run(new Agent({name: "helper", instructions: "You are exact.", model: used, tools, ...more}), question, {stream: true});
    for await (const event of result);
    await result.completed;
    checkLoop(result.finalOutput);
  });
}
