// The official openai package for Go: chat, streams, a schema, its error type, text completions, models.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

var (
	client = openai.NewClient(option.WithBaseURL(os.Getenv("QUIRE_URL")+"/v1"), option.WithAPIKey(os.Getenv("QUIRE_KEY")),
		option.WithMaxRetries(0), option.WithRequestTimeout(15*time.Minute))
	model   = os.Getenv("QUIRE_MODEL")
	all     = context.Background()
	product = "7006652"
)

func step(name string, run func() error) {
	line := map[string]any{"step": name, "error": nil}
	if err := run(); err != nil {
		line["error"] = err.Error()
	}
	text, _ := json.Marshal(line)
	fmt.Printf("\n@step %s\n", text)
}

func question(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, Temperature: openai.Float(0),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
}

func tool(name, about string, properties map[string]any, required ...string) openai.ChatCompletionToolUnionParam {
	return openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: name, Description: openai.String(about),
		Parameters: shared.FunctionParameters{"type": "object", "properties": properties, "required": required}})
}

func toolLoop(streamed bool) error {
	body := question("What is 1234 times 5678? Call the tool multiply with the numbers, then answer with the product.")
	integer := map[string]any{"type": "integer"}
	body.Tools = []openai.ChatCompletionToolUnionParam{
		tool("weather", "Returns the weather of a city.", map[string]any{"city": map[string]any{"type": "string"}}, "city"),
		tool("multiply", "Multiplies two integers.", map[string]any{"a": integer, "b": integer}, "a", "b")}
	called := map[string]bool{}
	for turn := 0; turn < 8; turn++ {
		var message openai.ChatCompletionMessage
		if streamed {
			stream, whole := client.Chat.Completions.NewStreaming(all, body), openai.ChatCompletionAccumulator{}
			for stream.Next() {
				if !whole.AddChunk(stream.Current()) {
					return errors.New("a chunk does not fit")
				}
			}
			if stream.Err() != nil {
				return stream.Err()
			}
			message = whole.Choices[0].Message
		} else {
			answer, err := client.Chat.Completions.New(all, body)
			if err != nil {
				return err
			}
			message = answer.Choices[0].Message
		}
		if len(message.ToolCalls) == 0 {
			text := strings.ReplaceAll(message.Content, ",", "")
			if !called["multiply"] || !strings.Contains(text, product) {
				return fmt.Errorf("called %v, said %q", called, message.Content)
			}
			return nil
		}
		body.Messages = append(body.Messages, message.ToParam())
		for _, call := range message.ToolCalls {
			called[call.Function.Name] = true
			result := "It is snowing, -7 degrees."
			if call.Function.Name == "multiply" {
				var factors struct{ A, B int }
				if err := json.Unmarshal([]byte(call.Function.Arguments), &factors); err != nil {
					return err
				}
				result = fmt.Sprint(factors.A * factors.B)
			}
			body.Messages = append(body.Messages, openai.ToolMessage(result, call.ID))
		}
	}
	return errors.New("no end of calls")
}

func main() {
	step("chat", func() error {
		answer, err := client.Chat.Completions.New(all, question("Say hello."))
		if err == nil && (answer.Choices[0].Message.Content == "" || answer.Usage.CompletionTokens == 0) {
			err = errors.New(answer.RawJSON())
		}
		return err
	})
	step("chat, streamed", func() error {
		body := question("Say hello.")
		body.StreamOptions.IncludeUsage = openai.Bool(true)
		stream, whole := client.Chat.Completions.NewStreaming(all, body), openai.ChatCompletionAccumulator{}
		for stream.Next() {
			if !whole.AddChunk(stream.Current()) {
				return errors.New("a chunk does not fit")
			}
		}
		if stream.Err() == nil && (whole.Choices[0].Message.Content == "" || whole.Usage.CompletionTokens == 0) {
			return errors.New(whole.RawJSON())
		}
		return stream.Err()
	})
	step("response_format, json_schema", func() error {
		body := question("Ada is 36 years old. Who is it?")
		body.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
			Name: "person", Strict: openai.Bool(true), Schema: map[string]any{"type": "object", "additionalProperties": false,
				"properties": map[string]any{"name": map[string]any{"type": "string"}, "age": map[string]any{"type": "integer"}},
				"required":   []string{"name", "age"}}}}
		answer, err := client.Chat.Completions.New(all, body)
		if err != nil {
			return err
		}
		var person struct {
			Name string
			Age  int
		}
		if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &person); err != nil || person.Age != 36 {
			return fmt.Errorf("%w: %s", err, answer.Choices[0].Message.Content)
		}
		return nil
	})
	step("text completion", func() error {
		answer, err := client.Completions.New(all, openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(model),
			Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")}, MaxTokens: openai.Int(8)})
		if err == nil && answer.Choices[0].Text == "" {
			err = errors.New(answer.RawJSON())
		}
		return err
	})
	step("models", func() error {
		page, err := client.Models.List(all)
		if err == nil && (len(page.Data) == 0 || page.Data[0].ID != model) {
			err = errors.New(page.RawJSON())
		}
		return err
	})
	step("error", func() error {
		body := question("Say hello.")
		body.Temperature = openai.Float(-1)
		_, err := client.Chat.Completions.New(all, body)
		var known *openai.Error
		if !errors.As(err, &known) || known.StatusCode != 400 || known.Param != "temperature" {
			return fmt.Errorf("not the error: %v", err)
		}
		return nil
	})
	step("tool loop", func() error { return toolLoop(false) })
	step("tool loop, streamed", func() error { return toolLoop(true) })
}
