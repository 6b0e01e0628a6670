"""Floor 4: parts that an agent works without, built on public names only.

Import the one you want: `terzetto.extras.compaction`, `terzetto.extras.budget`,
`terzetto.extras.retry`.
"""
