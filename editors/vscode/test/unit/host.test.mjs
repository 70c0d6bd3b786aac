// A real host through vscode-jsonrpc, Microsoft's own client library, without VS Code.
// RLM_COMMAND is the host's command as a JSON array.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import rpc from "vscode-jsonrpc/node";

const command = process.env.RLM_COMMAND ? JSON.parse(process.env.RLM_COMMAND) : undefined;
const options = { skip: command ? false : "RLM_COMMAND is not set", timeout: 120_000 };
const capabilities = { window: { workDoneProgress: true }, experimental: { rlm: { protocol: { min: 1, max: 1 } } } };

/** Run a test with a client of a host of its own, which must end well. */
function withHost(what, body) {
  test(what, options, async () => {
    const home = mkdtempSync(join(tmpdir(), "rlm-"));
    const host = spawn(command[0], command.slice(1), {
      stdio: ["pipe", "pipe", "inherit"],
      env: { ...process.env, RLM_HOME: join(home, "rlm") },
    });
    const ended = new Promise((done) => host.on("exit", done));
    const client = rpc.createMessageConnection(
      new rpc.StreamMessageReader(host.stdout),
      new rpc.StreamMessageWriter(host.stdin),
    );
    try {
      client.onRequest("window/workDoneProgress/create", () => null);
      client.onRequest("workspace/inlayHint/refresh", () => null);
      client.listen();
      const announced = await client.sendRequest("initialize", {
        processId: process.pid, capabilities, rootUri: pathToFileURL(home).href,
      });
      await client.sendNotification("initialized", {});
      await body(client, home, announced);
      await client.sendRequest("shutdown");
      await client.sendNotification("exit");
      assert.equal(await ended, 0);
    } finally {
      host.kill("SIGKILL");
      client.dispose();
    }
  });
}

/** Give what is heard of one method, and a way to wait for the next that fits. */
function hearing(client, method) {
  const heard = [];
  const waiting = new Set();
  client.onNotification(method, (said) => {
    heard.push(said);
    for (const one of waiting) one(said);
  });
  const next = (fits = () => true) => new Promise((found) => {
    const one = (said) => { if (fits(said)) { waiting.delete(one); found(said); } };
    waiting.add(one);
  });
  return { heard, next };
}

withHost("cells of a file", async (client, home, announced) => {
  const progress = [];
  client.onNotification("$/progress", (said) => progress.push(said.value.kind));
  const uri = pathToFileURL(join(home, "demo.py")).href;
  assert.ok(announced.capabilities.experimental.rlm.methods.includes("session/tree"));
  await client.sendNotification("textDocument/didOpen", {
    textDocument: { uri, languageId: "python", version: 1, text: "# %%\nx = 20\n# %%\nx + 1\n" },
  });
  const ran = await client.sendRequest("workspace/executeCommand", { command: "rlm.runAll", arguments: [uri] });
  assert.deepEqual([ran.status, ran.cells, ran.result], ["ok", 2, "21"]);
  const { root } = await client.sendRequest("session/tree", { sessionId: ran.sessionId });
  assert.equal(root.id, ran.sessionId);
  assert.deepEqual([progress[0], progress.at(-1)], ["begin", "end"]);
});

withHost("a turn streams, and ends once", async (client, home) => {
  const deltas = hearing(client, "item/delta");
  const items = hearing(client, "item/completed");
  const turns = hearing(client, "turn/completed");
  const { session } = await client.sendRequest("session/create", { cwd: home, model: "scripted/steps" });
  const said = "word ".repeat(200).trim();
  const text = JSON.stringify([{ call: "6 * 7" }, { text: said }]);
  const end = turns.next();
  const { turnId } = await client.sendRequest("turn/start", {
    sessionId: session.id, input: [{ type: "text", text }],
  });
  assert.deepEqual([(await end).turnId, turns.heard[0].status], [turnId, "completed"]);
  const types = items.heard.map(({ item }) => item.type);
  assert.deepEqual(types, ["userMessage", "replCell", "agentMessage"]);
  assert.equal(items.heard[1].item.result, "42");
  const answer = items.heard[2].item;
  const streamed = deltas.heard.filter((delta) => delta.itemId === answer.id).map((delta) => delta.text).join("");
  assert.deepEqual([answer.text, answer.text.endsWith(streamed)], [said, true]);
  assert.equal(turns.heard.length, 1);
});

withHost("a request is cancelled by its token", async (client, home) => {
  const items = hearing(client, "item/started");
  const { session } = await client.sendRequest("session/create", { cwd: home });
  const source = new rpc.CancellationTokenSource();
  const started = items.next(({ item }) => item.type === "replCell");
  const endless = { sessionId: session.id, code: "import time\nwhile True: time.sleep(0.01)" };
  const asked = client.sendRequest("repl/execute", endless, source.token);
  await started;
  source.cancel();
  await assert.rejects(asked, { code: -32800 });
  const next = await client.sendRequest("repl/execute", { sessionId: session.id, code: "1 + 1" });
  assert.deepEqual([next.status, next.result], ["ok", "2"]);
});

withHost("a refusal says what is wrong, and the connection lives", async (client, home) => {
  const refused = async (method, params, code, kind) => {
    await assert.rejects(client.sendRequest(method, params), (error) => {
      assert.deepEqual([error.code, error.data?.kind], [code, kind]);
      return true;
    });
  };
  await refused("no/such", {}, rpc.ErrorCodes.MethodNotFound, "methodNotFound");
  await refused("session/create", { cwd: home, colour: 1 }, rpc.ErrorCodes.InvalidParams, "invalidParams");
  await refused("session/read", { sessionId: "nobody" }, -31101, "sessionNotFound");
  assert.equal((await client.sendRequest("host/status")).sessions, 0);
});
