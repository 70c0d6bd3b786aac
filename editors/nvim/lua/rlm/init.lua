--- Cells of Python files, run by rlm-host. What is shown inline, hover, completion and diagnostics
--- come from the host by LSP; this plugin adds keys' worth of commands, the running mark and the tree.
local cells = require("rlm.cells")
local inline = require("rlm.inline")
local request = require("rlm.request")

local M = {}

---@class rlm.Options
---@field config? vim.lsp.Config merged over lsp/rlm.lua, e.g. { cmd = { "/path/to/rlm-host" } }
---@field inlay_hints? boolean show results inline; true by default
---@field code_lenses? boolean show "Run cell" above cells; true by default

--- Enable the host for Python files.
---@param options? rlm.Options
function M.setup(options)
  options = options or {}
  if options.config then
    vim.lsp.config("rlm", options.config)
  end
  local group = vim.api.nvim_create_augroup("rlm", { clear = true })
  vim.api.nvim_create_autocmd("LspAttach", {
    group = group,
    callback = function(event)
      local client = vim.lsp.get_client_by_id(event.data.client_id)
      if client and client.name == "rlm" then
        inline.attach(event.buf, options)
      end
    end,
  })
  for _, name in ipairs(cells.COMMANDS) do
    vim.lsp.commands[name] = function(command, context)
      request.command(context.bufnr, command.command, command.arguments)
    end
  end
  vim.lsp.enable("rlm")
end

--- Run the cell under the cursor.
function M.run()
  local buf = vim.api.nvim_get_current_buf()
  request.command(buf, "rlm.runCell", { vim.uri_from_bufnr(buf), cells.cursor_line() })
end

--- Run all cells above the one under the cursor.
function M.above()
  local buf = vim.api.nvim_get_current_buf()
  local start = cells.start_of(buf, cells.cursor_line())
  request.command(buf, "rlm.runAbove", { vim.uri_from_bufnr(buf), start })
end

for name, command in pairs({ all = "rlm.runAll", interrupt = "rlm.interrupt", restart = "rlm.restart" }) do
  M[name] = function()
    local buf = vim.api.nvim_get_current_buf()
    request.command(buf, command, { vim.uri_from_bufnr(buf) })
  end
end

return M
