-- Read by vim.lsp.enable("rlm"), Neovim 0.11 or newer.
local function tree_changed() require("rlm.tree").changed() end

---@type vim.lsp.Config
return {
  cmd = { "rlm-host" },
  filetypes = { "python" },
  root_markers = { "pyproject.toml", "setup.py", ".git" },
  -- A client that says that it knows the protocol hears its folder's session, not only LSP.
  capabilities = { experimental = { rlm = { protocol = { min = 1, max = 1 } } } },
  handlers = {
    ["session/created"] = tree_changed,
    ["session/statusChanged"] = tree_changed,
    ["agent/changed"] = tree_changed,
  },
  on_exit = function(code, signal) require("rlm.restart").ended(code, signal) end,
}
