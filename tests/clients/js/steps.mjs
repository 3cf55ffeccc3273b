// What every client's program in this folder shares: where the server is, and how a step's end is told (see ../python/steps.py).

export const url = process.env.QUIRE_URL;       // http://127.0.0.1:PORT, without /v1
export const base = `${url}/v1`;
export const key = process.env.QUIRE_KEY;
export const model = process.env.QUIRE_MODEL;   // the served name
export const patience = 900_000;                // milliseconds: for hangs only, the machine may be busy

const only = process.argv.slice(2);

export async function step(name, run) {
  if (only.length && !only.includes(name)) return;
  let error = null;
  try {
    await run();
  } catch (caught) {
    console.error(caught);
    error = `${caught?.name}: ${caught?.message}`.slice(0, 2000);
  }
  console.log("\n@step " + JSON.stringify({step: name, error}));
}

export function check(truth, ...what) {
  if (!truth) throw new Error("not so: " + what.map(w => typeof w === "string" ? w : JSON.stringify(w)).join(" "));
}
