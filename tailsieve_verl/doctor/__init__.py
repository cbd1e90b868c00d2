"""``tailsieve doctor``: is this environment, and this verl command, one in which TailSieve will work?

Nothing here starts Ray or an engine, needs a GPU, or imports verl, torch or vLLM into this process: versions come from
package metadata, signatures from source text, the configuration from Hydra. One check imports verl, in a process of
its own.
"""
