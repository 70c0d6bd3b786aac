if vim.g.loaded_rlm then
  return
end
vim.g.loaded_rlm = true

local subcommands = {
  run = function(rlm) rlm.run() end,
  above = function(rlm) rlm.above() end,
  all = function(rlm) rlm.all() end,
  interrupt = function(rlm) rlm.interrupt() end,
  restart = function(rlm) rlm.restart() end,
  start = function() require("rlm.restart").start() end,
  tree = function() require("rlm.tree").open() end,
}

vim.api.nvim_create_user_command("Rlm", function(given)
  local run = subcommands[given.args]
  if run == nil then
    return vim.notify("rlm: no such command: " .. given.args, vim.log.levels.ERROR)
  end
  run(require("rlm"))
end, {
  nargs = 1,
  desc = "rlm-host: cells, kernel, sessions",
  complete = function(start)
    local names = vim.tbl_filter(function(name) return vim.startswith(name, start) end, vim.tbl_keys(subcommands))
    table.sort(names)
    return names
  end,
})
