"""From what a user runs today to a spec and a plan: scripts, argument lists, configurations of frameworks and models.

Nothing that is imported is ever run. `lexer`, `grammar`, `arithmetic`, `patterns`, `variables`, `conditions`,
`printed`, `simple` and `shell` read a script's text as bash would, as far as the text alone decides it. `command`
finds the training command, `scope` says what is refused by name, and `arguments` reads it as argparse would. `model`,
`layer_kinds`, `catalogue_match`, `degrees`, `split`, `recomputation`, `plan`, `training` and `framework` say what the
arguments mean. `formats` knows configuration files by their content; `reading` has what all their readers share, and
`flagscale_files`, `neox_files`, `megatron_files`, `mindformers_files`, `paddle_files` and `torchtitan_files` turn each
into arguments; `deepspeed_file` reads what stands beside a script. `imported` puts a spec and a strategy together,
`accepted` checks the spec and drops a guess that the script proves wrong, and `output` writes them out.

Imports from the rooms before the doors.
"""
