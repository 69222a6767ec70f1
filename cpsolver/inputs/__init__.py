"""Words that everything uses: what is wrong with an input and where, documents with line numbers, files of an answer.

Imports nothing of the other rooms.
"""
