"""Engines that this package hooks itself into. Importing it imports no engine."""
