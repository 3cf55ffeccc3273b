// async-openai, whose types refuse what OpenAI's API does not say: chat, streams, text completions, models, errors.
use async_openai::{config::OpenAIConfig, error::OpenAIError, Client};
use async_openai::types::chat::{ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequest, CreateChatCompletionRequestArgs,
    ResponseFormat, ResponseFormatJsonSchema};
use async_openai::types::completions::CreateCompletionRequestArgs;
use futures::StreamExt;
use serde_json::json;
use std::{env, error::Error, future::Future};

type Outcome = Result<(), Box<dyn Error>>;

async fn step(name: &str, run: impl Future<Output = Outcome>) {
    let error = run.await.err().map(|error| error.to_string());
    println!("\n@step {}", json!({"step": name, "error": error}));
}

fn question(text: &str) -> Result<CreateChatCompletionRequest, OpenAIError> {
    let message = ChatCompletionRequestUserMessageArgs::default().content(text).build()?;
    CreateChatCompletionRequestArgs::default().model(env::var("QUIRE_MODEL").unwrap()).messages([message.into()])
        .temperature(0.0).max_completion_tokens(100u32).build()
}

fn need(truth: bool, what: impl std::fmt::Debug) -> Outcome {
    if truth { Ok(()) } else { Err(format!("not so: {what:?}").into()) }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let config = OpenAIConfig::new().with_api_base(env::var("QUIRE_URL").unwrap() + "/v1").with_api_key(env::var("QUIRE_KEY").unwrap());
    let client = Client::with_config(config);
    step("chat", async {
        let answer = client.chat().create(question("Say hello.")?).await?;
        need(answer.choices[0].message.content.is_some() && answer.usage.is_some(), answer)
    }).await;
    step("chat, streamed", async {
        let mut stream = client.chat().create_stream(question("Say hello.")?).await?;
        let mut text = String::new();
        while let Some(chunk) = stream.next().await {
            for choice in chunk?.choices { text += choice.delta.content.as_deref().unwrap_or("") }
        }
        need(!text.is_empty(), text)
    }).await;
    step("response_format, json_schema", async {
        let mut body = question("Tea or coffee?")?;
        let schema = json!({"type": "object", "properties": {"drink": {"enum": ["tea", "coffee"]}}, "required": ["drink"], "additionalProperties": false});
        body.response_format = Some(ResponseFormat::JsonSchema { json_schema: ResponseFormatJsonSchema {
            description: None, name: "cup".into(), schema: serde_json::from_value(schema)?, strict: Some(true) } });
        let answer = client.chat().create(body).await?;
        let cup: serde_json::Value = serde_json::from_str(answer.choices[0].message.content.as_deref().unwrap_or(""))?;
        need(cup["drink"] == "tea" || cup["drink"] == "coffee", cup)
    }).await;
    step("text completion", async {
        let body = CreateCompletionRequestArgs::default().model(env::var("QUIRE_MODEL").unwrap()).prompt("Once upon a time").max_tokens(8u32).build()?;
        let answer = client.completions().create(body).await?;
        need(!answer.choices[0].text.is_empty(), answer)
    }).await;
    step("models", async {
        let models = client.models().list().await?;
        need(models.data.iter().any(|model| model.id == env::var("QUIRE_MODEL").unwrap()), models)
    }).await;
    step("error", async {
        let mut body = question("Say hello.")?;
        body.temperature = Some(-1.0);
        match client.chat().create(body).await {
            Err(OpenAIError::ApiError(error)) => need(format!("{error:?}").contains("temperature"), error),
            other => Err(format!("not the error: {other:?}").into()),
        }
    }).await;
}
