"""What TVM says of a program that it refuses, in one sentence."""

from __future__ import annotations

import re


def reason(error: Exception) -> str:
    """First line of a TVM diagnostic's message, without the program around it."""
    text = str(error).rpartition("Error message:")[2].strip().removeprefix("ScheduleError: ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = re.sub(r"(tirx|s_tir)\.(\w+)#\d+", r"\2", lines[0] if lines else "")
    return f"{reason.rstrip('.:') or type(error).__name__}."
