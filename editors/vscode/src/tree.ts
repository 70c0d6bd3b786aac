/** The view of all sessions of the host and the agents below them. */

import * as vscode from "vscode";
import type { Host } from "./client";
import type { TreeNode } from "./protocol";
import { description, icon, tooltip } from "./tree_model";

const PAGE = 50;

export class SessionTree implements vscode.TreeDataProvider<TreeNode> {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.changed.event;

  constructor(private readonly host: Host) {}

  /** Let the view ask anew. */
  refresh(): void {
    this.changed.fire();
  }

  async getChildren(node?: TreeNode): Promise<TreeNode[]> {
    if (node) return node.children ?? [];
    if (!this.host.client.isRunning()) return [];
    const { sessions } = await this.host.request("session/list", { limit: PAGE });
    const trees = sessions.map((one) => this.host.request("session/tree", { sessionId: one.id }));
    return (await Promise.all(trees)).map((tree) => tree.root);
  }

  getTreeItem(node: TreeNode): vscode.TreeItem {
    const parent = Boolean(node.children?.length);
    const item = new vscode.TreeItem(
      node.name,
      parent ? vscode.TreeItemCollapsibleState.Expanded : vscode.TreeItemCollapsibleState.None,
    );
    // VS Code remembers by id whether an item is open: one that gets its first agent opens anew.
    item.id = parent ? `${node.id} and its agents` : node.id;
    item.description = description(node);
    item.tooltip = tooltip(node);
    item.iconPath = new vscode.ThemeIcon(icon(node.status));
    return item;
  }
}
