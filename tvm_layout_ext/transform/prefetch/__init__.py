"""Fragments loaded one step before they are multiplied."""
