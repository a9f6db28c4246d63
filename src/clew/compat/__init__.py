"""Classes and functions with the names that they have in other agent systems, for users who come from such a system.

Each module is for one system, and does the work with Clew: `clew.compat.stirrup`, `clew.compat.caw`,
`clew.compat.session`, `clew.compat.cortex` and `clew.compat.locus`. `clew.compat.importers` imports the conversations
that such a system has stored. Nothing else in Clew depends on this package.
"""
