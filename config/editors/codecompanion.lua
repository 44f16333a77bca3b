-- Neovim, CodeCompanion: the adapter of an agent that it knows, with acpd before the agent's command.
-- The other adapters (claude_code, gemini_cli, opencode, goose, ...) are extended in the same way.
require("codecompanion").setup({
  adapters = {
    acp = {
      codex = function()
        return require("codecompanion.adapters").extend("codex", {
          commands = {
            default = { "acpd", "run", "--", "codex-acp" },
          },
        })
      end,
    },
  },
  interactions = {
    chat = { adapter = "codex" },
  },
})
