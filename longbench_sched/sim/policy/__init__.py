"""Schedulers: one file each, all of them the same pure function from a state to the plan of one step."""
