"""The tools of every client's tool loop, and the question that needs both of them."""

QUESTION = ("What is the weather in Oslo, and what is 1234 times 5678? Call the tool weather for the city and the tool multiply "
            "for the numbers, then answer with both results.")
PRODUCT = 1234 * 5678
calls = []      # what was called, in order


def weather(city: str) -> str:
    """Returns the weather of a city.

    Args:
        city: the name of the city
    """
    calls.append(("weather", city))
    return f"It is snowing in {city}, -7 degrees."


def multiply(a: int, b: int) -> int:
    """Multiplies two integers.

    Args:
        a: the first factor
        b: the second factor
    """
    calls.append(("multiply", a, b))
    return int(a) * int(b)


def check(text):
    """The loop called both tools with the question's values, and its answer is made of what they said."""
    made, calls[:] = list(calls), []
    assert ("multiply", 1234, 5678) in made, made
    assert any(call[0] == "weather" and "oslo" in call[1].lower() for call in made), made
    plain = str(text).replace(",", "").replace(" ", "")
    assert "snow" in plain and str(PRODUCT) in plain, text
