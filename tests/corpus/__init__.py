"""Tools that are right, and tools with one defect each, for the checks to tell apart."""
