/** Wiring only: what is shown in the text comes from the host by LSP. */

import * as vscode from "vscode";
import { startOfCell } from "./cells";
import { Host } from "./client";
import type { TreeNode } from "./protocol";
import { createStatus } from "./status";
import { SessionTree } from "./tree";

let host: Host | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const command = vscode.workspace.getConfiguration("rlm").get<string[]>("command", ["rlm-host"]);
  const here = (host = new Host(command));
  const tree = new SessionTree(here);
  const refresh = () => tree.refresh();
  const register = vscode.commands.registerCommand;
  context.subscriptions.push(
    here.log,
    createStatus(here),
    vscode.window.createTreeView("rlm.tree", { treeDataProvider: tree }),
    here.onRunning(refresh),
    here.client.onDidChangeState(refresh),
    here.on("session/created", refresh),
    here.on("session/statusChanged", refresh),
    here.on("agent/changed", refresh),
    register("rlm.cell.run", () => atCursor((uri, line) => here.command("rlm.runCell", uri, line))),
    register("rlm.cell.runAbove", () => atCursor((uri, line) => here.command("rlm.runAbove", uri, line))),
    register("rlm.cell.runAll", () => atCursor((uri) => here.command("rlm.runAll", uri))),
    register("rlm.kernel.interrupt", () => atCursor((uri) => here.command("rlm.interrupt", uri))),
    register("rlm.kernel.restart", () => atCursor((uri) => here.command("rlm.restart", uri))),
    register("rlm.host.restart", () => here.client.restart()),
    register("rlm.host.log", () => here.log.show()),
    register("rlm.tree.refresh", refresh),
    register("rlm.tree.stop", async (node: TreeNode) => {
      await here.request("host/stop", { sessionId: node.id });
      refresh();
    }),
  );
  await here.client.start();
  refresh();
}

export async function deactivate(): Promise<void> {
  await host?.client.stop();
}

/** Do something for the Python file in front, and say what went wrong. */
async function atCursor(work: (uri: vscode.Uri, line: number) => Thenable<unknown>): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (editor?.document.languageId !== "python") {
    void vscode.window.showInformationMessage("RLM: open a Python file first.");
    return;
  }
  const lines = editor.document.getText().split(/\r\n|\r|\n/);
  await work(editor.document.uri, startOfCell(lines, editor.selection.active.line));
}
