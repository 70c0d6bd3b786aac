--- Where cells begin: only as far as moving in them needs it, the host knows the rest.
local M = {}

M.COMMANDS = { "rlm.runCell", "rlm.runAbove", "rlm.runAll", "rlm.interrupt", "rlm.restart" }

local MARKERS = { "^#%s*%%%%", "^#%s*<codecell>", "^#%s*In%[[%d ]*%]" }

--- Tell whether a line starts a cell.
---@param text string
---@return boolean
function M.is_marker(text)
  return vim.iter(MARKERS):any(function(pattern) return text:match(pattern) ~= nil end)
end

--- Give the line of the cursor, from 0.
---@return integer
function M.cursor_line()
  return vim.api.nvim_win_get_cursor(0)[1] - 1
end

--- Give the first line, from 0, of the cell that a line lies in.
---@param buf integer
---@param line integer
---@return integer
function M.start_of(buf, line)
  local lines = vim.api.nvim_buf_get_lines(buf, 0, line + 1, false)
  for at = #lines, 1, -1 do
    if M.is_marker(lines[at]) then
      return at - 1
    end
  end
  return 0
end

return M
