/** The connection to the host: one process per window, started by the first Python file, and again when it ends. */

import * as vscode from "vscode";
import { CloseAction, type CloseHandlerResult, ErrorAction, type ErrorHandler, LanguageClient } from "vscode-languageclient/node";
import type { ClientRequests, HostNotifications } from "./protocol";

/** How often, within three minutes, a host that has ended is started again by itself. */
const RESTARTS = 4;
/** Versions of the protocol that this client speaks. */
const PROTOCOL = { min: 1, max: 1 };

export class Host {
  readonly log: vscode.LogOutputChannel;
  readonly client: LanguageClient;
  private readonly running = new vscode.EventEmitter<number>();
  /** Fires with the number of commands that run. */
  readonly onRunning = this.running.event;
  private count = 0;
  private restarts: ErrorHandler | undefined;

  constructor(command: readonly string[]) {
    this.log = vscode.window.createOutputChannel("rlm-host", { log: true });
    const [program, ...args] = command;
    this.client = new LanguageClient(
      "rlm",
      "rlm-host",
      { command: program, args },
      {
        documentSelector: [{ language: "python" }],
        outputChannel: this.log,
        // Titles are plain in the protocol; the icon is VS Code's own.
        middleware: {
          provideCodeLenses: async (document, token, next) => {
            const lenses = await next(document, token);
            for (const lens of lenses ?? []) {
              if (lens.command) lens.command.title = `$(play) ${lens.command.title}`;
            }
            return lenses;
          },
          executeCommand: (name, args, next) => this.counted(() => next(name, args)),
        },
        errorHandler: {
          error: () => ({ action: ErrorAction.Continue }),
          closed: () => this.closed(),
        },
      },
    );
    // A client that says that it knows the protocol hears its folder's session, not only LSP.
    this.client.registerFeature({
      fillClientCapabilities: (all) => { all.experimental = { ...all.experimental, rlm: { protocol: PROTOCOL } }; },
      initialize: () => {},
      getState: () => ({ kind: "static" }),
      clear: () => {},
    });
  }

  /** Ask the host. */
  request<M extends keyof ClientRequests>(
    method: M,
    params: ClientRequests[M]["params"],
  ): Promise<ClientRequests[M]["result"]> {
    return this.client.sendRequest(method, params);
  }

  /** Hear one kind of notification. */
  on<M extends keyof HostNotifications>(
    method: M,
    heard: (params: HostNotifications[M]) => void,
  ): vscode.Disposable {
    return this.client.onNotification(method, heard);
  }

  /** Run one of the host's commands for a document. */
  command(name: string, uri: vscode.Uri, ...more: unknown[]): Thenable<unknown> {
    const wire = this.client.code2ProtocolConverter.asUri(uri);
    return vscode.commands.executeCommand(name, wire, ...more);
  }

  /** A host that ends is started anew, which loses nothing: its sessions are on disk. */
  private async closed(): Promise<CloseHandlerResult> {
    this.restarts ??= this.client.createDefaultErrorHandler(RESTARTS);
    const result = await this.restarts.closed();
    return result.action === CloseAction.Restart
      ? result
      : { ...result, message: "rlm-host ends again and again. Its sessions are kept: see its log, then 'RLM: Restart Host'." };
  }

  private async counted<T>(work: () => T | PromiseLike<T>): Promise<T> {
    this.running.fire(++this.count);
    try {
      return await work();
    } finally {
      this.running.fire(--this.count);
    }
  }
}
