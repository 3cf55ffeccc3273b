"""The tools of every client's tool loop, and the question that needs one of them: two are more than a model of 1.5 B brings together."""

QUESTION = "What is 1234 times 5678? Call the tool multiply with the numbers, then answer with the product."
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
    """The loop called the tool with the question's values, and its answer is made of what it said."""
    made, calls[:] = list(calls), []
    assert ("multiply", 1234, 5678) in made, made
    plain = str(text).replace(",", "").replace(" ", "")
    assert str(PRODUCT) in plain, text
