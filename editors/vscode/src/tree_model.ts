/** What the tree shows of a session, without any of VS Code's types. */

import type { TreeNode, Usage } from "./protocol";

/** Tokens and money of a sum; `+` where a part of it is not known. */
export function usageText(usage: Usage): string {
  const tokens = (usage.inputTokens ?? 0) + (usage.outputTokens ?? 0);
  const partly = (usage.unknownCost ?? 0) + (usage.unmeasured ?? 0) > 0 ? "+" : "";
  return `${tokens} tokens, $${((usage.costNanoUsd ?? 0) / 1e9).toFixed(4)}${partly}`;
}

/** The line beside a session's name: the host's own word for its status, never one of ours. */
export function description(node: TreeNode): string {
  return `${node.status} · ${node.model} · ${usageText(node.subtree)}`;
}

/** The text over a session. */
export function tooltip(node: TreeNode): string {
  return [
    `${node.name} (${node.id})`,
    `own: ${usageText(node.own)}`,
    `with all below: ${usageText(node.subtree)}`,
    `${node.turns} turns, depth ${node.depth}`,
  ].join("\n");
}

const ICONS: Record<TreeNode["status"], string> = {
  idle: "circle-outline",
  running: "sync~spin",
  queued: "clock",
  completed: "pass",
  error: "error",
  cancelled: "circle-slash",
  deleted: "trash",
};

/** The icon of a status; a newer host's status has a neutral one. */
export function icon(status: string): string {
  return (ICONS as Record<string, string>)[status] ?? "question";
}
