"""From what a user runs today to a spec and a plan: training scripts, argument lists, Hugging Face configurations.

Nothing that is imported is ever run. `lexer`, `grammar`, `arithmetic`, `patterns`, `variables`, `conditions`,
`printed`, `simple` and `shell` read a script's text as bash would, as far as the text alone decides it. `command`
finds the training command, `scope` says what is refused by name, and `arguments` reads it as argparse would. `model`,
`layer_kinds`, `catalogue_match`, `degrees`, `split`, `recomputation`, `plan`, `training` and `framework` say what the
arguments mean. `imported` puts a spec and a strategy together, and `output` writes them out.

Imports from the rooms before the doors.
"""
