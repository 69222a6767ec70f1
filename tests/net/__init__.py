"""The net: what the command line answers today to fixed questions, frozen, for changes of structure.

`cases` lists the questions, `answers` asks them and keeps what must not change, `frozen/` has the answers, one file a
kind. `python -m tests.net.freeze` writes them anew; do that only where an answer is meant to change.
"""
