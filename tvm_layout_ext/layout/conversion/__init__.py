"""Conversions between register layouts: shuffles, rounds through shared memory."""
