"""Reports: how a kernel uses memory, what its pipelines do, and what a run of the tuner found."""

from __future__ import annotations

from .explain import Explanation, explain
from .layout_picture import render
from .pipeline_chart import PipelineExplanation, explain_pipeline

__all__ = ["Explanation", "PipelineExplanation", "explain", "explain_pipeline", "render"]
