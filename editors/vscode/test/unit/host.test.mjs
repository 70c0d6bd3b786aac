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

test("cells of a file", { skip: command ? false : "RLM_COMMAND is not set" }, async () => {
  const home = mkdtempSync(join(tmpdir(), "rlm-"));
  const host = spawn(command[0], command.slice(1), {
    stdio: ["pipe", "pipe", "inherit"],
    env: { ...process.env, RLM_HOME: join(home, "rlm") },
  });
  const client = rpc.createMessageConnection(
    new rpc.StreamMessageReader(host.stdout),
    new rpc.StreamMessageWriter(host.stdin),
  );
  client.onRequest("window/workDoneProgress/create", () => null);
  client.onRequest("workspace/inlayHint/refresh", () => null);
  const progress = [];
  client.onNotification("$/progress", (said) => progress.push(said.value.kind));
  client.listen();
  const uri = pathToFileURL(join(home, "demo.py")).href;
  const capabilities = { window: { workDoneProgress: true } };
  const announced = await client.sendRequest("initialize", {
    processId: process.pid, capabilities, rootUri: pathToFileURL(home).href,
  });
  assert.ok(announced.capabilities.experimental.rlm.methods.includes("session/tree"));
  await client.sendNotification("initialized", {});
  await client.sendNotification("textDocument/didOpen", {
    textDocument: { uri, languageId: "python", version: 1, text: "# %%\nx = 20\n# %%\nx + 1\n" },
  });
  const ran = await client.sendRequest("workspace/executeCommand", { command: "rlm.runAll", arguments: [uri] });
  assert.deepEqual([ran.status, ran.cells, ran.result], ["ok", 2, "21"]);
  const { root } = await client.sendRequest("session/tree", { sessionId: ran.sessionId });
  assert.equal(root.id, ran.sessionId);
  assert.deepEqual([progress[0], progress.at(-1)], ["begin", "end"]);
  await client.sendRequest("shutdown");
  await client.sendNotification("exit");
  assert.equal(await new Promise((ended) => host.on("exit", ended)), 0);
  client.dispose();
});
