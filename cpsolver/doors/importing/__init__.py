"""From what a user runs today to a spec and a plan: training scripts, argument lists, Hugging Face configurations.

Nothing that is imported is ever run. `lexer`, `arithmetic`, `variables` and `shell` read a script's text as bash would,
as far as that is certain; `arguments` reads the training command as argparse would; `shape`, `split`, `layout`,
`recomputation` and `switches` say what the arguments mean; `imported` puts a spec and a strategy together.
"""
