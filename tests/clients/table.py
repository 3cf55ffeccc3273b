"""The rows of clients.py's table: one for each client. `setup` is what a person writes; docs/clients.md shows it."""
from clients import Client

CALLS = "needs tool calls"
ONE_CALL = "a required call is one call"
FIM = "needs /v1/fim/completions"
PROMPTS = "needs /tokenizer_info, /tokenize and log-probabilities of prompts"
RESPONSES = "needs /v1/responses"
MESSAGES = "needs /v1/messages"
OLLAMA = "needs Ollama's API"


def known(reason, *steps):
    return {step: reason for step in steps}


CLIENTS = (
    Client("openai_py", "openai (Python)", ("openai==3.57.0", "pydantic==2.14.4"), model="smollm2", setup='''
client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
client.chat.completions.parse(model="default", messages=messages, response_format=Recipe)
'''),
    Client("openai_js", "openai (JavaScript)", ("openai@7.59.0", "zod@4.6.7"), "js", model="smollm2", setup='''
const client = new OpenAI({baseURL: "http://127.0.0.1:8080/v1", apiKey: "none"});
await client.chat.completions.parse({model: "default", messages, response_format: zodResponseFormat(Recipe, "recipe")});
'''),
    Client("openai_tools_py", "openai (Python), tools", ("openai==3.57.0", "pydantic==2.14.4")),
    Client("openai_tools_js", "openai (JavaScript), tools", ("openai@7.59.0",), "js"),
    Client("langchain_py", "LangChain (Python)", ("langchain==1.5.2", "langchain-openai==1.7.4"), setup='''
llm = ChatOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none", model="default", stream_usage=True)
llm.with_structured_output(Person, method="json_schema").invoke("Ada is 36 years old.")
'''),
    Client("langchain_js", "LangChain (JavaScript)", ("langchain@1.5.14", "@langchain/openai@1.6.0", "@langchain/core@1.4.0", "zod@4.6.7"), "js",
           known=known(CALLS, "withStructuredOutput, functionCalling", "agent", "agent, streamed"), setup='''
const llm = new ChatOpenAI({model: "default", apiKey: "none", configuration: {baseURL: "http://127.0.0.1:8080/v1"}});
await llm.withStructuredOutput(Person, {name: "person", method: "jsonSchema"}).invoke("Ada is 36 years old.");
'''),
    Client("ai_sdk", "Vercel AI SDK", ("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7"), "js",
           known=known(CALLS, *(f"{name}: {step}" for name in ("openai-compatible", "openai chat")
                                for step in ("tool loop", "tool loop, streamed", "toolChoice"))), setup='''
const quire = createOpenAICompatible({name: "quire", baseURL: "http://127.0.0.1:8080/v1", apiKey: "none", includeUsage: true, supportsStructuredOutputs: true});
await generateObject({model: quire.chatModel("default"), schema: Person, prompt: "Ada is 36 years old."});
'''),
    Client("instructor", "instructor", ("instructor==1.17.0",), known=known(ONE_CALL, "PARALLEL_TOOLS"), setup='''
plain = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
client.chat.completions.create(model="default", messages=messages, response_model=Person)
'''),
    Client("pydantic_ai", "pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",), setup='''
provider = OpenAIProvider(base_url="http://127.0.0.1:8080/v1", api_key="none")
agent = Agent(OpenAIChatModel("default", provider=provider), output_type=NativeOutput(Person))
'''),
    Client("outlines", "outlines", ("outlines==1.3.3", "openai==3.57.0"), model="smollm2", setup='''
client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
model = outlines.from_vllm(client, "default")          # or from_openai, from_sglang
model("A plate:", outlines.regex("[A-Z]{2}-[0-9]{3}"))
'''),
    Client("guidance", "guidance", ("guidance==0.3.1", "openai==3.57.0"), model="smollm2", setup='''
from guidance.models.experimental import VLLMModel      # or SglangModel, or guidance.models.OpenAI
model = VLLMModel("default", base_url="http://127.0.0.1:8080/v1", api_key="none")
'''),
    Client("llama_index", "LlamaIndex", ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
           known=known("it sends tool_choice without tools, which is 400", "as_structured_llm, prompted"), setup='''
llm = OpenAILike(model="default", api_base="http://127.0.0.1:8080/v1", api_key="none", is_chat_model=True,
                 is_function_calling_model=True, should_use_structured_outputs=True, context_window=8192)
'''),
    Client("dspy", "DSPy", ("dspy==3.4.1",), setup='''
lm = dspy.LM("openai/default", api_base="http://127.0.0.1:8080/v1", api_key="none")
dspy.configure(lm=lm, adapter=dspy.JSONAdapter())
'''),
    Client("smolagents", "smolagents", ("smolagents[openai]==1.26.0",),
           known=known(CALLS, "ToolCallingAgent", "ToolCallingAgent, streamed"), setup='''
model = OpenAIModel(model_id="default", api_base="http://127.0.0.1:8080/v1", api_key="none")
agent = CodeAgent(tools=[], model=model)
'''),
    Client("haystack", "haystack", ("haystack-ai==3.4.1",), setup='''
generator = OpenAIChatGenerator(api_key=Secret.from_token("none"), model="default", api_base_url="http://127.0.0.1:8080/v1",
                                generation_kwargs={"response_format": Person})
'''),
    Client("openai_agents", "OpenAI Agents SDK (Python)", ("openai-agents==0.24.0",),
           known=known(RESPONSES, "responses: output type", "responses: tool loop", "responses: tool loop, streamed"), setup='''
client = openai.AsyncOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
agent = Agent(name="helper", model=OpenAIChatCompletionsModel(model="default", openai_client=client))
set_tracing_disabled(True)
'''),
    Client("litellm", "litellm", ("litellm==1.110.2",), setup='''
litellm.completion(model="hosted_vllm/default", api_base="http://127.0.0.1:8080/v1", api_key="none", messages=messages)
'''),
    Client("autogen", "autogen", ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"),
           known=known(CALLS, "agent with tools", "agent with tools, streamed"), setup='''
about = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"}
client = OpenAIChatCompletionClient(model="default", base_url="http://127.0.0.1:8080/v1", api_key="none", model_info=about)
'''),
    Client("crewai", "crewAI", ("crewai==1.15.30",), known=known(CALLS, "crew with tools"), setup='''
llm = LLM(model="openai/default", base_url="http://127.0.0.1:8080/v1", api_key="none")
agent = Agent(role="helper", goal="Answer.", backstory="You are exact.", llm=llm)
'''),
    Client("huggingface_hub", "huggingface_hub", ("huggingface-hub==2.4.0",), model="smollm2", setup='''
client = InferenceClient(base_url="http://127.0.0.1:8080/v1", api_key="none")
client.chat_completion(messages, model="default")
'''),
    Client("anthropic_py", "anthropic (Python)", ("anthropic==2.14.0",),
           known=known(MESSAGES, "messages.create", "messages.stream", "messages.count_tokens", "tool loop", "tool loop, streamed",
                       "its exceptions: a wrong key, a wrong field"), setup='''
client = anthropic.Anthropic(base_url="http://127.0.0.1:8080", api_key="none")
client.messages.create(model="default", max_tokens=100, messages=messages)
'''),
    Client("anthropic_js", "anthropic (JavaScript)", ("@anthropic-ai/sdk@1.14.0",), "js",
           known=known(MESSAGES, "messages.create", "messages.stream", "tool loop", "tool loop, streamed"), setup='''
const client = new Anthropic({baseURL: "http://127.0.0.1:8080", apiKey: "none"});
await client.messages.create({model: "default", max_tokens: 100, messages});
'''),
    Client("ollama_py", "ollama (Python)", ("ollama==0.6.3",),
           known=known(OLLAMA, "chat", "chat, streamed", "generate, whole and streamed", "format: a schema", "list, show, ps", "tool loop"), setup='''
client = ollama.Client(host="http://127.0.0.1:8080")
client.chat("default", messages)
'''),
    Client("ollama_js", "ollama (JavaScript)", ("ollama@0.6.4",), "js",
           known=known(OLLAMA, "chat", "chat, streamed", "generate", "format: a schema", "list, ps, show", "tool loop"), setup='''
const client = new Ollama({host: "http://127.0.0.1:8080"});
await client.chat({model: "default", messages});
'''),
    Client("openai_agents_js", "OpenAI Agents SDK (JavaScript)", ("@openai/agents@0.20.0", "openai@7.59.0", "zod@4.6.7"), "js",
           known=known(CALLS, "chat completions: tool loop", "chat completions: tool loop, streamed") |
           known(RESPONSES, "responses: output type", "responses: tool loop", "responses: tool loop, streamed"), setup='''
const client = new OpenAI({baseURL: "http://127.0.0.1:8080/v1", apiKey: "none"});
const agent = new Agent({name: "helper", model: new OpenAIChatCompletionsModel(client, "default")});
setTracingDisabled(true);
'''),
    Client("openai_go", "openai (Go)", ("github.com/openai/openai-go/v3@v3.99.0",), "go", known=known(CALLS, "tool loop", "tool loop, streamed"), setup='''
client := openai.NewClient(option.WithBaseURL("http://127.0.0.1:8080/v1"), option.WithAPIKey("none"))
client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "default", Messages: messages})
'''),
    Client("async_openai", "async-openai (Rust)", ("async-openai@0.43.0",), "rust", model="smollm2", setup='''
let config = OpenAIConfig::new().with_api_base("http://127.0.0.1:8080/v1").with_api_key("none");
let client = Client::with_config(config);
'''),
    Client("continue", "Continue's adapters", ("@continuedev/openai-adapters@1.37.0",), "js", known=known(FIM, "vllm: fill in the middle"), setup='''
models:                                  # in Continue's config.yaml
  - {name: Quire, provider: vllm, model: default, apiBase: "http://127.0.0.1:8080/v1", apiKey: none}
'''),
    Client("lm_eval", "lm-evaluation-harness", ("lm-eval[api]==0.4.13",), model="smollm2",
           known=known(PROMPTS, "loglikelihood", "loglikelihood_rolling"), setup='''
lm-eval run --model local-completions --tasks hellaswag --model_args \\
  model=default,base_url=http://127.0.0.1:8080/v1/completions,tokenizer_backend=remote
'''),
    Client("aiperf", "aiperf", ("aiperf==0.13.0",), model="smollm2", setup='''
aiperf profile --model default --url http://127.0.0.1:8080 --endpoint-type chat --streaming --request-count 20 --tokenizer builtin
'''),
    Client("aider", "aider", ("aider-chat==0.86.2",), setup='''
aider --model openai/default --openai-api-base http://127.0.0.1:8080/v1 --openai-api-key none --edit-format whole
'''),
    Client("codex", "Codex CLI", ("@openai/codex@0.171.0",), "js", known=known(RESPONSES, "one turn"), setup='''
model_provider = "quire"                 # in ~/.codex/config.toml
[model_providers.quire]
base_url = "http://127.0.0.1:8080/v1"
'''),
)


def find(name):
    return next(client for client in CLIENTS if client.name == name)
