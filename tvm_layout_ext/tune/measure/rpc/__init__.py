"""Measuring on the servers behind a TVM tracker."""
