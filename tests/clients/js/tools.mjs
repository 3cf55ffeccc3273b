// The tools of every client's tool loop, and the question that needs one of them (see ../python/tools.py).

export const question = "What is 1234 times 5678? Call the tool multiply with the numbers, then answer with the product.";
const calls = [];

export function weather({city}) {
  calls.push(["weather", city]);
  return `It is snowing in ${city}, -7 degrees.`;
}

export function multiply({a, b}) {
  calls.push(["multiply", a, b]);
  return a * b;
}

// The loop called the tool with the question's values, and its answer is made of what it said.
export function checkLoop(text) {
  const made = calls.splice(0);
  const good = made.some(c => c[0] === "multiply" && c[1] === 1234 && c[2] === 5678);
  if (!good) throw new Error("not called: " + JSON.stringify(made));
  const plain = String(text).replace(/[, ]/g, "");
  if (!plain.includes(String(1234 * 5678))) throw new Error("not in the answer: " + text);
}
