--- Requests to the host, and what becomes of their errors.
local M = {}

--- Give the client that serves a buffer, else any.
---@param buf? integer
---@return vim.lsp.Client?
function M.client(buf)
  return buf and vim.lsp.get_clients({ name = "rlm", bufnr = buf })[1] or vim.lsp.get_clients({ name = "rlm" })[1]
end

--- Ask the host; `on_result` gets the result, an error is shown.
---@param buf? integer
---@param method string
---@param params? table
---@param on_result? fun(result: any)
function M.request(buf, method, params, on_result)
  local client = M.client(buf)
  if client == nil then
    return vim.notify("rlm: no host is attached; see :checkhealth rlm", vim.log.levels.ERROR)
  end
  client:request(method, params or vim.empty_dict(), function(err, result)
    if err then
      vim.notify("rlm: " .. err.message, vim.log.levels.ERROR)
    elseif on_result then
      on_result(result)
    end
  end, buf)
end

--- Run one of the host's commands.
---@param buf integer
---@param name string
---@param arguments any[]
---@param on_result? fun(result: any)
function M.command(buf, name, arguments, on_result)
  M.request(buf, "workspace/executeCommand", { command = name, arguments = arguments }, on_result)
end

return M
