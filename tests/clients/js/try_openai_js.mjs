// The official openai package: parsed answers, the helpers for streams.
import OpenAI from "openai";
import {zodResponseFormat} from "openai/helpers/zod";
import {z} from "zod";
import {base, check, key, model, patience, step} from "./steps.mjs";

const client = new OpenAI({baseURL: base, apiKey: key, timeout: patience, maxRetries: 0});
const messages = [{role: "user", content: "Give a recipe for tea as JSON."}];
const Recipe = z.object({
  dish: z.enum(["tea", "soup"]),
  steps: z.array(z.object({title: z.enum(["boil", "pour", "wait"]), minutes: z.number().int().min(0).max(60)})).min(1).max(3),
});
const response_format = zodResponseFormat(Recipe, "recipe");

await step("zodResponseFormat", async () => {
  const answer = await client.chat.completions.parse({model, messages, response_format, temperature: 0});
  check(Recipe.safeParse(answer.choices[0].message.parsed).success, answer.choices[0].message);
});

await step("zodResponseFormat, streamed", async () => {
  let pieces = 0;
  const stream = client.chat.completions.stream({model, messages, response_format, temperature: 0, stream_options: {include_usage: true}});
  stream.on("content.delta", () => pieces++);
  const final = await stream.finalChatCompletion();
  check(Recipe.safeParse(final.choices[0].message.parsed).success, final.choices[0].message);
  check(pieces > 1 && final.usage.completion_tokens > 0, pieces, final.usage);
});
