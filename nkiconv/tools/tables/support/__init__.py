"""The arguments that each function takes, found by calling the functions: the source of the support tables.

    python -m nkiconv.tools.tables.support docs/support.md

writes the tables between their markers in that file. `arrays` asks the functions of nkiconv, `tensors` those of
nkiconv.pytorch and `convert`.
"""
