// Vercel's AI SDK with both providers that speak OpenAI's API: text, objects, streams of them, tool loops.
import {createOpenAI} from "@ai-sdk/openai";
import {createOpenAICompatible} from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import {z} from "zod";
import {checkLoop, multiply, question, weather} from "./tools.mjs";
import {base, check, key, model, patience, step} from "./steps.mjs";

const Person = z.object({name: z.string().describe("the first name"), age: z.number().int().describe("the age in years")});
const prompt = "Ada is 36 years old. Answer as JSON with the keys name and age: who is it?";
const compatible = createOpenAICompatible({name: "quire", baseURL: base, apiKey: key, includeUsage: true, supportsStructuredOutputs: true});
const openai = createOpenAI({baseURL: base, apiKey: key});
const tools = {
  weather: ai.tool({description: "Returns the weather of a city.", inputSchema: z.object({city: z.string()}), execute: async input => weather(input)}),
  multiply: ai.tool({description: "Multiplies two integers.", inputSchema: z.object({a: z.number().int(), b: z.number().int()}),
                     execute: async input => multiply(input)}),
};
const more = () => ({temperature: 0, maxRetries: 0, abortSignal: AbortSignal.timeout(patience)});

for (const [name, chat] of [["openai-compatible", compatible.chatModel(model)], ["openai chat", openai.chat(model)]]) {
  await step(`${name}: generateText`, async () => {
    const {text, usage} = await ai.generateText({model: chat, prompt: "Say hello.", maxOutputTokens: 20, ...more()});
    check(text && usage.outputTokens > 0, text, usage);
  });
  await step(`${name}: streamText`, async () => {
    const result = ai.streamText({model: chat, prompt: "Say hello.", maxOutputTokens: 20, ...more()});
    let text = "";
    for await (const piece of result.textStream) text += piece;
    check(text && (await result.usage).outputTokens > 0, text, await result.usage);
  });
  await step(`${name}: generateObject`, async () => {
    const {object} = await ai.generateObject({model: chat, schema: Person, prompt, ...more()});
    check(object.age === 36, object);
  });
  await step(`${name}: streamObject`, async () => {
    const {partialObjectStream, object} = ai.streamObject({model: chat, schema: Person, prompt, ...more()});
    let parts = 0;
    for await (const part of partialObjectStream) parts++;
    check(parts > 1 && (await object).age === 36, parts, await object);
  });
  await step(`${name}: tool loop`, async () => {
    checkLoop((await ai.generateText({model: chat, tools, prompt: question, stopWhen: ai.stepCountIs(8), ...more()})).text);
  });
  await step(`${name}: tool loop, streamed`, async () => {
    const result = ai.streamText({model: chat, tools, prompt: question, stopWhen: ai.stepCountIs(8), ...more()});
    let text = "";
    for await (const piece of result.textStream) text += piece;
    checkLoop(text);
  });
  await step(`${name}: toolChoice`, async () => {
    for (const toolChoice of ["required", {type: "tool", toolName: "multiply"}]) {
      const result = await ai.generateText({model: chat, tools, toolChoice, prompt: "Multiply 6 and 7.", ...more()});
      const call = result.toolCalls[0];
      check(call?.toolName === "multiply" && call.input.a === 6 && call.input.b === 7, result.toolCalls);
    }
  });
}
