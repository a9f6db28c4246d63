"""The commands of `clew`: a module for each, with the command's name.

A command's module is imported when the command is called or a shell completes its words, and never for `clew --help`.
What all calls of a command need is imported at the top of its module. Imports of `clew.agent`, `clew.providers` and
`clew.workspace` stay inside functions: they take 100 to 200 ms, and listings and completion do without them.
"""
