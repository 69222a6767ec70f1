"""What a program or a notebook asks and gets: a question in a line, plans that know their problem, tables, pictures.

Imports from the rooms before the doors, from report, from export and from batch.
"""
