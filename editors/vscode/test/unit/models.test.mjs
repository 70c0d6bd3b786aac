// Modules that know nothing of VS Code.
import assert from "node:assert/strict";
import { test } from "node:test";
import { startOfCell } from "../../dist/test/cells.mjs";
import { statusText } from "../../dist/test/status_text.mjs";
import { description, icon, tooltip, usageText } from "../../dist/test/tree_model.mjs";

test("a line belongs to the cell that starts last before it", () => {
  const lines = ["import x", "# %% a", "1", "  # %% no", "# In[3]:", "2", "#%% c"];
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6, 99].map((at) => startOfCell(lines, at)), [0, 1, 1, 1, 4, 4, 6, 6]);
  assert.equal(startOfCell([], 0), 0);
});

const used = { inputTokens: 1200, outputTokens: 34, costNanoUsd: 12_345_678, unknownCost: 0, unmeasured: 0 };
const node = {
  id: "ses_1", name: "api", model: "a/b", status: "running", depth: 1, turns: 2,
  own: { ...used, unmeasured: 1 }, subtree: used, children: [],
};

test("usage says when a part of it is not known", () => {
  assert.equal(usageText(used), "1234 tokens, $0.0123");
  assert.equal(usageText({ ...used, unknownCost: 2 }), "1234 tokens, $0.0123+");
  assert.equal(usageText({}), "0 tokens, $0.0000");
});

test("a session shows the host's own word for its status", () => {
  assert.equal(description(node), "running · a/b · 1234 tokens, $0.0123");
  assert.match(tooltip(node), /own: 1234 tokens, \$0\.0123\+\nwith all below: 1234 tokens, \$0\.0123\n2 turns, depth 1/);
  assert.equal(icon("running"), "sync~spin");
  assert.equal(icon("a newer host's"), "question");
});

test("the status item tells a host that is gone from one that works", () => {
  assert.match(statusText("stopped", 0).text, /error/);
  assert.match(statusText("running", 2).text, /rlm: 2/);
  assert.equal(statusText("running", 0).text, "$(circuit-board) rlm");
  assert.match(statusText("starting", 0).text, /spin/);
});
