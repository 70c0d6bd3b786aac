--- `:checkhealth rlm`
local M = {}

function M.check()
  local health = vim.health
  health.start("rlm")
  if vim.fn.has("nvim-0.11") == 1 then
    health.ok("Neovim " .. tostring(vim.version()))
  else
    health.error("Neovim 0.11 or newer is needed")
  end
  local config = vim.lsp.config.rlm
  local command = config and config.cmd
  if type(command) == "table" and vim.fn.executable(command[1]) == 1 then
    health.ok("the host's command can be run: " .. table.concat(command, " "))
  else
    health.error("the host's command cannot be run", {
      "install rlm-host, or name it: require('rlm').setup({ config = { cmd = { '/path/to/rlm-host' } } })",
    })
  end
  local client = require("rlm.request").client()
  if client == nil then
    return health.warn("no host is attached", { "open a Python file in a project, after require('rlm').setup()" })
  end
  health.ok(("attached: %s %s"):format(client.server_info.name, client.server_info.version))
  local answer = client:request_sync("host/status", vim.empty_dict(), 5000)
  if answer and answer.result then
    local status = answer.result
    health.info(("process %d, %d sessions, %d kernels, home %s"):format(status.pid, status.sessions, status.kernels, status.home))
  else
    health.error("the host does not answer", { ":LspLog shows what it said", ":Rlm start starts another" })
  end
end

return M
