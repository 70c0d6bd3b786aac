--- What is shown in the text: results are the host's inlay hints, "Run cell" its code lenses.
local M = {}

---@param buf integer
---@param options rlm.Options
function M.attach(buf, options)
  if options.inlay_hints ~= false then
    vim.lsp.inlay_hint.enable(true, { bufnr = buf })
  end
  if options.code_lenses ~= false then
    local group = vim.api.nvim_create_augroup("rlm.lenses." .. buf, { clear = true })
    local refresh = function()
      vim.lsp.codelens.refresh({ bufnr = buf })
    end
    vim.api.nvim_create_autocmd({ "BufEnter", "InsertLeave", "TextChanged" }, { group = group, buffer = buf, callback = refresh })
    refresh()
  end
end

--- Give the results that a buffer shows, by line from 0.
---@param buf integer
---@return table<integer, string>
function M.results(buf)
  local shown = {}
  for _, found in ipairs(vim.lsp.inlay_hint.get({ bufnr = buf })) do
    shown[found.inlay_hint.position.line] = found.inlay_hint.label
  end
  return shown
end

return M
