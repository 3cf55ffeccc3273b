"""smolagents: an agent that calls tools, one that writes code; structured answers."""
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step

model = OpenAIModel(model_id=MODEL, api_base=BASE, api_key=KEY, temperature=0, max_tokens=800,
                    client_kwargs={"timeout": PATIENCE, "max_retries": 0})
both = [tool(tools.weather), tool(tools.multiply)]


for name, more in (("ToolCallingAgent", {}), ("ToolCallingAgent, streamed", {"stream_outputs": True})):
    @step(name)
    def calling(more=more):
        agent = ToolCallingAgent(tools=both, model=model, max_steps=6, **more)
        agent.run(tools.QUESTION + " End with the tool final_answer.")
        made, tools.calls[:] = list(tools.calls), []
        assert ("multiply", 1234, 5678) in made or any(call[0] == "weather" for call in made), made


@step("CodeAgent")
def code():
    answer = CodeAgent(tools=[both[1]], model=model, max_steps=4).run("Use the tool multiply to compute 1234 times 5678 and answer with the number.")
    assert str(tools.PRODUCT) in str(answer), answer


@step("CodeAgent, structured outputs")
def structured_code():
    agent = CodeAgent(tools=[both[1]], model=model, max_steps=4, use_structured_outputs_internally=True)
    answer = agent.run("Use the tool multiply to compute 1234 times 5678 and answer with the number.")
    assert str(tools.PRODUCT) in str(answer), answer


run()
