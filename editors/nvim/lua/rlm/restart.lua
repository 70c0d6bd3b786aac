--- A host that ends by itself is started anew, which loses nothing: its sessions are on disk.
local M = {}

--- How often within WINDOW_MS.
M.LIMIT = 4
local WINDOW_MS = 180000

---@type integer[] when hosts ended, milliseconds
local ends = {}

--- Tell whether a host that ends at `now_ms` may be started again, and remember that it ended.
---@param now_ms integer
---@return boolean
function M.allowed(now_ms)
  ends = vim.tbl_filter(function(at) return now_ms - at < WINDOW_MS end, ends)
  ends[#ends + 1] = now_ms
  return #ends <= M.LIMIT
end

--- A host has ended. Called where Neovim allows next to nothing, so the rest comes later.
---@param code integer
---@param signal integer
function M.ended(code, signal)
  if code == 0 and signal == 0 then
    return
  end
  vim.schedule(function()
    if vim.v.exiting ~= vim.NIL then
      return
    elseif M.allowed(vim.uv.now()) then
      vim.lsp.enable("rlm")
    else
      vim.notify("rlm: the host ends again and again; its sessions are kept. See :LspLog, then :Rlm start", vim.log.levels.ERROR)
    end
  end)
end

--- Forget what has ended, and start.
function M.start()
  ends = {}
  vim.lsp.enable("rlm")
end

return M
