// The official openai package: runTools, whole and streamed.
import OpenAI from "openai";
import {checkLoop, multiply, question, weather} from "./tools.mjs";
import {base, key, model, patience, step} from "./steps.mjs";

const client = new OpenAI({baseURL: base, apiKey: key, timeout: patience, maxRetries: 0});
const tools = [
  {type: "function", function: {name: "weather", description: "Returns the weather of a city.", function: weather, parse: JSON.parse,
                                parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]}}},
  {type: "function", function: {name: "multiply", description: "Multiplies two integers.", function: multiply, parse: JSON.parse,
                                parameters: {type: "object", properties: {a: {type: "integer"}, b: {type: "integer"}}, required: ["a", "b"]}}},
];

for (const stream of [false, true])
  await step("runTools" + (stream ? ", streamed" : ""), async () => {
    const runner = client.chat.completions.runTools({model, messages: [{role: "user", content: question}], tools, temperature: 0, stream});
    checkLoop(await runner.finalContent());
  });
