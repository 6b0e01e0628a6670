"""Floor 5: the commands behind `terzetto.cli`, imported when they run."""
