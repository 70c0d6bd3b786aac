--- A buffer with all sessions of the host and the agents below them, with what they have used.
local request = require("rlm.request")

local M = {}

local NAME = "rlm://sessions"
local PAGE = 50

---@param node table a TreeNode of the host's protocol
---@return string
local function line_of(node)
  local used = node.subtree.inputTokens + node.subtree.outputTokens
  local more = node.subtree.unknownCost + node.subtree.unmeasured > 0 and "+" or ""
  local cost = ("$%.4f%s"):format(node.subtree.costNanoUsd / 1e9, more)
  return ("%s%s [%s] %s, %d tokens, %s"):format(("  "):rep(node.depth), node.name, node.status, node.model, used, cost)
end

---@param node table
---@param lines string[]
---@param ids string[]
local function walk(node, lines, ids)
  lines[#lines + 1], ids[#ids + 1] = line_of(node), node.id
  for _, child in ipairs(node.children) do
    walk(child, lines, ids)
  end
end

---@param buf integer
---@param lines string[]
---@param ids string[]
local function show(buf, lines, ids)
  vim.bo[buf].modifiable = true
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, #lines > 0 and lines or { "(no sessions)" })
  vim.bo[buf].modifiable = false
  vim.b[buf].rlm_sessions = ids
end

--- Fill the buffer anew. One tree is asked for after the other, for the order is theirs.
---@param buf integer
function M.refresh(buf)
  request.request(nil, "session/list", { limit = PAGE }, function(listed)
    local lines, ids = {}, {}
    local function next_tree(at)
      if not vim.api.nvim_buf_is_valid(buf) then
        return
      end
      local session = listed.sessions[at]
      if session == nil then
        return show(buf, lines, ids)
      end
      request.request(nil, "session/tree", { sessionId = session.id }, function(tree)
        walk(tree.root, lines, ids)
        next_tree(at + 1)
      end)
    end
    next_tree(1)
  end)
end

local waiting = false

--- Something in the host has changed: look again, once for everything that changed meanwhile.
function M.changed()
  local buf = vim.fn.bufnr(NAME)
  if waiting or buf == -1 then
    return
  end
  waiting = true
  vim.schedule(function()
    waiting = false
    if vim.api.nvim_buf_is_valid(buf) then
      M.refresh(buf)
    end
  end)
end

--- Stop whatever runs in the session under the cursor, and below it.
function M.stop()
  local id = (vim.b.rlm_sessions or {})[vim.api.nvim_win_get_cursor(0)[1]]
  local buf = vim.api.nvim_get_current_buf()
  if id then
    request.request(nil, "host/stop", { sessionId = id }, function() M.refresh(buf) end)
  end
end

--- Open the tree in a window of its own.
function M.open()
  vim.cmd("botright vsplit")
  vim.cmd.edit(vim.fn.fnameescape(NAME))
  local buf = vim.api.nvim_get_current_buf()
  vim.bo[buf].buftype, vim.bo[buf].bufhidden, vim.bo[buf].swapfile = "nofile", "wipe", false
  vim.bo[buf].filetype = "rlmtree"
  vim.keymap.set("n", "r", function() M.refresh(buf) end, { buffer = buf, desc = "Look again" })
  vim.keymap.set("n", "s", M.stop, { buffer = buf, desc = "Stop the session and all below it" })
  vim.keymap.set("n", "q", "<cmd>close<cr>", { buffer = buf, desc = "Close" })
  M.refresh(buf)
end

return M
