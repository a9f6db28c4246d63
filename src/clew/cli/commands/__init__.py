"""The commands of `clew`: a module for each, with the command's name.

A command's module is imported when the command is called or a shell completes its words, and never for `clew --help`.
What takes long to import, such as `asyncio`, the stores and the agent, comes through `clew.cli.deferred`, so that the help
and the completion of a command wait for none of it.
"""
