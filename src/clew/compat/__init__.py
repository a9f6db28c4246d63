"""The names of other systems, for users who come from one of them.

Each module has the names of one system, and does with Clew what its users expect of them: `clew.compat.stirrup`,
`clew.compat.caw`, `clew.compat.session`, `clew.compat.cortex` and `clew.compat.locus`. `clew.compat.importers` brings
the data that such a system has stored. Nothing else in Clew depends on this package.
"""
