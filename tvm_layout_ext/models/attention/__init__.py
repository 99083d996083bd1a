"""Attention in Relax modules: found, gathered into one function, and scheduled as one kernel."""
