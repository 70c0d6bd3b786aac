-- Read by vim.lsp.enable("rlm"), Neovim 0.11 or newer.
---@type vim.lsp.Config
return {
  cmd = { "rlm-host" },
  filetypes = { "python" },
  root_markers = { "pyproject.toml", "setup.py", ".git" },
}
