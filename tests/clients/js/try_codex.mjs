// Codex CLI on /v1/responses: one turn without tools, and one that must run a command.
import {spawnSync} from "node:child_process";
import {writeFileSync, mkdirSync} from "node:fs";
import {base, check, key, model, patience, step} from "./steps.mjs";

mkdirSync("codex", {recursive: true});
mkdirSync("work", {recursive: true});
writeFileSync("codex/config.toml", `model = "${model}"
model_provider = "quire"
[model_providers.quire]
name = "Quire"
base_url = "${base}"
env_key = "QUIRE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = ${patience}
`);

function codex(prompt) {
  const done = spawnSync("codex", ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-C", "work", "--output-last-message", "last.txt", prompt],
                         {env: {...process.env, CODEX_HOME: `${process.cwd()}/codex`, QUIRE_KEY: key}, encoding: "utf8", timeout: patience, stdio: ["ignore", "pipe", "pipe"]});
  check(done.status === 0, done.stdout?.slice(-1500), done.stderr?.slice(-1500));
  return done.stdout + done.stderr;
}

await step("one turn", async () => check(codex("Answer with the one word hello. Use no tools.").length > 0));
