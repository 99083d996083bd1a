"""Trials, their log and database, and what is done with them."""
