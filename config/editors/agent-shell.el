;; Emacs, agent-shell: acpd before the command of an agent that it knows. The variables of the other agents are named
;; alike; M-x customize-group RET agent-shell lists them.
(setq agent-shell-openai-codex-acp-command '("acpd" "run" "--" "codex-acp"))
