/** The status item: whether the host runs, and whether a cell does. */

import * as vscode from "vscode";
import { State } from "vscode-languageclient/node";
import type { Host } from "./client";
import { type HostState, statusText } from "./status_text";

const STATES: Record<State, HostState> = {
  [State.Starting]: "starting",
  [State.Running]: "running",
  [State.Stopped]: "stopped",
  [State.StartFailed]: "stopped",
};

export function createStatus(host: Host): vscode.Disposable {
  const item = vscode.window.createStatusBarItem("rlm.status", vscode.StatusBarAlignment.Left, 50);
  item.name = "rlm-host";
  item.command = "rlm.host.log";
  let state: HostState = "starting";
  let cells = 0;
  const show = () => Object.assign(item, statusText(state, cells));
  show();
  item.show();
  return vscode.Disposable.from(
    item,
    host.onRunning((count) => { cells = count; show(); }),
    host.client.onDidChangeState((change) => { state = STATES[change.newState]; show(); }),
  );
}
