"""Inputs that have broken programs before, one module for each kind, with their sources."""
