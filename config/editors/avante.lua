-- Neovim, avante.nvim. It gives a program PATH and what stands in `env`, and nothing else: the agent's own variables
-- (keys, HOME) must be named here, and ACPD_HOME or XDG_DATA_HOME too if you use them.
require("avante").setup({
  provider = "acpd-codex",
  acp_providers = {
    ["acpd-codex"] = {
      command = "acpd",
      args = { "run", "--", "codex-acp" },
      env = {
        HOME = vim.env.HOME,
        OPENAI_API_KEY = vim.env.OPENAI_API_KEY,
      },
    },
  },
})
